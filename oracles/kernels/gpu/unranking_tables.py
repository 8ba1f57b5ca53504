"""Tables of counts of structures, made on the host and kept on a device."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import unranking

Array = NDArray[Any]

MAX_RANK = 2**62

RIGHT, LEFT, RIGHT_ARC, LEFT_ARC = 0, 1, 2, 3
"""Tables of what a position heads on one side, and of what an arc spans, as in `ProjectiveTree.derivations`."""


def table(name: str, ranks: Tensor, *sizes: int) -> tuple[Tensor, ...]:
    """The int64 tables of a structure where the ranks are; made and copied once."""
    return _table(name, str(ranks.device), sizes)


@lru_cache(maxsize=64)
def _table(name: str, device: str, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    # Counts beyond int64 wrap, and are never met.
    with np.errstate(over="ignore"):
        made = _MAKERS[name](*sizes)
    return tuple(torch.from_numpy(counts).to(device) for counts in (made if isinstance(made, tuple) else (made,)))


def _binomials(size: int, k: int) -> Array:
    """[n, k + 1]: the number of j-subsets of m parts; what is beyond int64 no rank reaches."""
    ways = np.zeros((size, k + 1), np.int64)
    for m in range(size):
        ways[m, 0] = 1
        for j in range(1, min(m, k) + 1):
            ways[m, j] = min(ways[m - 1, j - 1], MAX_RANK - ways[m - 1, j]) + ways[m - 1, j]
    return ways


def _paths(n: int, m: int) -> Array:
    """[n + 1, m + 1]: how many paths lead from a cell to the last one; 0 beyond the grid."""
    ways = np.zeros((n + 1, m + 1), np.int64)
    ways[n - 1, m - 1] = 1
    for i in range(n - 1, -1, -1):
        for j in range(m - 1, -1, -1):
            ways[i, j] += ways[i, j + 1] + ways[i + 1, j] + ways[i + 1, j + 1]
    return ways


def _completions(leaves: int) -> Array:
    """[n + 1, n + 2]: how many derivations go on from so many shifts and a stack of this depth (ballot numbers)."""
    ways = np.zeros((leaves + 1, leaves + 2), np.int64)
    ways[leaves, 1] = 1
    for shifts in range(leaves, 0, -1):
        for depth in range(1, shifts + 1):
            if shifts < leaves:
                ways[shifts, depth] += ways[shifts + 1, depth + 1]
            if depth >= 2:
                ways[shifts, depth] += ways[shifts, depth - 1]
    return ways


def _binary_trees(length: int) -> tuple[Array, Array]:
    """Of a span of w + 1 tokens: [w], how many trees it has, and [w, d], how many of them cut it before its token d."""
    sizes, starts = np.ones(length, np.int64), np.zeros((length, length + 1), np.int64)
    for width in range(1, length):
        for cut in range(width):
            starts[width, cut + 1] = starts[width, cut] + sizes[cut] * sizes[width - cut - 1]
        sizes[width] = starts[width, width]
    return sizes, starts


def _items(size: int, single_root: bool) -> Array:
    """[4, n + 1, n + 1]: how many ways there are to build each item."""
    counts = np.zeros((4, size, size), np.int64)
    for i in range(size):
        counts[RIGHT, i, i] = counts[LEFT, i, i] = 1
    for width in range(1, size):
        for i in range(size - width):
            j = i + width
            for r in range(i, j):
                counts[RIGHT_ARC, i, j] += counts[RIGHT, i, r] * counts[LEFT, r + 1, j]
            counts[LEFT_ARC, i, j] = counts[RIGHT_ARC, i, j] if i > 0 else 0
            for k in range(i, j):
                counts[LEFT, i, j] += counts[LEFT, i, k] * counts[LEFT_ARC, k, j]
                counts[RIGHT, i, j] += counts[RIGHT_ARC, i, k + 1] * counts[RIGHT, k + 1, j]
            if single_root and i == 0 and j < size - 1:
                counts[RIGHT, i, j] = 0
    return counts


_MAKERS: dict[str, Callable[..., Any]] = {
    "subset": _binomials,
    "alignment": _paths,
    "shift_reduce": _completions,
    "constituency": _binary_trees,
    "projective_tree": _items,
    "spanning_tree": unranking._powers.py_func,
}
