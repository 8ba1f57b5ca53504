"""The exponential function over arrays, and sums of exponentials without limits, by arithmetic alone: loops over it turn into vectors.

The compiler's own is a call per number. Where scores of hundreds or thousands add up along a path, one scale cannot hold many sums.
There every sum is a positive number ``m · 2^e`` whose exponent e is a float64 of its own. A term is lost only where it is below 2^-900 of
the sum that it is part of; 0 has the exponent `NOTHING`.
"""

import math

import numpy as np

from . import vectors as v
from .compilation import compiled, fused, uncounted
from .vectors import WIDTH

RANGE, SINGLE_RANGE = 700.0, 86.0
"""``exp`` is 0 below ``-RANGE``, of float32 below ``-SINGLE_RANGE``. Callers certify no result with a finite exponent there."""

NOTHING = -1e300
"""The exponent of 0: small next to every other, and absorbs what is added to it."""

FARTHEST = -1000.0
"""Differences of exponents from here on count as this one: 2^-1000 is still a normal number."""

LARGEST = 1e6
"""The largest score whose exponential is exact to rounding: ``split`` subtracts at most 2^21 times log 2."""

PER_LOG_2, LOG_2_HIGH, LOG_2_LOW = 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10
ROUNDER = 6755399441055744.0
"""1.5 · 2⁵²: added to a number of moderate size, its last bits hold the nearest integer."""

_SINGLE_HIGH, _SINGLE_LOW, _SINGLE_ROUNDER = 0.693359375, -2.12194440e-4, 12582912.0
_TAYLOR = np.array([1 / math.factorial(i) for i in range(14)])
_FRACTION, _ONE, _WHOLE, _BIAS = 0x000FFFFFFFFFFFFF, 0x3FF0000000000000, 0x4330000000000000, 4503599627370496.0 + 1023.0


@uncounted
def exponential(x):
    """``exp`` of a vector, to one unit in the last place; 0 below ``-RANGE``, and ``exp(709)`` above 709.

    Float32 numbers are at most 0. Cody and Waite's reduction ``y = k log 2 + r``, and a polynomial in r.
    """
    double = v.width(x) == WIDTH
    lowest, rounder = v.fill(x, -RANGE if double else -SINGLE_RANGE), v.fill(x, ROUNDER if double else _SINGLE_ROUNDER)
    y = v.least(v.greatest(x, lowest), v.fill(x, 709.0))
    shifted = v.multiply_add(y, v.fill(x, PER_LOG_2), rounder)
    whole = v.subtract(shifted, rounder)
    r = v.multiply_add(whole, v.fill(x, -LOG_2_HIGH if double else -_SINGLE_HIGH), y)
    r = v.multiply_add(whole, v.fill(x, -LOG_2_LOW if double else -_SINGLE_LOW), r)
    # Two polynomials side by side, in r², so that they do not wait for each other.
    square, degree = v.multiply(r, r), 12 if double else 6
    odd, even = v.fill(x, _TAYLOR[degree + 1]), v.fill(x, _TAYLOR[degree])
    for i in range(degree - 2, 0, -2):
        odd, even = v.multiply_add(square, odd, v.fill(x, _TAYLOR[i + 1])), v.multiply_add(square, even, v.fill(x, _TAYLOR[i]))
    polynomial = v.multiply_add(square, v.multiply_add(r, odd, even), v.add(r, v.fill(x, 1.0)))
    return v.where_greater(x, lowest, v.multiply(polynomial, v.power_of_two(shifted)), v.fill(x, 0.0))


@compiled
def exponentials(values, out):
    """``out = exp(values)`` for 1-d contiguous float64 arrays, which may be the same; see `exponential`."""
    size = values.size
    if size < WIDTH:
        for i in range(size):
            out[i] = math.exp(values[i]) if values[i] > -RANGE else 0.0
        return
    # The last vector overlaps with the one before, and is read first: in place that has become exponentials by then.
    last = exponential(v.load(values, size - WIDTH))
    for i in range(0, size - WIDTH, WIDTH):
        v.store(out, i, exponential(v.load(values, i)))
    v.store(out, size - WIDTH, last)


@fused
def split(value: float) -> tuple[float, float]:
    """``exp(value)`` as mantissa in (0.7, 1.42) and exponent; -inf gives 0.

    ``exp(x) = 2^k exp(r)`` with k the integer nearest to x / log 2; ``exp(r)``, ``|r| <= 0.347``, by its Taylor polynomial of degree 12.
    """
    exponent = (value * PER_LOG_2 + ROUNDER) - ROUNDER
    r = (value - exponent * LOG_2_HIGH) - exponent * LOG_2_LOW
    mantissa = _TAYLOR[12]
    for i in range(11, -1, -1):
        mantissa = mantissa * r + _TAYLOR[i]
    allowed = value > -math.inf
    return (mantissa if allowed else 0.0), (exponent if allowed else NOTHING)


@compiled
def normalise(mantissas, exponents):
    """Bring mantissas [n] into [1, 2), and what they exceed it by into the exponents."""
    for x in range(len(mantissas)):
        bits = np.float64(mantissas[x]).view(np.int64)
        exponents[x] += np.int64((bits >> 52) | _WHOLE).view(np.float64) - _BIAS
        mantissas[x] = np.int64((bits & _FRACTION) | _ONE).view(np.float64) if mantissas[x] > 0.0 else 0.0


@compiled
def logarithm(mantissa: float, exponent: float) -> float:
    """The logarithm of the number; -inf of 0."""
    return math.log(mantissa) + exponent * math.log(2.0) if mantissa > 0.0 else -math.inf
