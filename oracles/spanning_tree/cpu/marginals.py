"""Marginals of spanning trees for `LANES` items side by side: chances of escape before every word, as in `..marginals`, in O(n³).

Blocks of words, each with the root: the first holds all of them; a block of m words has two halves, of ⌈m / 2⌉ words each, in which the
other words are eliminated. The second half counts its words from the last one backwards, so that in every block the words to keep come
first. The chances come back from the halves: those of the words that were taken out follow from those of their heads. Blocks are visited
in depth, so that there is one at each level.

Tables and rates are those of `elimination`. Weights have a table for each level; chances of escape have one for all: a block counts words
upwards or downwards from a corner. An item in which a sum of heads leaves its limits computes nonsense, and is not certified.
"""

from typing import NamedTuple

import numpy as np

from ...kernels import vectors as v
from ...kernels.compilation import Array, inner, uncounted
from .elimination import BLOCK, LANES, LARGEST, combine, load_items, place, take_in, take_out

LEAST_TOTAL = 1e-250
"""The least sum of chances of escape: what was lost below 1e-308 on the way is then nothing."""


class Halves(NamedTuple):
    """The block at each level, 0 the whole item; positions 0..m, the root first."""

    starts: Array  # int64 [levels + 1], of the tables of weights
    sizes: Array  # int64 [levels], of a row of each table
    words: Array  # int64 [levels], m
    half: Array  # int64 [levels], which half is being kept; 2 after both
    corner: Array  # int64 [levels], the word of the item before the block's first one
    side: Array  # int64 [levels], 1 where it counts upwards, -1 where downwards
    rooted: Array  # [levels · LANES], 1 where the root's weights count in sums; else 0
    ends: Array  # int64 [levels · LANES], the word that took the root's place when this block was made; or 0
    sums: Array  # [(n + 1) · LANES], of blocks after the first ones


@inner
def halves(size):
    """Blocks for items of event [size, size]."""
    words, levels = size - 1, 1
    while words > 1:
        words, levels = (words + 1) // 2, levels + 1
    counts, sizes, starts = np.empty(levels, np.int64), np.empty(levels, np.int64), np.zeros(levels + 1, np.int64)
    counts[0], sizes[0], starts[1] = size - 1, size * LANES, size * size * LANES
    for level in range(1, levels):
        counts[level], positions = (counts[level - 1] + 1) // 2, counts[level - 1] + 1
        sizes[level], starts[level + 1] = positions * LANES, starts[level] + positions**2 * LANES
    half, corner, side, rooted = np.zeros_like(counts), np.zeros_like(counts), np.ones_like(counts), np.empty(levels * LANES)
    return Halves(starts, sizes, counts, half, corner, side, rooted, np.zeros(levels * LANES, np.int64), np.empty(size * LANES))


@uncounted
def find(space, weights, rates, chances, chance_rates, single_root, items):
    """Find the chances of escape, in a table of the whole item, for weights in the first of the tables of all levels.

    The same of their rates, from the root 0, where these are not None. The items get the sums of the words as they are all taken out once,
    and the extent of all sums.
    """
    level, sums, full = 0, items.sums, space.sizes[0]
    space.half[0] = 0
    v.store(space.rooted, 0, v.spread_four(0.0 if single_root else 1.0))
    while level >= 0:
        words, start, size = space.words[level], space.starts[level], space.sizes[level]
        side, corner = space.side[level], space.corner[level]
        target = corner * (full + LANES), side * full, side * LANES, corner * LANES
        if words == 1:
            v.store(sums, LANES, v.load_four(weights, start + LANES))
            take_in(v.load_four(sums, LANES), items.extent)
            # From the root a walk has escaped, and from the word itself it does not.
            v.store(chances, place(target, 0, 1), v.spread_four(1.0))
            v.store(chances, place(target, 1, 1), v.spread_four(0.0))
            if rates is not None:
                v.store(chance_rates, place(target, 1, 1), v.spread_four(0.0))
            sums, space.half[level] = space.sums, 2
        if space.half[level] < 2:
            # Make the next block of one half of this one.
            below, kept, source = level + 1, space.words[level + 1], (start, size, LANES, start)
            if space.half[level] == 1:
                source = start + (words + 1) * (size + LANES), -size, -LANES, start + (words + 1) * LANES
                corner, side = corner + (words + 1) * side, -side
            v.store(space.rooted, below * LANES, v.load_four(space.rooted, level * LANES))
            take_out(
                weights, rates, source, space.starts[below], space.sizes[below], words, kept, space.rooted, space.ends, below, sums, items
            )
            space.half[below], space.corner[below], space.side[below], level = 0, corner, side, below
        else:
            level -= 1
            if level >= 0:
                _substitute(weights, rates, chances, chance_rates, target, start, size, space.words[level + 1], space.words[level])
                for lane in range(LANES):
                    if space.ends[(level + 1) * LANES + lane] > 0:
                        for t in range(1, space.words[level + 1] + 1):
                            chances[place(target, 0, t) + lane] = 0.0
                space.half[level] += 1


