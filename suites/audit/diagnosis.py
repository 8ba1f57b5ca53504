"""Causes of wrong means: every candidate predicts the means at all scores, and the predictions compete by likelihood.

A cause is reported if its predictions are not rejected and beat all others by `MARGIN`. The others are further causes, wrong parts, and "a
factor on everything", which has no cause. Factors of options are separated from equal ones by other values of these options.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from scipy import optimize, special
from torch import Tensor

EXACT = 1e-6
"""Relative distance below which two exact numbers are equal."""

REJECTED = 0.01
"""p-value below which a prediction is rejected, after Bonferroni's correction over the points."""

OTHER = 1e-3
"""p-value below which two means differ."""

MARGIN = 10.0
"""Least distance of −2 log-likelihood + penalty to the second best: odds of 150 to 1."""

SIGN = "the estimate has the wrong sign: is the loss treated as a reward?"
NO_NORMALISER = "the mean is off by a multiple of μ: the score of a sample is z − μ; is its log-probability ⟨θ, z⟩ without the normaliser?"
MASKS = "the mean is wrong with forbidden parts alone: they are counted, or a normaliser includes them"

_DECAYS = ("decay", "momentum", "ema", "beta", "alpha", "smoothing")
_MAX_DIRECTIONS = 16


@dataclass(frozen=True, eq=False)
class Point:
    """The mean of an estimator at some scores, and its target.

    Attributes:
        where: the structure and the scores.
        event: shape of a structure.
        found: ``[n, d]``: exact rows, or means of batches; the spread of these is the error.
        wanted: ``[n, d]`` or ``[d]``.
        numbers: numeric options by name, and the number of losses of one estimate under the empty name, if known.
        marginals: ``[d]``, if known.
        tolerance: relative, of exact rows; None for batches.
    """

    where: str
    event: tuple[int, ...]
    found: Tensor
    wanted: Tensor
    numbers: Mapping[str, float]
    marginals: Tensor | None = None
    tolerance: float | None = EXACT

    @property
    def exact(self) -> bool:
        """Whether the mean has no sampling error."""
        return self.tolerance is not None

    @property
    def target(self) -> Tensor:
        """The target in the shape of ``found``."""
        return self.wanted.expand_as(self.found)

    @property
    def pair(self) -> tuple[Tensor, Tensor]:
        """The mean and its target, ``[n, d]`` of exact rows, ``[1, d]`` of batches."""
        return (self.found, self.target) if self.exact else (self.found.mean(0, keepdim=True), self.target.mean(0, keepdim=True))

    @property
    def gain(self) -> float:
        """``⟨m, g⟩ / ‖g‖²``."""
        mean, target = self.pair
        return float((mean * target).sum() / target.square().sum().clamp(min=1e-300))

    def distance(self, predicted: Tensor) -> tuple[float, float]:
        """−2 log-likelihood of a prediction, up to a constant, and the p-value of its test (Hotelling's, for batches)."""
        residual = self.found - predicted
        if self.tolerance is not None:
            size = max(float(self.found.norm()), float(predicted.norm()))
            ratio = float(residual.norm()) / (self.tolerance * size + 1e-12)
            return ratio**2, 1.0 if ratio <= 3 else 0.0
        rounding, count, mean = EXACT * float(self.wanted.norm()), len(residual), residual.mean(0)
        values, vectors = torch.linalg.eigh((residual - mean).mT @ (residual - mean) / (count * (count - 1)))
        along = mean @ vectors
        moves = values > max(rounding**2, 1e-12 * float(values.max()))
        moves &= torch.arange(len(values)) >= len(values) - _MAX_DIRECTIONS
        rank = int(moves.sum())
        # Directions without a spread must be 0 up to rounding.
        fixed = float((along[~moves & (values <= rounding**2)].norm() / max(rounding, 1e-300)) ** 2)
        square = float((along[moves].square() / values[moves]).sum())
        p_value = float(special.fdtrc(rank, count - rank, square * (count - rank) / (rank * (count - 1)))) if rank else 1.0
        return count * math.log1p(square / (count - 1)) + fixed, p_value if fixed <= 9 * len(values) else 0.0

    def is_wrong(self, tests: int) -> bool:
        """Whether the target is rejected, as one of some tests."""
        return self.distance(self.target)[1] * tests < REJECTED


