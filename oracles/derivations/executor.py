"""Operations on derivations for rows on the CPU: compiled, in as many threads as pay, exact at any scale up to 10⁶.

Every function is one of a `kernels.Kernel`: it takes contiguous float32 or float64 arrays with the batch first, writes results that were
all 0, and says of which rows they can be relied upon. The executor computes in float64 and is compiled once, for whatever structures, event
shapes and dtypes there are.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import kernels
from ..capabilities import DrawnSet
from .packing import ENTRIES, ITEMS, STEPS, WIDTH, Array, Numbers, Packed, Ranking

EDGE = 4
"""Inner-loop steps of an edge and an item, roughly."""

OPERATIONS = (
    "argmax",
    "argmax_parts",
    "kbest",
    "kbest_parts",
    "log_partition",
    "marginals",
    "covariance_product",
    "project",
    "sample",
    "sample_parts",
)
"""Those that the executor has, by their functions here."""


class Layout(NamedTuple):
    """Derivations, how many items lie side by side, the entries of an event, and whether numbers have a wide range."""

    packed: Packed
    lanes: int
    entries: int
    wide: bool


_NO_PARTS = tuple(np.zeros((0,) * ndim, np.int64) for ndim in (2, 3))

_NONE = tuple(Numbers(np.zeros((0,) * ndim), np.zeros((0,) * ndim, np.float32)) for ndim in (2, 3))


def kernel(packed: Packed, operation: str, rows: int) -> kernels.Kernel:
    """An operation on so many rows [b, *event] of these derivations."""
    layout = Layout(packed, WIDTH if rows >= packed.sizes[ITEMS] else 1, int(packed.sizes[ENTRIES]), False)
    steps = EDGE * len(packed.first) // kernels.LIGHT.get(operation, 1)
    return kernels.Kernel(globals()[operation], (layout,), steps, operation not in kernels.CERTIFYING)


def unranking(packed: Packed, ranking: Ranking) -> kernels.Kernel:
    """Structures of ranks [c]."""
    return kernels.Kernel(unrank, (packed, ranking), EDGE * int(packed.sizes[STEPS]) + int(packed.sizes[ENTRIES]) // 8)


def argmax(rows: Array, structures: Array, how: Layout) -> None:
    """The best structures [b, *event]; of edges that tie at a node, the first. 0 where all are forbidden."""
    _cpu().argmax(how.lanes, *_numbers(rows, how), *_numbers(structures, how), _NO_PARTS[0], *how.packed)


def argmax_parts(rows: Array, numbers: Array, how: Layout) -> None:
    """The structures of `argmax` by the numbers of their parts in ascending order, [b, p]: 1 + part, 0 behind the last."""
    _cpu().argmax(how.lanes, *_numbers(rows, how), *_NONE[0], numbers, *how.packed)


def kbest(rows: Array, structures: Array, how: Layout) -> None:
    """The best structures [b, k, *event], in the order of `algorithms.kbest`; 0 where fewer than k are feasible."""
    _kbest().kbest(how.lanes, *_numbers(rows, how), *_numbers(structures, how, 1), _NO_PARTS[1], *how.packed)


def kbest_parts(rows: Array, numbers: Array, how: Layout) -> None:
    """The structures of `kbest` by the numbers of their parts in ascending order, [b, k, p]: 1 + part, 0 behind the last."""
    _kbest().kbest(how.lanes, *_numbers(rows, how), *_NONE[1], numbers, *how.packed)


# Those below compute in one range of numbers first, and in a wide one the rows for which that does not suffice.


def log_partition(rows: Array, totals: Array, certified: Array, how: Layout) -> None:
    """Log-partitions [b] in float64, -inf where no structure is feasible."""
    _cpu().evaluate(how.lanes, how.wide, *_numbers(rows, how), *_NONE[0], *_NONE[0], totals, certified, *how.packed)
    if not how.wide and b"\0" in certified.tobytes():
        _widen(log_partition, (rows,), (totals,), certified, how)


def marginals(rows: Array, found: Array, totals: Array, certified: Array, how: Layout) -> None:
    """Marginals [b, *event], 0 where no structure is feasible, and what `log_partition` gives."""
    _cpu().evaluate(how.lanes, how.wide, *_numbers(rows, how), *_NONE[0], *_numbers(found, how), totals, certified, *how.packed)
    if not how.wide and b"\0" in certified.tobytes():
        _widen(marginals, (rows,), (found, totals), certified, how)


def covariance_product(rows: Array, directions: Array, products: Array, certified: Array, how: Layout) -> None:
    """``Cov(z) v`` [b, *event] for directions v [b, *event]."""
    given, along, into = _numbers(rows, how), _numbers(directions, how), _numbers(products, how)
    _cpu().evaluate(how.lanes, how.wide, *given, *along, *into, np.empty(len(rows)), certified, *how.packed)
    if not how.wide and b"\0" in certified.tobytes():
        _widen(covariance_product, (rows, directions), (products,), certified, how)


def sample(rows: Array, uniforms: Array, structures: Array, certified: Array, how: Layout) -> None:
    """Structures [b, s, *event] by uniforms [b, s, steps], one for each node that needs it in preorder; 0 where none is feasible."""
    _cpu().sample(how.lanes, how.wide, *_numbers(rows, how), uniforms, *_numbers(structures, how, 1), _NO_PARTS[1], certified, *how.packed)
    if not how.wide and b"\0" in certified.tobytes():
        _widen(sample, (rows, uniforms), (structures,), certified, how)


def sample_parts(rows: Array, uniforms: Array, numbers: Array, certified: Array, how: Layout) -> None:
    """The structures of `sample` by the numbers of their parts in ascending order, [b, s, p]: 1 + part, 0 behind the last."""
    _cpu().sample(how.lanes, how.wide, *_numbers(rows, how), uniforms, *_NONE[1], numbers, certified, *how.packed)
    if not how.wide and b"\0" in certified.tobytes():
        _widen(sample_parts, (rows, uniforms), (numbers,), certified, how)


def _widen(operation: Callable[..., None], inputs: tuple[Array, ...], results: tuple[Array, ...], certified: Array, how: Layout) -> None:
    """Compute the rows that are not certified in a wide range."""
    failed = np.flatnonzero(~certified)
    # From 0, since a kernel writes feasible rows alone.
    again = [np.zeros_like(result[failed]) for result in results]
    still = np.zeros(len(failed), np.bool_)
    operation(*(given[failed] for given in inputs), *again, still, how._replace(wide=True))
    for result, redone in zip(results, again, strict=True):
        result[failed] = redone
    certified[failed] = still


def project(rows: Array, *arrays: Any) -> tuple[Array, ...]:
    """SparseMAP of float64 rows, with the arguments of `cpu_project.project`, derivations last."""
    *given, how = arrays
    found: tuple[Array, ...] = _project().project(how.packed, rows.reshape(len(rows), how.entries), *given)
    return found


def unrank(ranks: Array, structures: Array, packed: Packed, ranking: Ranking) -> None:
    """The structures of int64 ranks [c], as integers [c, *event], in the order of `algorithms.unrank`."""
    _cpu().unrank(packed, ranking, ranks, structures.reshape(len(ranks), packed.sizes[ENTRIES]))


def sample_distinct(packed: Packed, rows: Tensor, items: Tensor, k: int, uniforms: Tensor) -> DrawnSet:
    """What `without_replacement.sample_distinct` gives, structures [k, w, parts] in float32."""
    order = items.argsort(stable=True)
    begins = torch.searchsorted(items[order], torch.arange(len(rows) + 1))
    structures = torch.zeros(len(items), k, rows.shape[1])
    log_probs, log_rest, threshold = (torch.empty(shape, dtype=torch.float64) for shape in ((len(items), k), len(items), len(items)))
    arrays = (each.contiguous().numpy() for each in (rows, begins, order, uniforms, structures, log_probs, log_rest, threshold))
    kernels.in_one_thread(importlib.import_module(".cpu_without_replacement", __package__).sample_distinct, (packed, *arrays))
    return DrawnSet(structures.movedim(1, 0), log_probs, log_rest, threshold)


@cache
def _cpu() -> Any:
    """The compiled functions: the compiler is loaded when they are first needed."""
    return importlib.import_module(".cpu", __package__)


@cache
def _kbest() -> Any:
    return importlib.import_module(".cpu_kbest", __package__)


@cache
def _project() -> Any:
    return importlib.import_module(".cpu_project", __package__)


def _numbers(values: Array, how: Layout, draws: int = 0) -> tuple[Array, Array]:
    """Float32 or float64 [b, *event] as the two arrays of `Numbers`, [b, parts]; with one more dimension for draws of each item."""
    none, flat = _NONE[draws], values.reshape((*values.shape[: 1 + draws], how.entries))
    return (none.doubles, flat) if flat.itemsize == 4 else (flat, none.singles)
