"""Causes by intervention: the first hypothesis whose predictions hold for the changed losses; only if a mean is proven wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from scipy import optimize
from torch import Tensor

from ...estimators.base import Estimator
from ...estimators.noise import SmoothNoise
from ...oracles.capabilities import MarginalOracle, SamplingOracle
from .cases import FLAT, PEAKED, USUAL, AuditLoss, Structure, all_structures, random_scores, seeded
from .dissection import DEVIATIONS, ROWS, TOLERANCE, Dissection, fits, mean_is_zero, same

MAX_SAMPLES = 32
"""Losses of one estimate that are changed one by one."""

MIN_ESTIMATE = 1e-5
"""Share of loss times score below which an estimate is rounding, also in single precision."""

NOTHING = "the estimate is 0 whatever the losses are: the loss is detached, or nothing that depends on the scores multiplies it"


def cause_by_intervention(estimator: Estimator[Any], structure: Structure, *, has_count: bool) -> tuple[str, tuple[str, ...]]:
    """The cause of a wrong mean of the expected loss, else the two most likely ones.

    Args:
        estimator: with a wrong mean.
        structure: a small one.
        has_count: whether the number of samples is an option, so that factors of it were already tested.
    """
    likely: tuple[str, ...] = ()
    for scale in (FLAT, USUAL, PEAKED) if isinstance(structure.oracle, SamplingOracle) else ():
        found = Dissection(estimator, structure, random_scores(structure, scale, 1, "dissection")[0], has_count=has_count)
        if not found.calls or not found.readable:
            return "", ()
        cause = next(_causes(found), "")
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
        found = Dissection(estimator, structure, random_scores(structure, regime, 1, "dissection")[0], has_count=False)
        if not found.inside or found.points.numel():
            return ""
        rows = found.scores.expand(16 * ROWS, *structure.event)
        drawn = noise.draw(structure.oracle, rows, generator=seeded(3, "dissection"))
        shown, scales = shares(found.samples), torch.logspace(-1, 1, 41, base=4, dtype=torch.float64).tolist()
        distances = [float((shares(structure.oracle.argmax(rows + scale * drawn)) - shown).abs().max()) for scale in scales]
        best = min(range(len(scales)), key=distances.__getitem__)
        if distances[best] < 0.03 < distances[len(scales) // 2]:
            return f"the structures are those of noise {scales[best]:.2g} times as large: is it multiplied by its scale twice, or never?"
    return ""


def _causes(found: Dissection) -> Iterator[str]:
    """Proven causes. Only the first one is reported, so that each may rely on those before it."""
    yield from _without_response(found) if found.size else _relaxed(found)
    if found.size <= MAX_SAMPLES:
        for cause in CAUSES:
            yield from cause(found)
        for cause in CAUSES_OF_SUMS if found.linear else ():
            yield from cause(found)
        if not found.linear and not found.differentiated:
            yield "the estimate is no sum over samples: their losses decide which of them count, as a maximum, a median or the best k do"


def _likely(found: Dissection) -> Iterator[str]:
    """Components that are unusual, the most unusual first: no proof that they are wrong."""
    if not 0 < found.size <= MAX_SAMPLES:
        return
    if not found.linear:
        yield "the estimate is not linear in the losses: losses or advantages are transformed"
    if not found.has_right_frequencies or (found.size > 1 and not found.is_independent):
        yield "the samples of an estimate are not independent draws from p, and their weights do not correct that"
    mixture = found.mixture(found.directions())
    if mixture is None and found.own_weights is None:
        yield "the losses of other samples change the weight of a sample: a baseline or a normaliser that depends on its own loss"
    gain = 1.0 if mixture is None or not found.linear else float(mixture.trace())
    for value, name in ((math.prod(found.structure.event), "parts of an event"), (2, "terms"), (ROWS, "rows of the batch")):
        if abs(gain * value - 1) < 1e-4:
            yield f"gain {gain:.4g} = 1/{value}: a mean over {value} {name}, where a sum is due"
        if abs(gain / value - 1) < 1e-4:
            yield f"gain {gain:g}: a sum over {value} {name}, where a mean is due"
    if abs(gain - 1) > 1e-4:
        yield f"gain {gain:.4g}: a constant factor on every term, such as the weight of a loss or a learning rate"
    if found.differentiated:
        yield "the gradient of the loss is part of the estimate: its terms do not cancel in the mean"


def _slope(function: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    leaf = scores.detach().clone().requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(function(leaf), leaf)[0].flatten()


def _relaxed(found: Dissection) -> Iterator[str]:
    """The loss gets points between the structures only."""
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
    """Estimates that are 0, or do not change with the losses."""
    numbers, moving = [number for call in found.calls for number in call], bool(found.estimate.any())
    repeats = len(numbers) > len(set(numbers))  # the loss gets a sample in two calls
    if bool(((found.equal == 1) & found.varies).any()) or (found.varies.any() and not moving and repeats):
        yield "two samples of one estimate are the same in every row: the same noise is used twice, where independent draws are due"
    size, wanted = float(found.estimate.abs().max()), float(found.losses.abs().max() * found.directions().abs().max())
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
    moves = found.estimate != 0
    return float((moves & (found.rescaled(1, bend) == found.estimate)).sum() / moves.sum())


def _precision(found: Dissection) -> Iterator[str]:
    """Small changes of losses change nothing."""
    for bend, name in ((1e-5, "float16 or bfloat16"), (1e-9, "float32")):
        if _unmoved(found, bend) > 0.5 > _unmoved(found, 0.03):
            yield f"losses that differ by a factor of 1 + {bend:g} give the same estimate: it is computed in {name}"


def _further_term(found: Dissection) -> Iterator[str]:
    """The estimate without losses."""
    constant, oracle = found.constant, found.structure.oracle
    if same(constant, found.estimate):
        yield "the estimate does not depend on the losses: the score-function term is missing, or the losses in it are detached"
    if float(constant.abs().max()) < TOLERANCE * float(found.estimate.abs().max()) or mean_is_zero(constant):
        return
    if not same(constant, constant[:1].expand_as(constant)):
        yield "a random term without losses has a mean: that of the control variate that is subtracted from them, and it is not put back"
    terms = {"weight decay": found.scores.flatten()}
    if isinstance(oracle, MarginalOracle):
        terms["the gradient of the entropy"] = _slope(oracle.entropy, found.scores)
    close = [name for name, term in terms.items() if abs(float(torch.cosine_similarity(term, constant[0], dim=0))) > 1 - 1e-6]
    yield f"a term of the estimate does not depend on the losses: {close[0] if close else 'a bonus or a penalty'} is added to the gradient"


def _transformed(found: Dissection) -> Iterator[str]:
    """Losses of another scale."""
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
    chances, s = found.log_chances.exp(), found.directions()

    def weighted(values: Tensor) -> bool:
        return same((values.unsqueeze(-1) * s).sum(0), found.estimate)

    own = found.log_chances.softmax(0)
    if float(chances.sum(0).max()) <= 1 - TOLERANCE and weighted(chances * found.losses):
        yield "the sum goes over a set of structures, weighted by p(z): what lies outside the set is left out"
    elif weighted(own * found.losses) or weighted(own * (found.losses - (own * found.losses).sum(0))):
        yield "the losses of a set are weighted by p(z) / p(set): the set is normalised by its own mass"


def _not_detached(found: Dissection) -> Iterator[str]:
    """``ĝ − w Σ L_i s_i`` is ``Σ (u s_i + v log p(z_i))`` with one v, which is the gradient of a baseline."""
    inside, d = found.varies.nonzero().flatten(), found.estimate.shape[-1]
    if len(torch.unique(found.estimate, dim=0)) * (d - 1) < 2 * (d + 2):  # some direction fits a few rows
        return
    directions, wanted = found.directions()[inside], found.estimate.reshape(-1, 1)
    weighted = (found.losses[inside].unsqueeze(-1) * directions).sum(0)
    own = (found.log_chances[inside].sum(0).reshape(-1, 1, 1) * torch.eye(d, dtype=torch.float64)).reshape(-1, d)
    short = torch.stack([weighted.flatten(), directions.sum(0).flatten()], 1)
    if fits(torch.cat([short, own], 1), wanted) is not None and fits(short, wanted, 1e-4) is None:
        yield "log p(z) times a fixed direction is part of the estimate: the gradient of a baseline, which is not detached"


def _slopes(found: Dissection) -> Iterator[str]:
    """The mean moves with the gradient of the loss, whose values stay equal."""
    if found.differentiated and not mean_is_zero(found.slope_response(of_sample=False)):
        yield "the mean moves with the gradient of the loss: the mean of a control variate is not put back, or a pathwise term is added"
    elif found.differentiated and not mean_is_zero(found.slope_response(of_sample=True)):
        yield "the slope of the control variate of a sample includes that of the sample itself: take those of the others"


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
    elif constant is not None and not found.has_right_frequencies:
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
    if bool(found.varies.all()) and not found.has_right_frequencies:
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


def _mixture(found: Dissection) -> Iterator[str]:
    """The factor of each loss is one mixture of the scores in all rows."""
    n, mixture = found.size, found.mixture(found.directions())
    if mixture is None or n == 1:
        return
    own, others = mixture.diagonal(), mixture - torch.diag(mixture.diagonal())
    flat, known, zero = torch.full((n,), 1 / n, dtype=torch.float64), f"with N = {n}", mixture.diagonal().abs() < TOLERANCE
    share = -float(others.sum()) / (n * (n - 1)) * n**2
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
    if abs(float(own.sum())) < TOLERANCE:
        yield "the scores of the samples cancel: the mean is 0 whatever the loss; has one of them the wrong sign?"
    if float(own.sum()) < 0.5 and float(others.max()) > float(own.max()) + 0.5 / n:
        yield "the loss of a sample is multiplied by the score of another sample"


def _other_score(found: Dissection) -> Iterator[str]:
    """Scores of p(z), at another temperature, without the mean, or with another one."""
    directions = found.directions()
    if found.mixture(directions) is not None:
        return
    along = (found.responses * directions).sum(-1) / directions.square().sum(-1).clamp(min=1e-300)
    if float(along.mean().abs()) < min(DEVIATIONS * float(along.std()) / math.sqrt(ROWS), 0.1 / found.size):
        yield "the loss of a sample is multiplied by the score of another sample: the mean is 0 whatever the loss"
    if not bool(found.varies.all()) or not found.has_right_frequencies:
        return

    def residual(log_temperature: float) -> float:
        columns = found.directions(math.exp(log_temperature))[:, :256].flatten(1).mT
        wanted = found.responses[:, :256].flatten(1).mT
        fit = columns @ torch.linalg.lstsq(columns, wanted, driver="gelsd").solution
        return float((fit - wanted).norm() / wanted.norm())

    best = optimize.minimize_scalar(residual, bounds=(-3, 3), method="bounded", options={"xatol": 1e-10})
    if best.fun < 1e-4:
        yield f"the score of a sample is that of the temperature {math.exp(best.x):.3g}: samples and log-probabilities have different ones"
    centres = found.samples.flatten(2) - found.size * found.responses
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
    if not same(inside, scaled[:, :256].movedim(0, -1)) or not found.is_independent:
        return
    own = torch.zeros(len(seen), directions.shape[-1], dtype=torch.float64).index_add_(0, numbers.flatten(), directions.flatten(0, 1))
    got = torch.zeros_like(own).index_add_(0, numbers.flatten(), scaled.flatten(0, 1))
    square = float((own * own / seen.unsqueeze(-1)).sum())
    spread = float((scaled - directions).flatten(0, 1).square().sum()) / numbers.numel()
    missing = 1 - float((got * own / seen.unsqueeze(-1)).sum()) / square
    if missing > DEVIATIONS * math.sqrt(spread / square * found.size):
        weight = f"{1 - missing:.2g}/N in the mean, where 1/N is due"
        yield f"the baseline of a sample is fitted to the loss of the sample itself too: its score has a weight of {weight}"


Cause = Callable[[Dissection], Iterator[str]]

CAUSES: tuple[Cause, ...] = (_precision, _further_term, _transformed, _own_mass, _not_detached, _slopes)
"""Hypotheses about any estimate, in the order in which they are tried."""

CAUSES_OF_SUMS: tuple[Cause, ...] = (_other_distribution, _mixture, _other_score, _fitted)
"""Hypotheses about estimates that are linear in the losses."""
