"""Marginals of spanning trees for `WIDTH` items side by side: `marginals` where every step is alike in all items.

Blocks and halves are those of `marginals`, tables and rates those of `vector_elimination`. Nothing depends on what the numbers are, so that
a lane in which a sum of heads leaves its limits computes nonsense, and says so in the extent of its sums.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...kernels.compilation import inner, uncounted
from ...kernels.vectors import WIDTH, add, divide, load, multiply, multiply_add, spread, store, subtract
from .vector_elimination import bounds, take_out

Array = NDArray[Any]


class Halves(NamedTuple):
    """The block at each level, 0 the whole item; positions 0..m, the root first."""

    weights: Array  # a table for each level, see `table`
    chances: Array  # a table for each level, of escape from a word before a word; 0 from the word itself
    starts: Array  # int64 [levels + 1], of the tables
    sizes: Array  # int64 [levels], of the tables: how many positions the block has before words are taken out to make it
    words: Array  # int64 [levels], m
    half: Array  # int64 [levels], which half is being kept; 2 after both
    sums: Array  # [(n + 1) · WIDTH], of blocks after the first of few words


@inner
def halves(size):
    """Blocks for items of event [size, size]."""
    words, levels = size - 1, 1
    while words > 1:
        words, levels = (words + 1) // 2, levels + 1
    counts, sizes, starts = np.empty(levels, np.int64), np.empty(levels, np.int64), np.zeros(levels + 1, np.int64)
    counts[0], sizes[0], starts[1] = size - 1, size, size * size * WIDTH
    for level in range(1, levels):
        counts[level], sizes[level] = (counts[level - 1] + 1) // 2, counts[level - 1] + 1
        starts[level + 1] = starts[level] + sizes[level] ** 2 * WIDTH
    return Halves(
        np.empty(starts[levels]), np.zeros(starts[levels]), starts, sizes, counts, np.zeros_like(counts), np.empty(size * WIDTH)
    )  # fmt: skip


@inner
def table(tables, space, level):
    """The table [positions, positions · WIDTH] of a level."""
    return tables[space.starts[level] : space.starts[level + 1]].reshape((space.sizes[level], -1))


@inner
def find(space, rates, rooted, first_sums, extent):
    """Fill ``chances[0]`` for the weights ``weights[0]``, those from the root excepted, which are 1.

    Args:
        space: for the numbers themselves.
        rates: for their derivatives, or None.
        rooted: whether the root's weights count in the sums.
        first_sums: gets the sums of the words as they are all taken out once.
        extent: takes in all sums.
    """
    level, sums = 0, first_sums
    space.half[0] = 0
    while level >= 0:
        words = space.words[level]
        if space.half[level] == 0 and words in (1, 3):
            weights, chances = table(space.weights, space, level), table(space.chances, space, level)
            if rates is None:
                _few_words(weights, None, chances, None, words, rooted, sums, extent)
            else:
                weight_rates, chance_rates = table(rates.weights, space, level), table(rates.chances, space, level)
                _few_words(weights, weight_rates, chances, chance_rates, words, rooted, sums, extent)
            sums, space.half[level] = space.sums, 2
        if space.half[level] < 2:
            _leave(space, rates, level, rooted, sums, extent)
            level += 1
        else:
            level -= 1
            if level >= 0:
                _return(space, rates, level)


@inner
def _leave(space, rates, level, rooted, sums, extent):
    """Make the next block of one half of this one."""
    words, kept, second = space.words[level], space.words[level + 1], space.half[level] == 1
    below = table(space.weights, space, level + 1)
    _copy_half(table(space.weights, space, level), below, words, second)
    if rates is None:
        take_out(below, None, words, kept, rooted, sums)
    else:
        below_rates = table(rates.weights, space, level + 1)
        _copy_half(table(rates.weights, space, level), below_rates, words, second)
        take_out(below, below_rates, words, kept, rooted, sums)
    bounds(sums, kept + 1, words, extent)
    space.half[level + 1] = 0


@uncounted
def _copy_half(weights, below, words, second):
    """Copy a block into the next level, in reversed order for its second half."""
    for h in range(words + 1):
        above, row = weights[words + 1 - h if second and h > 0 else h], below[h]
        for m in range(1, words + 1):
            store(row, m * WIDTH, load(above, (words + 1 - m if second else m) * WIDTH))


@inner
def _return(space, rates, level):
    """Bring the chances of the next block back to this one."""
    words, kept, second = space.words[level], space.words[level + 1], space.half[level] == 1
    weights, chances = table(space.weights, space, level + 1), table(space.chances, space, level + 1)
    for k in range(kept + 1, words + 1, 2):
        _substitute(weights, chances, k, kept, k < words)
    _paste_half(chances, table(space.chances, space, level), words, kept, second)
    if rates is not None:
        weight_rates, chance_rates = table(rates.weights, space, level + 1), table(rates.chances, space, level + 1)
        for k in range(kept + 1, words + 1):
            _substitute_rates(weights, weight_rates, chances, chance_rates, k, kept)
        _paste_half(chance_rates, table(rates.chances, space, level), words, kept, second)
    space.half[level] += 1


@uncounted
def _paste_half(below, above, words, kept, second):
    """Copy what is known of the words that a half kept into the block that it came from."""
    for h in range(1, words + 1):
        row, other = below[h], above[words + 1 - h if second else h]
        for t in range(1, kept + 1):
            store(other, (words + 1 - t if second else t) * WIDTH, load(row, t * WIDTH))


@uncounted
def _substitute(weights, chances, k, words, two):
    """Chances of escape from word k, and for ``two`` from the next one too, before the words 1..``words``, from those of their heads.

    Two words each way at once, so that what is read counts twice.
    """
    at, beside = k * WIDTH, (k + 1 if two else k) * WIDTH
    for t in range(1, words + 1, 2):
        x, y = t * WIDTH, min(t + 1, words) * WIDTH
        k_x = k_y = load(weights[0], at)
        j_x = j_y = load(weights[0], beside)
        for h in range(1, k):
            head, other = load(weights[h], at), load(weights[h], beside)
            of_x, of_y = load(chances[h], x), load(chances[h], y)
            k_x, k_y = multiply_add(head, of_x, k_x), multiply_add(head, of_y, k_y)
            j_x, j_y = multiply_add(other, of_x, j_x), multiply_add(other, of_y, j_y)
        store(chances[k], x, k_x)
        store(chances[k], y, k_y)
        if two:
            last = load(weights[k], beside)
            store(chances[k + 1], x, multiply_add(last, k_x, j_x))
            store(chances[k + 1], y, multiply_add(last, k_y, j_y))


@uncounted
def _substitute_rates(weights, rates, chances, chance_rates, k, words):
    """The rates of the chances of escape from word k; four words at once."""
    at = k * WIDTH
    for t in range(1, words + 1, 4):
        a, b, c, d = t * WIDTH, min(t + 1, words) * WIDTH, min(t + 2, words) * WIDTH, min(t + 3, words) * WIDTH
        one = two = three = four = load(rates[0], at)
        for h in range(1, k):
            head, rate = load(weights[h], at), load(rates[h], at)
            one = multiply_add(rate, load(chances[h], a), multiply_add(head, load(chance_rates[h], a), one))
            two = multiply_add(rate, load(chances[h], b), multiply_add(head, load(chance_rates[h], b), two))
            three = multiply_add(rate, load(chances[h], c), multiply_add(head, load(chance_rates[h], c), three))
            four = multiply_add(rate, load(chances[h], d), multiply_add(head, load(chance_rates[h], d), four))
        store(chance_rates[k], a, one)
        store(chance_rates[k], b, two)
        store(chance_rates[k], c, three)
        store(chance_rates[k], d, four)


@uncounted
def _few_words(weights, rates, chances, chance_rates, words, rooted, sums, extent):
    """Chances of escape in a block of one or three words, at once."""
    if words == 1:
        store(sums, WIDTH, load(weights[0], WIDTH))
        store(chances[1], WIDTH, spread(0.0))
        if rates is not None:
            store(chance_rates[1], WIDTH, spread(0.0))
        bounds(sums, 1, 1, extent)
        return
    for t, a, b in ((2, 3, 1), (3, 2, 1), (1, 3, 2)):
        total, over, total_b, from_a, from_b = _before(weights, chances, t, a, b, rooted, sums)
        bounds(sums, 1, 3, extent)
        if rates is not None:
            _rates_before(weights, rates, chance_rates, (t, a, b), rooted, (total, over, total_b, from_a, from_b))


@uncounted
def _before(weights, chances, t, a, b, rooted, sums):
    """Chances of escape before word t from words a and b, where no other word is left; the sums are those of taking out a, b and t."""
    root_a, b_a, t_a = load(weights[0], a * WIDTH), load(weights[b], a * WIDTH), load(weights[t], a * WIDTH)
    total_a = add(b_a, t_a)
    total_a = add(total_a, root_a) if rooted else total_a
    over = divide(load(weights[a], b * WIDTH), total_a)
    onward = multiply_add(over, root_a, load(weights[0], b * WIDTH))
    total_b = multiply_add(over, t_a, load(weights[t], b * WIDTH))
    total_b = add(total_b, onward) if rooted else total_b
    from_b = divide(onward, total_b)
    from_a = divide(multiply_add(b_a, from_b, root_a), total_a)
    reached = multiply_add(load(weights[b], t * WIDTH), from_b, load(weights[0], t * WIDTH))
    store(sums, a * WIDTH, total_a)
    store(sums, b * WIDTH, total_b)
    store(sums, t * WIDTH, multiply_add(load(weights[a], t * WIDTH), from_a, reached))
    store(chances[t], t * WIDTH, spread(0.0))
    store(chances[a], t * WIDTH, from_a)
    store(chances[b], t * WIDTH, from_b)
    return total_a, over, total_b, from_a, from_b


@uncounted
def _rates_before(weights, rates, chance_rates, words, rooted, values):
    """The rates of `_before`, with what it computed."""
    t, a, b = words
    total_a, over, total_b, from_a, from_b = values
    root_a, rate_root_a = load(weights[0], a * WIDTH), load(rates[0], a * WIDTH)
    rate_b_a, rate_t_a = load(rates[b], a * WIDTH), load(rates[t], a * WIDTH)
    slope_a = add(rate_b_a, rate_t_a)
    slope_a = add(slope_a, rate_root_a) if rooted else slope_a
    rate_over = divide(subtract(load(rates[a], b * WIDTH), multiply(over, slope_a)), total_a)
    rate_onward = multiply_add(rate_over, root_a, multiply_add(over, rate_root_a, load(rates[0], b * WIDTH)))
    slope_b = multiply_add(rate_over, load(weights[t], a * WIDTH), multiply_add(over, rate_t_a, load(rates[t], b * WIDTH)))
    slope_b = add(slope_b, rate_onward) if rooted else slope_b
    rate_b = divide(subtract(rate_onward, multiply(from_b, slope_b)), total_b)
    rate_a = multiply_add(load(weights[b], a * WIDTH), rate_b, multiply_add(rate_b_a, from_b, rate_root_a))
    rate_a = divide(subtract(rate_a, multiply(from_a, slope_a)), total_a)
    store(chance_rates[t], t * WIDTH, spread(0.0))
    store(chance_rates[a], t * WIDTH, rate_a)
    store(chance_rates[b], t * WIDTH, rate_b)


@uncounted
def expect(weights, chances, expected, totals):
    """Marginals of arcs, in the layout of the weights; ``totals`` [(n + 1) · WIDTH] gets what the heads of each word weigh together."""
    size = len(weights)
    for at in range(WIDTH, size * WIDTH, WIDTH):
        store(totals, at, load(weights[0], at))
    for h in range(1, size):
        from_word, escaping, row = weights[h], chances[h], expected[h]
        for at in range(WIDTH, size * WIDTH, WIDTH):
            weight = multiply(load(from_word, at), load(escaping, at))
            store(row, at, weight)
            store(totals, at, add(load(totals, at), weight))
    for at in range(WIDTH, size * WIDTH, WIDTH):
        scale = divide(spread(1.0), load(totals, at))
        store(expected[0], at, multiply(load(weights[0], at), scale))
        for h in range(1, size):
            store(expected[h], at, multiply(load(expected[h], at), scale))


@uncounted
def expect_rates(weights, rates, chances, chance_rates, expected, totals, slopes):
    """The rates of the marginals, put in the place of those of the weights."""
    slopes[:] = 0.0
    for h in range(len(expected)):
        rate_row, row = rates[h], weights[h]
        for at in range(WIDTH, len(slopes), WIDTH):
            rate = load(rate_row, at)
            if h > 0:
                rate = multiply_add(load(row, at), load(chance_rates[h], at), multiply(rate, load(chances[h], at)))
            rate = divide(rate, load(totals, at))
            store(rate_row, at, rate)
            store(slopes, at, add(load(slopes, at), rate))
    for h in range(len(expected)):
        rate_row, row = rates[h], expected[h]
        for at in range(WIDTH, len(slopes), WIDTH):
            store(rate_row, at, subtract(load(rate_row, at), multiply(load(row, at), load(slopes, at))))
