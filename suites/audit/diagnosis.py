"""Diagnosis of wrong means: every cause predicts the means of all places, and the predictions compete.

A cause is named where its predictions are not rejected, and beat those of all others by `MARGIN`: of other causes, of a wrong part, and of
"a factor on everything", which has no cause. Factors that are made of options are told from others, and from a factor that happens to have
the same value, by changing these options. Else what was seen is told.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from scipy import optimize, special
from torch import Tensor

from .expansions import Expansions

EXACT = 1e-6
"""Relative distance below which two exact numbers are the same."""

REJECTED = 0.01
"""p-value below which a prediction is rejected, after Bonferroni's correction over the places."""

OTHER = 1e-3
"""p-value below which two means are not the same."""

MARGIN = 10.0
"""By how much −2 log-likelihood + penalty of the runner-up must be greater: odds of 150 to 1."""

SIGN = "the estimate has the wrong sign: is the loss treated as a reward?"
NOT_RETURNED = (
    "the mean lacks Cov(z) γ(μ), the gradient of the loss's expansion at the marginals: a control variate is taken from the losses, and "
    "its mean is not put back"
)
OWN_SLOPE = (
    "the mean is off by a multiple of the covariance of a sample with its own slope: the slope of the control variate of a sample includes "
    "that of the sample itself; take those of the others"
)
NO_NORMALISER = "the mean is off by a multiple of μ: the score of a sample is z − μ; is its log-probability ⟨θ, z⟩ without the normaliser?"

_DECAYS = ("decay", "momentum", "ema", "beta", "alpha", "smoothing")
_MOST_DIRECTIONS = 16


@dataclass(frozen=True)
class Setting:
    """With which options an estimator was looked at.

    Attributes:
        numbers: its numeric options by name. ``losses``: that one estimate takes: N, where no option says it.
    """

    numbers: Mapping[str, float]
    losses: float | None = None


@dataclass(frozen=True, eq=False)
class Point:
    """What was found at one place, and what is wanted there.

    Attributes:
        where: the structure and the scores. ``event``: shape of a structure.
        found: ``[n, d]``: exact rows, or means of batches whose spread is the error. ``wanted``: likewise, or ``[d]``.
        setting: with which options.
        marginals: ``[d]``, where they are known. ``expansions``: makes those of the loss, where they can be had.
        tolerance: relative, of exact rows; None for batches.
    """

    where: str
    event: tuple[int, ...]
    found: Tensor
    wanted: Tensor
    setting: Setting
    marginals: Tensor | None = None
    tolerance: float | None = EXACT
    expansions: Callable[[], Expansions | None] = lambda: None

    @property
    def mean(self) -> Tensor:
        """``[n, d]`` of exact rows, ``[1, d]`` of batches."""
        return self.found if self.tolerance is not None else self.found.mean(0, keepdim=True)

    @property
    def target(self) -> Tensor:
        """Shaped like the mean."""
        return self.wanted.expand_as(self.found) if self.tolerance is not None else self.wanted.expand_as(self.found).mean(0, keepdim=True)

    @property
    def gain(self) -> float:
        """``⟨m, g⟩ / ‖g‖²``."""
        return float((self.mean * self.target).sum() / self.target.square().sum().clamp(min=1e-300))

    def distance(self, predicted: Tensor) -> tuple[float, float]:
        """−2 log-likelihood of a prediction, up to a constant, and the p-value of its test."""
        residual = self.found - predicted
        if self.tolerance is not None:
            size = max(float(self.found.norm()), float(predicted.norm()))
            ratio = float(residual.norm()) / (self.tolerance * size + 1e-12)
            return ratio**2, 1.0 if ratio <= 3 else 0.0
        return _hotelling(residual, EXACT * float(self.wanted.norm()))


