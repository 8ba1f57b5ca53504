"""Estimators over several tasks: interquartile means, performance profiles, probabilities of improvement, times to a target.

Resamples draw seeds within every task, and no tasks: results hold for the given tasks. A score is a share of the way from the floor to the
ceiling of its task.

References:
    Agarwal, Schwarzer, Castro, Courville & Bellemare 2021, "Deep reinforcement learning at the edge of the statistical precipice".
    Kaplan & Meier 1958, "Nonparametric estimation from incomplete observations".
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy

from ..statistics.interval import LEVEL, Interval
from ..statistics.selection import student_mean

Array = np.ndarray

RESAMPLES = 1000


def interquartile_mean(scores: Array) -> Interval:
    """The mean of the middle half of all scores ``[task, seed]``, without NaN.

    Example:
        >>> interquartile_mean(np.array([[0.0, 1.0], [2.0, 9.0]])).value
        1.5
    """
    return _bootstrapped(lambda drawn: np.asarray(scipy.stats.trim_mean(np.concatenate(drawn, axis=-1), 0.25, axis=-1)), _rows(scores))


def performance_profile(scores: Array, thresholds: Array) -> tuple[Array, Array, Array]:
    """The share of runs ``[task, seed]`` that reach each threshold, tasks weighing alike, with a 95 % band: three arrays."""
    rows = _rows(scores)
    if not rows:
        return (np.full(len(thresholds), np.nan),) * 3

    def shares(drawn: list[Array]) -> Array:
        return np.asarray(np.mean([(row[..., None] >= thresholds).mean(-2) for row in drawn], axis=0))

    low, high = np.quantile(shares(_resamples(rows)), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return shares(rows), low, high


def probability_of_improvement(scores: Array, base: Array) -> Interval:
    """P(a run is better than one of the base), a tie counting half: the mean over tasks that both have runs of.

    Example:
        >>> probability_of_improvement(np.array([[1.0, 2.0]]), np.array([[0.0, 1.0]])).value
        0.875
    """
    both = [pair for pair in zip(scores, base, strict=True) if all(np.isfinite(side).any() for side in pair)]
    first, second = ([side[np.isfinite(side)] for side in sides] for sides in (zip(*both, strict=True) if both else ((), ())))

    def statistic(drawn: list[Array]) -> Array:
        pairs = zip(drawn[: len(both)], drawn[len(both) :], strict=True)
        return np.asarray(np.mean([_wins(a, b) for a, b in pairs], axis=0))

    return _bootstrapped(statistic, first + second)


def paired_difference(scores: Array, base: Array) -> Interval:
    """The mean difference over seeds that both have ``[seed]``, with the interval of Student's t.

    Example:
        >>> round(paired_difference(np.array([1.0, 2.0, 4.0]), np.array([0.0, 1.0, 2.0])).value, 3)
        1.333
    """
    return student_mean(scores - base)


def mean(values: Array) -> Interval:
    """The mean over seeds ``[seed]``, with the interval of Student's t."""
    return student_mean(values)


@dataclass(frozen=True, eq=False)
class Survival:
    """The share of runs that have not reached the target by a time: a step curve that starts at 1, with a 95 % band.

    Attributes:
        times: times of its steps. ``share, low, high``: values from each of them on.
        runs, reached: the number of runs, and of those that reach the target.
    """

    times: Array
    share: Array
    low: Array
    high: Array
    runs: int
    reached: int

    @property
    def median(self) -> float | None:
        """The time by which half of the runs have reached the target; None if fewer do."""
        below = np.flatnonzero(self.share <= 0.5)
        return float(self.times[below[0]]) if len(below) else None


def survival(times: Array, censored: Array) -> Survival:
    """The Kaplan–Meier curve of runs, some of which ended before they reached the target.

    Example:
        >>> found = survival(np.array([1.0, 2.0, 3.0]), np.array([False, False, True]))
        >>> found.share.round(3).tolist(), found.reached, found.median
        ([0.667, 0.333], 2, 2.0)
    """
    known = np.isfinite(times)
    times, censored = times[known], censored[known]
    if censored.all():
        empty = np.empty(0)
        return Survival(empty, empty, empty, empty, len(times), 0)
    curve = scipy.stats.ecdf(scipy.stats.CensoredData.right_censored(times, censored)).sf
    at = np.isin(curve.quantiles, times[~censored])
    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings(action="ignore"):
        # The variance of Greenwood's formula is 0/0 where no run is left.
        band = curve.confidence_interval(LEVEL, method="log-log")
    share = curve.probabilities[at]
    low, high = (np.where(np.isfinite(side.probabilities[at]), side.probabilities[at], share) for side in (band.low, band.high))
    return Survival(curve.quantiles[at], share, low, high, len(times), int((~censored).sum()))


def _rows(scores: Array) -> list[Array]:
    """The seeds of every task that have a number."""
    return [row[np.isfinite(row)] for row in scores if np.isfinite(row).any()]


def _bootstrapped(statistic: Callable[[list[Array]], Array], rows: list[Array]) -> Interval:
    if not rows:
        return Interval(None)
    value = float(statistic(rows))
    if max(map(len, rows)) < 2:
        return Interval(value)
    low, high = np.quantile(statistic(_resamples(rows)), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(low), float(high), "bootstrap")


def _resamples(rows: list[Array]) -> list[Array]:
    """Resamples of every row, ``[resamples, seed]``."""
    random = np.random.default_rng(0)
    return [row[random.integers(len(row), size=(RESAMPLES, len(row)))] for row in rows]


def _wins(first: Array, second: Array) -> Array:
    above = first[..., :, None] - second[..., None, :]
    return np.asarray(((above > 0) + 0.5 * (above == 0)).mean((-1, -2)))
