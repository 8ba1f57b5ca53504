"""Sums of products in tables of `LANES` items side by side, which take most of the time, as many at once as registers hold.

A table is a part of an array: at ``start + h · size + m · LANES + lane`` stands the number of the arc from h to m in one item. Rates are
derivatives along a direction, in a table alike; None where they are not asked for, and the compiler leaves them out. What is added to a
number is added in the same order wherever it stands.
"""

from __future__ import annotations

from ...kernels.compilation import uncounted
from ...kernels.vectors import load_four, multiply_add, store_four

LANES = 4
"""Items side by side: with twice as many, tables of 40 words and their rates would leave the second cache."""

NEAR = 8
"""Columns that are gone through together where there are rates: of 40 words, the first cache holds them."""


@uncounted
def _place(source, h, m):
    """The place of the arc from h to m in another table, as (place of the arc between words 0, of a word's row, of a column, of row 0)."""
    origin, down, right, root = source
    return (root if h == 0 else origin + h * down) + m * right


@uncounted
def lead_over(weights, rates, source, start, size, first, last, words, kept):
    """Bring arcs to the words from ``first`` to ``last`` from a source; let them lead over the words from ``words`` down to ``kept`` + 1.

    The columns of the latter hold the chances of their heads. An arc from one of them leads over those that went before.
    """
    if rates is None:
        m = first
        while m <= last:
            four = m + 3 <= last
            for h in range(words, -1, -2):
                if four:
                    _lead_to_four(weights, source, start, size, h, m, words, kept)
                else:
                    _lead_to_two(weights, source, start, size, h, m, m < last, words, kept)
            m += 4 if four else 2
    else:
        for block in range(first, last + 1, NEAR):
            for h in range(words, -1, -2):
                m = block
                while m < min(block + NEAR, last + 1):
                    _lead_rates_to_two(weights, rates, source, start, size, h, m, m < last, words, kept)
                    m += 2


@uncounted
def _lead_to_four(table, source, start, size, h, m, words, kept):
    """Arcs from h and from h − 1 to four words."""
    x, y, step = _place(source, h, m), _place(source, max(h - 1, 0), m), source[2]
    h_a, h_b, h_c, h_d = load_four(table, x), load_four(table, x + step), load_four(table, x + 2 * step), load_four(table, x + 3 * step)
    g_a, g_b, g_c, g_d = load_four(table, y), load_four(table, y + step), load_four(table, y + 2 * step), load_four(table, y + 3 * step)
    row, beside = start + h * size, start + max(h - 1, 0) * size
    over, of_h, of_g = start + words * size + m * LANES, row + words * LANES, beside + words * LANES
    for _ in range(words - max(h, kept)):
        chance, other = load_four(table, of_h), load_four(table, of_g)
        a, b = load_four(table, over), load_four(table, over + LANES)
        h_a, g_a = multiply_add(chance, a, h_a), multiply_add(other, a, g_a)
        h_b, g_b = multiply_add(chance, b, h_b), multiply_add(other, b, g_b)
        c, d = load_four(table, over + 2 * LANES), load_four(table, over + 3 * LANES)
        h_c, g_c = multiply_add(chance, c, h_c), multiply_add(other, c, g_c)
        h_d, g_d = multiply_add(chance, d, h_d), multiply_add(other, d, g_d)
        over, of_h, of_g = over - size, of_h - LANES, of_g - LANES
    if h > kept:
        other = load_four(table, of_g)
        g_a, g_b = multiply_add(other, h_a, g_a), multiply_add(other, h_b, g_b)
        g_c, g_d = multiply_add(other, h_c, g_c), multiply_add(other, h_d, g_d)
    row, beside = row + m * LANES, beside + m * LANES
    store_four(table, row, h_a)
    store_four(table, row + LANES, h_b)
    store_four(table, row + 2 * LANES, h_c)
    store_four(table, row + 3 * LANES, h_d)
    if h > 0:
        store_four(table, beside, g_a)
        store_four(table, beside + LANES, g_b)
        store_four(table, beside + 2 * LANES, g_c)
        store_four(table, beside + 3 * LANES, g_d)


@uncounted
def _lead_to_two(table, source, start, size, h, m, both, words, kept):
    """Arcs from h and from h − 1 to two words, or to one where it is the last."""
    step, by = (source[2], LANES) if both else (0, 0)
    x, y = _place(source, h, m), _place(source, max(h - 1, 0), m)
    h_a, h_b, g_a, g_b = load_four(table, x), load_four(table, x + step), load_four(table, y), load_four(table, y + step)
    row, beside = start + h * size, start + max(h - 1, 0) * size
    over, of_h, of_g = start + words * size + m * LANES, row + words * LANES, beside + words * LANES
    for _ in range(words - max(h, kept)):
        chance, other, a, b = load_four(table, of_h), load_four(table, of_g), load_four(table, over), load_four(table, over + by)
        h_a, g_a = multiply_add(chance, a, h_a), multiply_add(other, a, g_a)
        h_b, g_b = multiply_add(chance, b, h_b), multiply_add(other, b, g_b)
        over, of_h, of_g = over - size, of_h - LANES, of_g - LANES
    if h > kept:
        other = load_four(table, of_g)
        g_a, g_b = multiply_add(other, h_a, g_a), multiply_add(other, h_b, g_b)
    row, beside = row + m * LANES, beside + m * LANES
    store_four(table, row, h_a)
    store_four(table, row + by, h_b)
    if h > 0:
        store_four(table, beside, g_a)
        store_four(table, beside + by, g_b)


