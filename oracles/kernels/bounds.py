"""Bounds of scores, compiled: NumPy's reduction takes longer than many a kernel, and pushes its code out of the cache."""

from __future__ import annotations

import numpy as np

from .compilation import compiled


@compiled
def below_infinity(values):
    """Whether every number of a line is below +inf, and none is NaN."""
    below = True
    for i in range(len(values)):
        below &= values[i] < np.inf
    return below
