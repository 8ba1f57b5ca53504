"""Tangents of charts of projective trees along a direction: derivatives of both passes of `gpu_charts`.

The tangent of the logarithm of a sum is the mean of its terms' tangents, weighted by their shares; a share is the exponential of what the
chart already holds. So the passes are the same, with one sum more. The direction is centred first: every word has one head, hence nothing
changes when the arcs into a word all move by as much, and less their mean they move by little where one head is certain.

A tangent of a posterior's logarithm divides by the posterior; where that is 0, nothing depends on it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .gpu_charts import ARC, ARC_BY_MODIFIER, BOTH, LEFT, OUTER_LEFT, OUTER_RIGHT, OUTER_SEAM, RIGHT, SEAM, around, posteriors, start

SQUARES = 2 * BOTH
"""Every square, and behind them how it changes, in the same order."""

TANGENTS = tl.constexpr(BOTH)


@triton.jit
def center(direction, marginals, means, chart, size, area: tl.constexpr, row: tl.constexpr):
    """The mean of a direction over the heads of every word, put into ``means`` [n + 1]; and begin the tangents of a chart."""
    kind = means.dtype.element_ty
    modifier = tl.arange(0, row)
    total = tl.zeros([row], kind)
    height: tl.constexpr = area // row if area > row else 1
    first = tl.full((), 0, tl.int32)
    while first < size:
        head = first + tl.arange(0, height)[:, None]
        real = (head < size) & (modifier < size)[None, :]
        share = tl.load(marginals + head * size + modifier[None, :], mask=real, other=0.0).to(kind)
        change = tl.load(direction + head * size + modifier[None, :], mask=real & (share > 0.0), other=0.0).to(kind)
        total += tl.sum(share * change, 0)
        first += height
    tl.store(means + modifier, total, mask=modifier < size)
    start(chart + size * TANGENTS * size, size, row)


@triton.jit
def _share(values, whole):
    """The shares of values [cells, splits] in what they come to [cells]: 0 where that is nothing."""
    return tl.exp(values - tl.where(whole > -float("inf"), whole, float("inf"))[:, None])


@triton.jit
def inside_tangents(
    direction, means, marginals, chart, size,
    area: tl.constexpr, narrowest: tl.constexpr, levels: tl.constexpr,
):  # fmt: skip
    """How all items change, by increasing width, along a direction less its means; arcs without a marginal do not move."""
    for level in tl.static_range(levels):
        _inside_level(direction, means, marginals, chart, size, area, narrowest, level)


@triton.jit
def _inside_level(
    direction, means, marginals, chart, size,
    area: tl.constexpr, narrowest: tl.constexpr, level: tl.constexpr,
):  # fmt: skip
    splits: tl.constexpr = narrowest << level
    least: tl.constexpr = 1 if level == 0 else (splits >> 1) + 1
    cells: tl.constexpr = area // splits
    width = tl.full((), least, tl.int32)
    while (width <= splits) & (width < size):
        first = tl.full((), 0, tl.int32)
        while first < size - width:
            _widen_tangents(direction, means, marginals, chart, width, first, size, cells, splits)
            first += cells
        tl.debug_barrier()
        width += 1


@triton.jit
def _change(direction, means, marginals, arc, modifier, real):
    """What the scores of arcs change by."""
    kind = means.dtype.element_ty
    moves = tl.load(marginals + arc, mask=real, other=0.0) > 0.0
    change = tl.load(direction + arc, mask=real & moves, other=0.0).to(kind)
    return tl.where(moves, change - tl.load(means + modifier, mask=real, other=0.0), 0.0)


@triton.jit
def _split_tangents(chart, tangents, first, second, whole, mask):
    """The mean of the tangents of two parts over all splits, each with its share in the whole; masked splits are left out."""
    values = tl.load(chart + first, mask=mask, other=-float("inf")) + tl.load(chart + second, mask=mask, other=-float("inf"))
    change = tl.load(tangents + first, mask=mask, other=0.0) + tl.load(tangents + second, mask=mask, other=0.0)
    return tl.sum(_share(values, whole) * change, 1)


@triton.jit
def _widen_tangents(
    direction, means, marginals, chart, width, first, size, cells: tl.constexpr, splits: tl.constexpr
):  # fmt: skip
    square = size * size
    tangents = chart + square * TANGENTS
    i = first + tl.arange(0, cells)
    j = i + width
    real = i < size - width
    ahead = i * size + j
    behind = j * size + i
    step = tl.arange(0, splits)[None, :]
    begin = (i * (size + 1))[:, None] + step
    end = behind[:, None] + step
    under = real[:, None] & (step < width)
    inner = under & (step > 0)
    right = tl.load(chart + square * RIGHT + ahead, mask=real, other=-float("inf"))
    left = tl.load(chart + square * LEFT + ahead, mask=real, other=-float("inf"))
    rightward = tl.load(chart + square * ARC + ahead, mask=real, other=-float("inf"))
    leftward = tl.load(chart + square * ARC + behind, mask=real, other=-float("inf"))
    seam = tl.load(chart + square * SEAM + ahead, mask=real, other=-float("inf"))
    d_seam = _split_tangents(chart, tangents, square * RIGHT + begin, square * LEFT + end + 1, seam, under)
    d_right = _split_tangents(chart, tangents, square * ARC + begin, square * RIGHT + end, right, inner)
    d_left = _split_tangents(chart, tangents, square * LEFT + begin, square * ARC + end, left, inner)
    d_rightward = d_seam + _change(direction, means, marginals, ahead, j, real)
    d_leftward = d_seam + _change(direction, means, marginals, behind, i, real)
    d_right += tl.exp(rightward - tl.where(right > -float("inf"), right, float("inf"))) * d_rightward
    d_left += tl.exp(leftward - tl.where(left > -float("inf"), left, float("inf"))) * d_leftward
    tl.store(tangents + square * RIGHT + ahead, d_right, mask=real)
    tl.store(tangents + square * RIGHT + behind, d_right, mask=real)
    tl.store(tangents + square * LEFT + ahead, d_left, mask=real)
    tl.store(tangents + square * LEFT + behind, d_left, mask=real)
    tl.store(tangents + square * ARC + ahead, d_rightward, mask=real)
    tl.store(tangents + square * ARC + behind, d_leftward, mask=real)
    tl.store(tangents + square * ARC_BY_MODIFIER + behind, d_rightward, mask=real)
    tl.store(tangents + square * ARC_BY_MODIFIER + ahead, d_leftward, mask=real)
    tl.store(tangents + square * SEAM + ahead, d_seam, mask=real)


@triton.jit
def outside_tangents(
    product, chart, size, area: tl.constexpr, narrowest: tl.constexpr, levels: tl.constexpr
):  # fmt: skip
    """How the posteriors of all arcs change, by decreasing width: the product [n + 1, n + 1], but for its diagonal, which is 0 already."""
    for level in tl.static_range(levels):
        _outside_level(product, chart, size, area, narrowest, level)


@triton.jit
def _outside_level(
    product, chart, size, area: tl.constexpr, narrowest: tl.constexpr, level: tl.constexpr
):  # fmt: skip
    splits: tl.constexpr = narrowest << level
    least: tl.constexpr = 0 if level == 0 else (splits >> 1) + 1
    cells: tl.constexpr = area // splits
    rest = tl.full((), least, tl.int32)
    while (rest <= splits) & (rest < size - 1):
        first = tl.full((), 0, tl.int32)
        while first <= rest:
            _narrow_tangents(product, chart, rest, first, size, cells, splits)
            first += cells
        tl.debug_barrier()
        rest += 1


@triton.jit
def _relative(change, whole):
    """How much a logarithm changes."""
    return tl.where(whole > 0.0, change / tl.where(whole > 0.0, whole, 1.0), 0.0)


@triton.jit
def _beside(chart, tangents, offsets, own, mask):
    """Posteriors [cells, splits], and what they change by apart from the item's own change."""
    beside, parent = offsets
    share = posteriors(chart, beside, parent, own, mask)
    change = tl.load(tangents + beside, mask=mask, other=0.0) + tl.load(tangents + parent, mask=mask, other=0.0)
    return share, share * change