@dataclass(frozen=True)
class Hypothesis:
    """A possible cause.

    Attributes:
        text: the cause; empty if it is none.
        predict: the means at a point, shaped like those found; NaN if it predicts nothing there.
        parameters: number of fitted parameters.
        options: options whose other values separate its factor from equal ones.
    """

    text: str
    predict: Callable[[Point], Tensor]
    parameters: int = 0
    options: tuple[str, ...] = ()

    def fit(self, points: Sequence[Point]) -> tuple[float, bool]:
        """The score at all points, the less the better, and whether it is rejected."""
        predictions = [self.predict(point) for point in points]
        if any(bool(predicted.isnan().any()) for predicted in predictions):
            return math.inf, True
        found = [point.distance(predicted) for point, predicted in zip(points, predictions, strict=True)]
        size = sum(point.pair[0].numel() for point in points)
        score = sum(distance for distance, _ in found) + self.parameters * math.log(size)
        return score, min(p_value for _, p_value in found) * len(found) < REJECTED


@dataclass(frozen=True)
class Explanation:
    """The cause of wrong means, or their symptoms, and whether these are one factor on everything.

    Without a cause, ``likely`` has the two most likely ones.
    """

    cause: str = ""
    seen: str = ""
    parallel: bool = False
    likely: tuple[str, ...] = ()


def explain(points: Sequence[Point], ask: Callable[[str], Sequence[Point]] = lambda option: ()) -> Explanation:
    """The cause that predicts the means best, or the symptoms.

    Args:
        points: all scores with a known mean, also if it is right.
        ask: returns further points with another value of an option; none if there is no other value.
    """
    factor = best_factor(points)
    scaled = not on_everything(factor).fit(points)[1]
    resolution = 10 * EXACT if all(point.exact for point in points) else 0.1
    if scaled and math.isclose(factor, -1, abs_tol=resolution):
        return Explanation(SIGN)
    seen = _constant_gain(points, factor) if scaled else _symptoms(points)
    possible = []
    for one in factors(points[0].numbers) if scaled else ():
        says_something = not torch.allclose(one.predict(points[0]), points[0].target, rtol=EXACT, atol=0)
        possible += [one] if says_something and not one.fit(points)[1] else []
    further = [*points]
    for option in dict.fromkeys(option for one in possible for option in one.options):
        further += ask(option)
    rivals = [on_everything(best_factor(further)), *possible, *parts(points), *multiples_of_marginals(points)]
    first, second = sorted(((*one.fit(further), one.text) for one in rivals), key=lambda fit: fit[0])[:2]
    if first[2] and not first[1] and second[0] - first[0] >= MARGIN:
        return Explanation(first[2])
    wrong = [point.where for point in points if point.is_wrong(len(points))]
    masks = bool(wrong) and all(where.endswith("masked") for where in wrong) and len(wrong) < len(points)
    return Explanation(seen=seen, parallel=scaled, likely=(MASKS,) if masks else ())


def corrected(points: Sequence[Point], others: Sequence[Point]) -> bool:
    """Whether the means with other options are right, and differ from the first ones. For replicates, both are tests."""
    found = {point.where: point for point in points}
    right = not any(point.is_wrong(len(others)) for point in others)
    return right and any(point.distance(found[point.where].found)[1] < OTHER for point in others if point.where in found)


def on_everything(factor: float) -> Hypothesis:
    """A fitted factor."""
    return Hypothesis("", lambda point: factor * point.target, parameters=1)


def best_factor(points: Sequence[Point]) -> float:
    """The factor x for which x g predicts best: by least squares of exact points, else by the likelihood."""
    exact = [point for point in points if point.exact]
    pairs = [point.pair for point in exact or points]
    start = math.fsum(float((m * g).sum()) / max(float(g.square().sum()), 1e-24) for m, g in pairs) / len(pairs)
    if exact:
        return start
    reach = 0.5 * abs(start) + 0.1
    score: Callable[[float], float] = lambda x: on_everything(x).fit(points)[0]  # noqa: E731
    return float(optimize.minimize_scalar(score, bounds=(start - reach, start + reach), method="bounded").x)


