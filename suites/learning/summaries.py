"""Estimators over several tasks: interquartile means, probabilities of improvement, times to a target.

Resamples draw seeds within every task, and no tasks: results hold for the given tasks. A score is a share of the way from the floor to the
ceiling of its task.

References:
    Agarwal, Schwarzer, Castro, Courville & Bellemare 2021, "Deep reinforcement learning at the edge of the statistical precipice".
    Kaplan & Meier 1958, "Nonparametric estimation from incomplete observations".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy

from ..statistics.interval import LEVEL, Interval

Array = np.ndarray

RESAMPLES = 1000


def interquartile_mean(scores: Array) -> Interval:
    """The mean of the middle half of all scores ``[task, seed]``, without NaN."""
    rows = [row[np.isfinite(row)] for row in scores if np.isfinite(row).any()]  # the seeds of every task that have a number
    return _bootstrapped(lambda drawn: np.asarray(scipy.stats.trim_mean(np.concatenate(drawn, axis=-1), 0.25, axis=-1)), rows)


def probability_of_improvement(scores: Array, base: Array) -> Interval:
    """P(a run is better than one of the base), a tie counting half: the mean over tasks that both have runs of."""
    both = [pair for pair in zip(scores, base, strict=True) if all(np.isfinite(side).any() for side in pair)]
    first, second = ([side[np.isfinite(side)] for side in sides] for sides in (zip(*both, strict=True) if both else ((), ())))

    def statistic(drawn: list[Array]) -> Array:
        pairs = zip(drawn[: len(both)], drawn[len(both) :], strict=True)
        above = [a[..., :, None] - b[..., None, :] for a, b in pairs]
        return np.asarray(np.mean([((one > 0) + 0.5 * (one == 0)).mean((-1, -2)) for one in above], axis=0))

    return _bootstrapped(statistic, first + second)


class Survival(NamedTuple):
    """The number of runs, of those that reach the target, and the time by which half of them have; None if fewer do."""

    runs: int
    reached: int
    median: float | None


def survival(times: Array, censored: Array) -> Survival:
    """The median of the Kaplan–Meier curve of runs, some of which ended before they reached the target."""
    times, censored = times[np.isfinite(times)], censored[np.isfinite(times)]
    curve = scipy.stats.ecdf(scipy.stats.CensoredData.right_censored(times, censored)).sf
    below = curve.quantiles[curve.probabilities <= 0.5]
    return Survival(len(times), int((~censored).sum()), float(below[0]) if len(below) else None)


def _bootstrapped(statistic: Callable[[list[Array]], Array], rows: list[Array]) -> Interval:
    if not rows:
        return Interval(None)
    value = float(statistic(rows))
    if max(map(len, rows)) < 2:
        return Interval(value)
    random = np.random.default_rng(0)
    resamples = [row[random.integers(len(row), size=(RESAMPLES, len(row)))] for row in rows]  # [resamples, seed]
    low, high = np.quantile(statistic(resamples), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(low), float(high), "bootstrap")
