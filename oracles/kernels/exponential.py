"""The exponential function over arrays, written so that it vectorises: the compiler's own is a call per number."""

from __future__ import annotations

import math

import numpy as np

from .compilation import compiled, uncounted
from .vectors import (
    WIDTH,
    add,
    greatest,
    least,
    load,
    multiply,
    multiply_add,
    power_of_two,
    spread,
    spread_single,
    store,
    subtract,
    where_greater,
)
from .wide_range import LOG_2_HIGH, LOG_2_LOW, PER_LOG_2, ROUNDER

RANGE = 700.0
"""``exp`` is 0 below ``-RANGE``: whoever calls makes sure that no finite exponent lies there, or does not certify the result."""

SINGLE_RANGE = 86.0
"""The same for float32."""

_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12, _C13 = (1 / math.factorial(i) for i in range(2, 14))

_SINGLE_RANGE, _ZERO, _ONE, _PER_LOG_2 = np.float32(SINGLE_RANGE), np.float32(0), np.float32(1), np.float32(PER_LOG_2)
_LOG_2_HIGH, _LOG_2_LOW, _ROUNDER = np.float32(0.693359375), np.float32(-2.12194440e-4), np.float32(12582912.0)
_S2, _S3, _S4, _S5, _S6, _S7 = (np.float32(1 / math.factorial(i)) for i in range(2, 8))


@uncounted
def _reduced(y, per_log_2, rounder, minus_high, minus_low):
    """Cody and Waite's reduction ``y = k log 2 + r``: k with the rounder added, for `power_of_two`, and r."""
    shifted = multiply_add(y, per_log_2, rounder)
    whole = subtract(shifted, rounder)
    return shifted, multiply_add(whole, minus_low, multiply_add(whole, minus_high, y))


@uncounted
def exponential(x):
    """``exp`` of a vector, to one unit in the last place; 0 below ``-RANGE``, and ``exp(709)`` above 709.

    A polynomial in what `_reduced` leaves.
    """
    lowest = spread(-RANGE)
    y = least(greatest(x, lowest), spread(709.0))
    shifted, r = _reduced(y, spread(PER_LOG_2), spread(ROUNDER), spread(-LOG_2_HIGH), spread(-LOG_2_LOW))
    # Two polynomials side by side, in r², so that they do not wait for each other.
    square = multiply(r, r)
    odd = multiply_add(square, spread(_C13), spread(_C11))
    even = multiply_add(square, spread(_C12), spread(_C10))
    odd = multiply_add(square, odd, spread(_C9))
    even = multiply_add(square, even, spread(_C8))
    odd = multiply_add(square, odd, spread(_C7))
    even = multiply_add(square, even, spread(_C6))
    odd = multiply_add(square, odd, spread(_C5))
    even = multiply_add(square, even, spread(_C4))
    odd = multiply_add(square, odd, spread(_C3))
    even = multiply_add(square, even, spread(_C2))
    polynomial = multiply_add(square, multiply_add(r, odd, even), add(r, spread(1.0)))
    return where_greater(x, lowest, multiply(polynomial, power_of_two(shifted)), spread(0.0))


@compiled
def exponentials(values, shift, out):
    """``out = exp(values − shift)`` for 1-d contiguous float64 arrays, which may be the same; see `exponential`."""
    size, by = values.size, spread(shift)
    if size < WIDTH:
        for i in range(size):
            out[i] = math.exp(values[i] - shift) if values[i] - shift > -RANGE else 0.0
        return
    # The last vector overlaps with the one before, and is read first: in place that has become exponentials by then.
    last = exponential(subtract(load(values, size - WIDTH), by))
    for i in range(0, size - WIDTH, WIDTH):
        store(out, i, exponential(subtract(load(values, i), by)))
    store(out, size - WIDTH, last)


@uncounted
def exponential_single(x):
    """``exp`` of a vector of float32 numbers up to 0, to one unit in the last place; 0 below ``-SINGLE_RANGE``."""
    lowest = spread_single(-_SINGLE_RANGE)
    y = greatest(x, lowest)
    singles = spread_single(_PER_LOG_2), spread_single(_ROUNDER), spread_single(-_LOG_2_HIGH), spread_single(-_LOG_2_LOW)
    shifted, r = _reduced(y, *singles)
    square = multiply(r, r)
    odd = multiply_add(square, spread_single(_S7), spread_single(_S5))
    even = multiply_add(square, spread_single(_S6), spread_single(_S4))
    odd = multiply_add(square, odd, spread_single(_S3))
    even = multiply_add(square, even, spread_single(_S2))
    polynomial = multiply_add(square, multiply_add(r, odd, even), add(r, spread_single(_ONE)))
    return where_greater(x, lowest, multiply(polynomial, power_of_two(shifted)), spread_single(_ZERO))
