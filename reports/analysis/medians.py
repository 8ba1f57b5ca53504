"""Bootstrap of medians: percentile intervals of the medians of many groups of one size, and their quartiles."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

RESAMPLES = 1000

_GROUPS_AT_ONCE = 256
_MOST_COUNTED = 32
_ENDS = (0.025, 0.975)


def quantiles(values: np.ndarray, probabilities: tuple[float, ...]) -> np.ndarray:
    """Quantiles along the last axis that stay infinite, and do not become NaN, where values are infinite."""
    method: Literal["linear", "inverted_cdf"] = "linear" if np.isfinite(values).all() else "inverted_cdf"
    return np.asarray(np.quantile(values, probabilities, axis=-1, method=method))


def median_interval(values: np.ndarray) -> np.ndarray:
    """The 95 % percentile bootstrap of the median; the resamples are the same in every call, so that a report can be repeated.

    Args:
        values: [groups, instances].

    Returns:
        [2, groups], NaN where there are fewer than three instances.

    Example:
        >>> median_interval(np.array([[1.0, 2.0, 3.0]])).tolist()
        [[1.0], [3.0]]
    """
    groups, size = values.shape
    result = np.full((2, groups), math.nan)
    draws = np.random.default_rng(size).integers(size, size=(RESAMPLES, size))
    times = np.stack([(draws == item).sum(1) for item in range(size)]).astype(np.uint8) if size <= _MOST_COUNTED else None
    for start in range(0, groups if size >= 3 else 0, _GROUPS_AT_ONCE):
        chunk = values[start : start + _GROUPS_AT_ONCE]
        if times is not None and np.isfinite(chunk).all():
            found = _by_counting(chunk, times)
        else:
            found = quantiles(np.median(chunk[:, draws], axis=-1), _ENDS)
        result[:, start : start + _GROUPS_AT_ONCE] = found
    return result


def _by_counting(values: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Intervals by counting, equal to the last bit: a median lies halfway between two ranks, of which there are few pairs.

    Args:
        values: [groups, instances], finite.
        times: [instances, resamples], how often each has each.
    """
    groups, size = values.shape
    order = np.argsort(values, axis=-1, kind="stable")
    ranked = np.take_along_axis(values, order, axis=-1)
    seen = np.zeros((groups, times.shape[1]), np.uint8)
    # The lower rank times the size, and the upper one: in bytes as long as they hold it.
    pairs = np.zeros(seen.shape, np.uint8 if size <= 16 else np.uint16)
    for rank in range(size - 1):
        seen += times[order[:, rank]]
        lower, upper = ((seen < end).view(np.uint8) for end in ((size + 1) // 2, size // 2 + 1))
        pairs += lower * np.uint8(size) + upper
    places = pairs.astype(np.intp)
    places += size**2 * np.arange(groups)[:, None]
    counts = np.bincount(places.ravel(), minlength=groups * size**2).reshape(groups, size, size)
    first, second = np.triu_indices(size)
    middles = (ranked[:, first] + ranked[:, second]) / 2
    by_size = np.argsort(middles, axis=-1)
    middles = np.take_along_axis(middles, by_size, axis=-1)
    until = np.take_along_axis(counts[:, first, second], by_size, axis=-1).cumsum(-1)
    return np.stack([_order_statistic(middles, until, (times.shape[1] - 1) * end) for end in _ENDS])


def _order_statistic(values: np.ndarray, until: np.ndarray, position: float) -> np.ndarray:
    """The value at a fractional position of sorted values, each of which is repeated up to position ``until``."""
    below = math.floor(position)
    around = [np.take_along_axis(values, (until <= place).sum(-1)[:, None], axis=-1)[:, 0] for place in (below, below + 1)]
    return np.asarray(np.quantile(around, position - below, axis=0))
