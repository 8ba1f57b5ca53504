"""Bounds of scores, compiled: NumPy's reduction takes longer than many a kernel, and pushes its code out of the cache."""

import math

from .compilation import compiled


@compiled
def reach(values, limit):
    """See `structgrad.oracles.kernels.reach`."""
    # Most scores are of such a size: to find that alone takes a third of the time.
    most, inside = values.dtype.type(limit), True
    for i in range(len(values)):
        inside &= abs(values[i]) <= most
    if inside:
        return 0
    number, small = True, True
    for i in range(len(values)):
        number &= values[i] < math.inf
        small &= (abs(values[i]) <= most) | (values[i] == -math.inf)
    return 1 if small else 2 if number else 3
