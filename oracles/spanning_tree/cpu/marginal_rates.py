"""Derivatives of marginals of spanning trees: `marginals` on numbers that carry their rates along a direction.

Every number is a sum of products of weights over another one, so that its rate is at most n times its size times the largest entry of the
direction: nothing leaves the range that the numbers themselves keep.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from ...kernels.compilation import reordered, uncounted
from .elimination import CERTAIN, INFEASIBLE, LARGEST, SMALLEST, UNCERTAIN, take_out
from .marginals import ChanceBlocks, copy_half, paste_half

Array = NDArray[Any]


@reordered
def _take_out(weights: Array, rates: Array, k: int, with_root: bool, dense: bool) -> float:
    """Eliminate word k, as `elimination.take_out`."""
    total, rate_of_total = (weights[0, k], rates[0, k]) if with_root else (0.0, 0.0)
    for h in range(1, k):
        total += weights[h, k]
        rate_of_total += rates[h, k]
    if total == 0.0:
        return total
    scale = 1.0 / total
    slope = rate_of_total * scale
    for h in range(k):
        chance = weights[h, k] * scale
        rate = rates[h, k] * scale - chance * slope
        rates[h, k] = rate
        if chance > 0.0:
            for m in range(1, k):
                rates[h, m] += chance * rates[k, m] + rate * weights[k, m]
    return take_out(weights, k, with_root, dense)


@reordered
def _substitute(weights: Array, rates: Array, chances: Array, chance_rates: Array, k: int, words: int) -> None:
    """Chances of escape from word k before the words 1..``words``, and their rates, from those of its heads."""
    for t in range(1, words + 1):
        chances[k, t] = weights[0, k] * chances[0, t]
        chance_rates[k, t] = rates[0, k] * chances[0, t]
    for h in range(1, k):
        head, rate = weights[h, k], rates[h, k]
        if head > 0.0:
            for t in range(1, words + 1):
                chances[k, t] += head * chances[h, t]
                chance_rates[k, t] += head * chance_rates[h, t] + rate * chances[h, t]


@uncounted
def _leave(space: ChanceBlocks, rates: ChanceBlocks, level: int, dense: bool) -> int:
    """Make the next block of one half of this one; gives what is certain."""
    words, below, below_rates, rooted = space.words[level], space.weights[level + 1], rates.weights[level + 1], space.rooted[level]
    copy_half(space.weights[level], below, words, space.half[level] == 1)
    copy_half(rates.weights[level], below_rates, words, space.half[level] == 1)
    space.end[level + 1] = 0
    for k in range(words, space.words[level + 1], -1):
        total = _take_out(below, below_rates, k, rooted, dense)
        if total < 0.0:
            return UNCERTAIN
        if total == 0.0:
            if rooted:
                return INFEASIBLE
            space.end[level + 1], rooted = k, True
            for m in range(1, k):
                below[0, m] = below[k, m]
                below_rates[0, m] = below_rates[k, m]
    space.half[level + 1], space.rooted[level + 1] = 0, rooted
    return CERTAIN


@uncounted
def _return(space: ChanceBlocks, rates: ChanceBlocks, level: int) -> None:
    """Bring the chances of the next block, and their rates, back to this one."""
    weights, chances, words, kept = space.weights[level + 1], space.chances[level + 1], space.words[level], space.words[level + 1]
    for k in range(kept + 1, words + 1):
        if k == space.end[level + 1]:
            for t in range(1, kept + 1):
                chances[k, t], chances[0, t] = 1.0, 0.0
                rates.chances[level + 1, k, t] = 0.0
        else:
            _substitute(weights, rates.weights[level + 1], chances, rates.chances[level + 1], k, kept)
    paste_half(chances, space.chances[level], words, kept, space.half[level] == 1)
    paste_half(rates.chances[level + 1], rates.chances[level], words, kept, space.half[level] == 1)
    space.half[level] += 1


@uncounted
def _before(weights: Array, rates: Array, chances: Array, chance_rates: Array, words: tuple[int, int, int], rooted: bool) -> float:
    """Chances of escape, and their rates, before word t from words a and b, where no other word is left.

    Gives the least of the numbers that must be above 0.
    """
    t, a, b = words
    root = 1.0 if rooted else 0.0
    total_a = weights[b, a] + weights[t, a] + root * weights[0, a]
    rate_a = rates[b, a] + rates[t, a] + root * rates[0, a]
    over = weights[a, b] / total_a
    over_rate = (rates[a, b] - over * rate_a) / total_a
    onward = weights[0, b] + over * weights[0, a]
    onward_rate = rates[0, b] + over * rates[0, a] + over_rate * weights[0, a]
    total_b = weights[t, b] + over * weights[t, a] + root * onward
    rate_b = rates[t, b] + over * rates[t, a] + over_rate * weights[t, a] + root * onward_rate
    from_b = onward / total_b
    from_b_rate = (onward_rate - from_b * rate_b) / total_b
    to_b = weights[b, a] / total_a
    from_a = weights[0, a] / total_a + to_b * from_b
    from_a_rate = (rates[0, a] + rates[b, a] * from_b - from_a * rate_a) / total_a + to_b * from_b_rate
    chances[0, t], chances[t, t], chances[a, t], chances[b, t] = 1.0, 0.0, from_a, from_b
    chance_rates[0, t], chance_rates[t, t], chance_rates[a, t], chance_rates[b, t] = 0.0, 0.0, from_a_rate, from_b_rate
    least = min(min(total_a, total_b), min(onward, weights[0, t] + weights[a, t] * from_a + weights[b, t] * from_b))
    return float(least)


@uncounted
def find(space: ChanceBlocks, rates: ChanceBlocks, single_root: bool, dense: bool) -> int:
    """Fill ``chances[0]`` of both for the weights ``weights[0]`` and their rates, as `escapes.find`; gives what is certain."""
    space.half[0], space.rooted[0] = 0, not single_root
    level = 0
    while level >= 0:
        if space.words[level] == 3 and space.half[level] == 0:
            weights, chances, rooted = space.weights[level], space.chances[level], space.rooted[level]
            weight_rates, chance_rates = rates.weights[level], rates.chances[level]
            least = _before(weights, weight_rates, chances, chance_rates, (1, 3, 2), rooted)
            least = min(least, _before(weights, weight_rates, chances, chance_rates, (2, 3, 1), rooted))
            least = min(least, _before(weights, weight_rates, chances, chance_rates, (3, 2, 1), rooted))
            space.half[level] = 2 if least > SMALLEST else 0
        elif space.words[level] == 1:
            weight = space.weights[level, 0, 1]
            if not SMALLEST < weight < LARGEST:
                return INFEASIBLE if weight == 0.0 else UNCERTAIN
            space.chances[level, 0, 1], space.chances[level, 1, 1] = 1.0, 0.0
            rates.chances[level, 0, 1], rates.chances[level, 1, 1] = 0.0, 0.0
            space.half[level] = 2
        if space.half[level] < 2:
            known = _leave(space, rates, level, dense)
            if known != CERTAIN:
                return known
            level += 1
        else:
            level -= 1
            if level >= 0:
                _return(space, rates, level)
    return CERTAIN
