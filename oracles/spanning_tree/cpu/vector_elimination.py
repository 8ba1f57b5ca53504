"""Elimination of words for `WIDTH` items side by side, where every step is alike in all of them; the rest is for `elimination`.

A table ``[n + 1, (n + 1) · WIDTH]`` holds at row h, place ``m · WIDTH + lane`` the number of the arc from h to m in one item. Words go in
pairs, so that what is left is read and written once for two of them. Rates are derivatives along a direction; None where they are not asked
for, and the compiler leaves them out.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...kernels.compilation import inner, uncounted
from ...kernels.exponential import exponentials
from ...kernels.vectors import WIDTH, add, divide, greatest, least, load, multiply, multiply_add, spread, store, subtract, where_greater
from .elimination import DEEPEST

Array = NDArray[Any]

SAFEST = 600.0
"""Where the exponents of n weights add up to no more, with log n for each, no weight that a path of arcs has is lost."""

SMALLEST, LARGEST = 1e-150, 1e150
"""What all sums of heads must lie between: two of them can then be multiplied, and what was lost below 1e-308 is nothing next to them."""


class ItemVectors(NamedTuple):
    """Working memory for `WIDTH` items."""

    exponents: Array  # [n + 1, (n + 1) · WIDTH]
    weights: Array  # [n + 1, (n + 1) · WIDTH]
    shift: Array  # [(n + 1) · WIDTH], the greatest exponent of each word's heads
    sums: Array  # [(n + 1) · WIDTH], what the heads of each word weighed together when it was taken out
    extent: Array  # [2 · WIDTH], the least and the greatest of all sums
    total: Array  # [WIDTH], the logarithm of what every tree's weight was divided by
    in_range: Array  # bool [WIDTH], whether no weight can be lost


@inner
def items(size, weights):
    """Room for items of event [size, size], and their weights [size, size · WIDTH]."""
    place = size * WIDTH
    return ItemVectors(
        np.empty((size, place)), weights, np.empty(place), np.empty(place), np.empty(2 * WIDTH), np.empty(WIDTH), np.empty(WIDTH, np.bool_)
    )  # fmt: skip


@inner
def weigh(rows, first, single_root, space):
    """Fill the weights with the items from ``first`` on, the last one again where there are fewer.

    Each word's heads are shifted by their maximum; with a single root that of the words, and then the root's arcs by theirs.
    """
    size, last = rows.shape[1], rows.shape[0] - 1
    space.shift[:] = -np.inf
    for h in range(size):
        _load_row(rows, first, last, h, space.exponents[h])
        if h > 0 or not single_root:
            _raise(space.shift, space.exponents[h])
    for x in range(len(space.shift)):
        space.shift[x] = space.shift[x] if space.shift[x] > -np.inf else 0.0
    for lane in range(WIDTH):
        space.total[lane] = 0.0
        for m in range(1, size):
            space.total[lane] += space.shift[m * WIDTH + lane]
    if single_root:
        _lower_root(space.exponents[0], space.shift, space.total)
    store(space.extent, 0, spread(0.0))
    store(space.extent, WIDTH, spread(0.0))
    for h in range(size):
        _subtract(space.exponents[h], space.shift, space.extent)
        exponentials(space.exponents[h], 0.0, space.weights[h])
    for lane in range(WIDTH):
        lowest, dense = space.extent[lane], space.extent[WIDTH + lane] == 2 * size - 1
        space.in_range[lane] = lowest > DEEPEST if dense else size * (math.log(size) - lowest) < SAFEST
    store(space.extent, 0, spread(np.inf))
    store(space.extent, WIDTH, spread(0.0))


@uncounted
def _load_row(rows, first, last, h, exponents):
    """Copy the scores of the arcs from h; what is none has -inf."""
    size = rows.shape[1]
    if first + WIDTH - 1 <= last:
        for m in range(1, size):
            for lane in range(WIDTH):
                exponents[m * WIDTH + lane] = rows[first + lane, h, m]
    else:
        for m in range(1, size):
            for lane in range(WIDTH):
                exponents[m * WIDTH + lane] = rows[min(first + lane, last), h, m]
    for lane in range(WIDTH):
        exponents[h * WIDTH + lane] = exponents[lane] = -np.inf


@uncounted
def _raise(shift, exponents):
    """Raise the shift of each word to an exponent that is greater."""
    for x in range(0, len(shift), WIDTH):
        store(shift, x, greatest(load(exponents, x), load(shift, x)))


@uncounted
def _lower_root(exponents, shift, total):
    """Subtract the greatest shifted exponent of the root's arcs."""
    for lane in range(WIDTH):
        top = -np.inf
        for x in range(WIDTH + lane, len(shift), WIDTH):
            top = max(top, exponents[x] - shift[x])
        if top > -np.inf:
            total[lane] += top
            for x in range(WIDTH + lane, len(shift), WIDTH):
                exponents[x] -= top


