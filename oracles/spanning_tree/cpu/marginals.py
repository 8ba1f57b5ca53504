"""Marginals of spanning trees: chances of escape before every word, in O(n³), as in `structgrad.oracles.spanning_tree.marginals`.

Blocks of words, each with the root: the first holds all of them; a block of m words has two halves, of h = ⌈m / 2⌉ words each, in which
the other words are eliminated. The second half counts its words from the last one backwards, so that in every block the words to keep are
1..h. The chances come back from the halves: those of the words that were taken out follow from those of their heads. Blocks are visited in
depth, so that there is one at each level.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...kernels.compilation import inner, reordered, uncounted
from .elimination import CERTAIN, INFEASIBLE, LARGEST, SMALLEST, UNCERTAIN, take_out

Array = NDArray[Any]


class ChanceBlocks(NamedTuple):
    """The block at each level, 0 the whole item; positions 0..m, the root first."""

    weights: Array  # [levels, n + 1, n + 1]
    chances: Array  # [levels, n + 1, n + 1], of escape from a position before a word; 0 from the word itself
    words: Array  # int64 [levels], m
    half: Array  # int64 [levels], which half is being kept; 2 after both
    rooted: Array  # bool [levels], whether the root's weights, or those of a word in its place, count
    end: Array  # int64 [levels], the word that took the root's place when this block was made; or 0
    logarithm: Array  # [levels], of the product of all sums so far


@inner
def blocks(size: int) -> ChanceBlocks:
    """Blocks for an item of event [size, size]; its weights are yet to be filled in."""
    words, levels = size - 1, 1
    while words > 1:
        words, levels = (words + 1) // 2, levels + 1
    counts = np.empty(levels, np.int64)
    counts[0] = size - 1
    for level in range(1, levels):
        counts[level] = (counts[level - 1] + 1) // 2
    half, rooted, end, tables = np.zeros_like(counts), np.empty(levels, np.bool_), np.zeros_like(counts), (levels, size, size)
    return ChanceBlocks(np.empty(tables), np.zeros(tables), counts, half, rooted, end, np.empty(levels))


@uncounted
def copy_half(weights: Array, below: Array, words: int, second: bool) -> None:
    """Copy a block into the next level, in reversed order for its second half."""
    for h in range(words + 1):
        other = words + 1 - h if second and h > 0 else h
        if second:
            for m in range(1, words + 1):
                below[h, m] = weights[other, words + 1 - m]
        else:
            for m in range(1, words + 1):
                below[h, m] = weights[other, m]


@uncounted
def _leave(space: ChanceBlocks, level: int, wanted: bool, dense: bool) -> int:
    """Make the next block of one half of this one; gives what is certain.

    The product of all sums goes on to the next level where it is ``wanted``.
    """
    words, below, rooted, logarithm = space.words[level], space.weights[level + 1], space.rooted[level], space.logarithm[level]
    copy_half(space.weights[level], below, words, space.half[level] == 1)
    space.end[level + 1] = 0
    for k in range(words, space.words[level + 1], -1):
        total = take_out(below, k, rooted, dense)
        if total > 0.0:
            logarithm += math.log(total) if wanted else 0.0
        elif total < 0.0 or rooted:
            return UNCERTAIN if total < 0.0 else INFEASIBLE
        else:
            # No word is left to head this one: all walks end here.
            space.end[level + 1], rooted = k, True
            for m in range(1, k):
                below[0, m] = below[k, m]
    space.half[level + 1], space.rooted[level + 1], space.logarithm[level + 1] = 0, rooted, logarithm
    return CERTAIN


@reordered
def _substitute(weights: Array, chances: Array, k: int, words: int) -> None:
    """Chances of escape from word k before the words 1..``words``, from those of its heads."""
    for t in range(1, words + 1):
        chances[k, t] = weights[0, k] * chances[0, t]
    for h in range(1, k):
        head = weights[h, k]
        if head > 0.0:
            for t in range(1, words + 1):
                chances[k, t] += head * chances[h, t]


@uncounted
def _return(space: ChanceBlocks, level: int) -> None:
    """Bring the chances of the next block back to this one."""
    weights, chances, words, kept = space.weights[level + 1], space.chances[level + 1], space.words[level], space.words[level + 1]
    for k in range(kept + 1, words + 1):
        if k == space.end[level + 1]:
            for t in range(1, kept + 1):
                chances[k, t], chances[0, t] = 1.0, 0.0
        else:
            _substitute(weights, chances, k, kept)
    paste_half(chances, space.chances[level], words, kept, space.half[level] == 1)
    space.half[level] += 1


@uncounted
def paste_half(below: Array, above: Array, words: int, kept: int, second: bool) -> None:
    """Copy what is known of the words that a half kept into the block that it came from."""
    for h in range(words + 1):
        other = words + 1 - h if second and h > 0 else h
        if second:
            for t in range(1, kept + 1):
                above[other, words + 1 - t] = below[h, t]
        else:
            for t in range(1, kept + 1):
                above[other, t] = below[h, t]


@uncounted
def _before(weights: Array, chances: Array, words: tuple[int, int, int], rooted: bool) -> tuple[float, float, float]:
    """Chances of escape before word t from words a and b, where no other word is left.

    Gives the product of the sums of heads of a and of b, what leads t to the root, and the least of the numbers that must be above 0.
    """
    t, a, b = words
    root_a, root_b = weights[0, a], weights[0, b]
    total_a = weights[b, a] + weights[t, a] + (root_a if rooted else 0.0)
    over = weights[a, b] / total_a
    onward_b = root_b + over * root_a
    total_b = weights[t, b] + over * weights[t, a] + (onward_b if rooted else 0.0)
    from_b = onward_b / total_b
    from_a = root_a / total_a + weights[b, a] / total_a * from_b
    onward = weights[0, t] + weights[a, t] * from_a + weights[b, t] * from_b
    chances[0, t], chances[t, t], chances[a, t], chances[b, t] = 1.0, 0.0, from_a, from_b
    return total_a * total_b, onward, min(min(total_a, total_b), min(onward_b, onward))


@uncounted
def _last_words(weights: Array, chances: Array, words: int, rooted: bool) -> tuple[float, float]:
    """Chances of escape in a block of up to three words, at once: the weight of all its trees, and the least of the numbers above 0."""
    if words == 3:
        first = _before(weights, chances, (1, 3, 2), rooted)
        second, third = _before(weights, chances, (2, 3, 1), rooted), _before(weights, chances, (3, 2, 1), rooted)
        return first[0] * first[1], min(first[2], min(second[2], third[2]))
    chances[0, 1], chances[1, 1] = 1.0, 0.0
    onward = weights[0, 1]
    if words == 1:
        return onward, onward
    first, second = weights[2, 1] + (onward if rooted else 0.0), weights[1, 2] + (weights[0, 2] if rooted else 0.0)
    chances[0, 2], chances[2, 2], chances[1, 2], chances[2, 1] = 1.0, 0.0, onward / first, weights[0, 2] / second
    onward, other = onward + weights[2, 1] * chances[2, 1], weights[0, 2] + weights[1, 2] * chances[1, 2]
    return second * onward, min(min(first, second), min(onward, other))


@uncounted
def find(space: ChanceBlocks, single_root: bool, dense: bool) -> tuple[float, int]:
    """Fill ``chances[0]`` for the weights ``weights[0]``: the logarithm of the weight of all trees, and what is certain.

    Row 0 gets 1, or 0 where another word has taken the root's place. ``dense`` says that no arc is forbidden.
    """
    space.half[0], space.rooted[0], space.logarithm[0] = 0, not single_root, 0.0
    level, result = 0, -np.inf
    while level >= 0:
        if space.words[level] <= 3 and space.half[level] == 0:
            weight, least = _last_words(space.weights[level], space.chances[level], space.words[level], space.rooted[level])
            if least > SMALLEST and SMALLEST < weight < LARGEST:
                if result == -np.inf and space.rooted[level] != single_root:
                    result = space.logarithm[level] + math.log(weight)
                space.half[level] = 2
            elif space.words[level] == 1:
                return -np.inf, INFEASIBLE if weight == 0.0 else UNCERTAIN
        if space.half[level] < 2:
            known = _leave(space, level, result == -np.inf, dense)
            if known != CERTAIN:
                return -np.inf, known
            level += 1
        else:
            level -= 1
            if level >= 0:
                _return(space, level)
    return result, CERTAIN
