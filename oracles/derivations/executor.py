"""Operations on derivations for rows on the CPU: compiled, in as many threads as pay, exact at any scale up to 10⁶.

Every function is one of a `kernels.Kernel`: it takes contiguous float32 or float64 arrays with the batch first, writes results that were
all 0, and says of which rows they can be relied upon. The executor itself computes in float64 alone, so it is compiled once, for whatever
structures, event shapes and dtypes there are.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import kernels
from .packing import Array, Packed

EDGE = 4
"""Inner-loop steps of an edge and an item, roughly."""

OPERATIONS = ("argmax", "log_partition", "marginals", "covariance_product", "sample")
"""Those that the executor has, by their functions here."""

_NOTHING = np.zeros((0, 0))


def kernel(packed: Packed, operation: str) -> kernels.Kernel:
    """An operation on rows [b, *event] of these derivations."""
    return kernels.Kernel(globals()[operation], None, (packed,), EDGE * len(packed.first))


def argmax(rows: Array, structures: Array, packed: Packed) -> None:
    """The best structures [b, *event]; of edges that tie at a node, the first. Some structure where all are forbidden."""
    found = _wide_enough(structures, packed)
    _cpu().argmax(packed, _doubled(rows, packed), found)
    _return(found, structures)


def log_partition(rows: Array, log_partition: Array, certified: Array, packed: Packed) -> None:
    """Log-partitions [b] in float64, -inf where no structure is feasible."""

    def evaluate(wide: bool, rows: Array, totals: Array, certified: Array) -> None:
        _cpu().evaluate(packed, rows, rows, wide, _NOTHING, _NOTHING, totals, certified)

    _certified(evaluate, (_doubled(rows, packed),), (log_partition,), certified)


def marginals(rows: Array, marginals: Array, log_partition: Array, certified: Array, packed: Packed) -> None:
    """Marginals [b, *event], 0 where no structure is feasible, and what `log_partition` gives."""
    found = _wide_enough(marginals, packed)

    def evaluate(wide: bool, rows: Array, found: Array, totals: Array, certified: Array) -> None:
        _cpu().evaluate(packed, rows, rows, wide, found, _NOTHING, totals, certified)

    _certified(evaluate, (_doubled(rows, packed),), (found, log_partition), certified)
    _return(found, marginals)


def covariance_product(rows: Array, directions: Array, products: Array, certified: Array, packed: Packed) -> None:
    """``Cov(z) v`` [b, *event] for directions v [b, *event]."""
    found = _wide_enough(products, packed)

    def evaluate(wide: bool, rows: Array, along: Array, found: Array, certified: Array) -> None:
        _cpu().evaluate(packed, rows, along, wide, _NOTHING, found, np.zeros(len(rows)), certified)

    _certified(evaluate, (_doubled(rows, packed), _doubled(directions, packed)), (found,), certified)
    _return(found, products)


def sample(rows: Array, uniforms: Array, structures: Array, certified: Array, packed: Packed) -> None:
    """Structures [b, s, *event] by uniforms [b, s, steps], one for each node of a derivation in preorder; 0 where none is feasible."""
    found = _wide_enough(structures, packed, structures.shape[1])

    def draw(wide: bool, rows: Array, uniforms: Array, found: Array, certified: Array) -> None:
        _cpu().sample(packed, rows, uniforms, wide, found, certified)

    _certified(draw, (_doubled(rows, packed), uniforms), (found,), certified)
    _return(found, structures)


def _cpu() -> Any:
    """The compiled functions: the compiler is loaded when they are first needed."""
    return importlib.import_module(".cpu", __package__)


def _doubled(rows: Array, packed: Packed) -> Array:
    """Float64 [b, parts]."""
    return np.ascontiguousarray(rows.reshape(len(rows), packed.sizes[0]), np.float64)


def _wide_enough(results: Array, packed: Packed, *draws: int) -> Array:
    """The results themselves as [b, *draws, parts], or room for them in float64."""
    shape = (len(results), *draws, packed.sizes[0])
    return results.reshape(shape) if results.dtype == np.float64 else np.zeros(shape)


def _return(found: Array, results: Array) -> None:
    if found.dtype != results.dtype:
        results[...] = found.reshape(results.shape)


def _certified(evaluate: Callable[..., None], inputs: tuple[Array, ...], results: tuple[Array, ...], certified: Array) -> None:
    """Results of numbers in one range, and in a wide one for the rows to which that does not suffice."""
    evaluate(False, *inputs, *results, certified)
    failed = np.flatnonzero(~certified)
    if len(failed):
        # From 0, since a kernel writes feasible rows alone.
        again = [np.zeros_like(result[failed]) for result in results]
        still = np.zeros(len(failed), np.bool_)
        evaluate(True, *(given[failed] for given in inputs), *again, still)
        for result, redone in zip(results, again, strict=True):
            result[failed] = redone
        certified[failed] = still