def _hotelling(residual: Tensor, rounding: float) -> tuple[float, float]:
    """Of the mean of batches ``[n, d]`` against 0, whose covariance is theirs; what has no spread must be 0 up to rounding."""
    count, mean = len(residual), residual.mean(0)
    spread = residual - mean
    values, vectors = torch.linalg.eigh(spread.mT @ spread / (count * (count - 1)))
    along = mean @ vectors
    moves = values > max(rounding**2, 1e-12 * float(values.max()))
    moves &= torch.arange(len(values)) >= len(values) - _MOST_DIRECTIONS
    rank = int(moves.sum())
    fixed = float((along[~moves & (values <= rounding**2)].norm() / max(rounding, 1e-300)) ** 2)
    square = float((along[moves].square() / values[moves]).sum())
    p_value = float(special.fdtrc(rank, count - rank, square * (count - rank) / (rank * (count - 1)))) if rank else 1.0
    return count * math.log1p(square / (count - 1)) + fixed, p_value if fixed <= 9 * len(values) else 0.0


@dataclass(frozen=True)
class Hypothesis:
    """What may be wrong, with the means that it predicts.

    Attributes:
        text: for people; empty where it is no cause.
        predict: of the mean of a place, shaped like what was found; None where it says nothing of it.
        parameters: fitted ones. ``options``: by changing which its factor is told from others.
    """

    text: str
    predict: Callable[[Point], Tensor | None]
    parameters: int = 0
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fit:
    """How well a hypothesis predicts all places: the less the score the better."""

    hypothesis: Hypothesis
    score: float
    rejected: bool


@dataclass(frozen=True)
class Explanation:
    """The cause of wrong means, or what was seen of them, and whether that is one factor on everything."""

    cause: str = ""
    seen: str = ""
    parallel: bool = False


Ask = Callable[[str], Sequence[Point]]
"""Looks again with another value of an option."""


def explain(points: Sequence[Point], ask: Ask = lambda option: ()) -> Explanation:
    """The cause that predicts the means best, or what was seen of them.

    Args:
        points: all places where the mean is known, those where it is right too.
        ask: gives further places, with another value of an option; nothing where it has no other.
    """
    factor = best_factor(points)
    constant = fitted(points, on_everything(factor))
    if not constant.rejected and math.isclose(factor, -1, abs_tol=_resolution(points)):
        return Explanation(SIGN)
    seen = constant_gain(points, factor) if not constant.rejected else described(points)
    fits = [fitted(points, one) for one in factors(points[0].setting)]
    possible = [fit.hypothesis for fit in fits if not fit.rejected and not _says_nothing(fit.hypothesis, points)]
    if constant.rejected:
        possible = []
    further = [*points]
    for option in dict.fromkeys(option for one in possible for option in one.options if option):
        further += ask(option)
    rivals = [on_everything(best_factor(further)), *possible, *parts(points), *multiples_of_marginals(points), *control_variates(points)]
    first, second = sorted((fitted(further, one) for one in rivals), key=lambda fit: fit.score)[:2]
    if first.hypothesis.text and not first.rejected and second.score - first.score >= MARGIN:
        return Explanation(first.hypothesis.text)
    return Explanation(seen=seen, parallel=not constant.rejected)


def fitted(points: Sequence[Point], hypothesis: Hypothesis) -> Fit:
    """A hypothesis against all places; one that says nothing of a place is rejected."""
    predictions = [hypothesis.predict(point) for point in points]
    if any(predicted is None for predicted in predictions):
        return Fit(hypothesis, math.inf, rejected=True)
    found = [point.distance(predicted) for point, predicted in zip(points, predictions, strict=True) if predicted is not None]
    size = sum(point.mean.numel() for point in points)
    score = sum(distance for distance, _ in found) + hypothesis.parameters * math.log(size)
    return Fit(hypothesis, score, min(p_value for _, p_value in found) * len(found) < REJECTED)


def mended(points: Sequence[Point], others: Sequence[Point]) -> bool:
    """Whether the means of other options are right, and others than those that were found; of means by replicates both are tests."""
    found = {point.where: point for point in points}
    right = all(point.distance(point.wanted.expand_as(point.found))[1] * len(others) >= REJECTED for point in others)
    apart = [point.distance(found[point.where].found)[1] for point in others if point.where in found]
    return right and any(p_value < OTHER for p_value in apart)


