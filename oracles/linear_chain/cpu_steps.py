"""Steps of chains in the exponential domain: weights of scores, products with matrices, running sums.

Tables are flat; their lines hold the tags in ``columns``, a multiple of `WIDTH`, the last of them 0.
"""

from __future__ import annotations

import numpy as np

from ..kernels.compilation import uncounted
from ..kernels.exponential import SINGLE_RANGE, exponential, exponential_single
from ..kernels.vectors import (
    WIDTH,
    greatest,
    high_half,
    least,
    load,
    load_singles,
    low_half,
    maximum,
    minimum,
    multiply,
    multiply_add,
    spread,
    spread_single,
    store,
    subtract,
    total,
    where_greater,
)


@uncounted
def weigh(source, start, weights, place, size):
    """``exp(source − top)``; gives the maximum ``top`` and the least finite exponent, or (-inf, 0) where none is finite."""
    top, bottom = _extent(source, start, size)
    if top == -np.inf:
        return top, 0.0
    x = 0
    if source.itemsize == 4 and top - bottom < SINGLE_RANGE:
        highest = spread_single(np.float32(top))
        while x + 2 * WIDTH <= size:
            weight = exponential_single(subtract(load_singles(source, start + x), highest))
            store(weights, place + x, low_half(weight))
            store(weights, place + x + WIDTH, high_half(weight))
            x += 2 * WIDTH
    while x < size:
        store(weights, place + x, exponential(subtract(load(source, start + x), spread(top))))
        x += WIDTH
    return top, bottom - top


@uncounted
def _extent(source, start, size):
    """The greatest and the least finite number; (-inf, inf) where none is."""
    nothing, most = spread(-np.inf), spread(np.inf)
    top, bottom, x = nothing, most, 0
    if source.itemsize == 4 and size >= 2 * WIDTH:
        none, all_of_them = spread_single(np.float32(-np.inf)), spread_single(np.float32(np.inf))
        tops, bottoms = none, all_of_them
        while x + 2 * WIDTH <= size:
            values = load_singles(source, start + x)
            tops, bottoms = greatest(values, tops), least(where_greater(values, none, values, all_of_them), bottoms)
            x += 2 * WIDTH
        top, bottom = greatest(low_half(tops), high_half(tops)), least(low_half(bottoms), high_half(bottoms))
    while x < size:
        value = load(source, start + x)
        top, bottom = greatest(value, top), least(where_greater(value, nothing, value, most), bottom)
        x += WIDTH
    return maximum(top), minimum(bottom)


@uncounted
def combine(prefixes, before, weights, place, tags, columns, results, here):
    """``results[here, c] = Σ_p prefixes[before, p] · weights[p, c]``, four vectors at once, of which the last may be the same."""
    last = columns - WIDTH
    for c in range(0, columns, 4 * WIDTH):
        d, e, f = min(c + WIDTH, last), min(c + 2 * WIDTH, last), min(c + 3 * WIDTH, last)
        one = two = three = four = spread(0.0)
        for p in range(tags):
            factor, at = spread(prefixes[before + p]), place + p * columns
            one, two = multiply_add(factor, load(weights, at + c), one), multiply_add(factor, load(weights, at + d), two)
            three, four = multiply_add(factor, load(weights, at + e), three), multiply_add(factor, load(weights, at + f), four)
        store(results, here + c, one)
        store(results, here + d, two)
        store(results, here + e, three)
        store(results, here + f, four)


@uncounted
def scale_down(values, start, columns):
    """Divide a row of a table by its greatest entry, which is returned."""
    top = load(values, start)
    for c in range(WIDTH, columns, WIDTH):
        top = greatest(load(values, start + c), top)
    highest = maximum(top)
    factor = spread(1.0 / highest if highest > 0.0 else 1.0)
    for c in range(0, columns, WIDTH):
        store(values, start + c, multiply(load(values, start + c), factor))
    return highest


@uncounted
def dot(first, start, second, other, columns):
    """The sum over tags of the products of two rows of tables."""
    summed = spread(0.0)
    for c in range(0, columns, WIDTH):
        summed = multiply_add(load(first, start + c), load(second, other + c), summed)
    return total(summed)


@uncounted
def add_up(values, start, tags):
    """The sum over the tags of a line."""
    summed = 0.0
    for c in range(tags):
        summed += values[start + c]
    return summed


@uncounted
def first_above(table, start, size, uniform):
    """The first index whose running sum exceeds this share of the last one: bisection."""
    threshold = uniform * table[start + size - 1]
    low, high = 0, size - 1
    while low < high:
        middle = (low + high) // 2
        if table[start + middle] > threshold:
            high = middle
        else:
            low = middle + 1
    return low
