"""Elimination of words from tables of weights, without subtractions, for `LANES` items side by side.

The mathematics is that of `structgrad.oracles.spanning_tree.elimination`, on weights instead of logarithms: the weight of the arc from h
to m is divided by the greatest one into m. A table is a part of an array: at ``start + h · size + m · LANES + lane`` stands the number of
the arc from h to m in one item. Rates are derivatives along a direction, in a table alike; None where they are not asked for, and the
compiler leaves them out.

Weights of 0 are forbidden arcs, and no others: an item in which a positive number may leave the range of float64 is not certified.
"""

import math
from typing import NamedTuple

import numpy as np

from ...kernels import vectors as v
from ...kernels.compilation import Array, inner, uncounted
from ...kernels.exponential import exponentials

LANES = 4
"""Items side by side: with twice as many, tables of 40 words and their rates would leave the second cache."""

BLOCK = 4
"""Words that are taken out together: `combine` keeps the numbers of so many, for two rows, in registers."""

DEEPEST = -660.0
"""The least exponent of a weight."""

SMALLEST, LARGEST = 1e-285, 1e285
"""Bounds of all sums of heads, and the weight of an arc over a word where some are forbidden: what is lost below 1e-308 is then
less than 1e-18 of it, at any n below 10⁵."""


class ItemVectors(NamedTuple):
    """Working memory for `LANES` items."""

    exponents: Array  # a table
    shift: Array  # [(n + 1) · LANES], the greatest exponent of each word's heads
    sums: Array  # [(n + 1) · LANES], what the heads of each word weighed together when it was taken out
    extent: Array  # [4 · LANES], the least and the greatest of all sums, the least weight that leads over a word, and room for others
    total: Array  # [LANES], the logarithm of what every tree's weight was divided by
    in_range: Array  # bool [LANES], whether no weight is lost
    dense: Array  # bool [LANES + 1], whether an item has no forbidden arc, and whether none has one
    root: Array  # [LANES], 0 where a word has just taken the place of the root, whose own arcs count no more; else 1


@inner
def items(size, exponents):
    """Room for items of event [size, size], and their exponents."""
    place, total, root = size * LANES, np.empty(LANES), np.empty(LANES)
    in_range, dense = np.empty(LANES, np.bool_), np.empty(LANES + 1, np.bool_)
    return ItemVectors(exponents, np.empty(place), np.empty(place), np.empty(4 * LANES), total, in_range, dense, root)


@inner
def weigh(rows, first, single_root, space, weights):
    """Fill the table at the beginning of the weights with the items from ``first`` on, the last one again where there are fewer.

    Each word's heads are shifted by their maximum; with a single root that of the words, and then the root's arcs by theirs.
    """
    load_items(rows, first, space.exponents)
    for h in range(rows.shape[1]):  # what is no arc has -inf
        v.store(space.exponents, h * rows.shape[1] * LANES, v.spread_four(-np.inf))
        v.store(space.exponents, h * (rows.shape[1] + 1) * LANES, v.spread_four(-np.inf))
    _shift(rows.shape[1], single_root, space)
    exponentials(space.exponents, weights[: len(space.exponents)])


@uncounted
def load_items(rows, first, table):
    """Copy numbers of arcs [b, n + 1, n + 1] of the items from ``first`` on, the last one again where there are fewer."""
    last, size = rows.shape[0] - 1, rows.shape[1]
    for h in range(size):
        # Four rows at once, which the compiler interleaves.
        a, b, c, d = rows[first, h], rows[min(first + 1, last), h], rows[min(first + 2, last), h], rows[min(first + 3, last), h]
        to = table[h * size * LANES : (h + 1) * size * LANES]
        for m in range(size):
            to[4 * m], to[4 * m + 1], to[4 * m + 2], to[4 * m + 3] = a[m], b[m], c[m], d[m]


