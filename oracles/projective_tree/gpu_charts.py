"""Charts of projective trees in one program: Eisner's recursion inside and outside, by width.

The items are those of `ProjectiveTree.derivations`, and arcs. A chart is a stack of squares ``[n + 1, n + 1]`` in global memory, which
the program of a problem writes and reads again, with a barrier between two widths; it stays in the caches. A square holds a complete item
of i..j at ``[i, j]`` and once more at ``[j, i]``, an arc where its score lies, and in another square transposed: so every sum over splits
runs along two rows, and neighbouring threads read neighbouring numbers. No split of a width depends on the width itself but for the arc of
the whole,
which is at hand in registers: one barrier per width, n in a pass.

A tile ``[cells, splits]`` of registers takes the cells of one width, with every split of each. Its area is fixed: tall tiles for few
splits, wide ones for many, each shape compiled for itself, keep what is idle small.

Outside, a square does not hold the outside value β but ``β − log Z``, so that the exponential of what an item and its two neighbours in a
derivation come to is a posterior: at most 1, with nothing to subtract and no maximum to look for.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from ..kernels.gpu.launching import lanes

RIGHT = tl.constexpr(0)
LEFT = tl.constexpr(1)
ARC = tl.constexpr(2)  # by head and modifier
ARC_BY_MODIFIER = tl.constexpr(3)
SEAM = tl.constexpr(4)  # what an arc spans, before its score
OUTER_RIGHT = tl.constexpr(5)
OUTER_LEFT = tl.constexpr(6)
OUTER_SEAM = tl.constexpr(7)

INSIDE, BOTH = 3, 8
"""Squares of a chart that is read from within alone, and of one with what lies outside."""

NARROWEST = 16
"""Splits of the tallest tile."""

AREA = 128
"""Entries of a tile for every warp: few numbers per thread, of which a pass holds many at once."""


class Tiles(NamedTuple):
    """The shapes of tiles: at level l they hold ``narrowest · 2**l`` splits and as many cells as fill the area."""

    area: int
    narrowest: int
    levels: int
    row: int  # holds a whole row of a square


def tiles(size: int) -> Tiles:
    """Shapes for squares of ``size`` = n + 1 positions: three at most, which are compiled one by one."""
    widest = lanes(size - 1, NARROWEST)
    narrowest = max(NARROWEST, widest // 4)
    return Tiles(AREA * warps(size), narrowest, (widest // narrowest).bit_length(), lanes(size, NARROWEST))


def warps(size: int) -> int:
    """Warps of a program: more where a width has more to do."""
    return 4 if size <= 65 else (8 if size <= 129 else 16)


@triton.jit
def logarithm(x):
    """-inf at 0, without a division by zero."""
    return tl.where(x > 0.0, tl.log(tl.where(x > 0.0, x, 1.0)), -float("inf"))


@triton.jit
def finite(x):
    """0 in place of -inf."""
    return tl.where(x > -float("inf"), x, 0.0)


@triton.jit
def sum_splits(values, maximum: tl.constexpr):
    """What alternatives [cells, splits] come to: the logarithm of their sum, or the best of them."""
    top = tl.max(values, 1)
    if not maximum:
        # The greatest counts 1, where there is any.
        top += tl.log(tl.maximum(tl.sum(tl.exp(values - finite(top)[:, None]), 1), 1.0))
    return top


@triton.jit
def start(chart, size, row: tl.constexpr):
    """Items without width: nothing is in them, and they cost nothing."""
    place = tl.arange(0, row)
    inside = place < size
    nothing = tl.zeros([row], chart.dtype.element_ty)
    tl.store(chart + size * RIGHT * size + place * (size + 1), nothing, mask=inside)
    tl.store(chart + size * LEFT * size + place * (size + 1), nothing, mask=inside)


@triton.jit
def take_greatest(scores, shift, size, area: tl.constexpr, row: tl.constexpr):
    """The greatest score of the arcs into every word, 0 where all are forbidden, put into ``shift`` [n + 1]; returns their sum.

    Every word has one head, so that any constant may be taken off the arcs into it; what is left is small, and rounds little.
    """
    modifier = tl.arange(0, row)
    top = tl.full([row], -float("inf"), shift.dtype.element_ty)
    height: tl.constexpr = area // row if area > row else 1
    first = tl.full((), 0, tl.int32)
    while first < size:
        head = first + tl.arange(0, height)[:, None]
        arc = (head < size) & (head != modifier[None, :]) & ((modifier > 0) & (modifier < size))[None, :]
        values = tl.load(scores + head * size + modifier[None, :], mask=arc, other=-float("inf"))
        top = tl.maximum(top, tl.max(values.to(shift.dtype.element_ty), 0))
        first += height
    top = finite(top)
    tl.store(shift + modifier, top, mask=modifier < size)
    return tl.sum(top.to(tl.float64), 0)


@triton.jit
def fill(
    scores,
    shift,
    chart,
    size,
    single_root: tl.constexpr,
    maximum: tl.constexpr,
    whole: tl.constexpr,
    area: tl.constexpr,
    narrowest: tl.constexpr,
    levels: tl.constexpr,
):
    """All items by increasing width: of scores less ``shift`` [n + 1], or of maxima, which take the scores as they are.

    A ``whole`` chart also holds what the pass from outside reads.
    """
    for level in tl.static_range(levels):
        _fill_level(scores, shift, chart, size, single_root, maximum, whole, area, narrowest, level)


@triton.jit
def _fill_level(
    scores,
    shift,
    chart,
    size,
    single_root: tl.constexpr,
    maximum: tl.constexpr,
    whole: tl.constexpr,
    area: tl.constexpr,
    narrowest: tl.constexpr,
    level: tl.constexpr,
):
    splits: tl.constexpr = narrowest << level
    least: tl.constexpr = 1 if level == 0 else (splits >> 1) + 1
    cells: tl.constexpr = area // splits
    width = tl.full((), least, tl.int32)
    while (width <= splits) & (width < size):
        first = tl.full((), 0, tl.int32)
        while first < size - width:
            _widen(scores, shift, chart, width, first, size, single_root, maximum, whole, cells, splits)
            first += cells
        tl.debug_barrier()
        width += 1


@triton.jit
def _widen(
    scores,
    shift,
    chart,
    width,
    first,
    size,
    single_root: tl.constexpr,
    maximum: tl.constexpr,
    whole: tl.constexpr,
    cells: tl.constexpr,
    splits: tl.constexpr,
):
    """The items of one width that begin at ``first`` and the positions after it."""
    kind = chart.dtype.element_ty
    square = size * size
    lefts = chart + square * LEFT
    arcs = chart + square * ARC
    i = first + tl.arange(0, cells)
    j = i + width
    ahead = i * size + j
    behind = j * size + i
    real = i < size - width
    step = tl.arange(0, splits)[None, :]
    begin = (i * size + i)[:, None] + step
    end = behind[:, None] + step
    under = real[:, None] & (step < width)
    inner = under & (step > 0)
    rightward = tl.load(scores + ahead, mask=real, other=-float("inf")).to(kind)
    leftward = tl.load(scores + behind, mask=real & (i > 0), other=-float("inf")).to(kind)
    if not maximum:
        rightward -= tl.load(shift + j, mask=real, other=0.0)
        leftward -= tl.load(shift + i, mask=real, other=0.0)
    lower = tl.load(chart + begin, mask=under, other=-float("inf"))
    upper = tl.load(lefts + end + 1, mask=under, other=-float("inf"))
    right = tl.load(arcs + begin, mask=inner, other=-float("inf")) + tl.load(chart + end, mask=inner, other=-float("inf"))
    left = tl.load(lefts + begin, mask=inner, other=-float("inf")) + tl.load(arcs + end, mask=inner, other=-float("inf"))
    seam = sum_splits(lower + upper, maximum)
    rightward += seam
    leftward += seam
    # What consists of the arc of the whole alone takes the place of the split that there is not.
    right = sum_splits(tl.where(step == 0, rightward[:, None], right), maximum)
    left = sum_splits(tl.where(step == 0, leftward[:, None], left), maximum)
    if single_root:
        # A single root is bare when it takes its child.
        right = tl.where((i == 0) & (width < size - 1), -float("inf"), right)
    tl.store(chart + ahead, right, mask=real)
    tl.store(chart + behind, right, mask=real)
    tl.store(lefts + ahead, left, mask=real)
    tl.store(lefts + behind, left, mask=real)
    tl.store(arcs + ahead, rightward, mask=real)
    tl.store(arcs + behind, leftward, mask=real)
    if whole:
        by_modifier = chart + square * ARC_BY_MODIFIER
        tl.store(by_modifier + behind, rightward, mask=real)
        tl.store(by_modifier + ahead, leftward, mask=real)
        tl.store(chart + square * SEAM + ahead, seam, mask=real)


@triton.jit
def outside(
    chart,
    marginals,
    size,
    area: tl.constexpr,
    narrowest: tl.constexpr,
    levels: tl.constexpr,
    row: tl.constexpr,
):
    """The posteriors of all arcs, and what lies outside the complete items and the seams, by decreasing width, of a whole chart."""
    place = tl.arange(0, row)
    tl.store(marginals + place * (size + 1), tl.zeros([row], marginals.dtype.element_ty), mask=place < size)
    for level in tl.static_range(levels):
        _outside_level(chart, marginals, size, area, narrowest, level)


@triton.jit
def _outside_level(
    chart, marginals, size, area: tl.constexpr, narrowest: tl.constexpr, level: tl.constexpr
):  # fmt: skip
    splits: tl.constexpr = narrowest << level
    least: tl.constexpr = 0 if level == 0 else (splits >> 1) + 1
    cells: tl.constexpr = area // splits
    rest = tl.full((), least, tl.int32)
    while (rest <= splits) & (rest < size - 1):
        first = tl.full((), 0, tl.int32)
        while first <= rest:
            _narrow(chart, marginals, rest, first, size, cells, splits)
            first += cells
        tl.debug_barrier()
        rest += 1


@triton.jit
def around(i, j, rest, size, square, splits: tl.constexpr):
    """What the items of i..j may be joined with: as many items as positions lie outside, which are ``rest``.

    Returns:
        before: [cells, splits] whether the item beside lies before i; otherwise it lies after j.
        offsets: of the items beside, and of what both make, outside: for right items, left items and arcs. An arc to the left is joined
            with what lies before it, one to the right with what lies after it.
    """
    step = tl.arange(0, splits)[None, :]
    before = step < i[:, None]
    far = tl.where(before, step, step + (j - i)[:, None] + 1)
    apart = tl.where(before, ((i - 1) * size)[:, None], ((j + 1) * size)[:, None]) + far
    touching = tl.where(before, (i * size)[:, None], (j * size)[:, None]) + far
    both = tl.where(before, (j * size)[:, None], (i * size)[:, None]) + far
    by_modifier = touching + square * ARC_BY_MODIFIER
    right = both + square * OUTER_RIGHT
    left = both + square * OUTER_LEFT
    seam = both + square * OUTER_SEAM
    # A right item completes an arc into i, or lies under an arc next to a left item; a left item mirrors that.
    of_right = (tl.where(before, by_modifier, apart + square * LEFT), tl.where(before, right, seam))
    of_left = (tl.where(before, apart, by_modifier), tl.where(before, seam, left))
    of_arcs = (touching + tl.where(before, square * LEFT, 0), tl.where(before, left, right))
    return before, of_right, of_left, of_arcs


@triton.jit
def posteriors(chart, beside, parent, own, mask):
    """Posteriors [cells, splits] of items within the derivations that join them with what lies beside."""
    values = tl.load(chart + beside, mask=mask, other=-float("inf")) + tl.load(chart + parent, mask=mask, other=-float("inf"))
    return tl.exp(values + own)


@triton.jit
def _narrow(chart, marginals, rest, first, size, cells: tl.constexpr, splits: tl.constexpr):
    """What lies outside the items that leave ``rest`` positions, of those that begin at ``first`` and after it."""
    square = size * size
    lefts = chart + square * LEFT
    arcs = chart + square * ARC
    i = first + tl.arange(0, cells)
    j = i + (size - 1 - rest)
    ahead = i * size + j
    behind = j * size + i
    real = i <= rest
    mask = real[:, None] & (tl.arange(0, splits)[None, :] < rest)
    before, of_right, of_left, of_arcs = around(i, j, rest, size, square, splits)
    right = tl.load(chart + ahead, mask=real, other=-float("inf"))
    left = tl.load(lefts + ahead, mask=real, other=-float("inf"))
    rightward = tl.load(arcs + ahead, mask=real, other=-float("inf"))
    leftward = tl.load(arcs + behind, mask=real, other=-float("inf"))
    seam = tl.load(chart + square * SEAM + ahead, mask=real, other=-float("inf"))
    beside_right, parent_right = of_right
    beside_left, parent_left = of_left
    beside_arc, parent_arc = of_arcs
    at_right = tl.sum(posteriors(chart, beside_right, parent_right, right[:, None], mask), 1)
    at_left = tl.sum(posteriors(chart, beside_left, parent_left, left[:, None], mask), 1)
    at_arcs = posteriors(chart, beside_arc, parent_arc, tl.where(before, leftward[:, None], rightward[:, None]), mask)
    at_right = tl.where((rest == 0) & (right > -float("inf")), 1.0, at_right)
    outer_right = logarithm(at_right) - finite(right)
    outer_left = logarithm(at_left) - finite(left)
    at_rightward = tl.sum(tl.where(before, 0.0, at_arcs), 1) + tl.exp(rightward + outer_right)
    at_leftward = tl.sum(tl.where(before, at_arcs, 0.0), 1) + tl.exp(leftward + outer_left)
    outer_seam = logarithm(at_rightward + at_leftward) - finite(seam)
    outer = chart + square * OUTER_RIGHT
    tl.store(outer + ahead, outer_right, mask=real)
    tl.store(outer + behind, outer_right, mask=real)
    outer += square
    tl.store(outer + ahead, outer_left, mask=real)
    tl.store(outer + behind, outer_left, mask=real)
    outer += square
    tl.store(outer + ahead, outer_seam, mask=real)
    tl.store(outer + behind, outer_seam, mask=real)
    tl.store(marginals + ahead, tl.minimum(at_rightward, 1.0), mask=real)
    tl.store(marginals + behind, tl.minimum(at_leftward, 1.0), mask=real)
