"""Exponents of growth: the slope of a quantity's logarithm in that of the size, over the upper part of a sweep.

Small sizes cost what a call costs, whatever its size, so that the slope is taken over the upper half of the sizes, at least three; of
the slopes of all pairs of points it is the median (Theil 1950, Sen 1968), which one disturbed point does not move.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy

from ...statistics.metrics import LEVEL, Interval
from .interleaving import median_interval

FEWEST_POINTS = 3
"""Two points fit any exponent."""


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """The e of ``value ∝ sizeᵉ``; None where fewer than `FEWEST_POINTS` sizes have a positive value.

    Example:
        >>> round(exponent([4, 8, 16, 32], [1.0, 4.0, 16.0, 64.0]), 9)
        2.0
    """
    points = [(math.log(size), math.log(value)) for size, value in zip(sizes, values, strict=True) if size > 0 and value > 0]
    if len(points) < FEWEST_POINTS:
        return None
    upper = sorted(points)[-max(FEWEST_POINTS, -(-len(points) // 2)) :]
    return float(np.median([(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(upper, 2)]))


def exponent_of_rounds(sizes: Sequence[float], rounds: Any) -> Interval:
    """The median exponent of rounds ``[rounds, sizes]``, each fitted alone, with its order-statistic interval.

    What slows a machine down for a while slows all sizes of a round down, and leaves the slope of the round.
    """
    fitted = [found for row in rounds if (found := exponent(sizes, row)) is not None]
    return median_interval(fitted) if fitted else Interval(None)


def exponent_of_counts(sizes: Sequence[float], values: Sequence[float]) -> Interval:
    """The exponent of values without noise; the interval is that of the slopes between neighbours, a point for a power."""
    found = exponent(sizes, values)
    if found is None:
        return Interval(None)
    points = sorted((size, value) for size, value in zip(sizes, values, strict=True) if size > 0 and value > 0)
    upper = points[-max(FEWEST_POINTS, -(-len(points) // 2)) :]
    slopes = [math.log(b[1] / a[1]) / math.log(b[0] / a[0]) for a, b in itertools.pairwise(upper)]
    return Interval(found, min(slopes), max(slopes))


def exponent_of_jackknife(sizes: Sequence[float], whole: Sequence[float], without: Any) -> Interval:
    """The exponent of noisy values, with the t-interval of a delete-one-batch jackknife ``[batches, sizes]``."""
    found, folds = exponent(sizes, whole), [exponent(sizes, row) for row in without]
    fitted = np.array([fold for fold in folds if fold is not None])
    if found is None or len(fitted) < 2:
        return Interval(found)
    number = len(fitted)
    error = math.sqrt((number - 1) / number * float(((fitted - fitted.mean()) ** 2).sum()))
    half = float(scipy.stats.t.ppf((1 + LEVEL) / 2, number - 1)) * error
    return Interval(found, found - half, found + half)
