"""Eisner's recursion inside and outside, for several items at once.

Layout: a table ``[n + 1, (n + 1) · lanes]`` holds at row w, place ``i · lanes + lane`` the item of width w that begins at position i. The
work at one width and split is then one long loop without dependences, over all positions and all items together, which the compiler turns
into vector instructions; a lane computes the same whatever lies beside it.

The items are those of `ProjectiveTree.derivations`: what a position heads up to the right and to the left (complete items), what an arc
spans before its weight comes in (the sum over seams), and that with its weight, as a right and as a left arc.
"""

from __future__ import annotations

import numpy as np

from ..kernels.compilation import fused, uncounted

RIGHT, LEFT, RIGHT_ARC, LEFT_ARC, SEAM = 0, 1, 2, 3, 4


@fused
def add_products(out, first, second, high, total, shift):
    """``out[x] += Σ_k first[k, x] · second[total − k, x further on]`` for k from 1 to ``high``.

    ``shift`` is the number of lanes: second is read k positions further on, one more where it is negative.
    """
    size, lanes, further = len(out), abs(shift), 1 if shift < 0 else 0
    k = 1
    while k + 3 <= high:
        at = (k + further) * lanes
        a, b, c, d = first[k, :size], first[k + 1, :size], first[k + 2, :size], first[k + 3, :size]
        e, f = second[total - k, at : at + size], second[total - k - 1, at + lanes : at + lanes + size]
        at += 2 * lanes
        g, h = second[total - k - 2, at : at + size], second[total - k - 3, at + lanes : at + lanes + size]
        for x in range(size):
            out[x] = (out[x] + a[x] * e[x] + b[x] * f[x]) + (c[x] * g[x] + d[x] * h[x])
        k += 4
    while k <= high:
        at = (k + further) * lanes
        a, e = first[k, :size], second[total - k, at : at + size]
        for x in range(size):
            out[x] += a[x] * e[x]
        k += 1


@fused
def spread(outer, first, second, outer_first, outer_second, high, total, shift):
    """The derivative of `add_products`: what it took from the two factors, given to them in turn."""
    size, lanes, further = len(outer), abs(shift), 1 if shift < 0 else 0
    for k in range(1, high + 1):
        at = (k + further) * lanes
        a, e = first[k, :size], second[total - k, at : at + size]
        da, de = outer_first[k, :size], outer_second[total - k, at : at + size]
        for x in range(size):
            da[x] += outer[x] * e[x]
            de[x] += outer[x] * a[x]


@fused
def inside(weights, tables, extremes, lanes, single_root, floor):
    """Fill the tables [5, n + 1, ...] from arc weights [2, n + 1, ...], rightward and leftward.

    ``extremes`` [2, (n + 1) · lanes] gets the least and the greatest of the items that begin at a position. What lies below ``floor`` is
    raised to it, and weights that were lost to what they may have been, so that the result bounds the exact one from above.
    """
    size = weights.shape[1]
    right, left, right_arc, left_arc = tables[0], tables[1], tables[2], tables[3]
    least, most = extremes[0], extremes[1]
    lost = 1e-300 if floor > 0 else 0.0
    for x in range(size * lanes):
        right[0, x], left[0, x], least[x], most[x] = 1.0, 1.0, np.inf, 0.0
    for w in range(1, size):
        count = (size - w) * lanes
        there, here, onward, back = right_arc[w, :count], left_arc[w, :count], right[w, :count], left[w, :count]
        # The narrowest items have weight 1; they need no product.
        lower, upper, both = right[w - 1, :count], left[w - 1, lanes : lanes + count], 1.0 if w > 1 else 0.0
        spanned = tables[4, w, :count]
        for x in range(count):
            spanned[x] = upper[x] + both * lower[x]
        add_products(spanned, right, left, w - 2, w - 1, -lanes)
        rightward, leftward = weights[0, w, :count], weights[1, w, :count]
        for x in range(count):
            seam = max(floor, spanned[x])
            over = seam * (max(lost, rightward[x]))
            under = seam * (max(lost, leftward[x]))
            over = max(floor, over)
            under = max(floor, under)
            smaller = min(under, over)
            smaller = min(seam, smaller)
            least[x] = min(least[x], smaller)
            most[x] = max(most[x], seam)
            there[x], here[x] = over, under
            onward[x], back[x] = over, under
        add_products(onward, right_arc, right, w - 1, w, lanes)
        add_products(back, left, left_arc, w - 1, w, lanes)
        for lane in range(lanes if single_root and w < size - 1 else 0):
            onward[lane] = 0.0
        for x in range(count):
            larger = max(back[x], onward[x])
            most[x] = max(most[x], larger)


@fused
def outside(weights, tables, outer, lanes, single_root):
    """Derivatives of the logarithm of the whole with respect to the tables: ``outer`` [5, n + 1, ...]."""
    size = weights.shape[1]
    right, left, right_arc, left_arc = tables[0], tables[1], tables[2], tables[3]
    o_right, o_left, o_right_arc, o_left_arc = outer[0], outer[1], outer[2], outer[3]
    _clear(outer, lanes)
    for lane in range(lanes):
        whole = right[size - 1, lane]
        o_right[size - 1, lane] = 1.0 / whole if whole > 0 else 0.0
    for w in range(size - 1, 0, -1):
        count = (size - w) * lanes
        onward, back, seam = o_right[w, :count], o_left[w, :count], outer[4, w, :count]
        for lane in range(lanes if single_root and w < size - 1 else 0):
            onward[lane] = 0.0
        there, here = o_right_arc[w, :count], o_left_arc[w, :count]
        spread(onward, right_arc, right, o_right_arc, o_right, w - 1, w, lanes)
        spread(back, left, left_arc, o_left, o_left_arc, w - 1, w, lanes)
        rightward, leftward = weights[0, w, :count], weights[1, w, :count]
        lower, upper = o_right[w - 1, :count], o_left[w - 1, lanes : lanes + count]
        for x in range(count):
            there[x] += onward[x]
            here[x] += back[x]
            seam[x] = there[x] * rightward[x] + here[x] * leftward[x]
            lower[x] += seam[x]
            upper[x] += seam[x]
        spread(seam, right, left, o_right, o_left, w - 2, w - 1, -lanes)


@uncounted
def _clear(outer, lanes):
    size = outer.shape[1]
    for kind in range(5):
        for w in range(size):
            for x in range((size - w) * lanes):
                outer[kind, w, x] = 0.0
