"""Causes by intervention: change one loss, or the gradient of the loss, and read the difference of the estimate.

An estimate that is linear in the losses is ``ĝ = Σ_i L_i D_i + ĝ(0)``. The loss gets the structures ``z_i``, with scores
``s_i = ∇ log p(z_i)``. These and the ``D_i`` show the wrong part: samples, losses, weights, scores, or a further term.
"""

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import torch
from scipy import optimize
from torch import Tensor

from ...estimators.base import Estimator
from ...estimators.score_function import scores_of
from ...oracles.capabilities import MarginalOracle, SamplingOracle
from .cases import FLAT, PEAKED, USUAL, AuditLoss, Structure, all_structures, off_structures, random_scores, seeded

ROWS = 2048  # estimates at the same scores
MAX_SAMPLES = 32  # losses of one estimate that are changed one by one
TOLERANCE = 1e-6  # relative distance below which rows of estimates are equal
DEVIATIONS = 6.0  # standard errors by which a frequency or a mean must be off
MIN_ESTIMATE = 1e-5  # share of loss times score below which an estimate is rounding, also in single precision

NOTHING = "the estimate is 0 whatever the losses are: the loss is detached, or nothing that depends on the scores multiplies it"
OTHER_LAW = "the samples have another distribution than p: importance weights p/q are missing, or the scores are not those of the samples"
OTHER_SAMPLE = "the loss of a sample is multiplied by the score of another sample"

Change = Callable[[Tensor, list[int], Tensor], Tensor]  # values, numbers of the samples and structures of a call, to other values


def same(first: Tensor, second: Tensor, tolerance: float = TOLERANCE) -> bool:
    """Whether two tensors agree up to a share of their norm."""
    return float((first - second).norm()) <= tolerance * max(float(first.norm()), float(second.norm()), 1e-12)


def fits(columns: Tensor, wanted: Tensor, tolerance: float = TOLERANCE) -> Tensor | None:
    """Coefficients of a least-squares fit; None if it leaves a residual."""
    found = torch.linalg.lstsq(columns, wanted, driver="gelsd").solution
    return found if same(columns @ found, wanted, tolerance) else None


def mean_is_zero(rows: Tensor) -> bool:
    """Whether the mean of independent rows ``[rows, d]`` is 0 up to sampling error."""
    error = rows.std(0) / math.sqrt(len(rows)) + 1e-9 * float(rows.abs().max())
    return bool((rows.mean(0).abs() <= DEVIATIONS * error).all())


