"""The exponential function over arrays, written so that it vectorises: the compiler's own is a call per number."""

from __future__ import annotations

import math

import numpy as np
from numba import types
from numba.extending import overload

from .compilation import ordered, reordered
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


@reordered
def exponentials(values, shift, out):
    """``out = exp(values − shift)`` for 1-d contiguous arrays, in float64: to one unit in the last place, 0 below ``exp(-RANGE)``."""
    bits = out.view(np.int64)
    for i in range(values.size):
        exponent = values[i] - shift
        exponent = exponent if exponent > -RANGE else -RANGE
        out[i] = exponent * PER_LOG_2 + ROUNDER
    for i in range(values.size):
        bits[i] = (bits[i] << 52) + (1023 << 52)
    for i in range(values.size):
        exponent = values[i] - shift
        inside = exponent > -RANGE
        exponent = exponent if inside else -RANGE
        whole = (exponent * PER_LOG_2 + ROUNDER) - ROUNDER
        r = (exponent - whole * LOG_2_HIGH) - whole * LOG_2_LOW
        p = _C13
        p = p * r + _C12
        p = p * r + _C11
        p = p * r + _C10
        p = p * r + _C9
        p = p * r + _C8
        p = p * r + _C7
        p = p * r + _C6
        p = p * r + _C5
        p = p * r + _C4
        p = p * r + _C3
        p = p * r + _C2
        p = p * r + 1.0
        p = p * r + 1.0
        out[i] = p * out[i] if inside else 0.0


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
        exponentials(values, top, out)


def _fits_single(values, extent):
    """Whether float32 exponentials do: replaced by the compiled function below."""


@overload(_fits_single)
def _fits_single_compiled(values, extent):
    if values.dtype == types.float32:
        return lambda values, extent: extent < SINGLE_RANGE
    return lambda values, extent: False