def factors(numbers: Mapping[str, float]) -> Iterator[Hypothesis]:
    """Factors of the number of samples and of options, with their meaning."""
    counts = [name for name in numbers if "sample" in name or name in ("n", "num", "k", "m")]
    if "" in numbers and numbers[""] not in [numbers[name] for name in counts]:
        counts.append("")  # of losses, if no option is that

    def factor(text: str, function: Callable[..., float], *names: str) -> Hypothesis:
        def value(numbers: Mapping[str, float]) -> float:
            try:
                return function(*(numbers[name] for name in names))
            except (KeyError, ZeroDivisionError):
                return math.nan

        return Hypothesis(
            f"gain {value(numbers):.4g} = {text}", lambda point: value(point.numbers) * point.target, options=tuple(filter(None, names))
        )

    decays = [name for name in numbers if name.rpartition(".")[2] in _DECAYS]
    for count in counts:
        size = f"N = {numbers[count]:g}"
        yield factor(f"(N − 1)/N with {size}: the baseline of a sample includes the sample itself", lambda n: (n - 1) / n, count)
        text = f"N/(N − 1) with {size}: the correction for leaving one out is made twice, or where none is due"
        yield factor(text, lambda n: n / (n - 1), count)
        yield factor(f"N with {size}: the samples are summed, not averaged", lambda n: n, count)
        yield factor(f"1/N with {size}: the mean over the samples is taken twice", lambda n: 1 / n, count)
        for name in decays:
            known = f"with {name} = {numbers[name]:g}, {size}: the running mean is updated before it is used"
            yield factor(f"1 − (1 − {name})/N {known}", lambda decay, n: 1 - (1 - decay) / n, name, count)
            yield factor(f"1 − {name}/N {known}", lambda decay, n: 1 - decay / n, name, count)
    for name in numbers:
        if name and name not in counts:
            known = f"with {name} = {numbers[name]:g}: the estimate is"
            yield factor(f"{name}: the estimate is multiplied by {name}, or not divided by it", lambda x: x, name)
            yield factor(f"1/{name} {known} divided by {name}, once too often", lambda x: 1 / x, name)
            yield factor(f"{name}² {known} multiplied by {name} where it should be divided", lambda x: x**2, name)
            yield factor(f"1/{name}² {known} divided by {name} twice too often", lambda x: 1 / x**2, name)


def parts(points: Sequence[Point]) -> Iterator[Hypothesis]:
    """A part with a factor of its own, or two that change places; parts with one index in common may share a factor."""
    first, exact = points[0], all(point.exact for point in points)
    size = min(point.found.shape[-1] for point in points)

    def group(axis: int | None, index: int) -> Callable[[Point], Tensor]:
        def chosen(point: Point) -> Tensor:
            flags = torch.zeros(point.event, dtype=torch.bool)
            (flags.view(-1) if axis is None else flags.movedim(axis, 0))[index] = True
            return flags.flatten()

        return chosen

    groups = [(f"part ({_index(first, part)}) has", group(None, part)) for part in range(size)]
    for name, axis in (("last", -1), ("first", 0)) if any(len(point.event) > 1 for point in points) else ():
        indices = range(min(point.event[axis] for point in points))
        groups += [(f"the parts with the {name} index {index} have", group(axis, index)) for index in indices]
    for name, chosen in groups:
        pairs = [(mean[:, chosen(point)], target[:, chosen(point)]) for point in points for mean, target in (point.pair,)]
        own = math.fsum(float((m * g).sum()) for m, g in pairs) / max(math.fsum(float(g.square().sum()) for _, g in pairs), 1e-300)
        others = [(own, f"a factor of {own:.3g}")] if exact and min(abs(own + 1), abs(own)) > 1e-4 else []
        for factor, what in [(-1.0, "the other sign"), (0.0, "no gradient"), *others]:

            def predict(point: Point, factor: float = factor, chosen: Callable[[Point], Tensor] = chosen) -> Tensor:
                return torch.where(chosen(point), factor, 1.0).to(point.target) * point.target

            yield Hypothesis(f"{name} {what}, and all others are right", predict, parameters=1)
    for pair in itertools.combinations(range(size), 2) if exact and len({point.event for point in points}) == 1 else ():
        order = torch.arange(size)
        order[list(pair)] = order[list(reversed(pair))]
        text = "parts {} and {} change places, and all others are right".format(*(f"({_index(first, part)})" for part in pair))
        yield Hypothesis(text, lambda point, order=order: point.target[:, order], parameters=1)  # type: ignore[misc]


