"""Bounds of scores, compiled: NumPy's reduction takes longer than many a kernel, and pushes its code out of the cache."""

from __future__ import annotations

import math

from .compilation import compiled


@compiled
def reach(values, limit):
    """0 if every number is of such a size at most, 1 if so except for -inf, 2 otherwise."""
    inside, forbidden = True, False
    for i in range(len(values)):
        below = values[i] == -math.inf
        forbidden |= below
        inside &= below | (abs(values[i]) <= limit)
    return (1 if forbidden else 0) if inside else 2


@compiled
def below_infinity(values):
    """Whether every number of a line is below +inf, and none is NaN."""
    below = True
    for i in range(len(values)):
        below &= values[i] < math.inf
    return below
