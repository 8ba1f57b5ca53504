"""Medians, quartiles and geometric means over instances, with a bootstrap over instances.

The unit of replication is the instance: replicates make one instance's number exact, and say nothing about the next instance. Metrics such
as a relative bias have heavy tails (one instance of a vanishing gradient outweighs all others), so that there is no arithmetic mean here.
A resample draws instances with replacement, then adds to each its own error, which makes intervals a little wide rather than too narrow.

References:
    Efron & Tibshirani 1993, "An introduction to the bootstrap", section 13.3 (percentile intervals).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from .metrics import LEVEL, Interval

RESAMPLES = 1000
SEED = 0

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Measured:
    """One metric on n instances, each with its own standard error.

    Attributes:
        values: float64 [n], NaN if the metric is not defined.
        errors: float64 [n], 0 if a value is exact.
    """

    values: Array
    errors: Array

    @classmethod
    def of(cls, values: Sequence[float | None], lows: Sequence[float | None] = (), highs: Sequence[float | None] = ()) -> Measured:
        """Make it from values and bounds of their 95 % intervals, None if missing; a standard error is the mean half-width / 1.96.

        Raises:
            ValueError: bounds of another number than values.

        Example:
            >>> Measured.of([1.0, None, 3.0], [0.02, None, None], [1.98, None, None]).errors.round(3).tolist()
            [0.5, 0.0, 0.0]
        """
        if (len(lows) or len(highs)) and not len(lows) == len(highs) == len(values):
            raise ValueError(
                f"`Measured.of` got {len(values)} values, {len(lows)} lows and {len(highs)} highs; expected one of each, or none"
            )
        numbers = _numbers(values)
        widths = _numbers(highs) - _numbers(lows) if len(highs) else np.zeros_like(numbers)
        errors = np.nan_to_num(widths, nan=0.0, posinf=0.0) / (2 * float(scipy.stats.norm.ppf((1 + LEVEL) / 2)))
        return cls(np.where(np.isfinite(numbers), numbers, np.nan), errors)

    def kept(self, keep: Array) -> Measured:
        """Some of the instances."""
        return Measured(self.values[keep], self.errors[keep])


@dataclass(frozen=True)
class Aggregate:
    """A metric over instances.

    Attributes:
        instances: number it is defined on, the sample size of all intervals here. ``undefined``: number of the others.
        median, lower_quartile, upper_quartile: with 95 % intervals.
        geometric_mean: the same; all None if a value is not positive.
    """

    instances: int
    undefined: int
    median: Interval
    lower_quartile: Interval
    upper_quartile: Interval
    geometric_mean: Interval


def aggregate(measured: Measured) -> Aggregate:
    """Median, quartiles and geometric mean with percentile intervals.

    Example:
        >>> found = aggregate(Measured.of([1.0, 2.0, 4.0, 8.0, None]))
        >>> found.instances, found.undefined, found.median.value, round(found.geometric_mean.value, 4)
        (4, 1, 3.0, 2.8284)
    """
    kept = measured.kept(np.isfinite(measured.values))
    count = len(kept.values)
    if count == 0:
        return Aggregate(0, len(measured.values), *[Interval(None)] * 4)
    draws = _Draws(count)
    resampled = draws.shifted(kept)
    quartiles = [_interval(kept.values, resampled, functools.partial(np.quantile, q=share, axis=-1)) for share in (0.5, 0.25, 0.75)]
    geometric = Interval(None)
    if bool((kept.values > 0).all()):
        geometric = _exponential(_interval(np.log(kept.values), draws.scaled(kept), lambda rows: rows.mean(-1)))
    return Aggregate(count, len(measured.values) - count, quartiles[0], quartiles[1], quartiles[2], geometric)


class _Draws:
    """Resamples of n instances and standard normal noise for each, the same in every call."""

    def __init__(self, count: int) -> None:
        random = np.random.default_rng(SEED)
        self.index = random.integers(count, size=(RESAMPLES, count))
        self.noise = random.standard_normal((2, RESAMPLES, count))

    def shifted(self, measured: Measured, slot: int = 0) -> Array:
        """Values of resampled instances, [resamples, n], each with its own error added."""
        return np.asarray(measured.values[self.index] + self.noise[slot] * measured.errors[self.index])

    def scaled(self, measured: Measured, slot: int = 0) -> Array:
        """Logarithms of the same, with the error of a logarithm, so that positive values stay positive."""
        relative = measured.errors / measured.values
        return np.asarray(np.log(measured.values)[self.index] + self.noise[slot] * relative[self.index])


def _interval(values: Array, resampled: Array, statistic: Callable[[Array], Array]) -> Interval:
    low, high = np.quantile(statistic(resampled), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(statistic(values)), float(low), float(high), "bootstrap")


def _exponential(interval: Interval) -> Interval:
    value, low, high = (None if bound is None else float(np.exp(bound)) for bound in (interval.value, interval.low, interval.high))
    return Interval(value, low, high, interval.method)


def _numbers(values: Sequence[float | None]) -> Array:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
