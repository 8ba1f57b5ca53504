from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import njit

from structgrad.oracles.kernels import vectors
from structgrad.oracles.kernels.vectors import WIDTH, load, spread, store

X = np.array([1.5, -2.0, 0.0, 3.0, -math.inf, math.nan, 1e300, -1e-300])
Y = np.array([0.5, 2.0, -0.0, -3.0, 1.0, 1.0, 1e10, 2.0])
Z = np.arange(1.0, 9.0)
U = -Z


def compiled(operation: Any, arity: int) -> Callable[..., np.ndarray]:
    """The operation on whole arrays of one vector."""

    @njit
    def apply(arrays: np.ndarray, out: np.ndarray) -> None:
        x, y, z, u = load(arrays, 0), load(arrays, WIDTH), load(arrays, 2 * WIDTH), load(arrays, 3 * WIDTH)
        if arity == 2:
            store(out, 0, operation(x, y))
        elif arity == 3:
            store(out, 0, operation(x, y, z))
        else:
            store(out, 0, operation(x, y, z, u))

    def on_arrays(*arrays: np.ndarray) -> np.ndarray:
        out = np.zeros(WIDTH)
        apply(np.concatenate(arrays), out)
        return out

    return on_arrays


OPERATIONS: dict[str, tuple[int, Callable[..., np.ndarray]]] = {
    "add": (2, lambda x, y, z, u: x + y),
    "subtract": (2, lambda x, y, z, u: x - y),
    "multiply": (2, lambda x, y, z, u: x * y),
    "divide": (2, lambda x, y, z, u: x / y),
    "multiply_add": (3, lambda x, y, z, u: x * y + z),
    "greatest": (2, lambda x, y, z, u: np.where(np.isnan(x), y, np.maximum(x, y))),
    "least": (2, lambda x, y, z, u: np.where(np.isnan(y), x, np.where(np.isnan(x), x, np.minimum(x, y)))),
    "where_greater": (4, lambda x, y, z, u: np.where(x > y, z, u)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_act_entry_by_entry(name: str) -> None:
    arity, expected = OPERATIONS[name]
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(compiled(getattr(vectors, name), arity)(X, Y, Z, U), expected(X, Y, Z, U), rtol=1e-15)


def test_places_need_no_alignment_and_numbers_spread() -> None:
    @njit
    def moved(source: np.ndarray, out: np.ndarray) -> None:
        store(out, 3, vectors.add(load(source, 5), spread(0.5)))

    source, out = np.arange(20.0), np.zeros(20)
    moved(source, out)
    assert out.tolist() == [0.0] * 3 + [5.5 + k for k in range(WIDTH)] + [0.0] * 9


def test_single_precision_is_converted() -> None:
    @njit
    def doubled(source: np.ndarray, out: np.ndarray) -> None:
        store(out, 1, vectors.add(load(source, 2), load(source, 2)))

    source, out = np.linspace(-1, 1, 12).astype(np.float32), np.zeros(10, np.float32)
    doubled(source, out)
    np.testing.assert_array_equal(out, [0, *(2 * source[2:10]), 0])


@pytest.mark.parametrize("single", [False, True])
def test_entries_are_joined(single: bool) -> None:
    @njit
    def joined(source: np.ndarray, out: np.ndarray) -> None:
        vector = vectors.load_singles(source, 0) if single else load(source, 0)
        out[0], out[1], out[2] = vectors.total(vector), vectors.maximum(vector), vectors.minimum(vector)

    values = np.random.default_rng(0).normal(size=2 * WIDTH if single else WIDTH).astype(np.float32 if single else np.float64)
    out = np.zeros(3)
    joined(values, out)
    np.testing.assert_allclose(out, [values.sum(), values.max(), values.min()], rtol=1e-6 if single else 1e-15)


def test_halves_powers_and_numbers_in_single_precision() -> None:
    @njit
    def apply(source: np.ndarray, out: np.ndarray) -> None:
        vector = vectors.add(vectors.load_singles(source, 0), vectors.spread_single(np.float32(12582912.0)))
        store(out, 0, vectors.low_half(vectors.power_of_two(vector)))
        store(out, WIDTH, vectors.high_half(vectors.power_of_two(vector)))
        store(out, 2 * WIDTH, vectors.power_of_two(vectors.add(load(source, 0), spread(6755399441055744.0))))

    exponents, out = np.arange(-8, 8).astype(np.float32), np.zeros(3 * WIDTH)
    apply(exponents, out)
    np.testing.assert_array_equal(out, 2.0 ** np.concatenate([exponents, exponents[:WIDTH]]))