@uncounted
def _shift(size, single_root, space):
    """Shift the exponents, and take in what they were shifted by and whether their exponentials can be lost."""
    zero, one, nothing, row = v.spread_four(0.0), v.spread_four(1.0), v.spread_four(-np.inf), size * LANES
    exponents, shift, total = space.exponents, space.shift, v.spread_four(0.0)
    for x in range(0, row, LANES):
        top = v.spread_four(-np.inf)
        for h in range(1 if single_root else 0, size):
            top = v.greatest(v.load_four(exponents, h * row + x), top)
        top = v.where_greater(top, nothing, top, zero)
        v.store(shift, x, top)
        if x > 0:
            total = v.add(total, top)
    if single_root:
        top = v.spread_four(-np.inf)
        for x in range(LANES, row, LANES):
            top = v.greatest(v.subtract(v.load_four(exponents, x), v.load_four(shift, x)), top)
        top = v.where_greater(top, nothing, top, zero)
        total = v.add(total, top)
        for x in range(LANES, row, LANES):
            v.store(exponents, x, v.subtract(v.load_four(exponents, x), top))
    v.store(space.total, 0, total)
    lowest, forbidden = v.spread_four(0.0), v.spread_four(0.0)
    for h in range(size):
        for x in range(0, row, LANES):
            exponent = v.subtract(v.load_four(exponents, h * row + x), v.load_four(shift, x))
            v.store(exponents, h * row + x, exponent)
            forbidden = v.add(forbidden, v.where_greater(exponent, nothing, zero, one))
            lowest = v.least(v.where_greater(exponent, nothing, exponent, zero), lowest)
    v.store(space.extent, 0, lowest)
    v.store(space.extent, LANES, forbidden)
    space.dense[LANES] = True
    for lane in range(LANES):
        space.in_range[lane], space.dense[lane] = space.extent[lane] > DEEPEST, space.extent[LANES + lane] == 2 * size - 1
        space.dense[LANES] &= space.dense[lane]
    v.store(space.extent, 0, v.spread_four(np.inf))
    v.store(space.extent, LANES, v.spread_four(0.0))
    v.store(space.extent, 2 * LANES, v.spread_four(np.inf))


@uncounted
def place(source, h, m):
    """The place of the arc from h to m in a table, given as (place of the arc between words 0, of a row, of a column, of row 0)."""
    origin, down, right, root = source
    return (root if h == 0 else origin + h * down) + m * right


@uncounted
def combine(out, to, step, base, at, base_step, table, of, along, rows, row, down, count, columns):
    """Two rows of so many columns: ``out = base + Σ table · rows``, over at most `BLOCK` numbers of a table and as many rows.

    The two begin at the places ``to``, go on by ``step``, as the rows do, and are made of a base at the places ``at``, which has steps of
    its own. The table has their numbers from the places ``of`` on, ``along`` from each other; the rows begin at ``row``, ``down`` from each
    other, and are ``count``.
    """
    zero, (to_a, to_b), (at_a, at_b), (of_a, of_b) = v.spread_four(0.0), to, at, of
    a_0, b_0 = v.load_four(table, of_a), v.load_four(table, of_b)
    a_1 = b_1 = a_2 = b_2 = a_3 = b_3 = zero
    row_1 = row_2 = row_3 = row
    if count > 1:
        a_1, b_1, row_1 = v.load_four(table, of_a + along), v.load_four(table, of_b + along), row + down
    if count > 2:
        a_2, b_2, row_2 = v.load_four(table, of_a + 2 * along), v.load_four(table, of_b + 2 * along), row + 2 * down
    if count > 3:
        a_3, b_3, row_3 = v.load_four(table, of_a + 3 * along), v.load_four(table, of_b + 3 * along), row + 3 * down
    for m in range(columns):
        x, y, z = v.load_four(rows, row + m * step), v.load_four(rows, row_1 + m * step), v.load_four(rows, row_2 + m * step)
        w, a, b = v.load_four(rows, row_3 + m * step), v.load_four(base, at_a + m * base_step), v.load_four(base, at_b + m * base_step)
        a, b = v.multiply_add(a_0, x, a), v.multiply_add(b_0, x, b)
        a, b = v.multiply_add(a_1, y, a), v.multiply_add(b_1, y, b)
        a, b = v.multiply_add(a_2, z, a), v.multiply_add(b_2, z, b)
        a, b = v.multiply_add(a_3, w, a), v.multiply_add(b_3, w, b)
        v.store(out, to_a + m * step, a)
        v.store(out, to_b + m * step, b)