class Dissection:
    """Estimates of one structure at repeated scores, and the arguments of the loss."""

    def __init__(self, estimator: Estimator[Any], structure: Structure, regime: float, *, has_count: bool = False) -> None:
        self.estimator, self.structure, self.has_count = estimator, structure, has_count
        self.scores = random_scores(structure, regime, 1, "dissection")[0]
        self.calls: list[list[int]] = []  # numbers of the samples in each call of the loss
        self.differentiated, self.readable = False, True  # whether the loss is, and whether every call has the rows of the scores
        self._shown: list[Tensor] = []
        self._values: list[Tensor] = []
        self.estimate = self.run(record=True)  # [rows, d]
        outside = [off_structures(shown[:64], structure) for shown in self._shown]
        self.inside = [number for number, one in enumerate(outside) if not one]  # numbers of the samples; others are ``points``
        self.size, empty = len(self.inside), torch.empty(0)
        self.samples = torch.stack([self._shown[number] for number in self.inside]) if self.inside else empty  # [N, rows, *event]
        self.losses = torch.stack([self._values[number] for number in self.inside]) if self.inside else empty
        self.points = torch.stack([shown for shown, one in zip(self._shown, outside, strict=True) if one]) if any(outside) else empty

    def run(self, change: Change = lambda values, numbers, z: values, *, record: bool = False) -> Tensor:
        """Flat estimates ``[rows, d]`` with other losses, and the same seed."""
        loss, shape, calls = AuditLoss(self.structure), (ROWS, *self.structure.event), 0

        def call(z: Tensor) -> Tensor:
            nonlocal calls
            values = loss(z)
            if z.shape[-len(shape) :] != shape:
                self.readable = False
                return values
            if record:
                self._record(z.detach().double().reshape(-1, *shape), values)
            calls += 1
            return change(values, self.calls[min(calls, len(self.calls)) - 1], z)

        rows = self.scores.expand(shape).clone()
        return self.estimator.gradient(call, self.structure.oracle, rows, generator=seeded(1, "dissection")).double().flatten(1)

    def _record(self, blocks: Tensor, values: Tensor) -> None:
        """Number the samples of a call. A sample of an earlier call keeps its number: the loss is evaluated again."""
        known, numbers = len(self._shown), []
        for block, value in zip(blocks, values.detach().double().reshape(-1, ROWS), strict=True):
            number = next((number for number in range(known) if torch.equal(self._shown[number], block)), len(self._shown))
            if number == len(self._shown):
                self._shown.append(block)
                self._values.append(value)
            numbers.append(number)
        self.calls.append(numbers)
        if values.requires_grad:
            values.register_hook(lambda _: setattr(self, "differentiated", True))

    @cached_property
    def varies(self) -> Tensor:
        """Whether a sample differs between rows, ``[N]``."""
        return (self.samples != self.samples[:, :1]).flatten(1).any(-1)

    def scores_at(self, temperature: float = 1.0) -> Tensor:
        """``∇_θ log p(z_i; θ / T)``, flat: ``[N, rows, d]``."""
        rows = (self.scores / temperature).expand(ROWS, *self.structure.event)
        return scores_of(self.structure.oracle, self.samples, rows).flatten(2) / temperature

    @cached_property
    def s(self) -> Tensor:
        """``s_i``, ``[N, rows, d]``."""
        return self.scores_at()

    @cached_property
    def log_chances(self) -> Tensor:
        """``log p(z_i)``, ``[N, rows]``."""
        return self.structure.oracle.log_prob(self.samples, self.scores.expand(self.samples.shape))  # type: ignore[no-any-return]

    @cached_property
    def equal(self) -> Tensor:
        """Share of rows in which two different samples are equal, ``[N, N]``; 0 on the diagonal."""
        shares = (self.kinds.unsqueeze(0) == self.kinds.unsqueeze(1)).double().mean(-1)
        return shares - torch.diag(shares.diagonal())

    def rescaled(self, size: float, bend: float = 0.0) -> Tensor:
        """The estimate if losses are multiplied by ``size (1 + bend ⟨w, z⟩)``, with weights from 1 to 2."""
        weights = bend * torch.linspace(1, 2, math.prod(self.structure.event), dtype=torch.float64)
        return self.run(
            lambda values, _, z: size * values * (1 + (z.flatten(z.ndim - len(self.structure.event)) @ weights.to(z)).to(values))
        )

    @cached_property
    def constant(self) -> Tensor:
        """The estimate if all losses are 0, ``[rows, d]``."""
        return self.run(lambda values, numbers, z: 0 * values)

    @cached_property
    def responses(self) -> Tensor:
        """``D_i``, ``[N, rows, d]``: the growth of the estimate if the loss of one sample grows by 1."""

        def raised(sample: int) -> Change:
            def change(values: Tensor, numbers: list[int], z: Tensor) -> Tensor:
                bump = (torch.tensor(numbers) == sample).to(values).unsqueeze(-1)
                return (values.reshape(-1, ROWS) + bump).reshape(values.shape)

            return change

        return torch.stack([self.run(raised(number)) - self.estimate for number in self.inside])

    def moves_with_slopes(self, *, of_sample: bool) -> bool:
        """Whether the mean moves if the gradient of the loss grows, by a constant or by one that depends on the sample.

        The values of the loss stay equal, so that an unbiased estimate has the same mean.
        """
        size = math.prod(self.structure.event)
        weights = torch.linspace(-1, 1, size, dtype=torch.float64).roll(1)
        matrix = torch.randn(size, size, generator=seeded(2, "slopes"), dtype=torch.float64)

        def change(values: Tensor, numbers: list[int], z: Tensor) -> Tensor:
            flat = z.flatten(z.ndim - len(self.structure.event))
            along = (flat * (flat.detach() @ matrix.to(z) if of_sample else weights.to(z))).sum(-1)
            return values + (along - along.detach())

        return self.differentiated and not mean_is_zero(self.run(change) - self.estimate)

    @cached_property
    def own_weights(self) -> Tensor | None:
        """``[N, rows]`` of ``D_i = w_i s_i``; None if a loss has other scores too."""
        weights = (self.responses * self.s).sum(-1) / self.s.square().sum(-1).clamp(min=1e-300)
        return weights if same(weights.unsqueeze(-1) * self.s, self.responses) else None

    @cached_property
    def mixture(self) -> Tensor | None:
        """A of ``D_i = Σ_j A_ij s_j``, equal in all rows; None if there is none."""
        found = fits(self.s.flatten(1).mT, self.responses.flatten(1).mT)
        return None if found is None else found.mT

    @cached_property
    def kinds(self) -> Tensor:
        """Which structure each sample is, ``[N, rows]``."""
        structures = all_structures(self.structure).flatten(1)
        code = torch.randn(structures.shape[1], generator=seeded(3, "code"), dtype=torch.float64)
        known, order = (structures @ code).sort()
        return order[torch.searchsorted(known, self.samples.flatten(2) @ code - 1e-9).clamp(max=len(known) - 1)]

    @cached_property
    def chances(self) -> Tensor:
        """The probability of each structure."""
        structures = all_structures(self.structure)
        return self.structure.oracle.log_prob(structures, self.scores.expand(structures.shape)).exp()  # type: ignore[no-any-return]

    def counts(self, weights: Tensor | None = None) -> Tensor:
        """Number of times that each structure is a sample, or its total weight in all estimates."""
        every = torch.ones(self.kinds.shape, dtype=torch.float64) if weights is None else weights
        return torch.zeros_like(self.chances).index_add_(0, self.kinds.flatten(), every.flatten())

    def follow_p(self, chosen: Tensor) -> bool:
        """Whether some random samples have the frequencies of p. Samples of one estimate may depend on each other, rows do not."""
        chosen, random = chosen & self.varies, int((chosen & self.varies).sum())
        seen = torch.bincount(self.kinds[chosen].flatten(), minlength=len(self.chances)).double()
        due = self.chances * random * ROWS
        return random > 0 and float(((seen - due).abs() / (random * due.clamp(min=1.0)).sqrt()).max()) < DEVIATIONS

    def depend(self, first: int, second: int) -> bool:
        """Whether two samples of an estimate depend on each other."""
        count = len(self.chances)
        joint = torch.bincount(self.kinds[first] * count + self.kinds[second], minlength=count**2).reshape(count, count).double()
        due = joint.sum(1, keepdim=True) * joint.sum(0) / ROWS
        return float(((joint - due).abs() / due.clamp(min=1.0).sqrt()).max()) > 2 * DEVIATIONS


