"""Bounds of scores, compiled: NumPy's reduction takes longer than many a kernel, and pushes its code out of the cache."""

from __future__ import annotations

import math

from .compilation import compiled


@compiled
def reach(values, limit):
    """See `structgrad.oracles.kernels.reach`."""
    inside, forbidden = True, False
    for i in range(len(values)):
        below = values[i] == -math.inf
        forbidden |= below
        inside &= below | (abs(values[i]) <= limit)
    return int(forbidden) if inside else 2


@compiled
def below_infinity(values):
    """Whether every number of a line is below +inf, and none is NaN: in a third of the time of `reach`."""
    below = True
    for i in range(len(values)):
        below &= values[i] < math.inf
    return below
