"""Trees of their ranks, on the GPU; see `structgrad.oracles.kernels.gpu.unranking`.

What a lane has still to derive lies in the columns of a tile, so in registers: the subtree of a span of w cuts takes w places that follow
each other, in the order in which they are derived.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .launching import lanes, warps
from .unranking_tables import table

TOGETHER = 32
"""Trees per program."""

RIGHT = tl.constexpr(0)
LEFT = tl.constexpr(1)
RIGHT_ARC = tl.constexpr(2)
LEFT_ARC = tl.constexpr(3)


def constituency(ranks: Tensor, structures: Tensor) -> None:
    """By the split of the widest span, then by its left part, then by its right part."""
    length = structures.shape[1]
    sizes, starts = table("constituency", ranks, length)
    structures.zero_()
    _constituency[(triton.cdiv(len(ranks), TOGETHER),)](
        ranks, structures, sizes, starts, len(ranks), length, TOGETHER, lanes(length), num_warps=warps(TOGETHER * lanes(length), 8)
    )


def projective_tree(ranks: Tensor, structures: Tensor, single_root: bool) -> None:
    """By the farthest child of an item, then by the seam under its arc, then by what is lower, upper and beyond."""
    size = structures.shape[1]
    (counts,) = table("projective_tree", ranks, size, single_root)
    structures.zero_()
    _projective_tree[(triton.cdiv(len(ranks), TOGETHER),)](
        ranks, structures, counts, len(ranks), size, TOGETHER, lanes(size), num_warps=warps(TOGETHER * lanes(size), 4)
    )


def spanning_tree(ranks: Tensor, structures: Tensor, single_root: bool) -> None:
    """By the head of word 1, then of word 2, and so on; the counts are those of `structgrad.oracles.spanning_tree.ranks`."""
    size = structures.shape[1]
    (powers,) = table("spanning_tree", ranks, size - 1, single_root)
    structures.zero_()
    _spanning_tree[(triton.cdiv(len(ranks), TOGETHER),)](
        ranks, structures, powers, len(ranks), size, single_root, TOGETHER, lanes(size), num_warps=warps(TOGETHER * lanes(size), 8)
    )


@triton.jit
def _take(ranks, structures, count, parts, together: tl.constexpr):
    """The ranks of a program's lanes, where their structures begin, and which lanes have one: the others go along with rank 0."""
    row = tl.program_id(0).to(tl.int64) * together + tl.arange(0, together)
    inside = row < count
    return tl.load(ranks + row, mask=inside, other=0), structures + row * parts, inside


@triton.jit
def _read(values, column, place):
    """[c]: of each lane what stands in its column."""
    return tl.sum(tl.where(column == place[:, None], values, 0), 1)


@triton.jit
def _put(values, column, place, some, value):
    """The tile with a value put into a column of the lanes that have some."""
    return tl.where((column == place[:, None]) & some[:, None], value[:, None], values)


@triton.jit
def _locate(ways, column, allowed, rank):
    """The first column whose running sum exceeds the rank, and what is left of the rank there."""
    ways = tl.where(allowed, ways, 0)
    found = tl.sum((allowed & (tl.cumsum(ways, 1) <= rank[:, None])).to(tl.int32), 1)
    return found, rank - tl.sum(tl.where(column < found[:, None], ways, 0), 1)


@triton.jit
def _constituency(ranks, structures, sizes, starts, count, length, together: tl.constexpr, block: tl.constexpr):
    rank, structure, inside = _take(ranks, structures, count, length * length, together)
    column = tl.arange(0, block)[None, :]
    zero = tl.zeros((together,), tl.int32)
    blank = tl.zeros((together, block), tl.int32)
    here = zero == 0
    firsts = blank
    lasts = _put(blank, column, zero, here, zero + (length - 1))
    held = _put(blank.to(tl.int64), column, zero, here, rank)
    for token in range(0, length):
        tl.store(structure + token * (length + 1), 1, mask=inside)
    for place in range(0, length - 1):
        at = zero + place
        first = _read(firsts, column, at)
        last = _read(lasts, column, at)
        rank = _read(held, column, at)
        tl.store(structure + first * length + last, 1, mask=inside)
        width = last - first
        # How many cuts come before that of the rank.
        ends = tl.load(starts + (width * (length + 1))[:, None] + column + 1, mask=column < width[:, None], other=0)
        cut = tl.sum(((column < width[:, None]) & (ends <= rank[:, None])).to(tl.int32), 1)
        rank -= tl.load(starts + width * (length + 1) + cut)
        behind = tl.load(sizes + tl.maximum(width - cut - 1, 0))
        left = rank // behind
        firsts = _put(firsts, column, at + 1, cut > 0, first)
        lasts = _put(lasts, column, at + 1, cut > 0, first + cut)
        held = _put(held, column, at + 1, cut > 0, left)
        more = cut + 1 < width
        firsts = _put(firsts, column, at + 1 + cut, more, first + cut + 1)
        lasts = _put(lasts, column, at + 1 + cut, more, last)
        held = _put(held, column, at + 1 + cut, more, rank - left * behind)