def on_everything(factor: float) -> Hypothesis:
    """A factor that was fitted."""
    return Hypothesis("", lambda point: factor * point.wanted.expand_as(point.found), parameters=1)


def best_factor(points: Sequence[Point]) -> float:
    """The factor x for which x g predicts best: of exact places by least squares, else by the likelihood."""
    exact = [point for point in points if point.tolerance is not None]
    weights = [1 / max(float(point.target.square().sum()), 1e-24) for point in exact or points]
    products = [float((point.mean * point.target).sum()) for point in exact or points]
    start = math.fsum(map(math.prod, zip(weights, products, strict=True))) / len(weights)
    if exact:
        return start
    reach = 0.5 * abs(start) + 0.1
    far = optimize.minimize_scalar(
        lambda x: fitted(points, on_everything(x)).score, bounds=(start - reach, start + reach), method="bounded"
    )
    return float(far.x)


def factors(setting: Setting) -> Iterator[Hypothesis]:
    """Factors that are made of the number of samples and of options, with what they mean."""
    counts = {name: value for name, value in setting.numbers.items() if "sample" in name or name in ("n", "num", "k", "m")}
    options = {name: _option(name) for name in setting.numbers}
    numbers = {name: options[name] for name in counts}
    if setting.losses is not None and setting.losses not in counts.values():
        numbers[""] = lambda setting: setting.losses
    for name, count in numbers.items():
        yield from _of_count(name, count, setting)
        for other in setting.numbers:
            if other.rpartition(".")[2] in _DECAYS:
                yield from _of_decay((other, name), options[other], count, setting)
    for name, value in options.items():
        if name not in counts:
            yield from _of_option(name, value, setting)


Number = Callable[[Setting], float | None]
"""A number of a setting."""


def _option(name: str) -> Number:
    return lambda setting: setting.numbers.get(name)


def _of_count(option: str, count: Number, setting: Setting) -> Iterator[Hypothesis]:
    n = f"with N = {count(setting) or 0:g}"
    yield _factor(
        f"(N − 1)/N {n}: the baseline of a sample includes the sample itself",
        lambda s: _of(count(s), lambda v: (v - 1) / v),
        (option,),
        setting,
    )
    yield _factor(
        f"N/(N − 1) {n}: the correction for leaving one out is made twice, or where none is due",
        lambda s: _of(count(s), lambda v: v / (v - 1)),
        (option,),
        setting,
    )
    yield _factor(f"N {n}: the samples are summed, not averaged", count, (option,), setting)
    yield _factor(f"1/N {n}: the mean over the samples is taken twice", lambda s: _of(count(s), lambda v: 1 / v), (option,), setting)


def _of_decay(names: tuple[str, str], decay: Number, count: Number, setting: Setting) -> Iterator[Hypothesis]:
    name = names[0]
    known = f"with {name} = {decay(setting) or 0:g}, N = {count(setting) or 0:g}: the running mean is updated before it is used"

    def shortened(share: Callable[[float], float]) -> Number:
        return lambda s: _of(decay(s), lambda d: _of(count(s), lambda n: 1 - share(d) / n))

    yield _factor(f"1 − (1 − {name})/N {known}", shortened(lambda d: 1 - d), names, setting)
    yield _factor(f"1 − {name}/N {known}", shortened(lambda d: d), names, setting)


def _of_option(name: str, value: Number, setting: Setting) -> Iterator[Hypothesis]:
    known = f"with {name} = {value(setting) or 0:g}: the estimate is"
    yield _factor(f"{name}: the estimate is multiplied by {name}, or not divided by it", value, (name,), setting)
    yield _factor(f"1/{name} {known} divided by {name}, once too often", lambda s: _of(value(s), lambda v: 1 / v), (name,), setting)
    yield _factor(
        f"{name}² {known} multiplied by {name} where it should be divided", lambda s: _of(value(s), lambda v: v**2), (name,), setting
    )
    yield _factor(f"1/{name}² {known} divided by {name} twice too often", lambda s: _of(value(s), lambda v: 1 / v**2), (name,), setting)