@uncounted
def _add_products(x_a, x_b, y_a, y_b, x, y, a, b):
    """Four sums, to which the products of x and y with a and b are added."""
    return multiply_add(x, a, x_a), multiply_add(x, b, x_b), multiply_add(y, a, y_a), multiply_add(y, b, y_b)


@uncounted
def _lead_rates_to_two(table, slopes, source, start, size, h, m, both, words, kept):
    """Arcs from h and from h − 1 to two words, or to one, as `_lead_to_two`, and their rates."""
    step, by = (source[2], LANES) if both else (0, 0)
    x, y = _place(source, h, m), _place(source, max(h - 1, 0), m)
    h_a, h_b, g_a, g_b = load_four(table, x), load_four(table, x + step), load_four(table, y), load_four(table, y + step)
    x_a, x_b, y_a, y_b = load_four(slopes, x), load_four(slopes, x + step), load_four(slopes, y), load_four(slopes, y + step)
    row, beside = start + h * size, start + max(h - 1, 0) * size
    over, of_h, of_g = start + words * size + m * LANES, row + words * LANES, beside + words * LANES
    count = words - max(h, kept)
    for _ in range(count // 2):
        chance, other = load_four(table, of_h), load_four(table, of_g)
        a, b = load_four(slopes, over), load_four(slopes, over + by)
        x_a, x_b, y_a, y_b = _add_products(x_a, x_b, y_a, y_b, chance, other, a, b)
        a, b = load_four(table, over), load_four(table, over + by)
        h_a, h_b, g_a, g_b = _add_products(h_a, h_b, g_a, g_b, chance, other, a, b)
        chance, other = load_four(table, of_h - LANES), load_four(table, of_g - LANES)
        c, d = load_four(slopes, over - size), load_four(slopes, over - size + by)
        x_a, x_b, y_a, y_b = _add_products(x_a, x_b, y_a, y_b, chance, other, c, d)
        rate, slope = load_four(slopes, of_h), load_four(slopes, of_g)
        x_a, x_b, y_a, y_b = _add_products(x_a, x_b, y_a, y_b, rate, slope, a, b)
        a, b = load_four(table, over - size), load_four(table, over - size + by)
        h_a, h_b, g_a, g_b = _add_products(h_a, h_b, g_a, g_b, chance, other, a, b)
        rate, slope = load_four(slopes, of_h - LANES), load_four(slopes, of_g - LANES)
        x_a, x_b, y_a, y_b = _add_products(x_a, x_b, y_a, y_b, rate, slope, a, b)
        over, of_h, of_g = over - 2 * size, of_h - 2 * LANES, of_g - 2 * LANES
    if h > kept:
        other, slope = load_four(table, of_g), load_four(slopes, of_g)
        y_a, y_b = multiply_add(slope, h_a, multiply_add(other, x_a, y_a)), multiply_add(slope, h_b, multiply_add(other, x_b, y_b))
        g_a, g_b = multiply_add(other, h_a, g_a), multiply_add(other, h_b, g_b)
    elif count % 2 == 1:
        chance, rate, other, slope = load_four(table, of_h), load_four(slopes, of_h), load_four(table, of_g), load_four(slopes, of_g)
        a, b, c, d = load_four(table, over), load_four(table, over + by), load_four(slopes, over), load_four(slopes, over + by)
        x_a, x_b = multiply_add(rate, a, multiply_add(chance, c, x_a)), multiply_add(rate, b, multiply_add(chance, d, x_b))
        y_a, y_b = multiply_add(slope, a, multiply_add(other, c, y_a)), multiply_add(slope, b, multiply_add(other, d, y_b))
        h_a, h_b, g_a, g_b = _add_products(h_a, h_b, g_a, g_b, chance, other, a, b)
    row, beside = row + m * LANES, beside + m * LANES
    store_four(table, row, h_a)
    store_four(table, row + by, h_b)
    store_four(slopes, row, x_a)
    store_four(slopes, row + by, x_b)
    if h > 0:
        store_four(table, beside, g_a)
        store_four(table, beside + by, g_b)
        store_four(slopes, beside, y_a)
        store_four(slopes, beside + by, y_b)


@uncounted
def substitute(weights, rates, chances, chance_rates, target, start, size, kept, words):
    """Chances of escape from the words after ``kept`` up to ``words``, before the words 1..``kept``, from those of their heads.

    Their place is that of a target, which begins before word 1 as weights do.
    """
    if rates is None:
        t = 1
        while t <= kept:
            four = t + 3 <= kept
            for k in range(kept + 1, words + 1, 2):
                if four:
                    _substitute_four(weights, chances, target, start, size, k, k < words, t)
                else:
                    _substitute_two(weights, chances, target, start, size, k, k < words, t, t < kept)
            t += 4 if four else 2
    else:
        for block in range(1, kept + 1, NEAR):
            for k in range(kept + 1, words + 1, 2):
                t = block
                while t < min(block + NEAR, kept + 1):
                    _substitute_rates(weights, rates, chances, chance_rates, target, start, size, k, k < words, t, t < kept)
                    t += 2


@uncounted
def _substitute_four(table, found, target, start, size, k, both, t):
    """From word k, and from the next one where it is not the last, before four words."""
    corner, down, step = target
    at, by, of = start + k * LANES, LANES if both else 0, corner + down + t * step
    k_a = k_b = k_c = k_d = load_four(table, at)
    j_a = j_b = j_c = j_d = load_four(table, at + by)
    for _ in range(1, k):
        at += size
        head, other = load_four(table, at), load_four(table, at + by)
        a, b = load_four(found, of), load_four(found, of + step)
        k_a, j_a = multiply_add(head, a, k_a), multiply_add(other, a, j_a)
        k_b, j_b = multiply_add(head, b, k_b), multiply_add(other, b, j_b)
        c, d = load_four(found, of + 2 * step), load_four(found, of + 3 * step)
        k_c, j_c = multiply_add(head, c, k_c), multiply_add(other, c, j_c)
        k_d, j_d = multiply_add(head, d, k_d), multiply_add(other, d, j_d)
        of += down
    store_four(found, of, k_a)
    store_four(found, of + step, k_b)
    store_four(found, of + 2 * step, k_c)
    store_four(found, of + 3 * step, k_d)
    if both:
        head, of = load_four(table, at + size + by), of + down
        store_four(found, of, multiply_add(head, k_a, j_a))
        store_four(found, of + step, multiply_add(head, k_b, j_b))
        store_four(found, of + 2 * step, multiply_add(head, k_c, j_c))
        store_four(found, of + 3 * step, multiply_add(head, k_d, j_d))


@uncounted
def _substitute_two(table, found, target, start, size, k, both, t, both_before):
    """From word k, and from the next one where it is not the last, before two words, or before one."""
    corner, down, right = target
    at, by, of, step = start + k * LANES, LANES if both else 0, corner + down + t * right, right if both_before else 0
    k_a = k_b = load_four(table, at)
    j_a = j_b = load_four(table, at + by)
    for _ in range(1, k):
        at += size
        head, other, a, b = load_four(table, at), load_four(table, at + by), load_four(found, of), load_four(found, of + step)
        k_a, j_a = multiply_add(head, a, k_a), multiply_add(other, a, j_a)
        k_b, j_b = multiply_add(head, b, k_b), multiply_add(other, b, j_b)
        of += down
    store_four(found, of, k_a)
    store_four(found, of + step, k_b)
    if both:
        head, of = load_four(table, at + size + by), of + down
        store_four(found, of, multiply_add(head, k_a, j_a))
        store_four(found, of + step, multiply_add(head, k_b, j_b))


@uncounted
def _substitute_rates(table, slopes, found, found_rates, target, start, size, k, both, t, both_before):
    """From word k, and from the next one, before two words, or before one, as `_substitute_two`, and their rates."""
    corner, down, right = target
    at, by, of, step = start + k * LANES, LANES if both else 0, corner + down + t * right, right if both_before else 0
    k_a = k_b = load_four(table, at)
    j_a = j_b = load_four(table, at + by)
    x_a = x_b = load_four(slopes, at)
    y_a = y_b = load_four(slopes, at + by)
    for _ in range(1, k):
        at += size
        head, other = load_four(table, at), load_four(table, at + by)
        a, b = load_four(found_rates, of), load_four(found_rates, of + step)
        x_a, x_b, y_a, y_b = _add_products(x_a, x_b, y_a, y_b, head, other, a, b)
        a, b = load_four(found, of), load_four(found, of + step)
        k_a, k_b, j_a, j_b = _add_products(k_a, k_b, j_a, j_b, head, other, a, b)
        head, other = load_four(slopes, at), load_four(slopes, at + by)
        x_a, x_b, y_a, y_b = _add_products(x_a, x_b, y_a, y_b, head, other, a, b)
        of += down
    store_four(found, of, k_a)
    store_four(found, of + step, k_b)
    store_four(found_rates, of, x_a)
    store_four(found_rates, of + step, x_b)
    if both:
        at, of = at + size + by, of + down
        head, rate = load_four(table, at), load_four(slopes, at)
        store_four(found, of, multiply_add(head, k_a, j_a))
        store_four(found, of + step, multiply_add(head, k_b, j_b))
        store_four(found_rates, of, multiply_add(rate, k_a, multiply_add(head, x_a, y_a)))
        store_four(found_rates, of + step, multiply_add(rate, k_b, multiply_add(head, x_b, y_b)))
