"""Elimination of words for `LANES` items side by side, where every step is alike in all of them; the rest is for `elimination`.

Tables are those of `vector_products`. Words go in blocks: the columns of a few are made, they are taken out one after the other, and no
other column is touched before its own turn comes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...kernels.compilation import inner, uncounted
from ...kernels.exponential import exponentials
from ...kernels.vectors import (
    add,
    divide,
    even_pairs,
    first_pairs,
    greatest,
    last_pairs,
    least,
    load_four,
    multiply,
    multiply_add,
    odd_pairs,
    spread_four,
    store_four,
    subtract,
    where_greater,
)
from .elimination import DEEPEST
from .vector_products import LANES, lead_over

Array = NDArray[Any]

SAFEST = 600.0
"""Where the exponents of n weights add up to no more, with log n for each, no weight that a path of arcs has is lost."""

SMALLEST, LARGEST = 1e-150, 1e150
"""What all sums of heads must lie between: two of them can then be multiplied, and what was lost below 1e-308 is nothing next to them."""

BLOCK = 4
"""Words whose columns are made together."""


class ItemVectors(NamedTuple):
    """Working memory for `LANES` items."""

    exponents: Array  # a table
    shift: Array  # [(n + 1) · LANES], the greatest exponent of each word's heads
    sums: Array  # [(n + 1) · LANES], what the heads of each word weighed together when it was taken out
    extent: Array  # [2 · LANES], the least and the greatest of all sums
    total: Array  # [LANES], the logarithm of what every tree's weight was divided by
    in_range: Array  # bool [LANES], whether no weight can be lost


@inner
def items(size, exponents):
    """Room for items of event [size, size], and their exponents."""
    place = size * LANES
    return ItemVectors(exponents, np.empty(place), np.empty(place), np.empty(2 * LANES), np.empty(LANES), np.empty(LANES, np.bool_))


@inner
def weigh(rows, first, single_root, space, weights):
    """Fill the table at the beginning of the weights with the items from ``first`` on, the last one again where there are fewer.

    Each word's heads are shifted by their maximum; with a single root that of the words, and then the root's arcs by theirs.
    """
    _load(rows, first, space.exponents)
    _shift(rows.shape[1], single_root, space)
    exponentials(space.exponents, 0.0, weights[: len(space.exponents)])


@uncounted
def items_from(rows, first):
    """Where `LANES` items from one on begin in an array [b, n + 1, n + 1]; the last one again where there are fewer."""
    last, each = rows.shape[0] - 1, rows.shape[1] * rows.shape[2]
    return min(first, last) * each, min(first + 1, last) * each, min(first + 2, last) * each, min(first + 3, last) * each


@uncounted
def side_by_side(numbers, a, b, c, d):
    """Four numbers of each of four items: as four vectors of all items."""
    x, y, z, w = load_four(numbers, a), load_four(numbers, b), load_four(numbers, c), load_four(numbers, d)
    even, odd, other_even, other_odd = even_pairs(x, y), odd_pairs(x, y), even_pairs(z, w), odd_pairs(z, w)
    return first_pairs(even, other_even), first_pairs(odd, other_odd), last_pairs(even, other_even), last_pairs(odd, other_odd)


@uncounted
def _load(rows, first, exponents):
    """Copy the scores of arcs; what is none has -inf."""
    size, numbers, none = rows.shape[1], rows[0, 0], spread_four(-np.inf)
    a, b, c, d = items_from(rows, first)
    for h in range(size):
        row, of = h * size * LANES, h * size
        for m in range(0, size - 3, 4):
            x, y, z, w = side_by_side(numbers, a + of + m, b + of + m, c + of + m, d + of + m)
            at = row + m * LANES
            store_four(exponents, at, x)
            store_four(exponents, at + LANES, y)
            store_four(exponents, at + 2 * LANES, z)
            store_four(exponents, at + 3 * LANES, w)
        for m in range(size // 4 * 4, size):
            at = row + m * LANES
            exponents[at], exponents[at + 1], exponents[at + 2], exponents[at + 3] = (
                numbers[a + of + m], numbers[b + of + m], numbers[c + of + m], numbers[d + of + m]
            )  # fmt: skip
        store_four(exponents, row, none)
        store_four(exponents, row + h * LANES, none)


@uncounted
def _shift(size, single_root, space):
    """Shift the exponents, and take in what they were shifted by and whether their exponentials can be lost."""
    zero, one, nothing, row = spread_four(0.0), spread_four(1.0), spread_four(-np.inf), size * LANES
    exponents, shift, total = space.exponents, space.shift, spread_four(0.0)
    for x in range(0, row, LANES):
        top = spread_four(-np.inf)
        for h in range(1 if single_root else 0, size):
            top = greatest(load_four(exponents, h * row + x), top)
        top = where_greater(top, nothing, top, zero)
        store_four(shift, x, top)
        if x > 0:
            total = add(total, top)
    if single_root:
        top = spread_four(-np.inf)
        for x in range(LANES, row, LANES):
            top = greatest(subtract(load_four(exponents, x), load_four(shift, x)), top)
        top = where_greater(top, nothing, top, zero)
        total = add(total, top)
        for x in range(LANES, row, LANES):
            store_four(exponents, x, subtract(load_four(exponents, x), top))
    store_four(space.total, 0, total)
    lowest, forbidden = spread_four(0.0), spread_four(0.0)
    for h in range(size):
        for x in range(0, row, LANES):
            exponent = subtract(load_four(exponents, h * row + x), load_four(shift, x))
            store_four(exponents, h * row + x, exponent)
            forbidden = add(forbidden, where_greater(exponent, nothing, zero, one))
            lowest = least(where_greater(exponent, nothing, exponent, zero), lowest)
    store_four(space.extent, 0, lowest)
    store_four(space.extent, LANES, forbidden)
    for lane in range(LANES):
        deepest, dense = space.extent[lane], space.extent[LANES + lane] == 2 * size - 1
        space.in_range[lane] = deepest > DEEPEST if dense else size * (math.log(size) - deepest) < SAFEST
    store_four(space.extent, 0, spread_four(np.inf))
    store_four(space.extent, LANES, spread_four(0.0))


@uncounted
def take_out(weights, rates, source, start, size, words, kept, rooted, sums):
    """Eliminate the words from ``words`` down to ``kept`` + 1 of a table that is made from a source (see `vector_products`).

    Their columns then hold the chances of their heads. ``sums`` [(n + 1) · LANES] gets what the heads of each weighed together, those that
    are words and, where ``rooted``, the root.
    """
    k = words
    while k > kept:
        first = max(k - BLOCK, kept) + 1
        lead_over(weights, rates, source, start, size, first, k, words, k)
        if rates is None:
            _take_out(weights, start, size, k, first, rooted, sums)
        else:
            _take_out_rates(weights, rates, start, size, k, first, rooted, sums)
        k = first - 1
    lead_over(weights, rates, source, start, size, 1, kept, words, kept)


@uncounted
def _take_out(table, start, size, words, first, rooted, sums):
    """Eliminate the words from ``words`` down to ``first`` from their own columns."""
    k, at = words, start + words * LANES
    total = load_four(table, at) if rooted else spread_four(0.0)
    for h in range(1, k):
        total = add(total, load_four(table, at + h * size))
    while k >= first:
        store_four(sums, k * LANES, total)
        scale, at = divide(spread_four(1.0), total), start + k * LANES
        if k == first:
            for h in range(k):
                store_four(table, at + h * size, multiply(load_four(table, at + h * size), scale))
            return
        # Word j is next. What the heads of k weigh becomes chances, and arcs to j lead over k.
        over, total = load_four(table, at + k * size - LANES), spread_four(0.0)
        for h in range(k):
            place = at + h * size
            chance = multiply(load_four(table, place), scale)
            weight = multiply_add(chance, over, load_four(table, place - LANES))
            store_four(table, place, chance)
            if h < k - 1:
                store_four(table, place - LANES, weight)
                if h > 0 or rooted:
                    total = add(total, weight)
        j, at = k - 1, at - LANES
        store_four(sums, j * LANES, total)
        scale, row, chance = divide(spread_four(1.0), total), start + j * size, load_four(table, at + j * size + LANES)
        for m in range(first, j):
            place = row + m * LANES
            store_four(table, place, multiply_add(chance, load_four(table, place + size), load_four(table, place)))
        # The two words before them, if there are so many, lead over both.
        one, two = at - LANES if j > first else at, at - 2 * LANES if j > first + 1 else at - LANES
        k_one, k_two = load_four(table, one + k * size), load_four(table, two + k * size)
        j_one, j_two = load_four(table, one + j * size), load_four(table, two + j * size)
        total = spread_four(0.0)
        for h in range(j):
            by, place = h * size, at + h * size
            chance, other = load_four(table, place + LANES), multiply(load_four(table, place), scale)
            store_four(table, place, other)
            if j > first:
                weight = multiply_add(other, j_one, multiply_add(chance, k_one, load_four(table, one + by)))
                store_four(table, one + by, weight)
                if 0 < h < j - 1 or (rooted and h == 0):
                    total = add(total, weight)
            if j > first + 1:
                store_four(table, two + by, multiply_add(other, j_two, multiply_add(chance, k_two, load_four(table, two + by))))
        k -= 2


@uncounted
def _take_out_rates(table, slopes, start, size, words, first, rooted, sums):
    """The same for weights and their rates."""
    k, at, zero = words, start + words * LANES, spread_four(0.0)
    total, slope = (load_four(table, at), load_four(slopes, at)) if rooted else (zero, zero)
    for h in range(1, k):
        total, slope = add(total, load_four(table, at + h * size)), add(slope, load_four(slopes, at + h * size))
    while k >= first:
        store_four(sums, k * LANES, total)
        scale, at = divide(spread_four(1.0), total), start + k * LANES
        if k == first:
            for place in range(at, at + k * size, size):
                _to_chance(table, slopes, place, scale, slope)
            return
        over, rate_over = load_four(table, at + k * size - LANES), load_four(slopes, at + k * size - LANES)
        next_total, next_slope = zero, zero
        for h in range(k):
            place = at + h * size
            chance, rate = _to_chance(table, slopes, place, scale, slope)
            if h < k - 1:
                place -= LANES
                rate = multiply_add(rate, over, multiply_add(chance, rate_over, load_four(slopes, place)))
                weight = multiply_add(chance, over, load_four(table, place))
                store_four(table, place, weight)
                store_four(slopes, place, rate)
                if h > 0 or rooted:
                    next_total, next_slope = add(next_total, weight), add(next_slope, rate)
        j, at = k - 1, at - LANES
        total, slope = next_total, next_slope
        store_four(sums, j * LANES, total)
        scale, row = divide(spread_four(1.0), total), start + j * size
        chance, rate = load_four(table, row + k * LANES), load_four(slopes, row + k * LANES)
        for place in range(row + first * LANES, at + j * size, LANES):
            weight = load_four(table, place + size)
            change = multiply_add(rate, weight, multiply_add(chance, load_four(slopes, place + size), load_four(slopes, place)))
            store_four(slopes, place, change)
            store_four(table, place, multiply_add(chance, weight, load_four(table, place)))
        next_total, next_slope = zero, zero
        for h in range(j):
            place = at + h * size
            chance, rate = load_four(table, place + LANES), load_four(slopes, place + LANES)
            other, other_rate = _to_chance(table, slopes, place, scale, slope)
            for m in range(first, j):
                to, over = start + h * size + m * LANES, start + k * size + m * LANES
                a, b, weight = load_four(table, over), load_four(table, over - size), load_four(table, to)
                change = multiply_add(chance, load_four(slopes, over), load_four(slopes, to))
                change = multiply_add(other, load_four(slopes, over - size), change)
                change = multiply_add(other_rate, b, multiply_add(rate, a, change))
                weight = multiply_add(other, b, multiply_add(chance, a, weight))
                store_four(table, to, weight)
                store_four(slopes, to, change)
                if m == j - 1 and (0 < h < m or (rooted and h == 0)):
                    next_total, next_slope = add(next_total, weight), add(next_slope, change)
        k, total, slope = k - 2, next_total, next_slope


@uncounted
def _to_chance(table, slopes, place, scale, slope):
    """Make a weight a chance, and its rate that of the chance, where those of a word's heads sum to 1 / ``scale`` and ``slope``."""
    chance = multiply(load_four(table, place), scale)
    rate = multiply(subtract(load_four(slopes, place), multiply(chance, slope)), scale)
    store_four(table, place, chance)
    store_four(slopes, place, rate)
    return chance, rate


@uncounted
def bounds(sums, first, last, extent):
    """Take the sums of the words from ``first`` to ``last`` into the least and the greatest of all."""
    low, high = load_four(extent, 0), load_four(extent, LANES)
    for k in range(first, last + 1):
        low, high = least(load_four(sums, k * LANES), low), greatest(load_four(sums, k * LANES), high)
    store_four(extent, 0, low)
    store_four(extent, LANES, high)


@uncounted
def conclude(space, first, log_partition, certified):
    """Write the log-partition of the items from ``first`` on, and whether it is certain, from the sums and their extent."""
    for lane in range(min(LANES, len(log_partition) - first)):
        certified[first + lane] = space.in_range[lane] and space.extent[lane] > SMALLEST and space.extent[LANES + lane] < LARGEST
        value, product = space.total[lane], 1.0
        for k in range(1, len(space.sums) // LANES):
            product *= space.sums[k * LANES + lane]
            if not SMALLEST < product < LARGEST:
                value += math.log(product)
                product = 1.0
        log_partition[first + lane] = value + math.log(product)