@triton.jit
def _narrow_tangents(product, chart, rest, first, size, cells: tl.constexpr, splits: tl.constexpr):
    square = size * size
    tangents = chart + square * TANGENTS
    i = first + tl.arange(0, cells)
    j = i + (size - 1 - rest)
    real = i <= rest
    mask = real[:, None] & (tl.arange(0, splits)[None, :] < rest)
    before, of_right, of_left, of_arcs = around(i, j, rest, size, square, splits)
    ahead = i * size + j
    behind = j * size + i
    right = tl.load(chart + square * RIGHT + ahead, mask=real, other=-float("inf"))
    left = tl.load(chart + square * LEFT + ahead, mask=real, other=-float("inf"))
    rightward = tl.load(chart + square * ARC + ahead, mask=real, other=-float("inf"))
    leftward = tl.load(chart + square * ARC + behind, mask=real, other=-float("inf"))
    d_right = tl.load(tangents + square * RIGHT + ahead, mask=real, other=0.0)
    d_rightward = tl.load(tangents + square * ARC + ahead, mask=real, other=0.0)
    d_leftward = tl.load(tangents + square * ARC + behind, mask=real, other=0.0)
    d_seam = tl.load(tangents + square * SEAM + ahead, mask=real, other=0.0)

    share, change = _beside(chart, tangents, of_right, right[:, None], mask)
    # The whole is certain; only its weight changes, which everything is divided by.
    d_outer_right = tl.where(rest == 0, -d_right, _relative(tl.sum(change, 1), tl.sum(share, 1)))
    share, change = _beside(chart, tangents, of_left, left[:, None], mask)
    d_outer_left = _relative(tl.sum(change, 1), tl.sum(share, 1))
    share, change = _beside(chart, tangents, of_arcs, tl.where(before, leftward[:, None], rightward[:, None]), mask)
    whole_right = tl.exp(rightward + tl.load(chart + square * OUTER_RIGHT + ahead, mask=real, other=-float("inf")))
    whole_left = tl.exp(leftward + tl.load(chart + square * OUTER_LEFT + ahead, mask=real, other=-float("inf")))
    # The item's own change counts for every derivation, and comes in last.
    of_rightward = tl.sum(tl.where(before, 0.0, share), 1) + whole_right
    of_leftward = tl.sum(tl.where(before, share, 0.0), 1) + whole_left
    d_of_rightward = tl.sum(tl.where(before, 0.0, change), 1) + whole_right * d_outer_right + of_rightward * d_rightward
    d_of_leftward = tl.sum(tl.where(before, change, 0.0), 1) + whole_left * d_outer_left + of_leftward * d_leftward
    d_outer_seam = _relative(d_of_rightward + d_of_leftward, of_rightward + of_leftward) - d_seam
    tl.store(tangents + square * OUTER_RIGHT + ahead, d_outer_right, mask=real)
    tl.store(tangents + square * OUTER_RIGHT + behind, d_outer_right, mask=real)
    tl.store(tangents + square * OUTER_LEFT + ahead, d_outer_left, mask=real)
    tl.store(tangents + square * OUTER_LEFT + behind, d_outer_left, mask=real)
    tl.store(tangents + square * OUTER_SEAM + ahead, d_outer_seam, mask=real)
    tl.store(tangents + square * OUTER_SEAM + behind, d_outer_seam, mask=real)
    tl.store(product + ahead, d_of_rightward, mask=real)
    tl.store(product + behind, d_of_leftward, mask=real)