@uncounted
def take_out(weights, rates, source, start, size, words, kept, rooted, ends, level, sums, space):
    """Eliminate the words from ``words`` down to ``kept`` + 1 of a table that is made from a source (see `place`).

    Their columns then hold the chances of their heads. A word that no other word is left to head takes the place of the root, which counts
    for nothing beside it.

    At a level, ``rooted`` says whether the root's weights, or those of a word in its place, count in sums (1, else 0), and ``ends`` gets
    the word that takes the root's place here, or 0. ``sums`` gets what the heads of each word weigh together; the space takes it in.
    """
    for lane in range(level * LANES, (level + 1) * LANES):
        ends[lane] = 0
    own, k = (start, size, LANES, start), words
    while k > kept:
        low = max(k - BLOCK, kept) + 1
        v.store(space.root, 0, v.spread_four(1.0))
        ended = False
        for word in range(k, low - 1, -1):
            _complete_row(weights, rates, source, start, size, word, k)
            if _take_out_one(weights, rates, source, start, size, word, k, words, rooted, ends, level, sums, space):
                ended = True
        columns, count, row = low - 1, k - low + 1, start + low * size + LANES
        for h in range(0, low, 2):
            other = min(h + 1, low - 1)
            to, at = (start + h * size + LANES, start + other * size + LANES), (place(source, h, 1), place(source, other, 1))
            of = start + h * size + low * LANES, start + other * size + low * LANES
            if rates is not None:
                combine(rates, to, LANES, rates, at, source[2], rates, of, LANES, weights, row, size, count, columns)
                combine(rates, to, LANES, rates, to, LANES, weights, of, LANES, rates, row, size, count, columns)
            combine(weights, to, LANES, weights, at, source[2], weights, of, LANES, weights, row, size, count, columns)
        if ended:
            _replace_root(weights, rates, start, size, low, k, ends, level)
        source, k = own, low - 1
    for k in range(kept + 1, words + 1):
        take_in(v.load_four(sums, k * LANES), space.extent)


@uncounted
def _complete_row(weights, rates, source, start, size, word, k):
    """Bring the arcs of a word from a source, and let them lead over the words after it up to k."""
    to, at, count = start + word * size + LANES, place(source, word, 1), k - word
    if count > 0:
        of, row = start + word * size + (word + 1) * LANES, start + (word + 1) * size + LANES
        if rates is not None:
            combine(rates, (to, to), LANES, rates, (at, at), source[2], rates, (of, of), LANES, weights, row, size, count, word - 1)
            combine(rates, (to, to), LANES, rates, (to, to), LANES, weights, (of, of), LANES, rates, row, size, count, word - 1)
        combine(weights, (to, to), LANES, weights, (at, at), source[2], weights, (of, of), LANES, weights, row, size, count, word - 1)
    elif to != at:
        for m in range(word - 1):
            v.store(weights, to + m * LANES, v.load_four(weights, at + m * source[2]))
            if rates is not None:
                v.store(rates, to + m * LANES, v.load_four(rates, at + m * source[2]))


@uncounted
def _take_out_one(weights, rates, source, start, size, word, k, words, rooted, ends, level, sums, space):
    """Bring the weights of a word's heads, some of which lead over the words after it up to k, and make them chances.

    Gives whether a walk ends here in some item.
    """
    zero, one, column, count = v.spread_four(0.0), v.spread_four(1.0), start + word * LANES, k - word
    total, slope, ended, counted = zero, zero, False, v.load_four(rooted, level * LANES)
    to, at, factor = column, source[3] + word * source[2], v.load_four(space.root, 0)
    for h in range(word):
        weight = v.multiply(factor, v.load_four(weights, at))
        rate = v.multiply(factor, v.load_four(rates, at)) if rates is not None else zero
        for i in range(1, count + 1):  # over the words after it
            chance, over = v.load_four(weights, to + i * LANES), v.load_four(weights, column + (word + i) * size)
            weight = v.multiply_add(chance, over, weight)
            if rates is not None:
                rate = v.multiply_add(chance, v.load_four(rates, column + (word + i) * size), rate)
                rate = v.multiply_add(v.load_four(rates, to + i * LANES), over, rate)
        v.store(weights, to, weight)
        total = v.multiply_add(counted, weight, total)
        if rates is not None:
            v.store(rates, to, rate)
            slope = v.multiply_add(counted, rate, slope)
        factor = counted = one
        to, at = to + size, source[0] + (h + 1) * source[1] + word * source[2]
    v.store(sums, word * LANES, total)
    for lane in range(LANES):
        if sums[word * LANES + lane] == 0.0 and rooted[level * LANES + lane] == 0.0:
            # No other word is left to head this one: the root does, and this word takes its place.
            sums[word * LANES + lane] = weights[column + lane]
            for i in range(word + 1, words + 1):
                weights[start + i * LANES + lane] = 0.0
                if rates is not None:
                    rates[start + i * LANES + lane] = 0.0
            rooted[level * LANES + lane], ends[level * LANES + lane], space.root[lane], ended = 1.0, word, 0.0, True
    scale = v.where_greater(total, zero, v.divide(one, total), zero)
    for to in range(column, column + word * size, size):
        chance = v.multiply(v.load_four(weights, to), scale)
        v.store(weights, to, chance)
        if rates is not None:
            v.store(rates, to, v.multiply(v.subtract(v.load_four(rates, to), v.multiply(chance, slope)), scale))
    if ended:
        for lane in range(LANES):
            if ends[level * LANES + lane] == word:
                weights[column + lane] = 1.0
    if not space.dense[LANES]:
        _reach(weights, source, start, size, word, k, space.extent)
    return ended


