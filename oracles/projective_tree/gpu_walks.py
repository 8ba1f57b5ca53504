"""Walks through filled charts of projective trees, from the whole down: the derivations of `ProjectiveTree`.

The stack of what waits lies in registers, one place per thread, and so do the heads; a step reads the four rows among which it decides, and
finds its place among them by one reduction or scan. What bounds it is the latency of 2n such decisions, one after the other.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .gpu_charts import ARC, LEFT, RIGHT


@triton.jit
def _item(leftward, first, last):
    """A complete item as one number, 0 where it has no width."""
    return tl.where(last > first, (last << 16) | (first << 1) | leftward, 0)


@triton.jit
def _best_place(values, uniform):
    """The first of the best."""
    return tl.argmax(values, 0, tie_break_left=True).to(tl.int32)


@triton.jit
def _drawn_place(values, uniform):
    """The first place where the running sum of ``exp`` exceeds its share of the whole; none that has no weight."""
    top = tl.max(values, 0)
    weights = tl.exp(values - tl.where(top > -float("inf"), top, 0.0))
    sums = tl.cumsum(weights, 0)
    place = tl.arange(0, values.shape[0])
    last = tl.max(tl.where(weights > 0.0, place, 0), 0).to(tl.int32)
    whole = tl.sum(tl.where(place == last, sums, 0.0), 0)
    return tl.min(tl.where((weights > 0.0) & (sums > uniform * whole), place, last), 0).to(tl.int32)


@triton.jit
def walk(chart, uniforms, size, drawn: tl.constexpr, row: tl.constexpr):
    """The heads [row] of the best tree, or of the one that uniforms [2n] draw; those beyond n mean nothing."""
    square = size * size
    place = tl.arange(0, row)
    heads = tl.zeros([row], tl.int32)
    waiting = tl.where(place == 0, (size - 1) << 16, 0)
    top = tl.full((), 1, tl.int32)
    uniform = tl.full((), 0.0, tl.float64)
    step = tl.full((), 0, tl.int32)
    while step < size - 1:
        top -= 1
        item = tl.sum(tl.where(place == top, waiting, 0), 0)
        leftward = item & 1
        first = (item >> 1) & 0x7FFF
        last = item >> 16
        # The farthest child: what begins at the first position and ends at the child, and what goes on from there.
        near = first + 1 - leftward
        begin = tl.where(leftward == 1, square * LEFT, square * ARC) + first * size + near
        end = tl.where(leftward == 1, square * ARC, square * RIGHT) + last * size + near
        some = place < last - first
        values = tl.load(chart + begin + place, mask=some, other=-float("inf"))
        values += tl.load(chart + end + place, mask=some, other=-float("inf"))
        if drawn:
            uniform = tl.load(uniforms + 2 * step)
            child = near + _drawn_place(values, uniform)
        else:
            child = near + _best_place(values, uniform)
        heads = tl.where(place == child, tl.where(leftward == 1, last, first), heads)
        # The seam under the arc.
        low = tl.where(leftward == 1, child, first)
        high = tl.where(leftward == 1, last, child)
        some = place < high - low
        values = tl.load(chart + square * RIGHT + low * size + low + place, mask=some, other=-float("inf"))
        values += tl.load(chart + square * LEFT + high * size + low + 1 + place, mask=some, other=-float("inf"))
        if drawn:
            uniform = tl.load(uniforms + 2 * step + 1)
            seam = low + _drawn_place(values, uniform)
        else:
            seam = low + _best_place(values, uniform)
        # What lies beyond the arc, above the seam and below it, in this order, so that the lowest comes next.
        beyond = _item(leftward, tl.where(leftward == 1, first, child), tl.where(leftward == 1, child, last))
        upper = _item(1, seam + 1, high)
        lower = _item(0, low, seam)
        waiting = tl.where(place == top, beyond, waiting)
        top += (beyond > 0).to(tl.int32)
        waiting = tl.where(place == top, upper, waiting)
        top += (upper > 0).to(tl.int32)
        waiting = tl.where(place == top, lower, waiting)
        top += (lower > 0).to(tl.int32)
        step += 1
    return heads


@triton.jit
def write(heads, structure, size, area: tl.constexpr, row: tl.constexpr):
    """The structure [n + 1, n + 1] of heads [row]; a word whose head is -1 gets none."""
    modifier = tl.arange(0, row)[None, :]
    height: tl.constexpr = area // row if area > row else 1
    first = tl.full((), 0, tl.int32)
    while first < size:
        head = first + tl.arange(0, height)[:, None]
        arc = (heads[None, :] == head) & (modifier > 0)
        real = (head < size) & (modifier < size)
        tl.store(structure + head * size + modifier, arc.to(structure.dtype.element_ty), mask=real)
        first += height
