"""Operations on derivations for rows on the CPU: compiled, in as many threads as pay, exact at any scale up to 10⁶.

Every function is one of a `kernels.Kernel`: it takes contiguous float32 or float64 arrays with the batch first, writes results that were
all 0, and says of which rows they can be relied upon. The executor computes in float64 and is compiled once, for whatever structures, event
shapes and dtypes there are.
"""

import importlib
import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import kernels
from ..capabilities import DrawnSet
from .packing import ENTRIES, ITEMS, WIDTH, Array, Numbers, Packed, Ranking

EDGE = 4
"""Inner-loop steps of an edge and an item, roughly. In `argmax` it counts as one: two threads took longer at 90 to 250 microseconds."""

OPERATIONS = ("argmax", "kbest", "log_partition", "marginals", "covariance_product", "project", "sample")
"""Those that the executor has, by their functions here, which list parts too, by the name with ``_parts`` behind it."""


class Layout(NamedTuple):
    """Derivations, how many items lie side by side, the entries of an event, and whether numbers have a wide range."""

    packed: Packed
    lanes: int
    entries: int
    wide: bool


def kernel(packed: Packed, operation: str, rows: int) -> kernels.Kernel:
    """An operation on so many rows [b, *event] of these derivations."""
    function, complete = globals()[operation.removesuffix("_parts")], operation not in kernels.CERTIFYING
    steps = (1 if function is argmax else EDGE) * len(packed.first)
    layout = Layout(packed, WIDTH if rows >= packed.sizes[ITEMS] else 1, int(packed.sizes[ENTRIES]), False)
    return kernels.Kernel(function, (layout,), steps, complete, () if complete else (layout._replace(wide=True),))


# Structures are dense floating-point arrays, [b, *event] or [b, s, *event]; or int64 numbers of their parts in ascending order, [b, p] or
# [b, s, p]: 1 + part, and 0 behind the last.


def argmax(rows: Array, structures: Array, how: Layout) -> None:
    """The best structure of each row; of edges that tie at a node, the first. 0 where all are forbidden."""
    _compiled(".cpu_maxima").argmax(how.lanes, *_numbers(rows, how), *_structures(structures, how), *how.packed)


def kbest(rows: Array, structures: Array, how: Layout) -> None:
    """The best structures of each row, best first, and in order of their edges where scores are equal; 0 where fewer are feasible."""
    _compiled(".cpu_kbest").kbest(how.lanes, *_numbers(rows, how), *_structures(structures, how), *how.packed)


# Those below say of which rows they can be relied upon, in one range of numbers: `kernel` says how to compute the others in a wide one.


def log_partition(rows: Array, totals: Array, certified: Array, how: Layout) -> None:
    """Log-partitions [b] in float64, -inf where no structure is feasible."""
    _compiled(".cpu").evaluate(how.lanes, how.wide, *_numbers(rows, how), *_NONE[2], *_NONE[2], totals, certified, *how.packed)


def marginals(rows: Array, found: Array, totals: Array, certified: Array, how: Layout) -> None:
    """Marginals [b, *event], 0 where no structure is feasible, and what `log_partition` gives."""
    given, into = _numbers(rows, how), _numbers(found, how)
    _compiled(".cpu").evaluate(how.lanes, how.wide, *given, *_NONE[2], *into, totals, certified, *how.packed)


def covariance_product(rows: Array, directions: Array, products: Array, certified: Array, how: Layout) -> None:
    """``Cov(z) v`` [b, *event] for directions v [b, *event]."""
    given, along, into = _numbers(rows, how), _numbers(directions, how), _numbers(products, how)
    _compiled(".cpu").evaluate(how.lanes, how.wide, *given, *along, *into, np.empty(len(rows)), certified, *how.packed)


def sample(rows: Array, uniforms: Array, structures: Array, certified: Array, how: Layout) -> None:
    """Structures by uniforms [b, s, steps], one for each node that needs it in preorder; 0 where none is feasible."""
    given, found = _numbers(rows, how), _structures(structures, how)
    _compiled(".cpu").sample(how.lanes, how.wide, *given, uniforms, *found, certified, *how.packed)


def project(rows: Array, *arrays: Any) -> tuple[Array, ...]:
    """SparseMAP of float64 rows, with the arguments of `cpu_project.project`, derivations last."""
    *given, how = arrays
    found: tuple[Array, ...] = _compiled(".cpu_project").project(how.packed, rows.reshape(len(rows), how.entries), *given)
    return found


def unrank(ranks: Array, structures: Array, packed: Packed, ranking: Ranking) -> None:
    """The structures of int64 ranks [c], as integers [c, *event]."""
    _compiled(".cpu_walks").unrank(packed, ranking, ranks, structures.reshape(len(ranks), packed.sizes[ENTRIES]))


def sample_distinct(packed: Packed, rows: Tensor, items: Tensor, k: int, uniforms: Tensor) -> DrawnSet:
    """A set of k structures of each walk [w], float32 [k, w, parts], on the row [b, parts] that ``items`` names, by uniforms [w, noise]."""
    order = items.argsort(stable=True)
    begins = torch.searchsorted(items[order], torch.arange(len(rows) + 1))
    structures = torch.zeros(len(items), k, rows.shape[1])
    log_probs, log_rest, threshold = (torch.empty(shape, dtype=torch.float64) for shape in ((len(items), k), len(items), len(items)))
    arrays = (each.contiguous().numpy() for each in (rows, begins, order, uniforms, structures, log_probs, log_rest, threshold))
    # Not to be split by rows: 0 steps are for one thread.
    kernels.launch(_compiled(".cpu_walks").sample_distinct, [packed, *arrays], (), 0)
    return DrawnSet(structures.movedim(1, 0), log_probs, log_rest, threshold)


@cache
def _compiled(module: str) -> Any:
    """A module of compiled functions: the compiler is loaded when they are first needed."""
    return importlib.import_module(module, __package__)


_NONE = {ndim: Numbers(np.zeros((0,) * ndim), np.zeros((0,) * ndim, np.float32)) for ndim in (2, 3)}
_NO_PARTS = np.zeros((0, 0, 0), np.int64)


def _numbers(values: Array, how: Layout) -> tuple[Array, Array]:
    """Float32 or float64 [b, *event] as [b, parts] in either of the two arrays of `Numbers`, which takes longer to make."""
    flat = values.reshape(len(values), how.entries)
    return (_NONE[2].doubles, flat) if flat.itemsize == 4 else (flat, _NONE[2].singles)


def _structures(found: Array, how: Layout) -> tuple[Array, Array, Array]:
    """Dense structures [b, s, parts] in either of two arrays, or numbers of parts [b, s, p] in a third one."""
    if found.dtype == np.int64:
        return *_NONE[3], found if found.ndim == 3 else found[:, None]
    flat = found.reshape(len(found), math.prod(found.shape[1:]) // how.entries, how.entries)
    return (_NONE[3].doubles, flat, _NO_PARTS) if flat.itemsize == 4 else (flat, _NONE[3].singles, _NO_PARTS)
