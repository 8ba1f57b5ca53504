"""Comparisons over the instances of a problem: one ratio with its interval, paired by instance.

Both runs have the same instances, and the question is what changed on these: instances are not resampled, and only the errors of the
estimates make the interval. They are independent between instances, whose streams of random numbers have names of their own.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..statistics.interval import Interval
from ..text import ZERO
from .matching import Key
from .verdicts import MEANING, Comparison, Verdict


class Tally(NamedTuple):
    """A cell's metric with one of its verdicts; the reason is that of numbers that cannot be compared, else empty."""

    suite: str
    problem: str
    stage: str
    estimator: str
    metric: str
    verdict: Verdict
    reason: str


def tally_of(item: Comparison) -> Tally:
    """The tally that a comparison belongs to."""
    key = item.key
    reason = item.reason if item.verdict == "incomparable" else ""
    return Tally(key.suite, key.problem, key.stage, key.estimator, key.metric, item.verdict, reason)


def tallies_of(items: Iterable[Comparison]) -> Counter[Tally]:
    """The number of comparisons of each tally."""
    found = getattr(items, "tallies", None)
    return found() if found else Counter(map(tally_of, items))


@dataclass(frozen=True)
class Group:
    """One metric of one estimator on one problem, over instances; or over all its problems.

    Attributes:
        key: of the first instance, without its name.
        verdict: the gravest of any instance. ``sharing``: how many have it. ``instances``: of how many.
        change: geometric mean of the ratios, or mean of the differences, with a 95 % interval. ``scale``: which of the two.
        most: the instance that changed most of those with the verdict.
        places: problem and entropy level of every instance with the verdict. ``everywhere``: of every instance.
        same: whether the numbers of all instances with the verdict are the same, to three digits.
    """

    key: Key
    verdict: Verdict
    sharing: int
    instances: int
    change: Interval
    scale: Literal["ratio", "difference"]
    most: Comparison
    places: frozenset[tuple[str, str]]
    everywhere: frozenset[tuple[str, str]]
    same: bool

    @property
    def reason(self) -> str:
        """Of the instance that changed most."""
        return self.most.reason


def grouped(
    comparisons: Iterable[Comparison],
    judged: Callable[[Verdict], bool] = lambda verdict: True,
    *,
    by: Callable[[Key], object] | None = None,
) -> list[Group]:
    """Over the instances of every problem, or by what else is asked for, in the order of the comparisons; only groups with a judged one."""
    found: dict[object, list[Comparison]] = defaultdict(list)
    for item in comparisons:
        found[item.key._replace(instance="") if by is None else by(item.key)].append(item)
    return [group(items, some) for items in found.values() if (some := [item for item in items if judged(item.verdict)])]


def group(items: Sequence[Comparison], judged: Sequence[Comparison]) -> Group:
    """A group of comparisons, and those of them that are judged."""
    verdict = min((item.verdict for item in judged), key=list(MEANING).index)
    sharing = [item for item in judged if item.verdict == verdict]
    known = [item for item in items if item.change.value is not None]
    ratio = all(item.scale == "ratio" for item in known)
    change = _mean(known, ratio=ratio)
    most = max(sharing, key=lambda item: 0.0 if item.change.value is None else abs(_additive(item, ratio=ratio)[0]))
    places, everywhere = (frozenset((item.key.problem, item.key.stage) for item in some) for some in (sharing, items))
    same = len({_shown(item) for item in sharing}) == 1
    scale: Literal["ratio", "difference"] = "ratio" if ratio else "difference"
    return Group(items[0].key._replace(instance=""), verdict, len(sharing), len(items), change, scale, most, places, everywhere, same)


def _shown(item: Comparison) -> tuple[str, ...]:
    return tuple(
        "" if row is None or row.value is None else f"{row.value if abs(row.value) >= ZERO else 0.0:.3g}" for row in (item.base, item.head)
    )


def _mean(items: Sequence[Comparison], *, ratio: bool) -> Interval:
    """The mean on the scale on which changes add up; half-widths of independent errors add up in squares."""
    if not items:
        return Interval(None)
    numbers = [_additive(item, ratio=ratio) for item in items]
    count = len(numbers)
    centre = math.fsum(value for value, _ in numbers) / count
    half = math.sqrt(math.fsum(half**2 for _, half in numbers)) / count
    bounds = [math.exp(min(bound, 700.0)) if ratio else bound for bound in (centre, centre - half, centre + half)]
    return Interval(*_bounded(*bounds, half=half))


def _bounded(value: float, low: float, high: float, *, half: float) -> tuple[float, float | None, float | None]:
    return (value, low, high) if half > 0 else (value, None, None)


def _additive(item: Comparison, *, ratio: bool) -> tuple[float, float]:
    """A change and its half-width: of the logarithm, or of the difference."""
    change = item.change
    value = change.value or 0.0
    if ratio:
        return math.log(value), 0.0 if change.half_width is None else math.log(change.high or 1.0) - math.log(value)
    half = change.half_width or 0.0
    if item.scale == "difference":
        return value, half
    base = 0.0 if item.base is None or item.base.value is None else item.base.value
    return base * (value - 1), base * half
