"""Positive numbers ``m · 2^e`` whose exponent e is a float64 of its own: sums of exponentials without limits, by arithmetic alone.

Where scores of hundreds or thousands add up along a path, one scale for many sums cannot hold them; here every sum has its own, and a term
is lost only where it is below 2^-900 of the sum that it is part of. 0 has the exponent `NOTHING`. The two reinterpretations of bits compile
to no instruction at all, so that loops over these functions turn into vector instructions.
"""

from __future__ import annotations

import math
from typing import Any

from numba import types
from numba.extending import intrinsic

from .compilation import compiled, fused

NOTHING = -1e300
"""The exponent of 0: small next to every other, and absorbs what is added to it."""

FARTHEST = -1000.0
"""Differences of exponents from here on count as this one: 2^-1000 is still a normal number."""

LARGEST = 1e6
"""The largest score whose exponential is exact to rounding: ``split`` subtracts at most 2^21 times log 2."""

PER_LOG_2, LOG_2_HIGH, LOG_2_LOW = 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10
ROUNDER = 6755399441055744.0
"""1.5 · 2⁵²: added to a number of moderate size, its last bits hold the nearest integer."""

FRACTION, ONE, WHOLE, BIAS = 0x000FFFFFFFFFFFFF, 0x3FF0000000000000, 0x4330000000000000, 4503599627370496.0 + 1023.0


def _reinterpretation(source: Any, target: Any) -> Any:
    """What gives the bits of one type as another."""

    def typed(typing_context: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(target))

        return target(source), generate

    return intrinsic(typed)


bits_of, float_of = _reinterpretation(types.float64, types.int64), _reinterpretation(types.int64, types.float64)


@fused
def split(value: float) -> tuple[float, float]:
    """``exp(value)`` as mantissa in (0.7, 1.42) and exponent; -inf gives 0.

    ``exp(x) = 2^k exp(r)`` with k the integer nearest to x / log 2; ``exp(r)``, ``|r| <= 0.347``, by its Taylor polynomial of degree 12.
    """
    exponent = (value * PER_LOG_2 + ROUNDER) - ROUNDER
    r = (value - exponent * LOG_2_HIGH) - exponent * LOG_2_LOW
    tail = 1 / 479001600.0
    tail = tail * r + 1 / 39916800.0
    tail = tail * r + 1 / 3628800.0
    tail = tail * r + 1 / 362880.0
    tail = tail * r + 1 / 40320.0
    tail = tail * r + 1 / 5040.0
    tail = tail * r + 1 / 720.0
    tail = tail * r + 1 / 120.0
    tail = tail * r + 1 / 24.0
    tail = tail * r + 1 / 6.0
    tail = tail * r + 0.5
    tail = tail * r + 1.0
    allowed = value > -math.inf
    return (tail * r + 1.0 if allowed else 0.0), (exponent if allowed else NOTHING)


@compiled
def normalise(mantissas, exponents):
    """Bring mantissas [n] into [1, 2), and what they exceed it by into the exponents."""
    for x in range(len(mantissas)):
        bits = bits_of(mantissas[x])
        exponents[x] += float_of((bits >> 52) | WHOLE) - BIAS
        mantissas[x] = float_of((bits & FRACTION) | ONE) if mantissas[x] > 0.0 else 0.0


@compiled
def logarithm(mantissa: float, exponent: float) -> float:
    """The logarithm of the number; -inf of 0."""
    return math.log(mantissa) + exponent * math.log(2.0) if mantissa > 0.0 else -math.inf
