"""Sums over permutations of products of weights, by dynamic programmes over sets of columns.

``prefix[S]`` is the total weight of all ways to match the first |S| rows to the columns of S, a number whose bits are columns:
``prefix[S] = Σ_{j ∈ S} prefix[S − j] · w[|S| − 1, j]`` (Held–Karp style; no subtraction, unlike Ryser's formula), and ``suffix[S]`` is that
of the last |S| rows. Sets of a size depend on smaller ones alone: the lanes of a program are sets of one size, which they find by their
rank in the combinatorial number system (Knuth, volume 4A, section 7.2.1.3), so that no list of sets is kept.

The weights are ``exp(θ_ij − a_i − b_j)`` with the duals a, b of the best permutation, which is found first: no weight exceeds 1, and those
of the best permutation are 1. So every sum lies between 1 and n!, and what underflows is, next to it, below 1e-280: no score is too large.
Everything is float64, whatever the scores are.

A table takes 2ⁿ numbers (512 KB at n = 16, which stay in the second cache) and n 2ⁿ⁻¹ products; what bounds it is reading them, from
random places, in n dependent layers. One program fills one table, two tables side by side; then one program per row pairs them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..kernels.gpu.launching import WARP, lanes, launches
from .gpu_matching import match, row_costs

LARGEST = 16
"""The largest n."""

SETS = 1024
"""That a program takes at once, one per thread."""

PAIRS = 256
"""Sets that a program pairs at once, each with all columns."""

DRAWS = 32
"""Samples of one program."""


class Sums(NamedTuple):
    """What is summed for some rows, and where.

    Attributes:
        weights: [b, n²]. ``slopes``: of their logarithms along a direction; the weights where there is none.
        top: [b, 1], the score that the weights leave out. ``total``: [b, 1], room for a log-partition that nobody asks for.
        tables: [b, turns 2ⁿ], of prefixes, of suffixes too where there are two turns. ``means``: of their slopes, or the tables.
    """

    weights: Tensor
    slopes: Tensor
    top: Tensor
    total: Tensor
    tables: Tensor
    means: Tensor


def weighed(rows: Tensor, turns: int, direction: Tensor | None = None) -> Iterator[tuple[slice, Sums]]:
    """Parts of rows [b, n, n] with their weights, and room for the tables of so many turns; slopes where there is a direction."""
    size, tangent, kind = rows.shape[1], direction is not None, torch.float64
    needed = (size * size, kind), (1, kind), (1, kind), (turns << size, kind)
    along = rows if direction is None else direction
    for part, (weights, top, total, tables, *others) in launches(rows, *needed, *(needed[0], needed[3]) if tangent else ()):
        slopes, means = others if tangent else (weights, tables)
        _weigh[(len(weights),)](rows[part], along[part], weights, slopes, top, size, lanes(size), tangent, num_warps=1)
        yield part, Sums(weights, slopes, top, total, tables, means)


def fill(found: Sums, log_partition: Tensor, size: int, turns: int, tangent: bool = False) -> None:
    """Fill the tables, and those of means along a direction, and write log-partitions [b]."""
    block = min(lanes(math.comb(size, size // 2)), SETS)
    width = max(block // WARP, 1)
    weights, slopes, top, _, tables, means = found
    _fill[(len(weights), turns)](weights, slopes, top, tables, means, log_partition, size, block, tangent, num_warps=width)


def pair(found: Sums, results: Tensor, tangent: bool = False) -> None:
    """Marginals [b, n, n] from both tables, or their derivatives."""
    size = results.shape[1]
    block = min(lanes(math.comb(size, size // 2)), PAIRS)
    width = max(block // WARP, 1)
    weights, slopes, _, _, tables, means = found
    _pair[(len(weights), size)](weights, slopes, tables, means, results, size, lanes(size), block, tangent, num_warps=width)


def draw(found: Sums, uniforms: Tensor, structures: Tensor) -> None:
    """Permutations [b, s, n, n] by uniforms [b, s, n] from tables of prefixes."""
    count, draws, size = uniforms.shape
    block = min(lanes(draws), DRAWS)
    groups = triton.cdiv(draws, block)
    _draw[(count * groups,)](found.weights, found.tables, uniforms, structures, groups, draws, size, lanes(size), block, num_warps=1)


@triton.jit
def _weigh(rows, direction, weights, slopes, top, size, block: tl.constexpr, tangent: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    rows += item * size * size
    row_of, v = match(rows, size, block)
    column = tl.arange(0, block)
    best = tl.full((), 0.0, tl.float64)
    row = tl.full((), 0, tl.int32)
    while row < size:
        costs = row_costs(rows, row, column, size)
        allowed = costs < float("inf")
        mine = row_of == row
        cost = tl.sum(tl.where(mine, costs, 0.0), 0)
        possible = cost < float("inf")
        u = tl.where(possible, cost, 0.0) - tl.sum(tl.where(mine, v, 0.0), 0)
        # Above 0 it is by rounding alone.
        exponent = tl.minimum(u + v - tl.where(allowed, costs, 0.0), 0.0)
        weight = tl.where(mine, 1.0, tl.exp(exponent))
        # The row that no matching can do without leaves nothing to any other.
        weight = tl.where(allowed, weight, 0.0) * tl.where(possible, 1.0, 0.0)
        best -= cost
        place = item * size * size + row * size + column
        tl.store(weights + place, weight, mask=column < size)
        if tangent:
            # What is the same for a whole row moves no probability; relative to one of its parts, a direction has no large offset.
            slope = tl.load(direction + place, mask=column < size, other=0.0).to(tl.float64)
            origin = tl.sum(tl.where(mine, slope, 0.0), 0)
            tl.store(slopes + place, tl.where(weight > 0.0, slope, origin) - origin, mask=column < size)
        row += 1
    tl.store(top + item, best)


@triton.jit
def _fill(weights, slopes, top, tables, means, log_partition, size: tl.constexpr, block: tl.constexpr, tangent: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    turn = tl.program_id(1)
    weights += item * size * size
    slopes += item * size * size
    tables += (item * tl.num_programs(1) + turn) << size
    means += (item * tl.num_programs(1) + turn) << size
    lane = tl.arange(0, block)
    tl.store(tables, 1.0)
    if tangent:
        tl.store(means, 0.0)
    held = tl.full((), 1, tl.int32)
    count = tl.full((), size, tl.int32)
    while held <= size:
        tl.debug_barrier()
        row = tl.where(turn == 0, held - 1, size - held)
        start = tl.full((), 0, tl.int32)
        while start < count:
            rank = start + lane
            sets = _unranked(rank, held, count, size)
            total = tl.zeros([block], tl.float64)
            rise = total
            for column in tl.static_range(size):
                smaller = sets ^ (1 << column)
                inside = (rank < count) & (smaller < sets)
                term = tl.load(tables + smaller, mask=inside, other=0.0) * tl.load(weights + row * size + column)
                total += term
                if tangent:
                    slope = tl.load(slopes + row * size + column)
                    rise += term * (tl.load(means + smaller, mask=inside, other=0.0) + slope)
            tl.store(tables + sets, total, mask=rank < count)
            if tangent:
                tl.store(means + sets, rise / tl.where(total > 0.0, total, 1.0), mask=rank < count)
            start += block
        held += 1
        count = count * (size + 1 - held) // held
    tl.debug_barrier()
    total = tl.load(tables + ((1 << size) - 1))
    value = tl.where(total > 0.0, tl.load(top + item) + tl.log(tl.where(total > 0.0, total, 1.0)), -float("inf"))
    tl.store(log_partition + item, value, mask=turn == 0)


@triton.jit
def _pair(weights, slopes, tables, means, results, size: tl.constexpr, columns: tl.constexpr, block: tl.constexpr, tangent: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1)
    suffixes = tables + ((2 * item + 1) << size)
    suffix_means = means + ((2 * item + 1) << size)
    tables += (2 * item) << size
    means += (2 * item) << size
    everything = (1 << size) - 1
    lane = tl.arange(0, block)
    column = tl.arange(0, columns)
    place = (item * size + row) * size + column
    weight = tl.load(weights + place, mask=column < size, other=0.0)
    whole = tl.load(tables + everything)
    if tangent:
        slope = tl.load(slopes + place, mask=column < size, other=0.0) - tl.load(means + everything)
    count = tl.full((), 1, tl.int32)
    for above in tl.static_range(size):
        count = tl.where(above < row, count * (size - above) // (above + 1), count)
    found = tl.zeros([block, columns], tl.float64)
    start = tl.full((), 0, tl.int32)
    while start < count:
        rank = start + lane
        sets = _unranked(rank, row, count, size)
        prefix = tl.load(tables + sets, mask=rank < count, other=0.0)
        rest = (everything ^ sets)[:, None] ^ (1 << column)[None, :]
        outside = ((sets[:, None] >> column[None, :]) & 1) == 0
        outside = outside & (rank < count)[:, None] & (column < size)[None, :]
        term = prefix[:, None] * tl.load(suffixes + rest, mask=outside, other=0.0)
        if tangent:
            mean = tl.load(means + sets, mask=rank < count, other=0.0)
            suffix_mean = tl.load(suffix_means + rest, mask=outside, other=0.0)
            term = term * (mean[:, None] + slope[None, :] + suffix_mean)
        found += term
        start += block
    result = weight * tl.sum(found, 0) / tl.where(whole > 0.0, whole, 1.0)
    tl.store(results + place, result, mask=column < size)


@triton.jit
def _draw(weights, tables, uniforms, structures, groups, draws, size: tl.constexpr, columns: tl.constexpr, block: tl.constexpr):
    item = (tl.program_id(0) // groups).to(tl.int64)
    draw = tl.program_id(0) % groups * block + tl.arange(0, block)
    tables += item << size
    uniforms += (item * draws + draw) * size
    structures += (item * draws + draw) * size * size
    column = tl.arange(0, columns)[None, :]
    real = (draw < draws)[:, None] & (column < size)
    rest = tl.full([block], (1 << size) - 1, tl.int32)
    row = tl.full((), size - 1, tl.int32)
    while row >= 0:
        free = real & (((rest[:, None] >> column) & 1) > 0)
        weight = tl.load(weights + (item * size + row) * size + column, mask=column < size, other=0.0)
        chance = tl.load(tables + (rest[:, None] ^ (1 << column)), mask=free, other=0.0) * weight
        below = tl.cumsum(chance, 1)
        threshold = tl.load(uniforms + row, mask=draw < draws, other=0.0) * tl.max(below, 1)
        # Sums in another order may fall by rounding: what has no chance is not taken for that.
        first = tl.min(tl.where((chance > 0.0) & (below > threshold[:, None]), column, columns), 1)
        last = tl.max(tl.where(chance > 0.0, column, -1), 1)
        chosen = tl.where(first < columns, first, last)
        here = (column == chosen[:, None]).to(structures.dtype.element_ty)
        tl.store(structures[:, None] + row * size + column, here, mask=real)
        rest = rest ^ tl.where(chosen < 0, 0, 1 << tl.maximum(chosen, 0))
        row -= 1


@triton.jit
def _unranked(rank, held, count, size: tl.constexpr):
    """The sets of ``held`` columns, ``count`` in all, at places of their ascending order."""
    sets = tl.zeros_like(rank)
    left = sets + held
    # How many sets of the columns below the next one, with as many as are left, there are: those come before sets that hold it.
    before = sets + count * (size - held) // size
    for down in tl.static_range(size):
        column = size - 1 - down
        holds = rank >= before
        sets = tl.where(holds, sets | (1 << column), sets)
        rank = tl.where(holds, rank - before, rank)
        if column > 0:
            before = before * tl.where(holds, left, column - left) // column
        left = tl.where(holds, left - 1, left)
    return sets
