"""Elimination of words from a matrix of weights, without subtractions, one word after the other.

The mathematics is that of `structgrad.oracles.spanning_tree.elimination`, on weights instead of logarithms: ``weights[h, m]`` is that of
the arc from h to m, divided by the greatest one into m. Weights of 0 are forbidden arcs, and no others: a step that loses a positive number
to the range of float64 says so.

Here are the steps; `marginals` puts them together for the marginals. Words are taken out from the last to the first, so that the words that
remain beside word k are 1..k − 1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels.compilation import inner, ordered, reordered, uncounted
from ...kernels.exponential import exponentials

Array = NDArray[Any]

DEEPEST = -660.0
"""The least exponent of a weight."""

LOST = -1.0
"""Stands for the sum of a word's heads where the range of float64 did not suffice."""

SMALLEST, LARGEST = 1e-285, 1e285
"""What a reachable weight must lie between: what is lost below 1e-308 is then less than 1e-18 of it, at any n below 10⁵."""

CERTAIN, INFEASIBLE, UNCERTAIN = 0, 1, 2
"""What is known of an item: a result; that it has no tree; nothing, because the range of float64 may not suffice."""


@inner
def weigh(row: Array, single_root: bool, exponents: Array, shift: Array, weights: Array) -> tuple[float, bool, bool]:
    """Fill ``weights`` [n + 1, n + 1].

    Gives the logarithm of what every tree's weight was divided by, whether all weights are in range, and whether no arc is forbidden.

    Each word's heads are shifted by their maximum; with a single root that of the words, and then the root's arcs by theirs.
    """
    _load(row, exponents)
    size, total = row.shape[0], 0.0
    shift[:] = -np.inf
    for h in range(1 if single_root else 0, size):
        for m in range(size):
            shift[m] = max(exponents[h, m], shift[m])
    for m in range(size):
        shift[m] = shift[m] if shift[m] > -np.inf else 0.0
        total += shift[m]
    for h in range(size):
        for m in range(size):
            exponents[h, m] -= shift[m]
    if single_root:
        top = -np.inf
        for m in range(size):
            top = max(exponents[0, m], top)
        if top > -np.inf:
            for m in range(size):
                exponents[0, m] -= top
            total += top
    exponentials(exponents.reshape(-1), 0.0, weights.reshape(-1))
    in_range, forbidden = _extent(exponents.reshape(-1))
    return total, in_range, forbidden == 2 * size - 1


@uncounted
def _load(row: Array, exponents: Array) -> None:
    """Copy the scores of arcs; what is none has -inf."""
    for h in range(row.shape[0]):
        for m in range(1, row.shape[0]):
            exponents[h, m] = row[h, m]
        exponents[h, h] = -np.inf
        exponents[h, 0] = -np.inf


@ordered
def _extent(exponents: Array) -> tuple[bool, int]:
    """Whether every finite exponent is that of a weight which counts, and how many are not finite."""
    least, forbidden = 0.0, 0
    for i in range(exponents.size):
        finite = exponents[i] > -np.inf
        forbidden += 0 if finite else 1
        least = min(least, exponents[i] if finite else 0.0)
    return least > DEEPEST, forbidden


@reordered
def take_out(weights: Array, k: int, with_root: bool, dense: bool) -> float:
    """Eliminate word k; its column then holds the chances of its heads.

    Gives the sum of the weights of its heads, that of the root among them or not; 0 where it has none, and nothing is done then; `LOST`
    where a positive number was lost. That cannot be where no arc is forbidden (``dense``), because weights only grow.
    """
    total = weights[0, k] if with_root else 0.0
    for h in range(1, k):
        total += weights[h, k]
    if total == 0.0:
        return total
    scale = 1.0 / total
    for h in range(k):
        chance = weights[h, k] * scale
        weights[h, k] = chance
        if chance > 0.0:
            for m in range(1, k):
                weights[h, m] += chance * weights[k, m]
    return total if total > SMALLEST and (dense or _kept(weights, k)) else LOST


@uncounted
def _kept(weights: Array, k: int) -> bool:
    """Whether every arc that leads over word k has a weight that counts, its own or another's."""
    least_child, least_head = np.inf, np.inf
    for m in range(1, k):
        least_child = min(least_child, weights[k, m] if weights[k, m] > 0.0 else np.inf)
    for h in range(k):
        least_head = min(least_head, weights[h, k] if weights[h, k] > 0.0 else np.inf)
    if least_child * least_head > SMALLEST:
        return True
    for h in range(k):
        if weights[h, k] > 0.0:
            for m in range(1, k):
                if h != m and weights[k, m] > 0.0 and not weights[h, m] > SMALLEST:
                    return False
    return True


@uncounted
def exchange(weights: Array, k: int) -> None:
    """Exchange word 1 with word k."""
    size = weights.shape[0]
    for m in range(1, size):
        weights[1, m], weights[k, m] = weights[k, m], weights[1, m]
    for h in range(size):
        weights[h, 1], weights[h, k] = weights[h, k], weights[h, 1]


@uncounted
def eliminate(weights: Array, single_root: bool, dense: bool, totals: Array) -> tuple[float, int, int]:
    """Take out all words: the logarithm of the weight of all trees, the word that came last, and what is certain.

    ``totals`` [n + 1] gets what the heads of each word weighed together. With a single root, a word that no other word is left to head must
    come last: it changes places with word 1.
    """
    logarithm, last_word = 0.0, 1
    for k in range(weights.shape[0] - 1, 1, -1):
        total = take_out(weights, k, not single_root, dense)
        if total == 0.0 and single_root and last_word == 1:
            last_word = k
            exchange(weights, k)
            total = take_out(weights, k, False, dense)
        if not total > 0.0:
            return -np.inf, last_word, INFEASIBLE if total == 0.0 else UNCERTAIN
        totals[k] = total
        logarithm += math.log(total)
    totals[1] = total = weights[0, 1]
    if total == 0.0:
        return -np.inf, last_word, INFEASIBLE
    weights[0, 1] = 1.0
    return logarithm + math.log(total), last_word, CERTAIN if SMALLEST < total < LARGEST else UNCERTAIN