@uncounted
def _substitute(weights, rates, chances, chance_rates, target, start, size, kept, words):
    """Chances of escape from the words after ``kept`` up to ``words``, before the words 1..``kept``, from those of their heads.

    Their places are those of a target (see `elimination.place`).
    """
    step, down = target[2], target[1]
    for k in range(kept + 1, words + 1):
        to, at, from_root = place(target, k, 1), place(target, 0, 1), v.load_four(weights, start + k * LANES)
        for _ in range(kept):
            v.store(chances, to, v.multiply(from_root, v.load_four(chances, at)))
            if rates is not None:
                v.store(chance_rates, to, v.multiply(v.load_four(rates, start + k * LANES), v.load_four(chances, at)))
            to, at = to + step, at + step
    first = 1
    while first < words:
        known = first <= kept
        count = min(BLOCK, (kept if known else words) - first + 1)
        row, k = place(target, first, 1), kept + 1 if known else first + 1
        while k <= words:
            # Words of the block itself follow one by one from those before them.
            inside = not known and k < first + count
            heads, other = k - first if inside else count, k if inside else min(k + 1, words)
            to = place(target, k, 1), place(target, other, 1)
            of = start + first * size + k * LANES, start + first * size + other * LANES
            if rates is not None:
                combine(chance_rates, to, step, chance_rates, to, step, rates, of, size, chances, row, down, heads, kept)
                combine(chance_rates, to, step, chance_rates, to, step, weights, of, size, chance_rates, row, down, heads, kept)
            combine(chances, to, step, chances, to, step, weights, of, size, chances, row, down, heads, kept)
            k = other + 1
        first += count


@uncounted
def begin_rates(direction, first, weights, rates):
    """Rates of the weights of the items from ``first`` on along a direction [b, n + 1, n + 1] of their scores."""
    load_items(direction, first, rates)
    for at in range(0, direction.shape[1] ** 2 * LANES, LANES):
        weight, zero = v.load_four(weights, at), v.spread_four(0.0)
        v.store(rates, at, v.where_greater(weight, zero, v.multiply(weight, v.load_four(rates, at)), zero))


@uncounted
def expect(weights, chances, expected, totals):
    """Marginals of arcs, in a table; ``totals`` [(n + 1) · LANES] gets what the heads of each word weigh together."""
    row = len(totals)
    for at in range(LANES, row, LANES):
        total = v.spread_four(0.0)
        for arc in range(at, row * (row // LANES), row):
            weight = v.multiply(v.load_four(weights, arc), v.load_four(chances, arc))
            v.store(expected, arc, weight)
            total = v.add(total, weight)
        v.store(totals, at, total)
        scale = v.divide(v.spread_four(1.0), total)
        for arc in range(at, row * (row // LANES), row):
            v.store(expected, arc, v.multiply(v.load_four(expected, arc), scale))


@uncounted
def expect_rates(weights, rates, chances, chance_rates, expected, totals):
    """The rates of the marginals, put in the place of those of the weights."""
    row = len(totals)
    for at in range(LANES, row, LANES):
        total, slopes = v.load_four(totals, at), v.spread_four(0.0)
        for arc in range(at, row * (row // LANES), row):
            slope = v.multiply(v.load_four(rates, arc), v.load_four(chances, arc))
            slope = v.divide(v.multiply_add(v.load_four(weights, arc), v.load_four(chance_rates, arc), slope), total)
            v.store(rates, arc, slope)
            slopes = v.add(slopes, slope)
        for arc in range(at, row * (row // LANES), row):
            v.store(rates, arc, v.subtract(v.load_four(rates, arc), v.multiply(v.load_four(expected, arc), slopes)))


@uncounted
def hand_out(table, totals, extent, first, results, certified):
    """Write the items from ``first`` on, 0 for those without a tree; certain are sums of chances in range."""
    size, count = results.shape[1], min(LANES, len(results) - first)
    for h in range(size):
        of = table[h * size * LANES : (h + 1) * size * LANES]
        for lane in range(count):
            for m in range(1, size):
                results[first + lane, h, m] = of[4 * m + lane]
    for lane in range(count):
        for m in range(1, size):
            if extent[lane] == 0.0:
                for h in range(size):
                    results[first + lane, h, m] = 0.0
            elif not LEAST_TOTAL < totals[m * LANES + lane] < LARGEST:
                certified[first + lane] = False
