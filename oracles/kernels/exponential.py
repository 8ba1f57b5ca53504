"""The exponential function over arrays, written so that it vectorises: the compiler's own is a call per number."""

from __future__ import annotations

import math

import numpy as np
from numba import types
from numba.extending import overload

from .compilation import compiled, inner, ordered, reordered
from .lanes import WIDTH, add, greatest, least, load, multiply, multiply_add, power_of_two, spread, store, subtract, where_greater
from .wide_range import LOG_2_HIGH, LOG_2_LOW, PER_LOG_2, ROUNDER

RANGE = 700.0
"""``exp`` is 0 below ``-RANGE``: whoever calls makes sure that no finite exponent lies there, or does not certify the result."""

SINGLE_RANGE = 20.0
"""Up to this extent of float32 values the float32 exponential does: ``value − top`` is rounded to near one unit in the last place."""

LANES = 64
"""Maxima are taken in so many lanes: one running maximum would wait for itself."""

_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12, _C13 = (1 / math.factorial(i) for i in range(2, 14))

_LOG2E_SINGLE = np.float32(PER_LOG_2)
_LN2_HIGH_SINGLE, _LN2_LOW_SINGLE = np.float32(0.693359375), np.float32(-2.12194440e-4)
_ROUND_SINGLE, _ONE, _ZERO = np.float32(12582912.0), np.float32(1), np.float32(0)
_RANGE_SINGLE = np.float32(86)
_S2, _S3, _S4, _S5, _S6, _S7 = (np.float32(1 / math.factorial(i)) for i in range(2, 8))


@inner
def exponential(x):
    """``exp`` of a vector, to one unit in the last place; 0 below ``-RANGE``, and ``exp(709)`` above 709.

    Cody and Waite's reduction: ``x = k log 2 + r``, and a polynomial in r.
    """
    lowest = spread(-RANGE)
    y = least(greatest(x, lowest), spread(709.0))
    shifted = multiply_add(y, spread(PER_LOG_2), spread(ROUNDER))
    whole = subtract(shifted, spread(ROUNDER))
    r = multiply_add(whole, spread(-LOG_2_LOW), multiply_add(whole, spread(-LOG_2_HIGH), y))
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


@reordered
def exponentials_single(values, shift, out):
    """The same in float32, three times as fast: to one unit in the last place of float32, 0 below ``exp(-86)``."""
    bits = out.view(np.int32)
    for i in range(values.size):
        exponent = values[i] - shift
        exponent = exponent if exponent > -_RANGE_SINGLE else -_RANGE_SINGLE
        out[i] = exponent * _LOG2E_SINGLE + _ROUND_SINGLE
    for i in range(values.size):
        bits[i] = (bits[i] << np.int32(23)) + np.int32(127 << 23)
    for i in range(values.size):
        exponent = values[i] - shift
        inside = exponent > -_RANGE_SINGLE
        exponent = exponent if inside else -_RANGE_SINGLE
        whole = (exponent * _LOG2E_SINGLE + _ROUND_SINGLE) - _ROUND_SINGLE
        r = (exponent - whole * _LN2_HIGH_SINGLE) - whole * _LN2_LOW_SINGLE
        p = _S7
        p = p * r + _S6
        p = p * r + _S5
        p = p * r + _S4
        p = p * r + _S3
        p = p * r + _S2
        p = p * r + _ONE
        p = p * r + _ONE
        out[i] = p * out[i] if inside else _ZERO


# No NaN gets here, so that the compiler may take maxima in any order.
@ordered
def extent(values, lanes):
    """The greatest and the least finite value of a 1-d array without NaN; (-inf, inf) where all are -inf.

    Args:
        values: [d].
        lanes: [2, LANES] in the dtype of the values, working memory.
    """
    infinity = values.dtype.type(np.inf)  # all in the dtype of the values, or the loop does not vectorise
    tops, bottoms = lanes[0], lanes[1]
    tops[:], bottoms[:] = -infinity, infinity
    whole = values.size - values.size % LANES
    for start in range(0, whole, LANES):
        for lane in range(LANES):
            value = values[start + lane]
            finite = value if value > -infinity else infinity
            tops[lane] = max(value, tops[lane])
            bottoms[lane] = min(finite, bottoms[lane])
    for i in range(whole, values.size):
        value = values[i]
        finite = value if value > -infinity else infinity
        tops[i - whole] = max(value, tops[i - whole])
        bottoms[i - whole] = min(finite, bottoms[i - whole])
    width = LANES
    while width > 4:  # fold the lanes in halves
        width //= 2
        for lane in range(width):
            tops[lane] = tops[lane] if tops[lane] > tops[lane + width] else tops[lane + width]
            bottoms[lane] = bottoms[lane] if bottoms[lane] < bottoms[lane + width] else bottoms[lane + width]
    top, bottom = tops[0], bottoms[0]
    for lane in range(1, 4):
        top = max(top, tops[lane])
        bottom = min(bottom, bottoms[lane])
    return np.float64(top), np.float64(bottom)


@reordered
def weigh(values, top, bottom, buffer, out):
    """``out = exp(values − top)`` in float64, for values in ``[bottom, top]`` or -inf; see `RANGE`.

    Args:
        values: [d], float32 or float64.
        top: the greatest value.
        bottom: the least finite one.
        buffer: float32 [d], for float32 values whose range allows the faster exponential.
        out: float64 [d].
    """
    if top == -np.inf:
        out[:] = 0.0
    elif _fits_single(values, top - bottom):
        exponentials_single(values, np.float32(top), buffer[: values.size])
        for i in range(values.size):
            out[i] = buffer[i]
    else:
        for i in range(values.size):
            out[i] = values[i]
        exponentials(out, top, out)


def _fits_single(values, extent):
    """Whether float32 exponentials do: replaced by the compiled function below."""


@overload(_fits_single)
def _fits_single_compiled(values, extent):
    if values.dtype == types.float32:
        return lambda values, extent: extent < SINGLE_RANGE
    return lambda values, extent: False