def _index(point: Point, part: int) -> str:
    """Indices of a part in the event."""
    return ", ".join(str(int(index)) for index in torch.unravel_index(torch.tensor(part), point.event))


def multiples_of_marginals(points: Sequence[Point]) -> Iterator[Hypothesis]:
    """The mean is off by a multiple of μ, another one at each point."""

    def predict(point: Point) -> Tensor:
        (mean, target), marginals = point.pair, point.target[0] if point.marginals is None else point.marginals
        return point.target + (mean - target).mean(0) @ marginals / marginals.square().sum() * marginals

    if all(point.marginals is not None for point in points):
        yield Hypothesis(NO_NORMALISER, predict, parameters=len(points))


def _constant_gain(points: Sequence[Point], factor: float) -> str:
    """Symptoms of a mean that is a multiple of the target."""
    exact, variance = any(point.exact for point in points), 0.0
    for point in () if exact else points:
        gains = (point.found * point.target).sum(-1) / point.target.square().sum(-1).clamp(min=1e-300)
        variance += float(gains.var()) / len(gains)
    error = math.sqrt(variance) / len(points)
    turned = "; the sign is wrong too" if factor < -max(10 * EXACT, 3 * error) else ""
    factor = 0.0 if abs(factor) < EXACT else factor
    gain = f"{factor:.4g}" if exact else f"{factor:.3g} ± {2 * error:.1g}"
    hint = f" (log-probabilities at a temperature of {1 / factor:.3g} have this gain too)" if factor > 0.01 else ""
    return f"gain {gain} on every part {_places(points, points)}, and no certain cause{hint}{turned}"


def _places(some: Sequence[Point], points: Sequence[Point]) -> str:
    if len(points) == 1:
        return f"at one place ({points[0].where})"
    return f"at all {len(points)} places" if len(some) == len(points) else f"at {len(some)} of {len(points)} places"


def _symptoms(points: Sequence[Point]) -> str:
    """Symptoms of any other mean: scores and parts where it is wrong, and by how much."""
    wrong = [point for point in points if point.is_wrong(len(points))]
    if not wrong:
        return ""
    gains = sorted(point.gain for point in wrong)
    gain = f"gain {gains[0]:.3g}" + (f" to {gains[-1]:.3g}" if gains[-1] - gains[0] > 1e-3 else "")

    def relative_error(point: Point) -> float:
        mean, target = point.pair
        return float((mean - target).norm()) / max(float(target.norm()), 1e-300)

    point = max(wrong, key=relative_error)
    mean, target = point.pair
    if point.tolerance is None:
        noise = 4 * (point.found - point.wanted).std(0) / math.sqrt(len(point.found))
    else:
        noise = torch.tensor(3 * point.tolerance * float(target.norm()))
    clear = (mean - target).abs().amax(0) > noise
    indices, total = clear.nonzero().flatten().tolist(), len(clear)
    what = f"no single part stands out ({point.where})" if not indices else f"every part is ({point.where})"
    if 0 < len(indices) < total:
        shown = ", ".join(f"({_index(point, index)})" for index in indices[:4])
        shown += f" and {len(indices) - 4} more" if len(indices) > 4 else ""
        values = f"{float(mean[0, indices[0]]):.3g} for {float(target[0, indices[0]]):.3g} in the first ({point.where})"
        what = f"{len(indices)} of {total} parts are, {shown}: {values}"
    return f"the mean is wrong {_places(wrong, points)}, {gain}; {what}"