def cause_by_intervention(estimator: Estimator[Any], structure: Structure, *, has_count: bool) -> str:
    """The proven cause of a wrong mean, or nothing. With ``has_count``, factors of the number of samples were tested already."""
    for regime in (FLAT, USUAL, PEAKED) if isinstance(structure.oracle, SamplingOracle) else ():
        found = Dissection(estimator, structure, regime, has_count=has_count)
        if not found.calls or not found.readable:
            break
        if cause := next(_causes(found), ""):
            return cause
    return ""


def _causes(found: Dissection) -> Iterator[str]:
    """Proven causes. Only the first one is reported, so that each may rely on those before it."""
    yield from _without_response(found) if found.size else _relaxed(found)
    if found.size > MAX_SAMPLES:
        return
    for cause in (_precision, _further_term, _transformed, _own_mass, _not_detached, _slopes):
        yield from cause(found)
    if same((found.losses.unsqueeze(-1) * found.responses).sum(0) + found.constant, found.estimate):  # linear in the losses
        for cause in (_other_distribution, _mixture, _other_score, _fitted):
            yield from cause(found)
    elif not found.differentiated:
        yield "the estimate is no sum over samples: their losses decide which of them count, as a maximum, a median or the best k do"


def _slope(function: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    leaf = scores.detach().clone().requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(function(leaf), leaf)[0].flatten()


def _relaxed(found: Dissection) -> Iterator[str]:
    if not bool(found.estimate.any()):
        yield NOTHING
    oracle, loss = found.structure.oracle, AuditLoss(found.structure)
    if isinstance(oracle, MarginalOracle):
        slope = _slope(lambda scores: loss(oracle.marginals(scores)), found.scores)
        if same(slope.expand_as(found.estimate), found.estimate):
            yield "the estimate is the gradient of the loss at the marginals: L(E z) in place of E L(z), where samples are due"
    if found.differentiated:
        yield "the loss is differentiated at points between the structures: the mean is that of a relaxed loss, not of the loss of samples"
    for count in range(2, 17):
        if same((count * found.points).round(), count * found.points, 1e-9):
            yield f"the loss is evaluated between the structures, at a mean of {count} samples: L(mean z) in place of the mean of L(z)"
    yield "the loss is evaluated between the structures alone: the mean is that of another loss, not of the loss of samples"


def _without_response(found: Dissection) -> Iterator[str]:
    numbers, moving = [number for call in found.calls for number in call], bool(found.estimate.any())
    repeats = len(numbers) > len(set(numbers))  # the loss gets a sample in two calls
    if bool(((found.equal == 1) & found.varies).any()) or (found.varies.any() and not moving and repeats):
        yield "two samples of one estimate are the same in every row: the same noise is used twice, where independent draws are due"
    size, wanted = float(found.estimate.abs().max()), float(found.losses.abs().max() * found.s.abs().max())
    if 0 < size < MIN_ESTIMATE * wanted:
        yield "the estimate is 0 up to rounding: the baseline is fitted to the losses of the same samples, and leaves nothing of them"
    if not moving and found.differentiated:
        yield "the gradient of the loss does not reach the scores: is a straight-through sample written hard + soft − soft.detach()?"
    if not moving:
        yield NOTHING
    if found.size <= MAX_SAMPLES and found.differentiated and float(found.responses.abs().max()) < TOLERANCE * size:
        yield "made of the gradient of the loss alone, as a straight-through estimate: biased for other than linear losses"


def _unmoved(found: Dissection, bend: float) -> float:
    """Share of the numbers of an estimate that a small change of the losses leaves equal."""
    moves = found.estimate.abs() > 1e-9 * found.estimate.abs().max()
    return float((moves & (found.rescaled(1, bend) == found.estimate)).sum() / moves.sum())


def _precision(found: Dissection) -> Iterator[str]:
    for bend, name in ((1e-5, "float16 or bfloat16"), (1e-9, "float32")):
        if _unmoved(found, bend) > 0.5 > _unmoved(found, 0.03):
            yield f"losses that differ by a factor of 1 + {bend:g} give the same estimate: it is computed in {name}"


def _further_term(found: Dissection) -> Iterator[str]:
    constant, oracle = found.constant, found.structure.oracle
    if same(constant, found.estimate):
        yield "the estimate does not depend on the losses: the score-function term is missing, or the losses in it are detached"
    if float(constant.abs().max()) < TOLERANCE * float(found.estimate.abs().max()) or mean_is_zero(constant):
        return
    terms = {"weight decay": found.scores.flatten()}
    if isinstance(oracle, MarginalOracle):
        terms["the gradient of the entropy"] = _slope(oracle.entropy, found.scores)
    for name, term in terms.items():
        along = ((constant.mean(0) @ term) / (term @ term) * term).expand_as(constant)
        if same(along, constant) or mean_is_zero(constant - along):
            yield f"a term of the estimate does not depend on the losses: {name} is added to the gradient"
    if not same(constant, constant[:1].expand_as(constant)):
        yield "a random term without losses has a mean: that of the control variate that is subtracted from them, and it is not put back"
    yield "a term of the estimate does not depend on the losses: a bonus or a penalty is added to the gradient"


def _transformed(found: Dissection) -> Iterator[str]:
    start = found.constant
    tiny, one, large, larger = (found.rescaled(size) - start for size in (1e-4, 1, 1e6, 2e6))
    if same(1e4 * tiny, one, 1e-3) and same(larger, 2 * large, 1e-3):
        return
    saturated = same(large, larger, 1e-3)
    if saturated and same(large, found.rescaled(1e6, 1e-4) - start):  # it does not change with the ratios of the losses
        if bool(large.any()) and same(tiny, large, 1e-3):
            yield "the estimate does not grow with the losses: they are replaced by their ranks or signs"
        yield "the estimate stops growing with the losses: losses or advantages are clipped"
    if same(larger, 2 * large, 1e-3) and _unmoved(found, 1e-4) > 0.5:
        yield "small changes of the losses change nothing: losses or advantages are rounded"
    bends = (found.rescaled(0.02) - 2 * found.rescaled(0.01) + start).abs().amax(-1) > 1e-9 * found.estimate.abs().max()
    if float(bends.double().mean()) < 0.5:
        yield "the estimate is linear in small losses, and not in greater ones: losses, advantages or the gradient are clipped"
    if saturated and same(one, found.rescaled(2) - start, 0.05):
        yield "the estimate does not grow with the losses: advantages are divided by their standard deviation, or by another norm"
    for power in (0.5, 2, 3):
        if same(larger, 2**power * large, 1e-2):
            yield f"the estimate is not linear in the losses: they are transformed, for large losses as L^{power:g}"
    yield "the estimate is not linear in the losses: they are transformed before the score multiplies them"


def _own_mass(found: Dissection) -> Iterator[str]:
    """Sums over a set of distinct structures, divided by its mass, row by row."""
    if found.size < 2 or bool(found.equal.any()):
        return
    chances, own = found.log_chances.exp(), found.log_chances.softmax(0)

    def weighted(values: Tensor) -> bool:
        return same((values.unsqueeze(-1) * found.s).sum(0), found.estimate)

    if float(chances.sum(0).max()) <= 1 - TOLERANCE and weighted(chances * found.losses):
        yield "the sum goes over a set of structures, weighted by p(z): what lies outside the set is left out"
    elif weighted(own * found.losses) or weighted(own * (found.losses - (own * found.losses).sum(0))):
        yield "the losses of a set are weighted by p(z) / p(set): the set is normalised by its own mass"


def _not_detached(found: Dissection) -> Iterator[str]:
    """``ĝ − w Σ L_i s_i`` is ``Σ (u s_i + v log p(z_i))`` with one v, which is the gradient of a baseline."""
    inside, d = found.varies.nonzero().flatten(), found.estimate.shape[-1]
    if len(torch.unique(found.estimate, dim=0)) * (d - 1) < 2 * (d + 2):  # some direction fits a few rows
        return
    s, wanted = found.s[inside], found.estimate.reshape(-1, 1)
    weighted = (found.losses[inside].unsqueeze(-1) * s).sum(0)
    own = (found.log_chances[inside].sum(0).reshape(-1, 1, 1) * torch.eye(d, dtype=torch.float64)).reshape(-1, d)
    short = torch.stack([weighted.flatten(), s.sum(0).flatten()], 1)
    if fits(torch.cat([short, own], 1), wanted) is not None and fits(short, wanted, 1e-4) is None:
        yield "log p(z) times a fixed direction is part of the estimate: the gradient of a baseline, which is not detached"


def _slopes(found: Dissection) -> Iterator[str]:
    if found.moves_with_slopes(of_sample=False):
        yield "the mean moves with the gradient of the loss: the mean of a control variate is not put back, or a pathwise term is added"
    elif found.moves_with_slopes(of_sample=True):
        yield "the slope of the control variate of a sample includes that of the sample itself: take those of the others"


def _other_distribution(found: Dissection) -> Iterator[str]:
    """Samples are not from p, or depend on each other, and their weights do not correct that."""
    mixture, own = found.mixture, found.own_weights
    if not bool(found.varies.any()) and bool((found.responses != found.responses[:, :1]).any()):
        yield "the loss is evaluated at a fixed structure, such as the argmax, and multiplied by the scores of another structure"
    never_repeat = found.size > 1 and float(found.equal.max()) == 0 and float(found.chances.square().sum()) * ROWS > 100
    if never_repeat and bool(found.varies.all()) and mixture is not None:
        yield "samples of one estimate never repeat: they are drawn without replacement, and weighted as if drawn with"
    if own is not None and not same(own, own[:1, :1].expand_as(own)):
        yield from _weights(found, own)
    elif mixture is not None:
        used = mixture.abs() > TOLERANCE
        if not found.follow_p(used.any(0)):
            yield OTHER_LAW
        if any(found.depend(i, j) for i, j in used.nonzero().tolist() if i != j and bool(found.varies[[i, j]].all())):
            yield "a sample and that of its baseline depend on each other: the same noise is used twice, where independent draws are due"


def _weights(found: Dissection, own: Tensor) -> Iterator[str]:
    seen, chances = found.counts(), found.chances
    weights = found.counts(own) / seen.clamp(min=1) * found.size
    of_structure = same(weights[found.kinds] / found.size, own)
    if of_structure and bool(found.varies.all()) and not found.follow_p(found.varies):
        yield from _importance(chances * found.size * ROWS, seen, weights)
    mean, error = found.counts(own) / ROWS, DEVIATIONS * (found.counts(own**2) * found.size).sqrt() / ROWS + 1e-9
    if bool(((mean - chances).abs() <= error).all()):
        return
    if same(found.size * own, found.log_chances.exp()):
        yield "the loss is multiplied by the gradient of p(z), where that of log p(z) is due"
    if found.size > 1 and same(own.sum(0), torch.ones_like(own[0])):
        yield "weights of samples are divided by their sum: such a ratio is biased, and that of the sums of several batches less so"
    worst = int(((mean - chances).abs() / error).argmax())
    if of_structure:
        yield f"the weights of the samples are wrong: {mean[worst]:.3g} in the mean for a structure of probability {chances[worst]:.3g}"


def _importance(due: Tensor, seen: Tensor, weights: Tensor) -> Iterator[str]:
    ratio, least, most, error = due / seen.clamp(min=1), float(weights.min()), float(weights.max()), DEVIATIONS / seen.clamp(min=1).sqrt()
    ranges = f"they go from {least:.3g} to {most:.3g}, and p/q from {ratio.min():.3g} to {ratio.max():.3g}"
    x, y = ratio.log(), weights.clamp(min=1e-12).log()
    power = round(2 * float(x @ y / x.square().sum())) / 2
    if power != 1 and bool(((y - power * x).abs() < (abs(power) + 1) * error).all()):
        said = {-1.0: "inverted", 2.0: "multiplied twice"}.get(power, f"taken to the power {power:g}")
        yield f"importance weights p/q are {said}: {ranges}"
        return
    high, low = (weights > (1 - TOLERANCE) * most), (weights < (1 + TOLERANCE) * least)
    beyond = (high & (ratio > most * (1 + error))) | (low & (ratio < least * (1 - error)))
    if bool((((weights / ratio - 1).abs() < error) | high | low).all()) and (
        bool(beyond.any()) or max(int(high.sum()), int(low.sum())) > 1
    ):
        yield f"importance weights are clipped: {ranges}"


def _mixture(found: Dissection) -> Iterator[str]:
    """The factor of each loss is one mixture of the scores in all rows."""
    n, mixture = found.size, found.mixture
    if mixture is None or n == 1:
        return
    own, others = mixture.diagonal(), mixture - torch.diag(mixture.diagonal())
    flat, known, zero = torch.full((n,), 1 / n, dtype=torch.float64), f"with N = {n}", own.abs() < TOLERANCE
    share = -float(others.sum()) / (n - 1) * n
    is_whole = abs(share - 1) < 1e-6
    includes_own = abs(share) > 1e-4 and same(mixture, (torch.eye(n).to(own) - share / n) / n) and not (found.has_count and is_whole)
    if same(mixture, torch.full_like(mixture, 1 / n**2)):
        yield "the product of the mean of the losses and the mean of the scores: each loss needs the score of its own sample"
    if not found.has_count and same(own, flat * n):
        yield f"gain {n} = N {known}: the samples are summed, not averaged"
    if includes_own:
        factor = "(N − 1)/N" if is_whole else f"1 − {share:.3g}/N"
        yield f"gain {1 - share / n:.4g} = {factor} {known}: the baseline of a sample includes the sample itself"
    if not found.has_count and same(own, flat / n):
        or_parts = f", or a mean over the {n} parts of an event" if n == math.prod(found.structure.event) else ""
        yield f"gain {1 / n:.4g} = 1/N {known}: the mean over the samples is taken twice{or_parts}"
    if not found.has_count and same(own, flat * n / (n - 1)):
        yield f"gain {n / (n - 1):.4g} = N/(N − 1) {known}: the sum is divided by N − 1, or its correction is made twice"
    if 0 < int(zero.sum()) < n and same(own[~zero], flat[~zero]):
        left_out = ", ".join(str(number) for number in (zero.nonzero().flatten() + 1).tolist())
        yield f"the score of sample {left_out} of {n} is left out, and the sum is still divided by {n}"
    if float(own.sum()) < 0.5 and float(others.max()) > float(own.max()) + 0.5 / n:
        yield OTHER_SAMPLE


def _other_score(found: Dissection) -> Iterator[str]:
    if found.mixture is not None or found.own_weights is not None:
        return
    # Whether the factor of a loss is, in the mean, not along the score of its own sample.
    along = (found.responses * found.s).sum(-1) / found.s.square().sum(-1).clamp(min=1e-300)
    if float(along.mean().abs()) < min(DEVIATIONS * float(along.std()) / math.sqrt(ROWS), 0.1 / found.size):
        yield f"{OTHER_SAMPLE}: the mean is 0 whatever the loss"
    if not bool(found.varies.all()) or not found.follow_p(found.varies):
        return

    def residual(log_temperature: float) -> float:
        columns = found.scores_at(math.exp(log_temperature))[:, :256].flatten(1).mT
        wanted = found.responses[:, :256].flatten(1).mT
        fit = columns @ torch.linalg.lstsq(columns, wanted, driver="gelsd").solution
        return float((fit - wanted).norm() / wanted.norm())

    best = optimize.minimize_scalar(residual, bounds=(-3, 3), method="bounded", options={"xatol": 1e-10})
    if best.fun < 1e-4:
        yield f"the score of a sample is that of the temperature {math.exp(best.x):.3g}: samples and log-probabilities have different ones"
    centres = found.samples.flatten(2) - found.size * found.responses
    if same(centres, centres[:1, :1].expand_as(centres)):
        yield "the score of a sample is z − c, and c is not the marginals μ of these scores: it is not centred"
    which = torch.nn.functional.one_hot(found.kinds, len(found.chances)).double()
    # A baseline of other samples cancels in differences.
    columns, wanted = (which[0], found.responses[0]) if found.size == 1 else (which[0] - which[1], found.responses[0] - found.responses[1])
    if fits(columns, wanted) is not None:
        yield "the loss of a sample is multiplied by another vector than its score ∇ log p(z): log-probabilities are not those of p"


def _fitted(found: Dissection) -> Iterator[str]:
    """The weight of a sample's own score depends on the other samples, and is too small in the mean."""
    scaled, seen = found.size * found.responses, found.counts().clamp(min=1)
    if found.size < 2 or found.mixture is not None:
        return
    if (weights := found.own_weights) is not None and same((found.counts(weights) / seen)[found.kinds], weights):
        return  # of the sample alone: no baseline
    some, wanted = found.s[:, :256].movedim(0, -1), scaled[:, :256].movedim(0, -1)
    pairs = any(found.depend(i, j) for i in range(found.size) for j in range(i))
    if not same(some @ torch.linalg.pinv(some, rtol=1e-9) @ wanted, wanted) or pairs or not found.follow_p(found.varies):
        return
    own, got = (
        torch.zeros(len(seen), some.shape[1], dtype=torch.float64).index_add_(0, found.kinds.flatten(), each.flatten(0, 1))
        for each in (found.s, scaled)
    )
    square = float((own * own / seen.unsqueeze(-1)).sum())
    spread = float((scaled - found.s).flatten(0, 1).square().sum()) / found.kinds.numel()
    missing = 1 - float((got * own / seen.unsqueeze(-1)).sum()) / square
    if missing > DEVIATIONS * math.sqrt(spread / square * found.size):
        weight = f"{1 - missing:.2g}/N in the mean, where 1/N is due"
        yield f"the baseline of a sample is fitted to the loss of the sample itself too: its score has a weight of {weight}"
