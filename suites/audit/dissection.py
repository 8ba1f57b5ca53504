"""Causes by intervention: change one loss, or the gradient of the loss, and read the difference of the estimate.

An estimate that is linear in the losses is ``ĝ = Σ_i L_i D_i + ĝ(0)``. The loss gets the structures ``z_i``, with scores
``s_i = ∇ log p(z_i)``. These and the ``D_i`` show the wrong part: samples, losses, weights, scores, or a further term.
This runs only if a mean is proven wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from scipy import optimize
from torch import Tensor

from ...estimators.base import Estimator
from ...estimators.noise import SmoothNoise
from ...estimators.score_function.reinforce import scores_of
from ...oracles.capabilities import MarginalOracle, SamplingOracle
from .cases import FLAT, PEAKED, USUAL, AuditLoss, Structure, all_structures, off_structures, random_scores, seeded

ROWS = 2048
"""Estimates at the same scores."""

TOLERANCE = 1e-6
"""Relative distance below which rows of estimates are equal."""

MAX_SAMPLES = 32
"""Losses of one estimate that are changed one by one."""

DEVIATIONS = 6.0
"""Standard errors by which a frequency or a mean must be off."""

MIN_ESTIMATE = 1e-5
"""Share of loss times score below which an estimate is rounding, also in single precision."""

Change = Callable[[Tensor, list[int], Tensor], Tensor]
"""``(values, numbers of the samples, structures)`` of one call of the loss, to other values."""


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


@dataclass(eq=False)
class Dissection:
    """Estimates of one structure at repeated scores.

    Args:
        estimator: an estimator with equal numbers for equal seeds.
        structure: a small one.
        scores: ``[*event]``.
    """

    estimator: Estimator[Any]
    structure: Structure
    scores: Tensor

    def __post_init__(self) -> None:
        self._shown: list[Tensor] = []
        self._values: list[Tensor] = []
        self._calls: list[list[int]] = []
        self.differentiated, self.readable = False, True
        self.estimate = self.run(record=True)
        inside = [not off_structures(shown[:64], self.structure) for shown in self._shown]
        self.inside = [number for number, one in enumerate(inside) if one]
        self.outside = [number for number, one in enumerate(inside) if not one]

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
            return change(values, self._calls[min(calls, len(self._calls)) - 1], z)

        rows = self.scores.expand(shape).clone()
        return self.estimator.gradient(call, self.structure.oracle, rows, generator=seeded(1, "dissection")).double().flatten(1)

    def _record(self, blocks: Tensor, values: Tensor) -> None:
        """Number the samples of a call. A sample of an earlier call keeps its number: the loss is evaluated again."""
        known, numbers = len(self._shown), []
        for block, value in zip(blocks, values.detach().double().reshape(-1, ROWS), strict=True):
            number = next((number for number in range(known) if torch.equal(self._shown[number], block)), None)
            if number is None:
                number = len(self._shown)
                self._shown.append(block)
                self._values.append(value)
            numbers.append(number)
        self._calls.append(numbers)
        if values.requires_grad:
            values.register_hook(lambda _: setattr(self, "differentiated", True))

    @cached_property
    def samples(self) -> Tensor:
        """Structures that the loss gets, ``[N, rows, *event]``."""
        return torch.stack([self._shown[number] for number in self.inside])

    @cached_property
    def points(self) -> Tensor:
        """Points between the structures that the loss gets, ``[n, rows, *event]``."""
        return torch.stack([self._shown[number] for number in self.outside])

    @cached_property
    def losses(self) -> Tensor:
        """``[N, rows]``."""
        return torch.stack([self._values[number] for number in self.inside])

    @property
    def size(self) -> int:
        """Losses of structures in one estimate."""
        return len(self.inside)

    @cached_property
    def varies(self) -> Tensor:
        """Whether a sample differs between rows, ``[N]``."""
        return (self.samples != self.samples[:, :1]).flatten(1).any(-1)

    def directions(self, temperature: float = 1.0) -> Tensor:
        """``∇_θ log p(z_i; θ / T)``, flat: ``[N, rows, d]``."""
        rows = (self.scores / temperature).expand(ROWS, *self.structure.event)
        return scores_of(self.structure.oracle, self.samples, rows).flatten(2) / temperature

    @cached_property
    def log_chances(self) -> Tensor:
        """``[N, rows]``."""
        found: Tensor = self.structure.oracle.log_prob(self.samples, self.scores.expand(self.samples.shape))
        return found

    @cached_property
    def equal(self) -> Tensor:
        """Share of rows in which two different samples are equal, ``[N, N]``; 0 on the diagonal."""
        flat = self.samples.flatten(2)
        shares = (flat.unsqueeze(0) == flat.unsqueeze(1)).all(-1).double().mean(-1)
        return shares - torch.diag(shares.diagonal())

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

    def slope_response(self, *, of_sample: bool) -> Tensor:
        """Growth of the estimate ``[rows, d]`` if the gradient of the loss grows, by a constant or by one that depends on the sample.

        The values of the loss stay equal, so that an unbiased estimate has the same mean.
        """
        size = math.prod(self.structure.event)
        weights = torch.linspace(-1, 1, size, dtype=torch.float64).roll(1)
        matrix = torch.randn(size, size, generator=seeded(2, "slopes"), dtype=torch.float64)

        def change(values: Tensor, numbers: list[int], z: Tensor) -> Tensor:
            flat = z.flatten(z.ndim - self.structure.ndim)
            field = flat.detach() @ matrix.to(z) if of_sample else weights.to(z).expand_as(flat)
            along = (flat * field).sum(-1)
            return values + (along - along.detach())

        return self.run(change) - self.estimate

    @cached_property
    def own_weights(self) -> Tensor | None:
        """``[N, rows]`` of ``D_i = w_i s_i``; None if a loss has other scores too."""
        directions = self.directions()
        weights = (self.responses * directions).sum(-1) / directions.square().sum(-1).clamp(min=1e-300)
        return weights if same(weights.unsqueeze(-1) * directions, self.responses) else None

    @cached_property
    def linear(self) -> bool:
        """Whether the estimate is ``Σ L_i D_i + ĝ(0)``."""
        return same((self.losses.unsqueeze(-1) * self.responses).sum(0) + self.constant, self.estimate)

    def mixture(self, directions: Tensor) -> Tensor | None:
        """A of ``D_i = Σ_j A_ij s_j``, equal in all rows; None if there is none."""
        found = fits(directions.flatten(1).mT, self.responses.flatten(1).mT)
        return None if found is None else found.mT

    @cached_property
    def kinds(self) -> tuple[Tensor, Tensor]:
        """Which structure each sample is, ``[N, rows]``, and ``p(z)`` of every structure."""
        structures = all_structures(self.structure)
        chances = self.structure.oracle.log_prob(structures, self.scores.expand(structures.shape)).exp()
        code = torch.randn(structures[0].numel(), generator=seeded(3, "code"), dtype=torch.float64)
        known, order = (structures.flatten(1) @ code).sort()
        places = torch.searchsorted(known, self.samples.flatten(2) @ code - 1e-9).clamp(max=len(known) - 1)
        return order[places], chances

    def counts(self, weights: Tensor | None = None) -> Tensor:
        """Number of times that each structure is a sample, or its total weight in all estimates."""
        numbers, chances = self.kinds
        every = torch.ones(numbers.shape, dtype=torch.float64) if weights is None else weights
        return torch.zeros_like(chances).index_add_(0, numbers.flatten(), every.flatten())


def cause_by_intervention(estimator: Estimator[Any], structure: Structure, *, has_count: bool) -> tuple[str, tuple[str, ...]]:
    """The cause of a wrong mean of the expected loss, else the two most likely ones.

    Args:
        estimator: with a wrong mean.
        structure: a small one.
        has_count: whether the number of samples is an option, so that factors of it were already tested.
    """
    likely: tuple[str, ...] = ()
    if isinstance(structure.oracle, SamplingOracle):
        for scale in (FLAT, USUAL, PEAKED):
            found = Dissection(estimator, structure, random_scores(structure, scale, 1, "dissection")[0])
            if not found._shown or not found.readable:
                return "", ()
            cause = next(_causes(found, has_count=has_count), "")
            if cause:
                return cause, ()
            likely = likely or tuple(_likely(found))[:2]
    return "", likely


def cause_of_noise(estimator: Estimator[Any], structure: Structure, noise: SmoothNoise) -> str:
    """Whether the structures that the loss gets are those of the noise at another scale; empty if not."""

    def shares(structures: Tensor) -> Tensor:
        flat = structures.reshape(-1, 1, *structure.event).double()
        return (flat == all_structures(structure)).flatten(2).all(-1).double().mean(0)

    for regime in (FLAT, USUAL):
        found = Dissection(estimator, structure, random_scores(structure, regime, 1, "dissection")[0])
        if not found.inside or found.outside:
            return ""
        rows = found.scores.expand(16 * ROWS, *structure.event)
        drawn = noise.draw(structure.oracle, rows, generator=seeded(3, "dissection"))
        shown, scales = shares(found.samples), torch.logspace(-1, 1, 41, base=4, dtype=torch.float64).tolist()
        distances = [float((shares(structure.oracle.argmax(rows + scale * drawn)) - shown).abs().max()) for scale in scales]
        best = min(range(len(scales)), key=lambda index: distances[index])
        if distances[best] < 0.03 < distances[len(scales) // 2]:
            return f"the structures are those of noise {scales[best]:.2g} times as large: is it multiplied by its scale twice, or never?"
    return ""


_NOTHING = "the estimate is 0 whatever the losses are: the loss is detached, or nothing that depends on the scores multiplies it"


def _causes(found: Dissection, *, has_count: bool) -> Iterator[str]:
    """Proven causes; the first one is reported."""
    if not found.inside:
        yield from _relaxed(found)
        return
    numbers = [number for call in found._calls for number in call]
    repeats = len(numbers) > len(set(numbers))  # the loss gets a sample in two calls
    if bool(((found.equal == 1) & found.varies).any()) or (found.varies.any() and not bool(found.estimate.any()) and repeats):
        yield "two samples of one estimate are the same in every row: the same noise is used twice, where independent draws are due"
        return
    size, wanted = float(found.estimate.abs().max()), float(found.losses.abs().max() * found.directions().abs().max())
    if 0 < size < MIN_ESTIMATE * wanted:
        yield "the estimate is 0 up to rounding: the baseline is fitted to the losses of the same samples, and leaves nothing of them"
        return
    if size == 0:
        if found.differentiated:
            yield "the gradient of the loss does not reach the scores: is a straight-through sample written hard + soft − soft.detach()?"
        yield _NOTHING
        return
    if found.size > MAX_SAMPLES:
        return
    if found.differentiated and float(found.responses.abs().max()) < TOLERANCE * size:
        yield "made of the gradient of the loss alone, as a straight-through estimate: biased for other than linear losses"
        return
    yield from _precision(found)
    yield from _further_term(found)
    yield from _transformed(found)
    yield from _own_mass(found)
    yield from _not_detached(found)
    yield from _slopes(found)
    if found.linear:
        yield from _other_distribution(found)
        yield from _mixture(found, has_count=has_count)
        yield from _other_score(found)
        yield from _fitted(found)
    elif not found.differentiated:
        yield "the estimate is no sum over samples: their losses decide which of them count, as a maximum, a median or the best k do"


def _likely(found: Dissection) -> Iterator[str]:
    """Components that are unusual, the most unusual first: no proof that they are wrong."""
    if not found.inside or found.size > MAX_SAMPLES:
        return
    if not found.linear:
        yield "the estimate is not linear in the losses: losses or advantages are transformed"
    if not _right_frequencies(found) or (found.size > 1 and not _independent(found)):
        yield "the samples of an estimate are not independent draws from p, and their weights do not correct that"
    mixture = found.mixture(found.directions())
    if mixture is None and found.own_weights is None:
        yield "the losses of other samples change the weight of a sample: a baseline or a normaliser that depends on its own loss"
    if mixture is not None and found.linear:
        yield from _factor(float(mixture.trace()), math.prod(found.structure.event))
    if found.differentiated:
        yield "the gradient of the loss is part of the estimate: its terms do not cancel in the mean"


def _factor(gain: float, parts: int) -> Iterator[str]:
    """Where a factor on everything may come from."""
    for value, name in ((parts, "parts of an event"), (2, "terms"), (ROWS, "rows of the batch")):
        if abs(gain * value - 1) < 1e-4:
            yield f"gain {gain:.4g} = 1/{value}: a mean over {value} {name}, where a sum is due"
        if abs(gain / value - 1) < 1e-4:
            yield f"gain {gain:g}: a sum over {value} {name}, where a mean is due"
    if abs(gain - 1) > 1e-4:
        yield f"gain {gain:.4g}: a constant factor on every term, such as the weight of a loss or a learning rate"


def _relaxed(found: Dissection) -> Iterator[str]:
    """The loss gets points between the structures only."""
    if float(found.estimate.abs().max()) == 0:
        yield _NOTHING
        return
    oracle, loss = found.structure.oracle, AuditLoss(found.structure)
    if isinstance(oracle, MarginalOracle):
        leaf = found.scores.detach().clone().requires_grad_()
        with torch.enable_grad():
            marginals = oracle.marginals(leaf)
            (slope,) = torch.autograd.grad(loss(marginals), leaf)
        if same(slope.flatten().expand_as(found.estimate), found.estimate):
            yield "the estimate is the gradient of the loss at the marginals: L(E z) in place of E L(z), where samples are due"
            return
    if found.differentiated:
        yield "the loss is differentiated at points between the structures: the mean is that of a relaxed loss, not of the loss of samples"
    for count in range(2, 17):
        if same((count * found.points).round(), count * found.points, 1e-9):
            yield f"the loss is evaluated between the structures, at a mean of {count} samples: L(mean z) in place of the mean of L(z)"
            return
    yield "the loss is evaluated between the structures alone: the mean is that of another loss, not of the loss of samples"


def _bent(found: Dissection, size: float, weights: Tensor) -> Change:
    """Losses times ``size (1 + ⟨weights, z⟩)``."""

    def change(values: Tensor, numbers: list[int], z: Tensor) -> Tensor:
        return size * values * (1 + (z.flatten(z.ndim - found.structure.ndim) @ weights.to(z)).to(values))

    return change


def _unmoved(found: Dissection, size: float) -> float:
    """Share of the numbers of an estimate that a small change of the losses leaves equal."""
    moves = found.estimate != 0
    weights = size * torch.linspace(1, 2, math.prod(found.structure.event), dtype=torch.float64)
    return float((moves & (found.run(_bent(found, 1, weights)) == found.estimate)).sum() / moves.sum())


def _precision(found: Dissection) -> Iterator[str]:
    """Small changes of losses change nothing."""
    for size, name in ((1e-5, "float16 or bfloat16"), (1e-9, "float32")):
        if _unmoved(found, size) > 0.5 > _unmoved(found, 0.03):
            yield f"losses that differ by a factor of 1 + {size:g} give the same estimate: it is computed in {name}"
            return


def _further_term(found: Dissection) -> Iterator[str]:
    """The estimate without losses."""
    constant = found.constant
    if same(constant, found.estimate):
        yield "the estimate does not depend on the losses: the score-function term is missing, or the losses in it are detached"
        return
    if float(constant.abs().max()) < TOLERANCE * float(found.estimate.abs().max()) or mean_is_zero(constant):
        return
    if not same(constant, constant[:1].expand_as(constant)):
        yield "a random term without losses has a mean: that of the control variate that is subtracted from them, and it is not put back"
        return
    oracle, names = found.structure.oracle, {"weight decay": found.scores.flatten()}
    if isinstance(oracle, MarginalOracle):
        leaf = found.scores.detach().clone().requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(oracle.entropy(leaf), leaf)
        names["the gradient of the entropy"] = slope.flatten()
    close = [name for name, one in names.items() if abs(float(torch.cosine_similarity(one, constant[0], dim=0))) > 1 - 1e-6]
    yield f"a term of the estimate does not depend on the losses: {close[0] if close else 'a bonus or a penalty'} is added to the gradient"


def _transformed(found: Dissection) -> Iterator[str]:
    """Losses of another scale."""
    start, weights = found.constant, torch.linspace(0, 1e-4, math.prod(found.structure.event), dtype=torch.float64)

    def scaled(size: float, bend: float = 0.0) -> Tensor:
        return found.run(_bent(found, size, bend * weights)) - start

    tiny, one, large, larger = scaled(1e-4), found.estimate - start, scaled(1e6), scaled(2e6)
    if same(1e4 * tiny, one, 1e-3) and same(larger, 2 * large, 1e-3):
        return
    saturated = same(large, larger, 1e-3)
    if saturated and same(large, scaled(1e6, 1.0)):  # it does not change with the ratios of the losses
        if bool(large.any()) and same(tiny, large, 1e-3):
            yield "the estimate does not grow with the losses: they are replaced by their ranks or signs"
        yield "the estimate stops growing with the losses: losses or advantages are clipped"
    if same(larger, 2 * large, 1e-3) and _unmoved(found, 1e-4) > 0.5:
        yield "small changes of the losses change nothing: losses or advantages are rounded"
    kept = (scaled(0.02) - 2 * scaled(0.01)).abs().amax(-1) <= 1e-9 * found.estimate.abs().max()
    if float(kept.double().mean()) > 0.5:
        yield "the estimate is linear in small losses, and not in greater ones: losses, advantages or the gradient are clipped"
    if saturated and same(one, scaled(2.0), 0.05):
        yield "the estimate does not grow with the losses: advantages are divided by their standard deviation, or by another norm"
    for power in (0.5, 2, 3):
        if same(larger, 2**power * large, 1e-2):
            yield f"the estimate is not linear in the losses: they are transformed, for large losses as L^{power:g}"
    yield "the estimate is not linear in the losses: they are transformed before the score multiplies them"


def _own_mass(found: Dissection) -> Iterator[str]:
    """Sums over a set of distinct structures, divided by its mass, row by row."""
    if found.size < 2 or float(found.equal.max()) > 0:
        return
    s, weights = found.directions(), found.log_chances.softmax(0)
    whole = float(found.log_chances.exp().sum(0).max()) > 1 - TOLERANCE
    if not whole and same(((found.log_chances.exp() * found.losses).unsqueeze(-1) * s).sum(0), found.estimate):
        yield "the sum goes over a set of structures, weighted by p(z): what lies outside the set is left out"
        return
    for values in (found.losses, found.losses - (weights * found.losses).sum(0)):
        if same(((weights * values).unsqueeze(-1) * s).sum(0), found.estimate):
            yield "the losses of a set are weighted by p(z) / p(set): the set is normalised by its own mass"
            return


def _not_detached(found: Dissection) -> Iterator[str]:
    """``ĝ − w Σ L_i s_i`` is ``Σ (u s_i + v log p(z_i))`` with one v, which is the gradient of a baseline."""
    inside, d = found.varies.nonzero().flatten(), found.estimate.shape[-1]
    directions, chances = found.directions()[inside].sum(0), found.log_chances[inside].sum(0)
    if len(torch.unique(found.estimate, dim=0)) * (d - 1) < 2 * (d + 2):  # some direction fits a few rows
        return
    weighted = (found.losses[inside].unsqueeze(-1) * found.directions()[inside]).sum(0)
    own = (chances.reshape(-1, 1, 1) * torch.eye(d, dtype=torch.float64)).reshape(-1, d)
    short, wanted = torch.stack([weighted.flatten(), directions.flatten()], 1), found.estimate.reshape(-1, 1)
    if fits(torch.cat([short, own], 1), wanted) is not None and fits(short, wanted, 1e-4) is None:
        yield "log p(z) times a fixed direction is part of the estimate: the gradient of a baseline, which is not detached"


def _slopes(found: Dissection) -> Iterator[str]:
    """The mean moves with the gradient of the loss, whose values stay equal."""
    if not found.differentiated:
        return
    if not mean_is_zero(found.slope_response(of_sample=False)):
        yield "the mean moves with the gradient of the loss: the mean of a control variate is not put back, or a pathwise term is added"
    elif not mean_is_zero(found.slope_response(of_sample=True)):
        yield "the slope of the control variate of a sample includes that of the sample itself: take those of the others"


def _right_frequencies(found: Dissection) -> bool:
    """Whether random samples have the frequencies of p. Samples of one estimate may depend on each other, rows do not."""
    if not bool(found.varies.any()):
        return False
    random, (numbers, chances) = int(found.varies.sum()), found.kinds
    seen = torch.bincount(numbers[found.varies].flatten(), minlength=len(chances)).double()
    due = chances * random * ROWS
    return float(((seen - due).abs() / (random * due.clamp(min=1.0)).sqrt()).max()) < DEVIATIONS


def _independent(found: Dissection) -> bool:
    """Whether samples are equal as often as independent ones of p."""
    n, repeats = found.size, float(found.kinds[1].square().sum())
    pairs = float(found.equal.sum()) / (n * (n - 1))
    return abs(pairs - repeats) < DEVIATIONS * math.sqrt(repeats * (1 - repeats) / ROWS) and _right_frequencies(found)


def _other_distribution(found: Dissection) -> Iterator[str]:
    """Samples are not from p, and their weights do not correct that."""
    chances, constant, own, responses = found.kinds[1], found.mixture(found.directions()), found.own_weights, found.responses
    if not bool(found.varies.any()) and bool((responses != responses[:, :1]).any()):
        yield "the loss is evaluated at a fixed structure, such as the argmax, and multiplied by the scores of another structure"
    never_repeat = found.size > 1 and float(found.equal.max()) == 0 and float(chances.square().sum()) * ROWS > 100
    if never_repeat and bool(found.varies.all()) and constant is not None:
        yield "samples of one estimate never repeat: they are drawn without replacement, and weighted as if drawn with"
    if own is not None and not same(own, own[:1, :1].expand_as(own)):
        yield from _weights(found, own)
    elif constant is not None and not _right_frequencies(found):
        yield "the samples have another distribution than p: importance weights p/q are missing, or the scores are not those of the samples"


def _weights(found: Dissection, own: Tensor) -> Iterator[str]:
    """The weight of a structure in the mean is not p(z)."""
    numbers, chances, seen = *found.kinds, found.counts()
    mean, error = found.counts(own) / ROWS, DEVIATIONS * (found.counts(own**2) * found.size).sqrt() / ROWS + 1e-9
    if bool(((mean - chances).abs() <= error).all()):
        return
    if same(found.size * own, found.log_chances.exp()):
        yield "the loss is multiplied by the gradient of p(z), where that of log p(z) is due"
    if found.size > 1 and same(own.sum(0), torch.ones_like(own[0])):
        yield "weights of samples are divided by their sum: such a ratio is biased, and that of the sums of several batches less so"
    weights = found.counts(own) / seen.clamp(min=1) * found.size
    if not same(weights[numbers] / found.size, own):
        return
    if bool(found.varies.all()) and not _right_frequencies(found):
        yield from _importance(chances * found.size * ROWS, seen, weights)
    worst = int(((mean - chances).abs() / error).argmax())
    yield f"the weights of the samples are wrong: {mean[worst]:.3g} in the mean for a structure of probability {chances[worst]:.3g}"


def _importance(due: Tensor, seen: Tensor, weights: Tensor) -> Iterator[str]:
    """Importance weights that depend on the structure alone, next to p/q."""
    ratio, least, most, error = due / seen.clamp(min=1), float(weights.min()), float(weights.max()), DEVIATIONS / seen.clamp(min=1).sqrt()
    ranges = f"they go from {least:.3g} to {most:.3g}, and p/q from {ratio.min():.3g} to {ratio.max():.3g}"
    x, y = ratio.log(), weights.clamp(min=1e-12).log()
    power = round(2 * float(x @ y / x.square().sum())) / 2
    if power != 1 and bool(((y - power * x).abs() < (abs(power) + 1) * error).all()):
        said = {-1.0: "inverted", 2.0: "multiplied twice"}.get(power, f"taken to the power {power:g}")
        yield f"importance weights p/q are {said}: {ranges}"
        return
    capped = (weights > (1 - TOLERANCE) * most) & (ratio > most * (1 + error))
    raised = (weights < (1 + TOLERANCE) * least) & (ratio < least * (1 - error))
    if bool((capped | raised).any()) and bool((((weights / ratio - 1).abs() < error) | capped | raised).all()):
        yield f"importance weights are clipped: {ranges}"


def _mixture(found: Dissection, *, has_count: bool) -> Iterator[str]:
    """The factor of each loss is one mixture of the scores in all rows."""
    n, mixture = found.size, found.mixture(found.directions())
    if mixture is None or n == 1:
        return
    own, others = mixture.diagonal(), mixture - torch.diag(mixture.diagonal())
    flat, known = torch.full((n,), 1 / n, dtype=torch.float64), f"with N = {n}"
    share = -float(others.sum()) / (n * (n - 1)) * n**2
    if same(mixture, torch.full_like(mixture, 1 / n**2)):
        yield "the product of the mean of the losses and the mean of the scores: each loss needs the score of its own sample"
    elif not has_count and same(own, flat * n):
        yield f"gain {n} = N {known}: the samples are summed, not averaged"
    elif abs(share) > 1e-4 and same(mixture, (torch.eye(n).to(own) - share / n) / n) and not (has_count and abs(share - 1) < 1e-6):
        factor = "(N − 1)/N" if abs(share - 1) < 1e-6 else f"1 − {share:.3g}/N"
        yield f"gain {1 - share / n:.4g} = {factor} {known}: the baseline of a sample includes the sample itself"
    elif not has_count and same(own, flat / n):
        or_parts = f", or a mean over the {n} parts of an event" if n == math.prod(found.structure.event) else ""
        yield f"gain {1 / n:.4g} = 1/N {known}: the mean over the samples is taken twice{or_parts}"
    elif not has_count and same(own, flat * n / (n - 1)):
        yield f"gain {n / (n - 1):.4g} = N/(N − 1) {known}: the sum is divided by N − 1, or its correction is made twice"
    elif 0 < int((own.abs() < TOLERANCE).sum()) < n and same(own[own.abs() > TOLERANCE], flat[own.abs() > TOLERANCE]):
        left = (own.abs() < TOLERANCE).nonzero().flatten() + 1
        yield f"the score of sample {', '.join(map(str, left.tolist()))} of {n} is left out, and the sum is still divided by {n}"
    elif abs(float(own.sum())) < TOLERANCE:
        yield "the scores of the samples cancel: the mean is 0 whatever the loss; has one of them the wrong sign?"
    elif float(own.sum()) < 0.5 and float(others.max()) > float(own.max()) + 0.5 / n:
        yield "the loss of a sample is multiplied by the score of another sample"


def _other_score(found: Dissection) -> Iterator[str]:
    """Scores of p(z), at another temperature, without the mean, or with another one."""
    directions = found.directions()
    if found.mixture(directions) is not None:
        return
    along = (found.responses * directions).sum(-1) / directions.square().sum(-1).clamp(min=1e-300)
    if float(along.mean().abs()) < min(DEVIATIONS * float(along.std()) / math.sqrt(ROWS), 0.1 / found.size):
        yield "the loss of a sample is multiplied by the score of another sample: the mean is 0 whatever the loss"
    flat = found.samples.flatten(2)
    if found.mixture(flat) is not None:
        yield "the score of a sample is z, not z − μ: it is not centred; is its log-probability ⟨θ, z⟩ without the normaliser?"
    if not bool(found.varies.all()) or not _right_frequencies(found):
        return

    def residual(log_temperature: float) -> float:
        columns = found.directions(math.exp(log_temperature))[:, :256].flatten(1).mT
        wanted = found.responses[:, :256].flatten(1).mT
        fit = columns @ torch.linalg.lstsq(columns, wanted, driver="gelsd").solution
        return float((fit - wanted).norm() / wanted.norm())

    best = optimize.minimize_scalar(residual, bounds=(-3, 3), method="bounded", options={"xatol": 1e-10})
    if best.fun < 1e-4:
        yield f"the score of a sample is that of the temperature {math.exp(best.x):.3g}: samples and log-probabilities have different ones"
    centres = flat - found.size * found.responses
    if same(centres, centres[:1, :1].expand_as(centres)):
        yield "the score of a sample is z − c, and c is not the marginals μ of these scores: it is not centred"
    which = torch.nn.functional.one_hot(found.kinds[0], len(found.kinds[1])).double()
    # A baseline of other samples cancels in differences.
    columns, wanted = (which[0], found.responses[0]) if found.size == 1 else (which[0] - which[1], found.responses[0] - found.responses[1])
    if fits(columns, wanted) is not None:
        yield "the loss of a sample is multiplied by another vector than its score ∇ log p(z): log-probabilities are not those of p"


def _fitted(found: Dissection) -> Iterator[str]:
    """The weight of a sample's own score depends on the other samples, and is too small in the mean."""
    directions, scaled, numbers = found.directions(), found.size * found.responses, found.kinds[0]
    if found.size < 2 or found.mixture(directions) is not None:
        return
    seen = found.counts().clamp(min=1)
    if (own_weights := found.own_weights) is not None and same((found.counts(own_weights) / seen)[numbers], own_weights):
        return  # of the sample alone: no baseline
    some = directions[:, :256].movedim(0, -1)
    inside = some @ torch.linalg.pinv(some, rtol=1e-9) @ scaled[:, :256].movedim(0, -1)
    if not same(inside, scaled[:, :256].movedim(0, -1)) or not _independent(found):
        return
    own = torch.zeros(len(seen), directions.shape[-1], dtype=torch.float64).index_add_(0, numbers.flatten(), directions.flatten(0, 1))
    got = torch.zeros_like(own).index_add_(0, numbers.flatten(), scaled.flatten(0, 1))
    square = float((own * own / seen.unsqueeze(-1)).sum())
    spread = float((scaled - directions).flatten(0, 1).square().sum()) / numbers.numel()
    missing = 1 - float((got * own / seen.unsqueeze(-1)).sum()) / square
    if missing > DEVIATIONS * math.sqrt(spread / square * found.size):
        weight = f"{1 - missing:.2g}/N in the mean, where 1/N is due"
        yield f"the baseline of a sample is fitted to the loss of the sample itself too: its score has a weight of {weight}"
