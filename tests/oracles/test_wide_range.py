from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from numba import njit

from structgrad.oracles.kernels.wide_range import LARGEST, NOTHING, logarithm, normalise, split


def precise(mantissa: float, exponent: float) -> mpmath.mpf:
    return mpmath.mpf(mantissa) * mpmath.mpf(2) ** int(exponent)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1000.0, LARGEST])
def test_split_is_the_exponential_to_rounding(scale: float) -> None:
    values = [*np.random.default_rng(0).uniform(-scale, scale, 200), scale, -scale, 0.0]
    with mpmath.workdps(50):
        for value in map(float, values):
            mantissa, exponent = split(value)
            assert 0.7 < mantissa < 1.42
            assert exponent == round(exponent)
            assert abs(precise(mantissa, exponent) / mpmath.exp(value) - 1) < 5e-16


def test_nothing_stays_nothing() -> None:
    mantissa, exponent = split(-math.inf)
    assert (mantissa, exponent) == (0.0, NOTHING)
    assert logarithm(mantissa, exponent) == -math.inf


def test_normalise_keeps_the_numbers() -> None:
    mantissas = np.array([1.0, 1.999, 2.0, 0.75, 1e-12, 3e40, 0.0, 1.0])
    exponents = np.array([0.0, 5.0, -3.0, 1e6, 2.0, -1e6, NOTHING, -2.0])
    expected = [precise(m, e) for m, e in zip(mantissas, np.maximum(exponents, -(2**40)), strict=True)]
    normalise(mantissas, exponents)
    for mantissa, exponent, value in zip(mantissas, exponents, expected, strict=True):
        if value == 0:
            assert (mantissa, exponent) == (0.0, NOTHING)
        else:
            assert 1.0 <= mantissa < 2.0
            assert precise(mantissa, exponent) == value


def test_the_logarithm_of_what_no_float64_holds() -> None:
    assert logarithm(1.5, 1e6) == pytest.approx(math.log(1.5) + 1e6 * math.log(2.0), rel=1e-15)


@njit
def split_all(values: np.ndarray, mantissas: np.ndarray, exponents: np.ndarray) -> None:
    for x in range(len(values)):
        mantissas[x], exponents[x] = split(values[x])


def test_vector_instructions_give_what_single_calls_give() -> None:
    values = np.random.default_rng(0).standard_normal(100) * 100
    values[::7] = -math.inf
    mantissas, exponents = np.empty(100), np.empty(100)
    split_all(values, mantissas, exponents)
    assert np.array_equal(np.stack([mantissas, exponents], 1), np.array([split(value) for value in values]))
