"""Causes of wrong means: every hypothesis predicts the means at all scores, and the best one is reported if it clearly beats the others.

The rivals of a factor of an option are other factors, wrong parts, and "some factor on everything", which is no cause. Factors that are
equal by accident are separated by other values of their options.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from scipy import optimize, special
from torch import Tensor

EXACT = 1e-6  # relative distance below which two exact numbers are equal
REJECTED = 0.01  # p-value below which a prediction is rejected, after Bonferroni's correction over the points
OTHER = 1e-3  # p-value below which two means differ
MARGIN = 10.0  # least distance of −2 log-likelihood + penalty to the second best: odds of 150 to 1

SIGN = "the estimate has the wrong sign: is the loss treated as a reward?"
NO_NORMALISER = "the mean is off by a multiple of μ: the score of a sample is z − μ; is its log-probability ⟨θ, z⟩ without the normaliser?"
MASKS = "with forbidden parts alone; they are counted, or a normaliser includes them"

_DECAYS = ("decay", "momentum", "ema", "beta", "alpha", "smoothing")
_MAX_DIRECTIONS = 16

Factor = tuple[str, str, Callable[..., float]]  # formula, meaning, and value

OF_COUNT: tuple[Factor, ...] = (
    ("(N − 1)/N", "the baseline of a sample includes the sample itself", lambda n: (n - 1) / n),
    ("N/(N − 1)", "the correction for leaving one out is made twice, or where none is due", lambda n: n / (n - 1)),
    ("N", "the samples are summed, not averaged", lambda n: n),
    ("1/N", "the mean over the samples is taken twice", lambda n: 1 / n),
)
OF_DECAY: tuple[Factor, ...] = (
    ("1 − (1 − {0})/N", "the running mean is updated before it is used", lambda decay, n: 1 - (1 - decay) / n),
    ("1 − {0}/N", "the running mean is updated before it is used", lambda decay, n: 1 - decay / n),
)
OF_OPTION: tuple[Factor, ...] = (
    ("{0}", "the estimate is multiplied by {0}, or not divided by it", lambda x: x),
    ("1/{0}", "the estimate is divided by {0}, once too often", lambda x: 1 / x),
    ("{0}²", "the estimate is multiplied by {0} where it should be divided", lambda x: x**2),
    ("1/{0}²", "the estimate is divided by {0} twice too often", lambda x: 1 / x**2),
)


@dataclass(frozen=True, eq=False)
class Point:
    """The mean of an estimator at some scores, and its target."""

    where: str
    event: tuple[int, ...]
    found: Tensor  # ``[n, d]``: exact rows, or without a tolerance means of batches, whose spread is the error
    wanted: Tensor
    numbers: Mapping[str, float]  # options by name, and the number of losses under the empty name
    marginals: Tensor | None = None
    tolerance: float | None = EXACT

    @property
    def target(self) -> Tensor:
        """The target in the shape of ``found``."""
        return self.wanted.expand_as(self.found)

    @property
    def pair(self) -> tuple[Tensor, Tensor]:
        """The mean and its target, ``[n, d]`` of exact rows, ``[1, d]`` of batches."""
        if self.tolerance is not None:
            return self.found, self.target
        return self.found.mean(0, keepdim=True), self.target.mean(0, keepdim=True)

    def distance(self, predicted: Tensor) -> tuple[float, float]:
        """−2 log-likelihood of a prediction, up to a constant, and the p-value of its test (Hotelling's, for batches)."""
        residual = self.found - predicted
        if self.tolerance is not None:
            size = max(float(self.found.norm()), float(predicted.norm()))
            ratio = float(residual.norm()) / (self.tolerance * size + 1e-12)
            return ratio**2, 1.0 if ratio <= 3 else 0.0
        rounding, count, mean = EXACT * float(self.wanted.norm()), len(residual), residual.mean(0)
        values, vectors = torch.linalg.eigh((residual - mean).mT @ (residual - mean) / (count * (count - 1)))
        moves = values > max(rounding**2, 1e-12 * float(values.max()))
        moves &= torch.arange(len(values)) >= len(values) - _MAX_DIRECTIONS
        rank, along = int(moves.sum()), mean @ vectors
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
    """A possible cause (empty if none), its means at a point (NaN without any), and options whose other values tell it apart."""

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
        score = sum(distance for distance, _ in found) + self.parameters * math.log(sum(point.pair[0].numel() for point in points))
        return score, min(p_value for _, p_value in found) * len(found) < REJECTED


@dataclass(frozen=True)
class Explanation:
    """The cause of wrong means; else their symptoms, and the factor if it is one on everything."""

    cause: str = ""
    seen: str = ""
    factor: float | None = None


def explain(points: Sequence[Point], ask: Callable[[str], Sequence[Point]] = lambda option: ()) -> Explanation:
    """The cause that predicts the means at all points best, or the symptoms; ``ask`` gives points with another value of an option."""
    factor, exact = best_factor(points), any(point.tolerance is not None for point in points)
    scaled = not on_everything(factor).fit(points)[1]
    if scaled and math.isclose(factor, -1, abs_tol=10 * EXACT if exact else 0.1):
        return Explanation(SIGN)
    right = points[0].target
    possible = [one for one in factors(points[0].numbers) if not torch.allclose(one.predict(points[0]), right, rtol=EXACT, atol=0)]
    possible = [one for one in possible if scaled and not one.fit(points)[1]]
    further = [*points]
    for option in dict.fromkeys(option for one in possible for option in one.options):
        further += ask(option)
    rivals = [on_everything(best_factor(further)), *possible, *parts(points)]
    first, second = sorted(((*one.fit(further), one.text) for one in rivals), key=lambda fit: fit[0])[:2]
    if first[2] and not first[1] and second[0] - first[0] >= MARGIN:
        return Explanation(first[2])
    wrong = [point for point in points if point.is_wrong(len(points))]
    seen = _symptoms(points, points if scaled else wrong, factor if scaled else None)
    return Explanation(seen=seen, factor=factor if scaled else None)


def corrected(points: Sequence[Point], others: Sequence[Point]) -> bool:
    """Whether the means with other options are right, and differ from the first ones. For replicates, both are tests."""
    found = {point.where: point for point in points}
    right = not any(point.is_wrong(len(others)) for point in others)
    return right and any(point.distance(found[point.where].found)[1] < OTHER for point in others if point.where in found)


def on_everything(factor: float) -> Hypothesis:
    """A fitted factor."""
    return Hypothesis("", lambda point: factor * point.target, parameters=1)


def _ratio(pairs: Sequence[tuple[Tensor, Tensor]]) -> float:
    """``⟨m, g⟩ / ‖g‖²`` of means and targets."""
    return math.fsum(float((m * g).sum()) for m, g in pairs) / max(math.fsum(float(g.square().sum()) for _, g in pairs), 1e-300)


def best_factor(points: Sequence[Point]) -> float:
    """The factor x for which x g predicts best: by least squares of exact points, else by the likelihood."""
    exact = [point for point in points if point.tolerance is not None]
    start = math.fsum(_ratio([point.pair]) for point in exact or points) / len(exact or points)
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
    table: list[tuple[tuple[str, ...], Factor]] = [((count,), row) for count in counts for row in OF_COUNT]
    table += [((name, n), row) for name in numbers if name.rpartition(".")[2] in _DECAYS for n in counts for row in OF_DECAY]
    table += [((name,), row) for name in numbers if name and name not in counts for row in OF_OPTION]
    for names, (formula, meaning, function) in table:

        def value(given: Mapping[str, float], names: tuple[str, ...] = names, function: Callable[..., float] = function) -> float:
            try:
                return function(*(given[name] for name in names))
            except (KeyError, ZeroDivisionError):
                return math.nan

        known = ", ".join(f"{'N' if name in counts else name} = {numbers[name]:g}" for name in names)
        shown = formula.format(*names) + ("" if formula == "{0}" else f" with {known}")
        text = f"gain {value(numbers):.4g} = {shown}: {meaning.format(*names)}"
        yield Hypothesis(text, lambda point, value=value: value(point.numbers) * point.target, options=tuple(filter(None, names)))  # type: ignore[misc]


def parts(points: Sequence[Point]) -> Iterator[Hypothesis]:
    """A part with a factor of its own, or two that change places, or a multiple of μ; parts with an index in common may share a factor."""
    first, exact = points[0], all(point.tolerance is not None for point in points)
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
        own = _ratio([(mean[:, chosen(point)], target[:, chosen(point)]) for point in points for mean, target in (point.pair,)])
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

    def off_by_marginals(point: Point) -> Tensor:  # by another multiple at each point
        (mean, target), marginals = point.pair, point.target[0] if point.marginals is None else point.marginals
        return point.target + (mean - target).mean(0) @ marginals / marginals.square().sum() * marginals

    if all(point.marginals is not None for point in points):
        yield Hypothesis(NO_NORMALISER, off_by_marginals, parameters=len(points))


def _index(point: Point, part: int) -> str:
    return ", ".join(str(int(index)) for index in torch.unravel_index(torch.tensor(part), point.event))


def _symptoms(points: Sequence[Point], wrong: Sequence[Point], factor: float | None) -> str:
    """The places where the mean is wrong with its gain, or the factor on everything with its usual reasons."""
    if not wrong:
        return ""
    where = f"all {len(points)}" if len(wrong) == len(points) else f"{len(wrong)} of {len(points)}"
    places = f"at {where} places" if len(points) > 1 else f"at one place ({points[0].where})"
    if factor is not None:
        gain = 0.0 if abs(factor) < EXACT else factor
        hint = f" (log-probabilities at a temperature of {1 / factor:.3g} have this gain too)" if factor > 0.01 else ""
        hint += "; the sign is wrong too" if factor < -0.1 else ""
        if abs(factor - 0.5) < 0.05:
            hint += "; a mean over two terms where a sum is due, or a difference over two steps where one is taken?"
        return f"gain {gain:.4g} on every part {places}, and no certain cause{hint}"
    gains = sorted(_ratio([point.pair]) for point in wrong)
    gain_range = f"gain {gains[0]:.3g}" + (f" to {gains[-1]:.3g}" if gains[-1] - gains[0] > 1e-3 else "")
    masks = all(point.where.endswith("masked") for point in wrong) and len(wrong) < len(points)
    return f"the mean is wrong {places}, {gain_range}" + (f": {MASKS}" if masks else f" ({wrong[0].where})")
