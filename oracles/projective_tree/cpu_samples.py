"""Samples of projective trees from the inside tables of one item, uniform by uniform."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..kernels.compilation import inner, uncounted
from .cpu_charts import put_rest


class SamplingTables(NamedTuple):
    """Inside tables [n + 1, n + 1] of one item, so that all ways to build an item lie side by side."""

    begin: np.ndarray  # [2, i, k] what begins at i and ends at the child k: right arcs, for leftward items left complete ones
    end: np.ndarray  # [2, j, k] what begins at the child k and ends at j: right complete items, left arcs
    lower: np.ndarray  # [i, r] right complete items up to the seam
    upper: np.ndarray  # [j, r] left complete items from after the seam
    spanned: np.ndarray  # [i, j] what an arc spans, before its weight: the sum over all seams
    waiting: np.ndarray  # [n + 2, 3] int64: items of the walk, leftward or not, first and last position


@inner
def sampling_workspace(size):
    """Room for an item of ``size`` = n + 1 positions."""
    return SamplingTables(
        np.zeros((2, size, size)), np.zeros((2, size, size)), np.zeros((size, size)), np.zeros((size, size)),
        np.zeros((size, size)), np.zeros((size + 1, 3), np.int64),
    )  # fmt: skip


@uncounted
def load_tables(tables, lane, lanes, space):
    """Take one item out of tables [5, n + 1, ...] by width and position."""
    size = tables.shape[1]
    for w in range(size):
        for i in range(size - w):
            at, j = i * lanes + lane, i + w
            right, left = tables[0, w, at], tables[1, w, at]
            space.begin[1, i, j], space.end[0, j, i], space.lower[i, j] = left, right, right
            if i > 0:
                space.upper[j, i - 1] = left
            if w > 0:
                space.begin[0, i, j], space.end[1, j, i], space.spanned[i, j] = tables[2, w, at], tables[3, w, at], tables[4, w, at]


@uncounted
def _pick(begin, end, threshold):
    """The first place where the running sum of the products exceeds a threshold."""
    total, last = 0.0, 0
    for k in range(len(begin)):
        value = begin[k] * end[k]
        total += value
        if total > threshold:
            return k
        last = k if value > 0.0 else last
    return last


@uncounted
def draw(space, uniforms, structure):
    """Put one sample into a structure [n + 1, n + 1] from uniforms [2n]: two per step, for the child and for the seam."""
    waiting, top, step = space.waiting, 1, 0
    waiting[0, 0], waiting[0, 1], waiting[0, 2] = 0, 0, len(structure) - 1
    while top > 0:
        top -= 1
        leftward, first, last = waiting[top, 0], waiting[top, 1], waiting[top, 2]
        child = last - leftward
        if last - first > 1:
            near, far = first + 1 - leftward, last + 1 - leftward
            whole = space.begin[1, first, last] if leftward else space.lower[first, last]
            child = near + _pick(space.begin[leftward, first, near:far], space.end[leftward, last, near:far], uniforms[2 * step] * whole)
        low, high = (child, last) if leftward else (first, child)
        seam = low
        if high - low > 1:
            whole = space.spanned[low, high]
            seam = low + _pick(space.lower[low, low:high], space.upper[high, low:high], uniforms[2 * step + 1] * whole)
        structure[last if leftward else first, child] = 1
        step += 1
        top = put_rest(waiting, top, leftward, first, last, child, seam)