def _of(value: float | None, function: Callable[[float], float | None]) -> float | None:
    try:
        return None if value is None else function(value)
    except ZeroDivisionError:
        return None


def _factor(text: str, value: Number, options: tuple[str, ...], setting: Setting) -> Hypothesis:
    """A known factor; the text says its value here."""
    here = value(setting)

    def predict(point: Point) -> Tensor | None:
        factor = value(point.setting)
        return None if factor is None else factor * point.wanted.expand_as(point.found)

    return Hypothesis(f"gain {math.nan if here is None else here:.4g} = {text}", predict, options=options)


def _says_nothing(hypothesis: Hypothesis, points: Sequence[Point]) -> bool:
    """Whether its factor is 1."""
    predicted, wanted = hypothesis.predict(points[0]), points[0].wanted.expand_as(points[0].found)
    return predicted is None or bool(torch.allclose(predicted, wanted, rtol=EXACT, atol=0))


def parts(points: Sequence[Point]) -> Iterator[Hypothesis]:
    """One part, the same at all places, is turned round, or left out; or all parts that have one last index."""
    several = any(len(point.event) > 1 for point in points)
    starts, ends = (range(min(point.event[axis] for point in points)) if several else () for axis in (0, -1))
    flat = range(min(point.found.shape[-1] for point in points))
    named = [(f"part ({_index(points[0], index)}) has", "gets", functools.partial(_flat, index)) for index in flat]
    named += [(f"the parts with the last index {index} have", "get", functools.partial(_last, index)) for index in ends]
    named += [(f"the parts with the first index {index} have", "get", functools.partial(_first, index)) for index in starts]
    for name, gets, where in named:
        yield Hypothesis(f"{name} the other sign, and all others are right", _changed(where, -1.0), parameters=1)
        without = f"{name.removesuffix(' has').removesuffix(' have')} {gets} no gradient, and all others are right"
        yield Hypothesis(without, _changed(where, 0.0), parameters=1)


def _flat(index: int, point: Point) -> Tensor:
    return torch.arange(point.found.shape[-1]) == index


def _last(index: int, point: Point) -> Tensor:
    return torch.arange(point.found.shape[-1]) % point.event[-1] == index


def _first(index: int, point: Point) -> Tensor:
    return torch.arange(point.found.shape[-1]) // math.prod(point.event[1:]) == index


def _index(point: Point, index: int) -> str:
    """A part as the event has it."""
    return ", ".join(str(int(place)) for place in torch.unravel_index(torch.tensor(index), point.event))


def _changed(where: Callable[[Point], Tensor], factor: float) -> Callable[[Point], Tensor]:
    return lambda point: torch.where(where(point), factor, 1.0).to(point.wanted) * point.wanted.expand_as(point.found)


def multiples_of_marginals(points: Sequence[Point]) -> Iterator[Hypothesis]:
    """The mean is off by a multiple of μ, another one at each place."""
    if any(point.marginals is None for point in points):
        return

    def predict(point: Point) -> Tensor | None:
        if point.marginals is None:
            return None
        share = (point.mean - point.target).mean(0) @ point.marginals / point.marginals.square().sum()
        return point.wanted.expand_as(point.found) + share * point.marginals

    yield Hypothesis(NO_NORMALISER, predict, parameters=len(points))


def control_variates(points: Sequence[Point]) -> Iterator[Hypothesis]:
    """The mean lacks what a control variate took away, or is off by what a slope of the sample's own adds: one multiple at all places."""
    found = [point.expansions() for point in points]
    if not all(found):
        return

    def lacking(point: Point) -> Tensor | None:
        expansion = point.expansions()
        return None if expansion is None else point.wanted.expand_as(point.found) - expansion.at_mean

    yield Hypothesis(NOT_RETURNED, lacking)
    own = torch.cat([expansion.own for expansion in found if expansion is not None])
    share = own @ torch.cat([(point.mean - point.target).mean(0) for point in points]) / own.square().sum().clamp(min=1e-300)

    def moved(point: Point) -> Tensor | None:
        expansion = point.expansions()
        return None if expansion is None else point.wanted.expand_as(point.found) + share * expansion.own

    yield Hypothesis(OWN_SLOPE, moved, parameters=1)