@uncounted
def _subtract(exponents, shift, extent):
    """Subtract the shift; ``extent`` takes in the least finite exponent of each item, and counts those that are not."""
    zero, one, nothing = spread(0.0), spread(1.0), spread(-np.inf)
    lowest, forbidden = load(extent, 0), load(extent, WIDTH)
    for x in range(0, len(shift), WIDTH):
        exponent = subtract(load(exponents, x), load(shift, x))
        store(exponents, x, exponent)
        forbidden = add(forbidden, where_greater(exponent, nothing, zero, one))
        lowest = least(where_greater(exponent, nothing, exponent, zero), lowest)
    store(extent, 0, lowest)
    store(extent, WIDTH, forbidden)


@uncounted
def _to_chances(weights, rates, k, rooted):
    """Divide the weights of the heads of word k by their sum, which is returned; the root's counts in it where ``rooted``."""
    at = k * WIDTH
    total = load(weights[0], at) if rooted else spread(0.0)
    for h in range(1, k):
        total = add(total, load(weights[h], at))
    scale = divide(spread(1.0), total)
    for h in range(k):
        store(weights[h], at, multiply(load(weights[h], at), scale))
    if rates is not None:
        slope = load(rates[0], at) if rooted else spread(0.0)
        for h in range(1, k):
            slope = add(slope, load(rates[h], at))
        for h in range(k):
            rate = subtract(load(rates[h], at), multiply(load(weights[h], at), slope))
            store(rates[h], at, multiply(rate, scale))
    return total


@uncounted
def _lead_over(weights, rates, h, k, first, last):
    """Let the arcs from h to the words from ``first`` up to ``last`` lead over word k too."""
    row, over, chance = weights[h], weights[k], load(weights[h], k * WIDTH)
    if rates is None:
        for m in range(first, last):
            at = m * WIDTH
            store(row, at, multiply_add(chance, load(over, at), load(row, at)))
    else:
        rate_row, rate_over, rate = rates[h], rates[k], load(rates[h], k * WIDTH)
        for m in range(first, last):
            at = m * WIDTH
            slope = multiply_add(chance, load(rate_over, at), load(rate_row, at))
            store(rate_row, at, multiply_add(rate, load(over, at), slope))
            store(row, at, multiply_add(chance, load(over, at), load(row, at)))


@uncounted
def _lead_over_two(weights, rates, h, k, j):
    """Let the arcs from h to the words below j lead over word k and over word j too."""
    row, over, beyond = weights[h], weights[k], weights[j]
    chance, other = load(row, k * WIDTH), load(row, j * WIDTH)
    if rates is None:
        for m in range(1, j):
            at = m * WIDTH
            store(row, at, multiply_add(other, load(beyond, at), multiply_add(chance, load(over, at), load(row, at))))
    else:
        rate_row, rate_over, rate_beyond = rates[h], rates[k], rates[j]
        rate, other_rate = load(rate_row, k * WIDTH), load(rate_row, j * WIDTH)
        for m in range(1, j):
            at = m * WIDTH
            a, b = load(over, at), load(beyond, at)
            store(row, at, multiply_add(other, b, multiply_add(chance, a, load(row, at))))
            slope = multiply_add(other, load(rate_beyond, at), multiply_add(chance, load(rate_over, at), load(rate_row, at)))
            store(rate_row, at, multiply_add(other_rate, b, multiply_add(rate, a, slope)))


@uncounted
def take_out(weights, rates, words, kept, rooted, sums):
    """Eliminate the words from ``words`` down to ``kept`` + 1; their columns then hold the chances of their heads.

    ``sums`` [(n + 1) · WIDTH] gets what the heads of each weighed together, those that are words and, where ``rooted``, the root.
    """
    k = words
    while k - 1 > kept:
        j = k - 1
        store(sums, k * WIDTH, _to_chances(weights, rates, k, rooted))
        for h in range(j):
            _lead_over(weights, rates, h, k, j, k)
        _lead_over(weights, rates, j, k, 1, j)
        store(sums, j * WIDTH, _to_chances(weights, rates, j, rooted))
        for h in range(j):
            _lead_over_two(weights, rates, h, k, j)
        k -= 2
    if k > kept:
        store(sums, k * WIDTH, _to_chances(weights, rates, k, rooted))
        for h in range(k):
            _lead_over(weights, rates, h, k, 1, k)


@uncounted
def bounds(sums, first, last, extent):
    """Take the sums of the words from ``first`` to ``last`` into the least and the greatest of all."""
    low, high = load(extent, 0), load(extent, WIDTH)
    for k in range(first, last + 1):
        low, high = least(load(sums, k * WIDTH), low), greatest(load(sums, k * WIDTH), high)
    store(extent, 0, low)
    store(extent, WIDTH, high)


@uncounted
def conclude(space, first, log_partition, certified):
    """Write the log-partition of the items from ``first`` on, and whether it is certain, from the sums and their extent."""
    for lane in range(min(WIDTH, len(log_partition) - first)):
        certified[first + lane] = space.in_range[lane] and space.extent[lane] > SMALLEST and space.extent[WIDTH + lane] < LARGEST
        value, product = space.total[lane], 1.0
        for k in range(1, len(space.weights)):
            product *= space.sums[k * WIDTH + lane]
            if not SMALLEST < product < LARGEST:
                value += math.log(product)
                product = 1.0
        log_partition[first + lane] = value + math.log(product)
