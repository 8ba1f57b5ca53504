"""Spearman's rank correlation over estimators, within each of several tasks, with an interval for estimators that come in ideas.

A resample draws ideas with replacement, each with all of its estimators, and seeds; all tasks share it. Tasks are not drawn: an interval
is about the given tasks. Its bounds are those of Fisher's z with the standard deviation of the resamples. Student's t has one degree of
freedom fewer than there are ideas, because percentiles of so few ideas are too narrow.

References:
    Cameron, Gelbach & Miller 2008, "Bootstrap-based improvements for inference with clustered errors".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from ..statistics.interval import LEVEL, Interval

Array = np.ndarray

RESAMPLES = 400
FEWEST = 4
"""Least number of estimators of a rank correlation, and of ideas of an interval."""

_LARGEST = 0.995
"""Correlations are clipped here, because Fisher's z of 1 is infinite."""


@dataclass(frozen=True)
class Association:
    """Rank correlation of a predictor with an outcome.

    Attributes:
        pooled: the mean over tasks, with its interval; None if there is none.
        within: the correlation by task.
        estimators, ideas: their numbers over all tasks.
        note: why there is no correlation, or no interval; else empty.
    """

    pooled: Interval
    within: dict[str, float]
    estimators: int
    ideas: int
    note: str = ""

    @property
    def significant(self) -> bool:
        """Whether the interval does not contain 0."""
        low, high = self.pooled.low, self.pooled.high
        return low is not None and high is not None and not low <= 0 <= high


def associate(tasks: Sequence[str], predictor: Array, outcome: Array, ideas: Sequence[str], *, resamples: int | None = None) -> Association:
    """The correlation over estimators of means over seeds.

    Args:
        tasks: T names.
        predictor: ``[T, E, S]`` over estimators and seeds; NaN for missing numbers.
        outcome: ``[T, E, S]``, also with NaN.
        ideas: one per estimator; resamples draw these.
        resamples: their number, by default `RESAMPLES`; 0 for no interval.

    Example:
        >>> numbers = np.arange(10.0)[None, :, None]
        >>> associate(["toy"], numbers, numbers**2, list("aabbccddee")).within
        {'toy': 1.0}
    """
    known = (np.isfinite(predictor) & np.isfinite(outcome)).any(-1)
    enough = known.sum(-1) >= FEWEST
    whole = _correlations(predictor, outcome, np.ones((1, predictor.shape[1])), np.ones((1, predictor.shape[2])))[:, 0]
    whole = np.where(enough, whole, np.nan)
    within = {task: float(value) for task, value in zip(tasks, whole, strict=True) if np.isfinite(value)}
    used = [idea for idea, any_task in zip(ideas, known[np.isfinite(whole)].any(0), strict=True) if any_task]
    found = Association(Interval(None), within, len(used), len(set(used)))
    if not within:
        fewest = int(known.sum(-1).max(initial=0))
        why = "all alike" if fewest >= FEWEST else f"expected at least {FEWEST}"
        return replace(found, estimators=fewest, ideas=0, note=f"no correlation: {fewest} estimators, {why}")
    value = float(np.mean(list(within.values())))
    if resamples == 0 or found.ideas < FEWEST:
        note = f"no interval: {found.ideas} ideas behind {found.estimators} estimators; expected at least {FEWEST}"
        return replace(found, pooled=Interval(value), note=note if resamples != 0 else "")
    predictor = np.where(np.isfinite(whole)[:, None, None], predictor, np.nan)
    drawn = _drawn(predictor, outcome, ideas, RESAMPLES if resamples is None else resamples)
    half = float(scipy.special.stdtrit(found.ideas - 1, (1 + LEVEL) / 2) * np.arctanh(np.clip(drawn, -_LARGEST, _LARGEST)).std(ddof=1))
    middle = float(np.arctanh(np.clip(value, -_LARGEST, _LARGEST)))
    pooled = Interval(value, float(min(np.tanh(middle - half), value)), float(max(np.tanh(middle + half), value)), "bootstrap")
    return replace(found, pooled=pooled)


def _drawn(predictor: Array, outcome: Array, ideas: Sequence[str], resamples: int) -> Array:
    """Pooled correlations of the resamples that have one."""
    random = np.random.default_rng(0)
    known = (np.isfinite(predictor) & np.isfinite(outcome)).any((0, 2))
    names = sorted({idea for idea, keep in zip(ideas, known, strict=True) if keep})
    position = np.array([names.index(idea) if idea in names else 0 for idea in ideas])
    times = _times(random, len(names), resamples)[:, position] * known
    seeds = _times(random, predictor.shape[2], resamples)
    each = _correlations(predictor, outcome, times, seeds)
    some = np.isfinite(each).any(0)
    return np.asarray(np.nanmean(each[:, some], axis=0))


def _times(random: np.random.Generator, count: int, resamples: int) -> Array:
    """Number of times that each of ``count`` items is drawn, ``[resamples, count]``."""
    return random.multinomial(count, np.full(count, 1 / count), size=resamples).astype(np.float64)


def _correlations(predictor: Array, outcome: Array, times: Array, seeds: Array) -> Array:
    """Correlations ``[T, resamples]`` by the numbers of draws: ``times [resamples, E]`` and ``seeds [resamples, S]``."""
    found = np.full((len(predictor), len(times)), np.nan)
    for task, (first, second) in enumerate(zip(predictor, outcome, strict=True)):
        x, y = _over_seeds(first, seeds), _over_seeds(second, seeds)
        weights = np.where(np.isfinite(x) & np.isfinite(y), times, 0.0)
        enough = (weights > 0).sum(1) >= 2  # fewer than `FEWEST`: the estimators that a resample lacks are part of the uncertainty
        if enough.any():
            drawn = weights[enough]
            first_ranks, second_ranks = (_ranks(np.broadcast_to(values, times.shape)[enough], drawn) for values in (x, y))
            found[task, enough] = _weighted_correlation(first_ranks, second_ranks, drawn)
    return found


def _over_seeds(values: Array, seeds: Array) -> Array:
    """Means over the drawn seeds that have a number, ``[resamples, E]``."""
    present = np.isfinite(values)
    count = seeds @ present.T
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(count > 0, seeds @ np.where(present, values, 0.0).T / count, np.nan))


def _ranks(values: Array, weights: Array) -> Array:
    """Middle ranks; a value counts once for each draw."""
    below = (values[:, None, :] < values[:, :, None]) + 0.5 * (values[:, None, :] == values[:, :, None])
    return np.asarray(np.einsum("rij,rj->ri", below, weights))


def _weighted_correlation(x: Array, y: Array, weights: Array) -> Array:
    """Pearson's correlation; NaN if one side does not vary."""
    total = weights.sum(1, keepdims=True)
    x, y = (side - (weights * side).sum(1, keepdims=True) / total for side in (x, y))
    spread = (weights * x * x).sum(1) * (weights * y * y).sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(spread > 1e-9, (weights * x * y).sum(1) / np.sqrt(spread), np.nan))