@uncounted
def _reach(weights, source, start, size, word, k, extent):
    """Take in the least weight that an arc over a word may have, of arcs that have little weight without that."""
    zero, head, child = v.spread_four(0.0), v.spread_four(np.inf), v.spread_four(np.inf)
    for h in range(word):
        weight = v.load_four(weights, start + h * size + word * LANES)
        head = v.least(v.where_greater(weight, zero, weight, head), head)
    for m in range(1, word):
        weight = v.load_four(weights, start + word * size + m * LANES)
        child = v.least(v.where_greater(weight, zero, weight, child), child)
    v.store(extent, 3 * LANES, v.multiply(head, child))
    for lane in range(LANES):
        if extent[3 * LANES + lane] < SMALLEST:
            for h in range(word):
                chance = weights[start + h * size + word * LANES + lane]
                for m in range(1, word):
                    weight = weights[start + word * size + m * LANES + lane]
                    if h != m and chance > 0.0 and weight > 0.0 and chance * weight < SMALLEST:
                        direct = weights[place(source, h, m) + lane]
                        for i in range(word + 1, k + 1):
                            direct += weights[start + h * size + i * LANES + lane] * weights[start + i * size + m * LANES + lane]
                        if direct < SMALLEST:
                            extent[2 * LANES + lane] = min(extent[2 * LANES + lane], chance * weight)


@uncounted
def _replace_root(weights, rates, start, size, low, k, ends, level):
    """If a word from ``low`` to k has taken the root's place, what stood at the root before is none of its arcs' weights."""
    for lane in range(LANES):
        word = ends[level * LANES + lane]
        if low <= word <= k:
            for m in range(1, low):
                weight = rate = 0.0
                for i in range(low, word + 1):
                    chance, over = weights[start + i * LANES + lane], start + i * size + m * LANES + lane
                    weight += chance * weights[over]
                    if rates is not None:
                        rate += chance * rates[over] + rates[start + i * LANES + lane] * weights[over]
                weights[start + m * LANES + lane] = weight
                if rates is not None:
                    rates[start + m * LANES + lane] = rate


@uncounted
def take_in(sums, extent):
    """Take sums of heads into the least and the greatest of all."""
    v.store(extent, 0, v.least(v.load_four(extent, 0), sums))
    v.store(extent, LANES, v.greatest(sums, v.load_four(extent, LANES)))


@uncounted
def certain(space, lane):
    """Whether what was computed for an item is right: all sums are in range, or one is 0, because the item has no tree."""
    low, high, product = space.extent[lane], space.extent[LANES + lane], space.extent[2 * LANES + lane]
    return space.in_range[lane] and (product > SMALLEST or space.dense[lane]) and (low == 0.0 or (low > SMALLEST and high < LARGEST))


@uncounted
def conclude(space, first, log_partition, certified):
    """Write the log-partition of the items from ``first`` on, and whether it is certain, from the sums and their extent."""
    for lane in range(min(LANES, len(log_partition) - first)):
        certified[first + lane] = certain(space, lane)
        value, product = space.total[lane], 1.0
        for k in range(1, len(space.sums) // LANES):
            product *= space.sums[k * LANES + lane]
            if not 1e-20 < product < 1e20:
                value += math.log(product) if product > 0.0 else -math.inf
                product = 1.0
        log_partition[first + lane] = value + math.log(product)
