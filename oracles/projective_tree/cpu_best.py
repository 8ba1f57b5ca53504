"""The best projective trees: Eisner's recursion over maxima, and the walk that reads a tree off.

Charts are kept *by width*, as those of `constituency`: line w holds the items of width w by their first position, so that items of one
width are compared side by side, all from contiguous memory. There are four: complete items and arcs, to the right and to the left. What
lies behind the last item of a line leads to nothing but what lies there.

No pointers are kept. The walk looks for the first of the best choices, so that ties go to the lowest index: O(n) per decision, where
pointers cost as much as the recursion.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..kernels.compilation import inner, uncounted
from ..kernels.vectors import WIDTH, add, greatest, load, spread, store


class Best(NamedTuple):
    """Room for the best tree of an item; lines of tables are `_line` apart."""

    scores: np.ndarray  # [2, ·] of rightward and leftward arcs
    charts: np.ndarray  # [4, ·] RIGHT to LEFT_ARC
    waiting: np.ndarray  # [n + 2, 3] int64: items of the walk, leftward or not, first and last position


RIGHT, RIGHT_ARC, LEFT, LEFT_ARC = 0, 1, 2, 3
"""What a head has to its right, complete or up to its farthest child; the same to its left."""


@uncounted
def _line(size):
    """From one line of a table to the next: whole vectors, and one that may be read behind them."""
    return (size + WIDTH - 1) // WIDTH * WIDTH + WIDTH


@inner
def best_workspace(size):
    """Room for an item of ``size`` = n + 1 positions."""
    length = size * _line(size)
    scores, charts = np.full((2, length), -np.inf), np.full((4, length), -np.inf)
    for i in range(size):
        charts[RIGHT, i], charts[LEFT, i] = 0.0, 0.0
    return Best(scores, charts, np.empty((size + 1, 3), np.int64))


@inner
def best_parts(row, space, parts, single_root):
    """Write the parts ``head · (n + 1) + modifier`` of the best tree of flat scores [(n + 1)²] into ``parts`` [n]; returns n."""
    size = len(space.waiting) - 1
    _load(row, space.scores, size)
    _fill(space, size, single_root)
    return _read(space, size, parts)


@uncounted
def _load(row, scores, size):
    """Put the flat scores of an item into the table of arcs; arcs into the root are not read, and get 0."""
    step = _line(size)
    for head in range(size):
        for modifier in range(head + 1, size):
            scores[0, (modifier - head) * step + head] = row[head * size + modifier]
        scores[1, head * step] = 0.0
        for modifier in range(1, head):
            scores[1, (head - modifier) * step + modifier] = row[head * size + modifier]


@uncounted
def _fill(space, size, single_root):
    """All best items, by increasing width. A single root is bare when it takes its child."""
    step, nothing = _line(size), spread(-np.inf)
    right, right_arc, left, left_arc = space.charts[RIGHT], space.charts[RIGHT_ARC], space.charts[LEFT], space.charts[LEFT_ARC]
    rightward, leftward = space.scores[0], space.scores[1]
    for w in range(1, size):
        for i in range(0, size - w, WIDTH):
            here, near, far = w * step + i, step + i, (w - 1) * step + i + 1
            under, over, below = add(load(right, i), load(left, far)), nothing, nothing
            while near != here:
                over = greatest(add(load(right_arc, near), load(right, far)), over)
                below = greatest(add(load(left, near), load(left_arc, far)), below)
                far += 1 - step
                under = greatest(add(load(right, near), load(left, far)), under)
                near += step
            to_right, to_left = add(under, load(rightward, here)), add(under, load(leftward, here))
            store(right_arc, here, to_right)
            store(left_arc, here, to_left)
            store(right, here, greatest(over, to_right))
            store(left, here, greatest(below, to_left))
        if single_root and w < size - 1:
            right[w * step] = -np.inf


@uncounted
def _read(space, size, parts):
    """The walk from the whole down, one arc per step; returns how many. Where nothing is feasible it reads some tree."""
    waiting, count, top = space.waiting, 0, 1
    waiting[0, 0], waiting[0, 1], waiting[0, 2] = 0, 0, size - 1
    while top > 0:
        top -= 1
        leftward, first, last = waiting[top, 0], waiting[top, 1], waiting[top, 2]
        child = last - leftward
        if last - first > 1:
            before, after = (LEFT, LEFT_ARC) if leftward else (RIGHT_ARC, RIGHT)
            child = first + _first_best(space.charts[before], space.charts[after], size, first, last, 1 - leftward, 0)
        low, high = (child, last) if leftward else (first, child)
        parts[count] = last * size + child if leftward else first * size + child
        count += 1
        seam = low
        if high - low > 1:
            seam = low + _first_best(space.charts[RIGHT], space.charts[LEFT], size, low, high, 0, 1)
        top = put_rest(waiting, top, leftward, first, last, child, seam)
    return count


@uncounted
def _first_best(before, after, size, first, last, least, gap):
    """The first width, from ``least`` on, of the best two items, the second ``gap`` positions behind the first."""
    width, step = last - first, _line(size)
    place, best, near, far = least, -np.inf, least * step + first, (width - gap - least) * step + first + gap + least
    for w in range(least, width + least):
        value = before[near] + after[far]
        if value > best:
            place, best = w, value
        near, far = near + step, far + 1 - step
    return place


@uncounted
def put_rest(waiting, top, leftward, first, last, child, seam):
    """Where a walk from the whole down has chosen a child and a seam: put what is left on the stack [2n, 3]; returns its new top.

    That is what lies beyond the arc, above the seam and below it, in this order, so that the lowest comes next.
    """
    low, high = (child, last) if leftward else (first, child)
    for kind in range(3):
        side, start, stop = 0, low, seam
        if kind == 0:
            side, start, stop = (1, first, child) if leftward else (0, child, last)
        elif kind == 1:
            side, start, stop = 1, seam + 1, high
        waiting[top, 0], waiting[top, 1], waiting[top, 2] = side, start, stop
        top += stop > start
    return top
