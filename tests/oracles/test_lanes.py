from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import njit

from structgrad.oracles.kernels import lanes
from structgrad.oracles.kernels.lanes import WIDTH, load, spread, store

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
        np.testing.assert_allclose(compiled(getattr(lanes, name), arity)(X, Y, Z, U), expected(X, Y, Z, U), rtol=1e-15)


def test_places_need_no_alignment_and_numbers_spread() -> None:
    @njit
    def moved(source: np.ndarray, out: np.ndarray) -> None:
        store(out, 3, lanes.add(load(source, 5), spread(0.5)))

    source, out = np.arange(20.0), np.zeros(20)
    moved(source, out)
    assert out.tolist() == [0.0] * 3 + [5.5 + k for k in range(WIDTH)] + [0.0] * 9
