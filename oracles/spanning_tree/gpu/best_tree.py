"""MAP of spanning trees: one program grows a path of best heads and contracts its cycles, in O(n²).

Source: Gabow, Galil, Spencer & Tarjan 1986, "Efficient algorithms for finding minimum spanning trees in undirected and directed graphs",
section 3, as `structgrad.oracles.spanning_tree.cpu.best_tree`; ties are those of `structgrad.oracles.spanning_tree.best_tree`: a component
takes its lowest best head, and of the members that gain most from an arc, the one with the lowest position gets it.

What is known of a position, of a place on the path or of a component stays in registers, a number per lane; only what a component gains by
each head, and the member that gains it, are kept in memory. A program chooses a head at most 2n − 1 times and joins members at most n − 1
times, and each of these is one row of n + 1 numbers: O(n) steps, each bounded by the latency of a row from the first cache and of three
reductions over a warp. So a program is one warp, and a device runs as many problems side by side as its caches hold. Scores are read once.

Gains are float64 whatever the scores are, as in the reference: they are sums of many scores, and their comparisons decide.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...kernels.gpu.launching import lanes, launches, warps

MOST = 512
"""The most positions, the root's among them: what the registers of a few warps hold."""

UNSEEN = tl.constexpr(-1)
DONE = tl.constexpr(-2)

ROWS = tl.constexpr(8)
"""Rows of a tree that are written together."""

LABEL = tl.constexpr(65536)
"""A component's key is its lowest position times this, plus its number: keys are in the order of positions."""


def serves(operation: str, event: tuple[int, ...], dtype: torch.dtype, options: tuple[Any, ...]) -> bool:
    """The sizes that these kernels take; see `structgrad.oracles.kernels.gpu`."""
    return event[0] <= MOST


def workspace(event: tuple[int, ...]) -> int:
    """The float64 numbers that `best` needs: gains by component and head; then members, int32, by contraction and head."""
    size = event[0]
    return size * size + math.ceil(size * size / 2)


def argmax(rows: Tensor, structures: Tensor, single_root: bool) -> None:
    """The best tree of each row [b, n + 1, n + 1]."""
    size = rows.shape[-1]
    room, block = workspace((size, size)), lanes(size)
    for part, (space,) in launches(rows, (room, torch.float64)):
        _argmax[(len(space),)](rows[part], structures[part], space, size, room, single_root, block, num_warps=warps(block, 8))


