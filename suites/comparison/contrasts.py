"""Contrasts: how much a number changed between two runs, and how sure that is; pure functions of two estimates.

Two estimates from the same random numbers (seed, replicates, batches) are compared batch by batch: what both share cancels. Estimates
from different ones keep both of their errors; a stored baseline is an estimate too, and treating it as exact makes fifteen times as many
false alarms as stated.

Reference:
    Efron & Tibshirani 1993, "An introduction to the bootstrap", section 11.5 (delete-one-group jackknife).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy

from ..base import Row
from ..statistics.interval import BATCHES, LEVEL

_NORMAL = 1e9
"""Degrees of freedom of what is as good as normal."""


@dataclass(frozen=True)
class Estimate:
    """One side of a comparison.

    Attributes:
        value: the number.
        error: its standard error; 0 where it is exact.
        degrees: of freedom of the error.
        batches: the number with each batch of replicates left out; empty where nothing is known but the error.
    """

    value: float
    error: float = 0.0
    degrees: float = _NORMAL
    batches: tuple[float, ...] = ()

    @classmethod
    def of(cls, row: Row) -> Estimate | None:
        """The number of a row with what is known of its error; None for a sampled number of unknown error."""
        if row.value is None:
            return None
        if len(row.batches) > 1 and all(map(math.isfinite, row.batches)):
            return cls.jackknifed(row.value, row.batches)
        if exact(row):
            return cls(row.value)
        if row.low is None or row.high is None or not math.isfinite(row.high - row.low):
            return None
        batched = row.interval in ("jackknife", "profile")
        quantile = scipy.special.stdtrit(BATCHES - 1, (1 + LEVEL) / 2) if batched else scipy.special.ndtri((1 + LEVEL) / 2)
        return cls(row.value, (row.high - row.low) / 2 / float(quantile), BATCHES - 1 if batched else _NORMAL)

    @classmethod
    def jackknifed(cls, value: float, batches: tuple[float, ...]) -> Estimate:
        """With the error that its batches say."""
        return cls(value, _jackknife(np.array(batches)), len(batches) - 1, batches)


def exact(row: Row) -> bool:
    """Whether the number of a row has no sampling error: an exact tier, a count, or bytes."""
    if row.tier == "exact" or (row.low is None and row.unit == "count"):
        return True
    return row.tier == "" and row.low is None and row.replicates is None


def common_random_numbers(base: Row, head: Row) -> bool:
    """Whether both rows come from the same streams of random numbers, batch by batch."""
    same = all(getattr(base, name) == getattr(head, name) for name in ("seed", "replicates", "tier", "dtype", "device"))
    return same and len(base.batches) == len(head.batches) > 1


@dataclass(frozen=True)
class Contrast:
    """A statistic of both sides: an estimate, its standard error, degrees of freedom.

    Example:
        >>> contrast(lambda b, h: h - b, Estimate(1.0, 3.0), Estimate(2.0, 4.0), paired=False).error
        5.0
    """

    estimate: float
    error: float
    degrees: float

    def p_above(self) -> float:
        """p-value of "it is not above 0"."""
        if self.error == 0 or not math.isfinite(self.estimate):
            return 0.0 if self.estimate > 0 else 1.0
        return float(scipy.special.stdtr(self.degrees, -self.estimate / self.error))

    def bounds(self, level: float = LEVEL) -> tuple[float, float]:
        """The interval."""
        half = float(scipy.special.stdtrit(self.degrees, (1 + level) / 2)) * self.error if self.error > 0 else 0.0
        return self.estimate - half, self.estimate + half


Statistic = Callable[[float, float], float]
"""Of the number of the base and of that of the head."""


def contrast(statistic: Statistic, base: Estimate, head: Estimate, *, paired: bool) -> Contrast:
    """A statistic of two numbers with its error.

    Args:
        statistic: smooth in both.
        base: one side.
        head: the other side.
        paired: whether batches are compared one by one; else the errors of both sides add up.
    """
    estimate = statistic(base.value, head.value)
    if paired:
        without = np.array([statistic(*pair) for pair in zip(base.batches, head.batches, strict=True)])
        return Contrast(estimate, _jackknife(without), len(without) - 1)
    parts = [
        (_spread(lambda b: statistic(b, head.value), base), base.degrees),
        (_spread(lambda h: statistic(base.value, h), head), head.degrees),
    ]
    return Contrast(estimate, math.hypot(*(error for error, _ in parts)), _welch(parts))


def _spread(statistic: Callable[[float], float], side: Estimate) -> float:
    """The error that one side brings: over its batches, or by the slope at its value."""
    if side.error == 0:
        return 0.0
    if side.batches:
        return _jackknife(np.array([statistic(value) for value in side.batches]))
    step = min(side.error, abs(side.value) / 2) or side.error
    return abs(statistic(side.value + step) - statistic(side.value - step)) / 2 * (side.error / step)


def _jackknife(without: np.ndarray) -> float:
    folds = len(without)
    return math.sqrt((folds - 1) / folds * float(np.square(without - without.mean()).sum()))


def _welch(parts: Sequence[tuple[float, float]]) -> float:
    """Degrees of freedom of a sum of independent errors (Welch 1947, Satterthwaite 1946)."""
    weights = [error**4 / degrees for error, degrees in parts if error > 0]
    return sum(error**2 for error, _ in parts) ** 2 / sum(weights) if weights else _NORMAL


Direction = Literal[1, -1]


def log_ratio(base: float, head: float) -> float:
    """``log(head / base)``."""
    return math.log(head / base)


def beyond(sign: Direction, relative: float, absolute: float) -> Statistic:
    """By how much the head lies above (1) or below (−1) the base by more than a margin: ``± (h − b) − relative |b| − absolute``."""
    return lambda base, head: sign * (head - base) - relative * abs(base) - absolute


def log_beyond(sign: Direction, relative: float) -> Statistic:
    """The same on the scale of logarithms."""
    return lambda base, head: sign * math.log(head / base) - math.log1p(relative)
