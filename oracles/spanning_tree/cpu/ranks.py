"""Ranks of spanning trees: how many trees go on from the heads of the first words.

Trees are ordered by the head of word 1, then that of word 2, and so on. Heads chosen so far make a forest; with N positions in all, a root
component of s positions and c other components, ``s N^(c − 1)`` trees contain it (Moon 1970, "Counting labelled trees", section 6.2;
1 where c = 0). With a single root the words alone are counted, N = n, and the root component is that of the word below the root; while
there is none yet, its place is open to every component, which makes ``n^(c − 1)`` trees.
"""

from typing import NamedTuple

import numpy as np

from ...kernels.compilation import compiled, inner, uncounted

ANY = -1
"""In place of a head: the one with which the trees of a rank begin."""


class Forests(NamedTuple):
    """By the number of words with a head: the forest over the positions 0..n, and the range of the ranks of the trees that hold it."""

    components: np.ndarray  # [n + 1, n + 1] the top of the component of a position
    sizes: np.ndarray  # [n + 1, n + 1] of the component with this top; the root counts none of its own with a single root
    ranges: np.ndarray  # [n + 1, 2]
    heads: np.ndarray  # [n + 1] of words
    powers: np.ndarray  # [n + 1] N^(c − 1) by c, and 1 for c = 0


@inner
def _forests(words, single_root):
    components, sizes = np.empty((words + 1, words + 1), np.int64), np.ones((words + 1, words + 1), np.int64)
    ranges, powers, base = np.zeros((words + 1, 2), np.int64), np.ones(words + 1, np.int64), words if single_root else words + 1
    for position in range(words + 1):
        components[0, position] = position
    sizes[0, 0] = 0 if single_root else 1
    ranges[0, 1] = np.iinfo(np.int64).max
    for c in range(2, words + 1):  # what is beyond int64 no rank reaches
        powers[c] = powers[c - 1] * base if powers[c - 1] <= 2**62 // base else 2**62
    return Forests(components, sizes, ranges, np.zeros(words + 1, np.int64), powers)


@compiled
def rank(heads, ranks, single_root):
    """The int64 ranks [c] of trees by the heads [c, n] of their words."""
    words = heads.shape[1]
    forests = _forests(words, single_root)
    for row in range(len(heads)):
        for depth in range(words):
            _attach(forests, 0, depth, heads[row, depth], single_root)
        ranks[row] = forests.ranges[words, 0]


@compiled
def unrank(ranks, structures, single_root):
    """Set the arcs of the trees of ranks [c] in zeros [c, n + 1, n + 1].

    A tree goes on from the longest beginning that the tree before has in common.
    """
    words, depth = structures.shape[1] - 1, 0
    forests = _forests(words, single_root)
    for row in range(len(ranks)):
        while ranks[row] < forests.ranges[depth, 0] or ranks[row] >= forests.ranges[depth, 1]:
            depth -= 1
        while depth < words:
            _attach(forests, ranks[row], depth, ANY, single_root)
            depth += 1
        for word in range(1, words + 1):
            structures[row, forests.heads[word], word] = 1


@uncounted
def _attach(forests, rank, depth, wanted, single_root):
    """Give word depth + 1 a head: the wanted one, or that with which the trees of this rank begin."""
    word, words = depth + 1, len(forests.heads) - 1
    component, size = forests.components[depth], forests.sizes[depth]
    others, open_root, power = words - word, single_root and size[0] == 0, forests.powers[words - word]
    rooted = power * (size[0] + size[word]) if others > 0 else np.int64(1)
    joined = power * size[0] if others > 0 else np.int64(0)
    start, head, ways = forests.ranges[depth, 0], 0, np.int64(0)
    while True:
        if component[head] == word:
            ways = np.int64(0)
        elif open_root:
            ways = rooted if head == 0 else power
        elif single_root and head == 0:
            ways = np.int64(0)
        else:
            ways = rooted if component[head] == 0 else joined
        if head == wanted or (wanted == ANY and rank - start < ways):
            break
        start += ways
        head += 1
    forests.ranges[word, 0], forests.ranges[word, 1], forests.heads[word] = start, start + ways, head
    into = component[head]
    for position in range(words + 1):
        forests.components[word, position] = into if component[position] == word else component[position]
        forests.sizes[word, position] = size[position]
    forests.sizes[word, into] += size[word]
