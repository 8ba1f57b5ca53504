"""Sums over permutations of products of weights, by dynamic programmes over sets of columns, for the CPU.

``prefix[S]`` is the total weight of all ways to match the first |S| rows to the columns of S, a number whose bits are columns:
``prefix[S] = Σ_{j ∈ S} prefix[S − j] · w[|S| − 1, j]`` (Held–Karp style; no subtraction, unlike Ryser's formula). Suffixes are the prefixes
of the rows in reverse. Sets are handled in blocks of 16 that share all columns but the first four, so that the inner loop runs over
neighbouring cells; matrices with fewer than four rows are extended by the identity, which changes no sum.
"""

from __future__ import annotations

import numpy as np

from ..kernels.compilation import inner, uncounted

LOW = 4
LANES = 16


@inner
def count_bits(n):
    """How many bits the numbers below 2ⁿ⁻⁴ have, n at least 4."""
    counts = np.zeros(1 << (n - LOW), np.int64)
    for s in range(1, counts.shape[0]):
        counts[s] = counts[s >> 1] + (s & 1)
    return counts


@inner
def coefficients(n):
    """Room for `spread`: by column above the fourth, count of such columns and lane; by count and low edge."""
    return np.zeros((n - LOW, n - LOW + 1, LANES)), np.zeros((n - LOW + 1, LOW, LOW))


@uncounted
def spread(weights, high, low, counts):
    """Lay weights [n, n] out by block: ``high[j, q, lane] = w[q + |lane|, j + 4]``, ``low[q, c, t] = w[q + c, t]``."""
    n = weights.shape[0]
    for j in range(n - LOW):
        for q in range(n - LOW):
            for lane in range(LANES):
                c = (lane & 1) + (lane >> 1 & 1) + (lane >> 2 & 1) + (lane >> 3)
                high[j, q, lane] = weights[q + c, j + LOW]
    for q in range(n - LOW + 1):
        for c in range(LOW):
            for t in range(LOW):
                low[q, c, t] = weights[q + c, t]


@uncounted
def start(table):
    """The empty set has weight 1."""
    for s in range(1, table.shape[0]):
        table[s] = 0.0
    table[0] = 1.0


@inner
def propagate(table, high, low, counts):
    """Set by set, ``table[S] += Σ_{j ∈ S} table[S − j] · w[|S| − 1, j]``."""
    flat, edge, width = high.ravel(), low.ravel(), high.shape[1]
    for s in range(counts.shape[0]):
        here, q, rest = s * LANES, counts[s], s
        while rest:
            bit = rest & -rest
            rest ^= bit
            there, at = here - bit * LANES, (counts[bit - 1] * width + q - 1) * LANES
            for lane in range(LANES):
                table[here + lane] += table[there + lane] * flat[at + lane]
        _propagate_low(table, here, edge, q * LANES)


@uncounted
def _propagate_low(f, s, w, q):
    """The same within a block, whose sets differ in the first four columns."""
    f1, f2, f4, f8 = f[s + 1] + f[s] * w[q], f[s + 2] + f[s] * w[q + 1], f[s + 4] + f[s] * w[q + 2], f[s + 8] + f[s] * w[q + 3]
    f3, f5 = f[s + 3] + f2 * w[q + 4] + f1 * w[q + 5], f[s + 5] + f4 * w[q + 4] + f1 * w[q + 6]
    f6, f9 = f[s + 6] + f4 * w[q + 5] + f2 * w[q + 6], f[s + 9] + f8 * w[q + 4] + f1 * w[q + 7]
    f10, f12 = f[s + 10] + f8 * w[q + 5] + f2 * w[q + 7], f[s + 12] + f8 * w[q + 6] + f4 * w[q + 7]
    f7 = f[s + 7] + f6 * w[q + 8] + f5 * w[q + 9] + f3 * w[q + 10]
    f11 = f[s + 11] + f10 * w[q + 8] + f9 * w[q + 9] + f3 * w[q + 11]
    f13 = f[s + 13] + f12 * w[q + 8] + f9 * w[q + 10] + f5 * w[q + 11]
    f14 = f[s + 14] + f12 * w[q + 9] + f10 * w[q + 10] + f6 * w[q + 11]
    f15 = f[s + 15] + f14 * w[q + 12] + f13 * w[q + 13] + f11 * w[q + 14] + f7 * w[q + 15]
    f[s + 1], f[s + 2], f[s + 3], f[s + 4], f[s + 5] = f1, f2, f3, f4, f5
    f[s + 6], f[s + 7], f[s + 8], f[s + 9], f[s + 10] = f6, f7, f8, f9, f10
    f[s + 11], f[s + 12], f[s + 13], f[s + 14], f[s + 15] = f11, f12, f13, f14, f15