def _resolution(points: Sequence[Point]) -> float:
    """How far a fitted factor may be from a round one."""
    return 10 * EXACT if all(point.tolerance is not None for point in points) else 0.1


def constant_gain(points: Sequence[Point], factor: float) -> str:
    """Of a mean that is a multiple of what is wanted."""
    exact = any(point.tolerance is not None for point in points)
    error = 0.0 if exact else math.sqrt(sum(map(_gain_variance, points))) / len(points)
    turned = "; the sign is wrong too" if factor < -max(10 * EXACT, 3 * error) else ""
    factor = 0.0 if abs(factor) < EXACT else factor
    gain = f"{factor:.4g}" if exact else f"{factor:.3g} ± {2 * error:.1g}"
    hint = f" (log-probabilities at a temperature of {1 / factor:.3g} would do it too)" if factor > 0.01 else ""
    return f"gain {gain} on every part {_places(points, points)}, and no cause that would tell why{hint}{turned}"


def _gain_variance(point: Point) -> float:
    """Of the gain of the mean of batches."""
    wanted = point.wanted.expand_as(point.found)
    gains = (point.found * wanted).sum(-1) / wanted.square().sum(-1).clamp(min=1e-300)
    return float(gains.var()) / len(gains)


def _places(some: Sequence[Point], points: Sequence[Point]) -> str:
    if len(points) == 1:
        return f"at one place ({points[0].where})"
    return f"at all {len(points)} places" if len(some) == len(points) else f"at {len(some)} of {len(points)} places"


def described(points: Sequence[Point]) -> str:
    """Of any other mean: where it is wrong, in which parts, and by how much there."""
    wrong = [point for point in points if point.distance(point.wanted.expand_as(point.found))[1] * len(points) < REJECTED]
    if not wrong:
        return ""
    gains = sorted(point.gain for point in wrong)
    gain = f"gain {gains[0]:.3g}" + (f" to {gains[-1]:.3g}" if gains[-1] - gains[0] > 1e-3 else "")
    first = max(wrong, key=lambda point: float((point.mean - point.target).norm()) / max(float(point.target.norm()), 1e-300))
    return f"the mean is wrong {_places(wrong, points)}, {gain}; {_wrong_parts(first)}"


def _wrong_parts(point: Point) -> str:
    """Which parts are wrong at a place, beside what they should be."""
    off = (point.mean - point.target).abs()
    if point.tolerance is not None:
        noise = 3 * point.tolerance * float(point.target.norm())
        clear = off.amax(0) > noise
    else:
        clear = off[0] > 4 * (point.found - point.wanted).std(0) / math.sqrt(len(point.found))
    indices = clear.nonzero().flatten().tolist()
    total = point.found.shape[-1]
    if not indices:
        return f"no single part stands out ({point.where})"
    if len(indices) == total:
        return f"every part is ({point.where})"
    names = [f"({_index(point, index)})" for index in indices]
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    one = indices[0]
    found, wanted = float(point.mean[0, one]), float(point.target[0, one])
    return f"{len(names)} of {total} parts are, {shown}: {found:.3g} for {wanted:.3g} in the first ({point.where})"


def diagonal_estimate(marginals: Tensor, gamma: Tensor) -> Tensor:
    """``diag(J) γ`` with ``J = Cov(z)``: parts are 0 or 1, so that the diagonal is ``μ(1 − μ)``."""
    return marginals * (1 - marginals) * gamma


def parallel(first: Tensor, second: Tensor) -> bool:
    """Whether two rows of estimates ``[rows, ...]`` are the same up to one factor above 0."""
    ratio = float((first * second).sum()) / max(float(second.square().sum()), 1e-300)
    return ratio > 0 and bool(torch.allclose(first, ratio * second, rtol=1e-6, atol=1e-9 * float(first.abs().max())))
