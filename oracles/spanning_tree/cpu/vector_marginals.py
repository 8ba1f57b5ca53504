"""Marginals of spanning trees for `LANES` items side by side: `marginals` where every step is alike in all items.

Blocks and halves are those of `marginals`, tables and rates those of `vector_products`. Weights have a table for each level; chances of
escape have one for all: a block of words counts them upwards or downwards from a corner. Nothing depends on what the numbers are, so that a
lane in which a sum of heads leaves its limits computes nonsense, and says so in the extent of its sums.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...kernels.compilation import inner, uncounted
from ...kernels.vectors import (
    add,
    divide,
    even_pairs,
    first_pairs,
    last_pairs,
    load_four,
    multiply,
    multiply_add,
    odd_pairs,
    spread_four,
    store_four,
    subtract,
    where_greater,
)
from .vector_elimination import bounds, items_from, side_by_side, take_out
from .vector_products import LANES, substitute

Array = NDArray[Any]


class Halves(NamedTuple):
    """The block at each level, 0 the whole item; positions 0..m, the root first."""

    starts: Array  # int64 [levels + 1], of the tables of weights
    sizes: Array  # int64 [levels], of a row of each table
    words: Array  # int64 [levels], m
    half: Array  # int64 [levels], which half is being kept; 2 after both
    corner: Array  # int64 [levels], where the chances of the block would have those from position 0 before position 0
    side: Array  # int64 [levels], 1 where they count upwards, -1 where downwards
    sums: Array  # [(n + 1) · LANES], of blocks after the first of few words


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
    return Halves(starts, sizes, counts, np.zeros_like(counts), np.zeros_like(counts), np.ones_like(counts), np.empty(size * LANES))


@uncounted
def find(space, weights, rates, chances, chance_rates, rooted, first_sums, extent):
    """Find the chances of escape for weights in the first table, those from the root excepted, which are 1.

    Args:
        space: the blocks.
        weights: tables for all levels.
        rates: the same for derivatives, or None.
        chances: a table of the whole item; 0 from a word before itself.
        chance_rates: their derivatives, or None.
        rooted: whether the root's weights count in the sums.
        first_sums: gets the sums of the words as they are all taken out once.
        extent: takes in all sums.
    """
    level, sums = 0, first_sums
    space.half[0], full = 0, space.sizes[0]
    while level >= 0:
        words, start, size = space.words[level], space.starts[level], space.sizes[level]
        side = space.side[level]
        target = space.corner[level], side * full, side * LANES
        if space.half[level] == 0 and words in (1, 3):
            _few_words(weights, rates, chances, chance_rates, start, size, target, words, rooted, sums, extent)
            sums, space.half[level] = space.sums, 2
        if space.half[level] < 2:
            # Make the next block of one half of this one.
            below, kept = level + 1, space.words[level + 1]
            source, corner = (start, size, LANES, start), target[0]
            if space.half[level] == 1:
                corner += (words + 1) * (target[1] + target[2])
                source, side = (start + (words + 1) * (size + LANES), -size, -LANES, start + (words + 1) * LANES), -side
            take_out(weights, rates, source, space.starts[below], space.sizes[below], words, kept, rooted, sums)
            bounds(sums, kept + 1, words, extent)
            space.half[below], space.corner[below], space.side[below], level = 0, corner, side, below
        else:
            level -= 1
            if level >= 0:
                # The other words of the block that this one was made of.
                substitute(weights, rates, chances, chance_rates, target, start, size, words, space.words[level])
                space.half[level] += 1


@uncounted
def _few_words(weights, rates, chances, chance_rates, start, size, target, words, rooted, sums, extent):
    """Chances of escape in a block of one or three words, at once."""
    corner, down, right = target
    if words == 1:
        store_four(sums, LANES, load_four(weights, start + LANES))
        store_four(chances, corner + down + right, spread_four(0.0))
        if rates is not None:
            store_four(chance_rates, corner + down + right, spread_four(0.0))
        bounds(sums, 1, 1, extent)
        return
    for t, a, b in ((2, 3, 1), (3, 2, 1), (1, 3, 2)):
        total, over, total_b, from_a, from_b = _before(weights, start, size, t, a, b, rooted, sums)
        at = corner + t * right
        store_four(chances, at + t * down, spread_four(0.0))
        store_four(chances, at + a * down, from_a)
        store_four(chances, at + b * down, from_b)
        bounds(sums, 1, 3, extent)
        if rates is not None:
            rate_a, rate_b = _rates_before(weights, rates, start, size, t, a, b, rooted, (total, over, total_b, from_a, from_b))
            store_four(chance_rates, at + t * down, spread_four(0.0))
            store_four(chance_rates, at + a * down, rate_a)
            store_four(chance_rates, at + b * down, rate_b)


@uncounted
def _arc(table, start, size, h, m):
    return load_four(table, start + h * size + m * LANES)


@uncounted
def _before(weights, start, size, t, a, b, rooted, sums):
    """Chances of escape before word t from words a and b, where no other word is left; the sums are those of taking out a, b and t."""
    root_a, b_a, t_a = _arc(weights, start, size, 0, a), _arc(weights, start, size, b, a), _arc(weights, start, size, t, a)
    total_a = add(b_a, t_a)
    total_a = add(total_a, root_a) if rooted else total_a
    over = divide(_arc(weights, start, size, a, b), total_a)
    onward = multiply_add(over, root_a, _arc(weights, start, size, 0, b))
    total_b = multiply_add(over, t_a, _arc(weights, start, size, t, b))
    total_b = add(total_b, onward) if rooted else total_b
    from_b = divide(onward, total_b)
    from_a = divide(multiply_add(b_a, from_b, root_a), total_a)
    reached = multiply_add(_arc(weights, start, size, b, t), from_b, _arc(weights, start, size, 0, t))
    store_four(sums, a * LANES, total_a)
    store_four(sums, b * LANES, total_b)
    store_four(sums, t * LANES, multiply_add(_arc(weights, start, size, a, t), from_a, reached))
    return total_a, over, total_b, from_a, from_b


@uncounted
def _rates_before(weights, rates, start, size, t, a, b, rooted, values):
    """The rates of `_before`, with what it computed."""
    total_a, over, total_b, from_a, from_b = values
    root_a, rate_root_a = _arc(weights, start, size, 0, a), _arc(rates, start, size, 0, a)
    rate_b_a, rate_t_a = _arc(rates, start, size, b, a), _arc(rates, start, size, t, a)
    slope_a = add(rate_b_a, rate_t_a)
    slope_a = add(slope_a, rate_root_a) if rooted else slope_a
    rate_over = divide(subtract(_arc(rates, start, size, a, b), multiply(over, slope_a)), total_a)
    rate_onward = multiply_add(rate_over, root_a, multiply_add(over, rate_root_a, _arc(rates, start, size, 0, b)))
    slope_b = multiply_add(over, rate_t_a, _arc(rates, start, size, t, b))
    slope_b = multiply_add(rate_over, _arc(weights, start, size, t, a), slope_b)
    slope_b = add(slope_b, rate_onward) if rooted else slope_b
    rate_b = divide(subtract(rate_onward, multiply(from_b, slope_b)), total_b)
    rate_a = multiply_add(_arc(weights, start, size, b, a), rate_b, multiply_add(rate_b_a, from_b, rate_root_a))
    return divide(subtract(rate_a, multiply(from_a, slope_a)), total_a), rate_b


@uncounted
def begin_rates(direction, first, weights, rates):
    """Rates of the weights of the items from ``first`` on along a direction [b, n + 1, n + 1] of their scores."""
    size, along, zero = direction.shape[1], direction[0, 0], spread_four(0.0)
    a, b, c, d = items_from(direction, first)
    for h in range(size):
        row, of = h * size * LANES, h * size
        for m in range(0, size - 3, 4):
            at = row + m * LANES
            for slope in side_by_side(along, a + of + m, b + of + m, c + of + m, d + of + m):
                weight = load_four(weights, at)
                store_four(rates, at, where_greater(weight, zero, multiply(weight, slope), zero))
                at += LANES
        for m in range(size // 4 * 4, size):
            at = row + m * LANES
            for lane, item in enumerate((a, b, c, d)):
                weight = weights[at + lane]
                rates[at + lane] = weight * along[item + of + m] if weight > 0.0 else 0.0


@uncounted
def expect(weights, chances, expected, totals):
    """Marginals of arcs, in a table; ``totals`` [(n + 1) · LANES] gets what the heads of each word weigh together."""
    row = len(totals)
    for at in range(LANES, row, LANES):
        total = load_four(weights, at)
        for place in range(row + at, row * (row // LANES), row):
            weight = multiply(load_four(weights, place), load_four(chances, place))
            store_four(expected, place, weight)
            total = add(total, weight)
        store_four(totals, at, total)
        scale = divide(spread_four(1.0), total)
        store_four(expected, at, multiply(load_four(weights, at), scale))
        for place in range(row + at, row * (row // LANES), row):
            store_four(expected, place, multiply(load_four(expected, place), scale))


@uncounted
def expect_rates(weights, rates, chances, chance_rates, expected, totals):
    """The rates of the marginals, put in the place of those of the weights."""
    row = len(totals)
    for at in range(LANES, row, LANES):
        total = load_four(totals, at)
        slope = divide(load_four(rates, at), total)
        store_four(rates, at, slope)
        slopes = slope
        for place in range(row + at, row * (row // LANES), row):
            slope = multiply(load_four(rates, place), load_four(chances, place))
            slope = divide(multiply_add(load_four(weights, place), load_four(chance_rates, place), slope), total)
            store_four(rates, place, slope)
            slopes = add(slopes, slope)
        for place in range(at, row * (row // LANES), row):
            store_four(rates, place, subtract(load_four(rates, place), multiply(load_four(expected, place), slopes)))


@uncounted
def hand_out(table, first, results):
    """Write what belongs to words of `LANES` items from ``first`` on."""
    size, numbers = results.shape[1], results[0, 0]
    a, b, c, d = items_from(results, first)
    for h in range(size):
        row, of, m = h * size * LANES, h * size, 1
        while m + 3 < size:
            at = row + m * LANES
            x, y, z, w = (
                load_four(table, at),
                load_four(table, at + LANES),
                load_four(table, at + 2 * LANES),
                load_four(table, at + 3 * LANES),
            )
            even, odd, other_even, other_odd = even_pairs(x, y), odd_pairs(x, y), even_pairs(z, w), odd_pairs(z, w)
            store_four(numbers, a + of + m, first_pairs(even, other_even))
            store_four(numbers, b + of + m, first_pairs(odd, other_odd))
            store_four(numbers, c + of + m, last_pairs(even, other_even))
            store_four(numbers, d + of + m, last_pairs(odd, other_odd))
            m += 4
        while m < size:
            at = row + m * LANES
            numbers[a + of + m], numbers[b + of + m] = table[at], table[at + 1]
            numbers[c + of + m], numbers[d + of + m] = table[at + 2], table[at + 3]
            m += 1
