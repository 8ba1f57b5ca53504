"""Structures of their ranks, in compiled steps: one function per structure, called by the name of its kernels.

Each takes int64 ranks [c] and uint8 zeros [c, *event], and sets the parts of every structure to 1, in the order that its oracle documents.
Counts are tabulated anew in each call, which takes far less than the walks; no count that a walk can meet exceeds `MAX_RANK`.
"""

from __future__ import annotations

import math

import numpy as np

from .compilation import compiled, inner
from .tree_unranking import constituency, projective_tree, spanning_tree

__all__ = [
    "alignment",
    "assignment",
    "constituency",
    "linear_chain",
    "operations",
    "projective_tree",
    "shift_reduce",
    "spanning_tree",
    "subset",
]

MAX_RANK = 2**62


def operations(event: tuple[int, ...]) -> int:
    """Inner-loop steps of one structure, roughly: its bytes are cleared, and a few steps are taken along every axis."""
    return math.prod(event) // 8 + 4 * sum(event)


@compiled
def linear_chain(ranks: np.ndarray, structures: np.ndarray) -> None:
    """The digits of the rank are the tags, the first the most significant."""
    length, tags = structures.shape[1:3]
    for row in range(len(ranks)):
        rank, structure = ranks[row], structures[row]
        tag = rank % tags
        for i in range(length - 1, 0, -1):
            rank //= tags
            previous = rank % tags
            structure[i, previous, tag] = 1
            tag = previous
        structure[0, 0, tag] = 1


@compiled
def subset(ranks: np.ndarray, structures: np.ndarray, k: int) -> None:
    """Of the subsets that agree so far, those that hold the next part come first."""
    size = structures.shape[1]
    ways = _binomials(size, k)
    for row in range(len(ranks)):
        rank, remaining, part = ranks[row], k, 0
        while remaining > 0:
            holding = ways[size - part - 1, remaining - 1]
            taken = rank < holding
            structures[row, part] = taken
            rank -= 0 if taken else holding
            remaining -= taken
            part += 1


@inner
def _binomials(size, k):
    """[n, k + 1]: the number of j-subsets of m parts; what is beyond int64 no rank reaches."""
    ways = np.zeros((size, k + 1), np.int64)
    for m in range(size):
        ways[m, 0] = 1
        for j in range(1, min(m, k) + 1):
            ways[m, j] = min(ways[m - 1, j - 1], MAX_RANK - ways[m - 1, j]) + ways[m - 1, j]
    return ways


@compiled
def assignment(ranks: np.ndarray, structures: np.ndarray) -> None:
    """Lexicographic in the columns of the rows, by the digits of the factorial number system."""
    size = structures.shape[1]
    free, weights = np.empty(size, np.int64), np.ones(size, np.int64)
    for i in range(size - 2, -1, -1):
        weights[i] = weights[i + 1] * (size - 1 - i)
    for item in range(len(ranks)):
        rank = ranks[item]
        for column in range(size):
            free[column] = column
        for i in range(size):
            digit = rank // weights[i]
            rank -= digit * weights[i]
            structures[item, i, free[digit]] = 1
            for place in range(digit, size - 1 - i):
                free[place] = free[place + 1]


@compiled
def alignment(ranks: np.ndarray, structures: np.ndarray) -> None:
    """Of the paths that agree so far, those that go right come first, then those that go down."""
    n, m = structures.shape[1:]
    ways = _paths(n, m)
    for row in range(len(ranks)):
        rank, structure, i, j = ranks[row], structures[row], 0, 0
        structure[0, 0] = 1
        while i + j < n + m - 2:
            right, down = ways[i, j + 1], ways[i + 1, j]
            if rank < right:
                j += 1
            elif rank < right + down:
                rank -= right
                i += 1
            else:
                rank -= right + down
                i, j = i + 1, j + 1
            structure[i, j] = 1


@inner
def _paths(n, m):
    """[n + 1, m + 1]: how many paths lead from a cell to the last one; 0 beyond the grid."""
    ways = np.zeros((n + 1, m + 1), np.int64)
    ways[n - 1, m - 1] = 1
    for i in range(n - 1, -1, -1):
        for j in range(m - 1, -1, -1):
            ways[i, j] += ways[i, j + 1] + ways[i + 1, j] + ways[i + 1, j + 1]
    return ways


@compiled
def shift_reduce(ranks: np.ndarray, structures: np.ndarray) -> None:
    """Of the derivations that agree so far, those that shift come first."""
    leaves = structures.shape[1] - 1
    ways = _completions(leaves)
    for row in range(len(ranks)):
        rank, structure, shifts, depth = ranks[row], structures[row], 0, 0
        for _ in range(2 * leaves - 1):
            passed = ways[shifts + 1, depth + 1] if shifts < leaves else 0
            if depth >= 2 and rank >= passed:
                structure[shifts, depth, 1] = 1
                rank -= passed
                depth -= 1
            else:
                structure[shifts, depth, 0] = 1
                shifts, depth = shifts + 1, depth + 1


@inner
def _completions(leaves):
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
