"""Structures of their ranks, on the GPU: a lane for each, in the orders that their oracles document.

Each function takes int64 ranks [c] and uint8 structures [c, *event], clears these, and lets each lane mark its parts. What bounds it is
memory, every byte written once and few of them twice, and where ranks are split into digits the division of 64-bit numbers, some hundred
steps each. Counts come from tables of the host, copied once for a size and a device; memory does not grow with their number.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from .tree_unranking import constituency, projective_tree, spanning_tree
from .unranking_tables import table

__all__ = ["alignment", "assignment", "constituency", "linear_chain", "projective_tree", "shift_reduce", "spanning_tree", "subset"]

TOGETHER = 128
"""Structures per program."""


def linear_chain(ranks: Tensor, structures: Tensor) -> None:
    """The digits of the rank are the tags, the first the most significant."""
    _, length, tags, _ = structures.shape
    structures.zero_()
    _linear_chain[(triton.cdiv(len(ranks), TOGETHER),)](ranks, structures, len(ranks), length, tags, TOGETHER)


def subset(ranks: Tensor, structures: Tensor, k: int) -> None:
    """Of the subsets that agree so far, those that hold the next part come first."""
    size = structures.shape[1]
    (ways,) = table("subset", ranks, size, k)
    _subset[(triton.cdiv(len(ranks), TOGETHER),)](ranks, structures, ways, len(ranks), size, k, TOGETHER)


def assignment(ranks: Tensor, structures: Tensor) -> None:
    """Lexicographic in the columns of the rows, by the digits of the factorial number system."""
    structures.zero_()
    size = structures.shape[1]
    _assignment[(triton.cdiv(len(ranks), TOGETHER),)](ranks, structures, len(ranks), size, math.factorial(size - 1), TOGETHER)


def alignment(ranks: Tensor, structures: Tensor) -> None:
    """Of the paths that agree so far, those that go right come first, then those that go down."""
    _, n, m = structures.shape
    (ways,) = table("alignment", ranks, n, m)
    structures.zero_()
    _alignment[(triton.cdiv(len(ranks), TOGETHER),)](ranks, structures, ways, len(ranks), n, m, TOGETHER)


def shift_reduce(ranks: Tensor, structures: Tensor) -> None:
    """Of the derivations that agree so far, those that shift come first."""
    leaves = structures.shape[1] - 1
    (ways,) = table("shift_reduce", ranks, leaves)
    structures.zero_()
    _shift_reduce[(triton.cdiv(len(ranks), TOGETHER),)](ranks, structures, ways, len(ranks), leaves, TOGETHER)


@triton.jit
def _take(ranks, structures, count, parts, together: tl.constexpr):
    """The ranks of a program's lanes, where their structures begin, and which lanes have one: the others go along with rank 0."""
    row = tl.program_id(0).to(tl.int64) * together + tl.arange(0, together)
    inside = row < count
    return tl.load(ranks + row, mask=inside, other=0), structures + row * parts, inside


@triton.jit
def _linear_chain(ranks, structures, count, length, tags, together: tl.constexpr):
    rank, structure, inside = _take(ranks, structures, count, length * tags * tags, together)
    tag = rank % tags
    for done in range(1, length):
        rank = rank // tags
        previous = rank % tags
        tl.store(structure + ((length - done) * tags + previous) * tags + tag, 1, mask=inside)
        tag = previous
    tl.store(structure + tag, 1, mask=inside)


@triton.jit
def _subset(ranks, structures, ways, count, size, k, together: tl.constexpr):
    rank, structure, inside = _take(ranks, structures, count, size, together)
    remaining = tl.zeros((together,), tl.int32) + k
    for part in range(0, size):
        holding = tl.load(ways + (size - part - 1) * (k + 1) + remaining - 1, mask=remaining > 0, other=0)
        taken = (remaining > 0) & (rank < holding)
        tl.store(structure + part, taken.to(tl.uint8), mask=inside)
        rank -= tl.where(taken, 0, holding)
        remaining -= taken.to(tl.int32)


@triton.jit
def _assignment(ranks, structures, count, size, first_weight, together: tl.constexpr):
    """The columns that are taken are the bits of a number."""
    rank, structure, inside = _take(ranks, structures, count, size * size, together)
    weight = tl.full((together,), 1, tl.int64) * first_weight
    taken = tl.zeros((together,), tl.int32)
    for i in range(0, size):
        digit = rank // weight
        rank -= digit * weight
        column = tl.zeros((together,), tl.int32)
        passed = tl.zeros((together,), tl.int32)
        for j in range(0, size):
            free = 1 - ((taken >> j) & 1)
            column = tl.where((free > 0) & (passed == digit), j, column)
            passed += free
        tl.store(structure + i * size + column, 1, mask=inside)
        taken |= tl.full((together,), 1, tl.int32) << column
        weight = weight // tl.maximum(size - 1 - i, 1)


@triton.jit
def _alignment(ranks, structures, ways, count, n, m, together: tl.constexpr):
    rank, structure, inside = _take(ranks, structures, count, n * m, together)
    i = tl.zeros((together,), tl.int32)
    j = tl.zeros((together,), tl.int32)
    tl.store(structure, 1, mask=inside)
    for _ in range(0, n + m - 2):
        going = i + j < n + m - 2
        right = tl.load(ways + i * (m + 1) + j + 1, mask=going, other=0)
        down = tl.load(ways + (i + 1) * (m + 1) + j, mask=going, other=0)
        goes_right = rank < right
        goes_down = (rank >= right) & (rank < right + down)
        rank -= tl.where(goes_right, 0, tl.where(goes_down, right, right + down))
        i += tl.where(going & ~goes_right, 1, 0)
        j += tl.where(going & ~goes_down, 1, 0)
        tl.store(structure + i * m + j, 1, mask=inside & going)


@triton.jit
def _shift_reduce(ranks, structures, ways, count, leaves, together: tl.constexpr):
    rank, structure, inside = _take(ranks, structures, count, (leaves + 1) * (leaves + 1) * 2, together)
    shifts = tl.zeros((together,), tl.int32)
    depth = tl.zeros((together,), tl.int32)
    for _ in range(0, 2 * leaves - 1):
        passed = tl.load(ways + (shifts + 1) * (leaves + 2) + depth + 1, mask=shifts < leaves, other=0)
        reduces = (depth >= 2) & (rank >= passed)
        tl.store(structure + (shifts * (leaves + 1) + depth) * 2 + reduces.to(tl.int32), 1, mask=inside)
        rank -= tl.where(reduces, passed, 0)
        shifts += tl.where(reduces, 0, 1)
        depth += tl.where(reduces, -1, 1)
