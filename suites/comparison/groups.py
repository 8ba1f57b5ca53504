"""Comparisons over the instances of a problem: one ratio with its interval, paired by instance.

Both runs have the same instances, and the question is what changed on these: instances are not resampled, and only the errors of the
estimates make the interval. They are independent between instances, whose streams of random numbers have names of their own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ..statistics.interval import Interval
from .matching import Key
from .verdicts import MEANING, Comparison, Verdict


@dataclass(frozen=True)
class Group:
    """One metric of one estimator on one problem, over instances.

    Attributes:
        key: of the first instance, without its name.
        verdict: the gravest of any instance. ``sharing``: how many have it. ``instances``: of how many.
        change: geometric mean of the ratios, or mean of the differences, with a 95 % interval. ``scale``: which of the two.
        most: the ratio or difference of the instance that changed most.
        reason: of the first instance with the verdict.
    """

    key: Key
    verdict: Verdict
    sharing: int
    instances: int
    change: Interval
    scale: Literal["ratio", "difference"]
    most: float | None
    reason: str


def grouped(comparisons: Iterable[Comparison]) -> list[Group]:
    """Over the instances of every problem, in the order of the comparisons."""
    found: dict[Key, list[Comparison]] = defaultdict(list)
    for item in comparisons:
        found[item.key._replace(instance="")].append(item)
    return [_group(key, items) for key, items in found.items()]


def _group(key: Key, items: Sequence[Comparison]) -> Group:
    gravest = min(items, key=lambda item: list(MEANING).index(item.verdict))
    sharing = sum(item.verdict == gravest.verdict for item in items)
    known = [item for item in items if item.change.value is not None]
    ratio = all(item.scale == "ratio" for item in known)
    change, most = _mean(known, ratio=ratio)
    return Group(key, gravest.verdict, sharing, len(items), change, "ratio" if ratio else "difference", most, gravest.reason)


def _mean(items: Sequence[Comparison], *, ratio: bool) -> tuple[Interval, float | None]:
    """The mean on the scale on which changes add up; half-widths of independent errors add up in squares."""
    if not items:
        return Interval(None), None
    numbers = [_additive(item, ratio=ratio) for item in items]
    count = len(numbers)
    centre = math.fsum(value for value, _ in numbers) / count
    half = math.sqrt(math.fsum(half**2 for _, half in numbers)) / count
    most = max((value for value, _ in numbers), key=abs)
    if ratio:
        bounds = [math.exp(min(bound, 700.0)) for bound in (centre, centre - half, centre + half)]
        return Interval(*_bounded(*bounds, half=half)), math.exp(min(most, 700.0))
    return Interval(*_bounded(centre, centre - half, centre + half, half=half)), most


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
