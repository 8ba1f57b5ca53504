"""Bounds of scores, compiled: NumPy's reduction takes longer than many a kernel, and pushes its code out of the cache."""

from __future__ import annotations

import math

from .compilation import compiled


@compiled
def reach(values, limit):
    """See `structgrad.oracles.kernels.reach`."""
    inside, forbidden, below = True, False, True
    for i in range(len(values)):
        least = values[i] == -math.inf
        forbidden |= least
        inside &= least | (abs(values[i]) <= limit)
        below &= values[i] < math.inf
    return 3 if not below else 2 if not inside else int(forbidden)
