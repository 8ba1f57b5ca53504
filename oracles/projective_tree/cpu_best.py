"""The best projective trees: Eisner's recursion over maxima, and the walk that reads a tree off.

Layout: what may begin at a position and what may end with it lie in two tables ``[n + 1, 3 (n + 1) · lanes]``, by width and by
``(3 · position + kind) · lanes + lane``, such that the three recursions of `ProjectiveTree.derivations` become one:
``out[w, x] = max_k first[k, x] + second[w − k, x + 3k · lanes]``. The kinds are

* 0, what an arc spans: right complete items, and left complete ones of width − 1 that begin one position further on;
* 1, right complete items: right arcs, and right complete items;
* 2, left complete items: left complete items, and left arcs.

No pointers are kept. The walk looks for the first of the best choices, so that ties go to the lowest index: O(n) per decision, where
pointers cost as much as the recursion.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..kernels.compilation import inner, uncounted


class Best(NamedTuple):
    """Room for the best trees of some items."""

    scores: np.ndarray  # [2, n + 1, (n + 1) · lanes] of rightward and leftward arcs, by width and by position · lanes + lane
    first: np.ndarray  # [n + 1, 3 (n + 1) · lanes]
    second: np.ndarray  # [n + 1, 3 (n + 1) · lanes]
    out: np.ndarray  # [3 (n + 1) · lanes]
    waiting: np.ndarray  # [n + 2, 3] int64: items of the walk, leftward or not, first and last position


@inner
def best_workspace(size, lanes):
    """Room for ``lanes`` items of ``size`` = n + 1 positions."""
    length = size * lanes
    return Best(
        np.empty((2, size, length)), np.empty((size, 3 * length)), np.empty((size, 3 * length)), np.empty(3 * length),
        np.empty((size + 1, 3), np.int64),
    )  # fmt: skip


@inner
def best_parts(row, space, parts, single_root):
    """Write the parts ``head · (n + 1) + modifier`` of the best tree of flat scores [(n + 1)²] into ``parts`` [n]; returns n."""
    # Not literals, for which the compiler would make functions of their own.
    lane, lanes = np.int64(0), np.int64(1)
    load_scores(row, space.scores, lane, lanes)
    fill_best(space, lanes, single_root)
    return read_best(space, lane, lanes, parts)


@uncounted
def load_scores(row, scores, lane, lanes):
    """Put the flat scores of one item into a lane; arcs into the root are not read, and get 0."""
    size = scores.shape[1]
    for head in range(size):
        for modifier in range(head + 1, size):
            scores[0, modifier - head, head * lanes + lane] = row[head * size + modifier]
        scores[1, head, lane] = 0.0
        for modifier in range(1, head):
            scores[1, head - modifier, modifier * lanes + lane] = row[head * size + modifier]


@uncounted
def _raise_to_sums(out, first, second, w, step):
    """``out[x] = max_k first[k, x] + second[w − k, x + k · step]`` for k from 1 to w − 1, where that is more."""
    size, k = len(out), 1
    while k + 2 < w:
        a, e = first[k, :size], second[w - k, k * step : k * step + size]
        b, f = first[k + 1, :size], second[w - k - 1, (k + 1) * step : (k + 1) * step + size]
        c, g = first[k + 2, :size], second[w - k - 2, (k + 2) * step : (k + 2) * step + size]
        for x in range(size):
            one, two, three, most = a[x] + e[x], b[x] + f[x], c[x] + g[x], out[x]
            most = max(most, one)
            two = max(two, three)
            out[x] = max(most, two)
        k += 3
    while k < w:
        a, e = first[k, :size], second[w - k, k * step : k * step + size]
        for x in range(size):
            one = a[x] + e[x]
            out[x] = max(out[x], one)
        k += 1


@uncounted
def fill_best(space, lanes, single_root):
    """All best items, by increasing width. A single root is bare when it takes its child."""
    size, step, first, second = space.scores.shape[1], 3 * lanes, space.first, space.second
    for x in range(step * size):
        first[0, x], second[0, x] = 0.0, 0.0
        second[1, x] = 0.0
    for w in range(1, size):
        out, here, there, after = space.out[: (size - w) * step], first[w], second[w], second[w + 1 if w + 1 < size else 0]
        for i in range(size - w):
            for x in range(i * step, i * step + lanes):
                out[x], out[x + lanes], out[x + 2 * lanes] = there[x], -np.inf, -np.inf
        _raise_to_sums(out, first, second, w, step)
        rightward, leftward = space.scores[0, w], space.scores[1, w]
        for i in range(size - w):
            bare = i == 0 and single_root and w < size - 1
            for lane in range(lanes):
                x, at = i * step + lane, i * lanes + lane
                over, under = out[x] + rightward[at], out[x] + leftward[at]
                right = max(out[x + lanes], over)
                left = max(out[x + 2 * lanes], under)
                right = -np.inf if bare else right
                here[x], here[x + lanes], here[x + 2 * lanes] = right, over, left
                there[x + lanes], there[x + 2 * lanes] = right, under
                if i > 0:
                    after[x - step] = left


@uncounted
def read_best(space, lane, lanes, parts):
    """The walk of one item from the whole down, one arc per step; returns how many. Where nothing is feasible it reads some tree."""
    size, waiting, count, top = space.scores.shape[1], space.waiting, 0, 1
    waiting[0, 0], waiting[0, 1], waiting[0, 2] = 0, 0, size - 1
    while top > 0:
        top -= 1
        leftward, first, last = waiting[top, 0], waiting[top, 1], waiting[top, 2]
        child = last - leftward
        if last - first > 1:
            child = _first_best(space, first, last, 1 + leftward, lane, lanes)
        low, high = (child, last) if leftward else (first, child)
        parts[count] = last * size + child if leftward else first * size + child
        count += 1
        seam = low
        if high - low > 1:
            seam = _first_best(space, low, high, leftward - leftward, lane, lanes)
        top = put_rest(waiting, top, leftward, first, last, child, seam)
    return count


@uncounted
def _first_best(space, first, last, kind, lane, lanes):
    """The first position of the best sum of two items of a kind that meet there."""
    width, step = last - first, 3 * lanes
    start = (3 * first + kind) * lanes + lane
    least = 1 if kind == 1 else 0
    place, best = least, -np.inf
    for w in range(least, width + least):
        value = space.first[w, start] + space.second[width - w, start + w * step]
        if value > best:
            place, best = w, value
    return first + place


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