@inner
def gather(table, high, low, counts, result):
    """``result[S] = Σ_{j ∈ S} table[S − j] · w[|S| − 1, j]`` from a whole table."""
    flat, width = high.ravel(), high.shape[1]
    for s in range(counts.shape[0]):
        here, q, rest = s * LANES, counts[s], s
        for lane in range(LANES):
            result[here + lane] = 0.0
        while rest:
            bit = rest & -rest
            rest ^= bit
            there, at = here - bit * LANES, (counts[bit - 1] * width + q - 1) * LANES
            for lane in range(LANES):
                result[here + lane] += table[there + lane] * flat[at + lane]
        for lane in range(1, LANES):
            c = (lane & 1) + (lane >> 1 & 1) + (lane >> 2 & 1) + (lane >> 3) - 1
            for t in range(LOW):
                if lane >> t & 1:
                    result[here + lane] += table[here + lane - (1 << t)] * low[q, c, t]


@inner
def pair(prefix, suffix, counts, high, low):
    """Add ``Σ_{S, j ∉ S} prefix[S] · suffix[S + j]`` to ``high`` and ``low``, apart for every place that `spread` gave the weight of j.

    ``suffix[S]`` is the weight of matching the rows from |S| on to the columns outside S.
    """
    flat, width, most = high.ravel(), high.shape[1], counts.shape[0] - 1
    for s in range(counts.shape[0]):
        here, q, rest = s * LANES, counts[s], most ^ s
        while rest:
            bit = rest & -rest
            rest ^= bit
            there, at = here + bit * LANES, (counts[bit - 1] * width + q) * LANES
            for lane in range(LANES):
                flat[at + lane] += prefix[here + lane] * suffix[there + lane]
        _pair_low(prefix, suffix, here, low.ravel(), q * LANES)


@uncounted
def _pair_low(f, g, s, a, q):
    """The same within a block."""
    a[q] += f[s] * g[s + 1]
    a[q + 1] += f[s] * g[s + 2]
    a[q + 2] += f[s] * g[s + 4]
    a[q + 3] += f[s] * g[s + 8]
    a[q + 4] += f[s + 2] * g[s + 3] + f[s + 4] * g[s + 5] + f[s + 8] * g[s + 9]
    a[q + 5] += f[s + 1] * g[s + 3] + f[s + 4] * g[s + 6] + f[s + 8] * g[s + 10]
    a[q + 6] += f[s + 1] * g[s + 5] + f[s + 2] * g[s + 6] + f[s + 8] * g[s + 12]
    a[q + 7] += f[s + 1] * g[s + 9] + f[s + 2] * g[s + 10] + f[s + 4] * g[s + 12]
    a[q + 8] += f[s + 6] * g[s + 7] + f[s + 10] * g[s + 11] + f[s + 12] * g[s + 13]
    a[q + 9] += f[s + 5] * g[s + 7] + f[s + 9] * g[s + 11] + f[s + 12] * g[s + 14]
    a[q + 10] += f[s + 3] * g[s + 7] + f[s + 9] * g[s + 13] + f[s + 10] * g[s + 14]
    a[q + 11] += f[s + 3] * g[s + 11] + f[s + 5] * g[s + 13] + f[s + 6] * g[s + 14]
    a[q + 12] += f[s + 14] * g[s + 15]
    a[q + 13] += f[s + 13] * g[s + 15]
    a[q + 14] += f[s + 11] * g[s + 15]
    a[q + 15] += f[s + 7] * g[s + 15]


@uncounted
def collect(high, low, totals):
    """Sum what `pair` found over the places of each weight [n, n], and make room for the next."""
    n = totals.shape[0]
    for i in range(n):
        for j in range(n):
            totals[i, j] = 0.0
    for j in range(n - LOW):
        for q in range(n - LOW):
            for lane in range(LANES):
                c = (lane & 1) + (lane >> 1 & 1) + (lane >> 2 & 1) + (lane >> 3)
                totals[q + c, j + LOW] += high[j, q, lane]
                high[j, q, lane] = 0.0
    for q in range(n - LOW + 1):
        for c in range(LOW):
            for t in range(LOW):
                totals[q + c, t] += low[q, c, t]
                low[q, c, t] = 0.0


@uncounted
def reverse(table):
    """From prefixes of the reversed rows to suffixes: the set of columns becomes its complement."""
    last = table.shape[0] - 1
    for s in range(table.shape[0] // 2):
        table[s], table[last - s] = table[last - s], table[s]