@triton.jit
def _argmax(rows, structures, space, size, room, single_root: tl.constexpr, block: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    best(rows + item * size * size, structures + item * size * size, space + item * room, size, single_root, block)


@triton.jit
def best(scores, structure, workspace, size, single_root: tl.constexpr, block: tl.constexpr):
    """Write the best tree of scores [size, size], an arc (h, m) at h · size + m; where there is none, each word hangs on the one before.

    The workspace holds `workspace((size, size))` float64 numbers; ``block`` is a power of two, at least ``size``.
    """
    position = tl.arange(0, block)
    members = (workspace + size * size).to(tl.pointer_type(tl.int32))
    heads, taken, contracted, feasible = _grow(scores, workspace, members, size, position, single_root, block)
    tl.debug_barrier()
    heads = _open(members, heads, taken, contracted, size, position)
    heads = tl.where(feasible > 0, heads, position - 1)
    _write(structure, tl.where(position > 0, heads, -1), size, block)
    tl.debug_barrier()


@triton.jit
def _grow(scores, gains, members, size, position, single_root: tl.constexpr, block: tl.constexpr):
    """Follow best heads until all words lead to the root, and write who gains what within the components that are contracted on the way.

    Gives the heads of words, the heads that contracted components take by their number, how many those are, and whether there is a tree.
    """
    # Where on the path the component of a position is, and the key of the component at each place there.
    place = tl.where((position > 0) & (position < size), UNSEEN, DONE)
    path = tl.zeros([block], tl.int32)
    heads = tl.zeros([block], tl.int32)
    taken = tl.zeros([block], tl.int32)
    row = tl.zeros([block], tl.float64)
    zero = tl.full((), 0, tl.int32)
    one = tl.full((), 1, tl.int32)
    contracted, length, roots, key = zero, zero, zero, zero
    word, starting, feasible, going = one, one, one, one
    while going > 0:
        if starting > 0:
            # A word that was not seen is a component of its own, at the end of the path.
            row = _column(scores, word, size, position)
            key = word * LABEL + word
            place = tl.where(position == word, length, place)
            path = tl.where(position == length, key, path)
            length += 1
        value, head = _choose(row, position, single_root, block)
        heads = tl.where(position == key % LABEL, head, heads)
        taken = tl.where(position == key % LABEL - size, head, taken)
        target = tl.sum(tl.where(position == head, place, 0), 0)
        if value == -float("inf"):
            feasible = zero
            going = zero
        elif target < 0:
            # On to a word that was not seen; or the whole path leads to the root, then to the next word that is left.
            tl.store(gains + (key // LABEL) * size + position, row - value, mask=position < size)
            finished = target == DONE
            roots += (finished & (head == 0)).to(tl.int32)
            place = tl.where(finished & (place >= 0), DONE, place)
            length = tl.where(finished, 0, length)
            word = tl.where(finished, tl.min(tl.where(place == UNSEEN, position, block), 0), head)
            going = (word < block).to(tl.int32)
            starting = one
        else:
            # The path from there on is a cycle: it becomes the component at its end.
            row, member = _join(gains, path, key, row - value, length, target, size, position, block)
            tl.store(members + contracted * size + position, member, mask=position < size)
            joined = place >= target
            row = tl.where(joined, -float("inf"), row)
            key = tl.min(tl.where(joined, position, block), 0) * LABEL + size + contracted
            place = tl.where(joined, target, place)
            path = tl.where(position == target, key, path)
            length = target + 1
            contracted += 1
            starting = zero
    if single_root:
        feasible = tl.where(roots > 1, 0, feasible)
    return heads, taken, contracted, feasible


@triton.jit
def _join(gains, path, key, row, length, target, size, position, block: tl.constexpr):
    """The most that a component of the path from ``target`` on gains by each head, and the number of the first one that does.

    The last one of the path is at hand: it has the key and gains the row.
    """
    tl.debug_barrier()
    member = tl.zeros([block], tl.int32) + key
    at = length - 2
    while at >= target:
        other = tl.sum(tl.where(position == at, path, 0), 0)
        gain = tl.load(gains + (other // LABEL) * size + position, mask=position < size, other=-float("inf"))
        better = (gain > row) | ((gain == row) & (other < member))
        row = tl.where(better, gain, row)
        member = tl.where(better, other, member)
        at -= 1
    # Before a row that was read is written again: where there are more warps than lanes, no maximum makes them wait for each other.
    tl.debug_barrier()
    return row, member % LABEL


@triton.jit
def _open(members, heads, taken, contracted, size, position):
    """The heads of words after all components are opened, the last one first: one member takes over the head, the others keep theirs."""
    while contracted > 0:
        contracted -= 1
        head = tl.sum(tl.where(position == contracted, taken, 0), 0)
        member = tl.load(members + contracted * size + head)
        heads = tl.where(position == member, head, heads)
        taken = tl.where(position == member - size, head, taken)
    return heads


@triton.jit
def _column(scores, word, size, position):
    """The scores of the arcs into a word by their heads; -0.0, which equals 0.0 but not in its bits, becomes 0.0."""
    column = tl.load(scores + position * size + word, mask=(position < size) & (position != word), other=-float("inf")).to(tl.float64)
    return tl.where(column == 0.0, 0.0, column)


@triton.jit
def _choose(row, position, single_root: tl.constexpr, block: tl.constexpr):
    """The best head of a component and what it gains by it. With a single root, that is no head as long as a word may be one."""
    if single_root:
        value, head = first_maximum(tl.where(position > 0, row, -float("inf")), position, block)
        if value == -float("inf"):
            value = tl.sum(tl.where(position == 0, row, 0.0), 0)
            head = tl.full((), 0, tl.int32)
    else:
        value, head = first_maximum(row, position, block)
    return value, head


@triton.jit
def first_maximum(row, position, block: tl.constexpr):
    """The largest of float64 numbers (no -0.0 among them) and the first place that has it.

    The order of the numbers is that of their bits, upper and lower half: maxima of int32, each one instruction for a warp, where one of
    float64 takes ten exchanges.
    """
    bits = row.to(tl.int64, bitcast=True)
    keys = tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFFFFFFFFFF)
    upper = (keys >> 32).to(tl.int32)
    lower = ((keys & 0xFFFFFFFF) - 0x80000000).to(tl.int32)
    high = tl.max(upper, 0)
    low = tl.max(tl.where(upper == high, lower, -0x80000000), 0)
    first = tl.min(tl.where((upper == high) & (lower == low), position, block), 0)
    found = (high.to(tl.int64) << 32) | (low.to(tl.int64) + 0x80000000)
    found = tl.where(found >= 0, found, found ^ 0x7FFFFFFFFFFFFFFF)
    return found.to(tl.float64, bitcast=True), first


@triton.jit
def _write(structure, heads, size, block: tl.constexpr):
    """Write a tree by the heads of its words, -1 where there is no word."""
    word = tl.arange(0, block)
    first = tl.full((), 0, tl.int32)
    while first < size:
        head = first + tl.arange(0, ROWS)
        arc = (heads[None, :] == head[:, None]).to(structure.dtype.element_ty)
        inside = (head[:, None] < size) & (word[None, :] < size)
        tl.store(structure + head[:, None] * size + word[None, :], arc, mask=inside)
        first += ROWS
