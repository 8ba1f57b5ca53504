"""Bounds of scores, compiled: NumPy's reduction takes longer than many a kernel, and pushes its code out of the cache."""

from __future__ import annotations

import math

from .compilation import compiled, uncounted


@uncounted
def all_below(values):
    """Whether every number of a line is below +inf, and none is NaN: what kernels ask."""
    below = True
    for i in range(len(values)):
        below &= values[i] < math.inf
    return below


@compiled
def within(values, limit):
    """Whether every number is -inf or of such a size at most."""
    inside = True
    for i in range(len(values)):
        inside &= (abs(values[i]) <= limit) | (values[i] == -math.inf)
    return inside


@compiled
def below_infinity(values):
    """The same, for Python."""
    return all_below(values)
