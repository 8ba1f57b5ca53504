"""Best perfect matchings of square score matrices: shortest augmenting paths, a whole problem in the registers of one program.

Sources: Jonker & Volgenant 1987, "A shortest augmenting path algorithm for dense and sparse linear assignment problems" (augmenting row
reduction, then one shortest path per row that is still unmatched); Crouse 2016 (paths that extend one row at a time). The lanes are
columns: duals, distances, predecessors and matched rows are vectors, so that one step takes one row of scores, all columns of which are
relaxed at once, and one reduction for the nearest.

What bounds it is the latency of these steps, one after another: a load and a reduction, of which the bids of `_bid` and the paths take as
many as follows (means; "peaked" scores prefer one matching by 4 standard deviations, products of two vectors are the hardest).

====  ========  ======================  ==============  ===========
n     scores    bids, then path steps   without bids    most, n²/2
====  ========  ======================  ==============  ===========
64    uniform   128 + 187               393             2080
64    normal    128 + 116               363             2080
64    peaked    67 + 0                  76              2080
64    products  128 + 920               965             2080
1000  uniform   2000 + 18422            23694           500500
1000  normal    2000 + 6367             12414           500500
1000  peaked    2000 + 896              7603            500500
1000  products  2000 + 180907           181213          500500
====  ========  ======================  ==============  ===========

Reducing columns first would take uniform scores at n = 1000 to some 12000, but products to 438000, and is left out.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from ..kernels.gpu.launching import lanes, warps

MOST = 2048
"""The largest n: a row and a column fit into 11 bits each, and a row of scores into registers."""

BITS = tl.constexpr(11)
INDEX = tl.constexpr(2047)
MATCHED = tl.constexpr(1 << 22)

BIDS = tl.constexpr(2)
"""Bids per row, at most, on average: with two there were the fewest steps in all."""

COLUMNS = 8
"""Of one thread: one warp to n = 256, which needs no barrier for a reduction."""


def workspace(event: tuple[int, ...]) -> int:
    """Numbers that `best` keeps in memory: none."""
    return 0


def program(event: tuple[int, ...]) -> tuple[int, int]:
    """Columns and warps of the program of one problem."""
    block = lanes(math.isqrt(math.prod(event)))
    return block, warps(block, COLUMNS)


@triton.jit
def best(scores, structure, workspace, size, block: tl.constexpr):
    """Write the best permutation [n, n] of scores [n, n]; where every one is forbidden, one with the fewest forbidden pairs.

    Of permutations with equal scores, the one that the search meets first: it depends on nothing but the scores. Computed in float64.
    The ``workspace`` is not used.
    """
    row_of, _ = match(scores, size, block)
    column = tl.arange(0, block)
    row = tl.full((), 0, tl.int32)
    while row < size:
        here = (row_of == row).to(structure.dtype.element_ty)
        tl.store(structure + row * size + column, here, mask=column < size)
        row += 1
    tl.debug_barrier()


@triton.jit
def match(scores, size, block: tl.constexpr):
    """The row of each column in a best matching, -1 beyond ``size``, and duals v of the columns.

    With ``u_i = c_ij − v_j`` for the column j of row i, no reduced cost ``c − u − v`` of the costs c, the negated scores, is below 0 but
    for rounding. Rows that no path leads to an allowed column get one that is left over.
    """
    row_of, v = _bid(scores, size, block)
    column = tl.arange(0, block)
    row = tl.full((), 0, tl.int32)
    missing = row
    while row < size:
        if tl.max((row_of == row).to(tl.int32), 0) == 0:
            row_of, v, found = _augment(scores, row_of, v, row, size, block)
            missing += 1 - found
        row += 1
    row = tl.where(missing > 0, 0, size)
    while row < size:
        matched = tl.max((row_of == row).to(tl.int32), 0)
        spare = tl.min(tl.where((row_of < 0) & (column < size), column, block), 0)
        row_of = tl.where(column == tl.where(matched == 0, spare, -1), row, row_of)
        row += 1
    return row_of, v


@triton.jit
def _bid(scores, size, block: tl.constexpr):
    """A partial matching with duals: rows take their best column and lower its dual to the second best; who loses it bids next."""
    column = tl.arange(0, block)
    row_of = tl.full([block], -1, tl.int32)
    v = tl.zeros([block], tl.float64)
    never = tl.full([block], float("inf"), tl.float64)
    turn = tl.full((), 0, tl.int32)
    row = turn
    bids = turn
    while (turn < size) & (bids < size * BIDS):
        least, second, place = tl.reduce((row_costs(scores, row, column, size) - v, never, _places(row_of, column)), 0, _two_least)
        # A row with one allowed column is left to the paths, and one that gains nothing by a column that is taken.
        falls = (second > least) & (second < float("inf"))
        takes = falls | ((place < MATCHED) & (second < float("inf")))
        chased = falls & (place >= MATCHED)
        mine = column == tl.where(takes, (place >> BITS) & INDEX, -1)
        row_of = tl.where(mine, row, row_of)
        v = tl.where(mine, v - (tl.where(falls, second, 0.0) - tl.where(falls, least, 0.0)), v)
        turn = tl.where(chased, turn, turn + 1)
        row = tl.where(chased, place & INDEX, turn)
        bids += 1
    return row_of, v


@triton.jit
def _augment(scores, row_of, v, first, size, block: tl.constexpr):
    """Match the row ``first`` along a shortest path in reduced costs; gives 0 in the end where no path is allowed."""
    column = tl.arange(0, block)
    distance = tl.full([block], float("inf"), tl.float64)
    previous = tl.full([block], 0, tl.int32)
    # Whose distance is not final.
    near = column < size
    places = _places(row_of, column)
    least = tl.full((), 0.0, tl.float64)
    offset = least
    row = first
    place = tl.full((), MATCHED, tl.int32)
    going = tl.full((), 1, tl.int32)
    while going > 0:
        through = row_costs(scores, row, column, size) - v - offset
        shorter = near & (through < distance)
        distance = tl.where(shorter, through, distance)
        previous = tl.where(shorter, row, previous)
        least, place, dual = tl.reduce((tl.where(near, distance, float("inf")), places, v), 0, _nearest)
        row = place & INDEX
        sink = (place >> BITS) & INDEX
        near = near & (column != sink)
        going = tl.where((least < float("inf")) & (place >= MATCHED), 1, 0)
        cost = -tl.load(scores + row * size + sink, mask=going > 0, other=0.0).to(tl.float64)
        offset = cost - dual - least
    found = tl.where(least < float("inf"), 1, 0)
    # Only columns at a final distance move, so that no reduced cost of the others turns negative.
    end = tl.where(found > 0, least, 0.0)
    v += tl.where(~near & (column < tl.where(found > 0, size, 0)), distance, end) - end
    # Back along the path, each row takes the column through which it was reached, and leaves its own to the row before.
    sink = tl.where(found > 0, (place >> BITS) & INDEX, -1)
    while sink >= 0:
        row = tl.sum(tl.where(column == sink, previous, 0), 0)
        left = tl.max(tl.where(row_of == row, column, -1), 0)
        row_of = tl.where(column == sink, row, row_of)
        sink = left
    return row_of, v, found


@triton.jit
def row_costs(scores, row, column, size):
    """The negated scores of a row, in float64; inf beyond ``size``."""
    return -tl.load(scores + row * size + column, mask=column < size, other=-float("inf")).to(tl.float64)


@triton.jit
def _places(row_of, column):
    """A column with its row in one number: unmatched columns come first, so that of equal distances the path that ends is taken."""
    return tl.where(row_of < 0, column << BITS, MATCHED | (column << BITS) | row_of)


@triton.jit
def _nearest(distance, place, dual, other_distance, other_place, other_dual):
    first = (distance < other_distance) | ((distance == other_distance) & (place < other_place))
    return tl.where(first, distance, other_distance), tl.where(first, place, other_place), tl.where(first, dual, other_dual)


@triton.jit
def _two_least(least, second, place, other_least, other_second, other_place):
    first = (least < other_least) | ((least == other_least) & (place < other_place))
    beaten = tl.where(first, other_least, least)
    return (
        tl.where(first, least, other_least),
        tl.minimum(beaten, tl.minimum(second, other_second)),
        tl.where(first, place, other_place),
    )