@triton.jit
def _projective_tree(ranks, structures, counts, count, size, together: tl.constexpr, block: tl.constexpr):
    rank, structure, inside = _take(ranks, structures, count, size * size, together)
    square = size * size
    column = tl.arange(0, block)[None, :]
    zero = tl.zeros((together,), tl.int32)
    blank = tl.zeros((together, block), tl.int32)
    leftwards = blank
    firsts = blank
    lasts = _put(blank, column, zero, zero == 0, zero + (size - 1))
    held = _put(blank.to(tl.int64), column, zero, zero == 0, rank)
    for place in range(0, size - 1):
        at = zero + place
        leftward = _read(leftwards, column, at)
        first = _read(firsts, column, at)
        last = _read(lasts, column, at)
        rank = _read(held, column, at)
        left = leftward > 0
        # The farthest child: by the ways to go on beyond it, times those of its arc.
        children = (first + 1 - leftward)[:, None] + column
        allowed = column < (last - first)[:, None]
        beyond_at = tl.where(
            left[:, None], square * LEFT + first[:, None] * size + children, square * RIGHT + children * size + last[:, None]
        )
        arc_at = tl.where(
            left[:, None], square * LEFT_ARC + children * size + last[:, None], square * RIGHT_ARC + first[:, None] * size + children
        )
        beyonds = tl.load(counts + beyond_at, mask=allowed, other=0)
        found, rank = _locate(beyonds * tl.load(counts + arc_at, mask=allowed, other=0), column, allowed, rank)
        child = first + 1 - leftward + found
        beyond = _read(beyonds, column, found)
        low = tl.where(left, child, first)
        high = tl.where(left, last, child)
        # The seam under the arc.
        seams = low[:, None] + column
        allowed = column < (high - low)[:, None]
        uppers = tl.load(counts + square * LEFT + (seams + 1) * size + high[:, None], mask=allowed, other=0)
        lowers = tl.load(counts + square * RIGHT + low[:, None] * size + seams, mask=allowed, other=0)
        found, rank = _locate(lowers * uppers * beyond[:, None], column, allowed, rank)
        seam = low + found
        upper = _read(uppers, column, found)
        tl.store(structure + tl.where(left, last, first) * size + child, 1, mask=inside)
        joint = rank // tl.maximum(beyond, 1)
        start = tl.where(left, first, child)
        end = tl.where(left, child, last)
        leftwards = _put(leftwards, column, at + high - low, end > start, leftward)
        firsts = _put(firsts, column, at + high - low, end > start, start)
        lasts = _put(lasts, column, at + high - low, end > start, end)
        held = _put(held, column, at + high - low, end > start, rank - joint * beyond)
        above = joint // tl.maximum(upper, 1)
        leftwards = _put(leftwards, column, at + 1 + found, high > seam + 1, zero + 1)
        firsts = _put(firsts, column, at + 1 + found, high > seam + 1, seam + 1)
        lasts = _put(lasts, column, at + 1 + found, high > seam + 1, high)
        held = _put(held, column, at + 1 + found, high > seam + 1, joint - above * upper)
        leftwards = _put(leftwards, column, at + 1, found > 0, zero)
        firsts = _put(firsts, column, at + 1, found > 0, low)
        lasts = _put(lasts, column, at + 1, found > 0, seam)
        held = _put(held, column, at + 1, found > 0, above)


@triton.jit
def _spanning_tree(ranks, structures, powers, count, size, single_root: tl.constexpr, together: tl.constexpr, block: tl.constexpr):
    """Components are labelled by their tops, their sizes stand in the columns of these."""
    rank, structure, inside = _take(ranks, structures, count, size * size, together)
    column = tl.arange(0, block)[None, :]
    zero = tl.zeros((together,), tl.int32)
    components = tl.zeros((together, block), tl.int32) + column
    sizes = tl.zeros((together, block), tl.int64) + 1
    if single_root:
        sizes = tl.where(column == 0, 0, sizes)
    for word in range(1, size):
        others = size - 1 - word
        power = tl.load(powers + others)
        root = _read(sizes, column, zero)
        own = _read(sizes, column, zero + word)
        rooted = tl.where(others > 0, power * (root + own), 1)
        ways = tl.where(components == 0, rooted[:, None], tl.where(others > 0, power * root, 0)[:, None])
        if single_root:
            used = root > 0
            ways = tl.where(used[:, None], ways, power)
            ways = tl.where(column == 0, tl.where(used, 0, rooted)[:, None], ways)
        ways = tl.where(components == word, 0, ways)
        head, rank = _locate(ways, column, column < size, rank)
        tl.store(structure + head * size + word, 1, mask=inside)
        into = _read(components, column, head)
        sizes += tl.where(column == into[:, None], own[:, None], 0)
        components = tl.where(components == word, into[:, None], components)
