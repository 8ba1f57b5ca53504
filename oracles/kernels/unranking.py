"""Structures of their ranks, in compiled steps: one function per structure without derivations, called by the name of its kernels.

Each takes int64 ranks [c] and uint8 zeros [c, *event], and sets the parts of every structure to 1, in the order that its oracle documents.
Counts are tabulated anew in each call, which takes far less than the walks; no count that a walk can meet exceeds 2**62. Structures that
state their derivations are listed by `structgrad.oracles.derivations`.
"""

import math

import numpy as np

from .compilation import compiled, inner, uncounted


def operations(event: tuple[int, ...]) -> int:
    """Inner-loop steps of one structure, roughly: its bytes are cleared, and a few steps are taken along every axis."""
    return math.prod(event) // 8 + 4 * sum(event)


@compiled
def assignment(ranks: np.ndarray, structures: np.ndarray) -> None:
    """Lexicographic in the columns of the rows, by the digits of the factorial number system.

    A permutation whose rank is the next one follows from the one before, in a step or two.
    """
    size = structures.shape[1]
    columns, free, weights = np.empty(size, np.int64), np.empty(size, np.int64), np.ones(size, np.int64)
    for i in range(size - 2, -1, -1):
        weights[i] = weights[i + 1] * (size - 1 - i)
    for item in range(len(ranks)):
        if item > 0 and ranks[item] == ranks[item - 1] + 1:
            _permute(columns)
        else:
            rank = ranks[item]
            for column in range(size):
                free[column] = column
            for i in range(size):
                digit = rank // weights[i]
                rank -= digit * weights[i]
                columns[i] = free[digit]
                for place in range(digit, size - 1 - i):
                    free[place] = free[place + 1]
        for i in range(size):
            structures[item, i, columns[i]] = 1


@uncounted
def _permute(columns):
    """The next permutation in lexicographic order: Knuth 2011, "The art of computer programming" 4A, section 7.2.1.2, algorithm L."""
    last = len(columns) - 1
    place = last - 1
    while columns[place] > columns[place + 1]:
        place -= 1
    other = last
    while columns[other] < columns[place]:
        other -= 1
    columns[place], columns[other] = columns[other], columns[place]
    first = place + 1
    while first < last:
        columns[first], columns[last] = columns[last], columns[first]
        first, last = first + 1, last - 1


@compiled
def categories(ranks: np.ndarray, structures: np.ndarray) -> None:
    """The digits of the rank, the first category the most significant; one more is counted on from the one before."""
    _, size, parts = structures.shape
    digits = np.zeros(size, np.int64)
    for item in range(len(ranks)):
        if item > 0 and ranks[item] == ranks[item - 1] + 1:
            place = size - 1
            while digits[place] == parts - 1:
                digits[place] = 0
                place -= 1
            digits[place] += 1
        else:
            rank = ranks[item]
            for place in range(size - 1, -1, -1):
                digits[place] = rank % parts
                rank //= parts
        for place in range(size):
            structures[item, place, digits[place]] = 1


@compiled
def spanning_tree(ranks: np.ndarray, structures: np.ndarray, single_root: bool) -> None:
    """By the head of word 1, then of word 2, and so on; the counts are those of `structgrad.oracles.spanning_tree.ranks`.

    A tree goes on from the longest beginning that the tree before has in common.
    """
    words = structures.shape[1] - 1
    powers = _powers(words, single_root)
    # By the number of words with a head: the forest, and the range of the ranks of the trees that hold it.
    components, sizes = np.empty((words + 1, words + 1), np.int64), np.ones((words + 1, words + 1), np.int64)
    ranges, heads = np.zeros((words + 1, 2), np.int64), np.zeros(words + 1, np.int64)
    for position in range(words + 1):
        components[0, position] = position
    sizes[0, 0] = 0 if single_root else 1
    ranges[0, 1] = np.iinfo(np.int64).max
    depth = 0
    for row in range(len(ranks)):
        rank = ranks[row]
        while rank < ranges[depth, 0] or rank >= ranges[depth, 1]:
            depth -= 1
        while depth < words:
            _attach(components, sizes, ranges, heads, rank, depth, powers[words - depth - 1], single_root)
            depth += 1
        for word in range(1, words + 1):
            structures[row, heads[word], word] = 1


@uncounted
def _attach(components, sizes, ranges, heads, rank, depth, power, single_root):
    """Give word depth + 1 the head with which the trees of this rank begin. Of the forests, a component is labelled by its top."""
    word, words = depth + 1, len(heads) - 1
    component, size = components[depth], sizes[depth]
    others, open_root = words - word, single_root and size[0] == 0
    rooted = power * (size[0] + size[word]) if others > 0 else np.int64(1)
    joined = power * size[0] if others > 0 else np.int64(0)
    start, head, ways = ranges[depth, 0], 0, np.int64(0)
    while True:
        if component[head] == word:
            ways = np.int64(0)
        elif open_root:
            ways = rooted if head == 0 else power
        elif single_root and head == 0:
            ways = np.int64(0)
        else:
            ways = rooted if component[head] == 0 else joined
        if rank - start < ways:
            break
        start += ways
        head += 1
    ranges[word, 0], ranges[word, 1], heads[word] = start, start + ways, head
    into = component[head]
    for position in range(words + 1):
        components[word, position] = into if component[position] == word else component[position]
        sizes[word, position] = size[position]
    sizes[word, into] += size[word]


@inner
def _powers(words, single_root):
    """[n + 1]: N^(c − 1) by c, and 1 for c = 0; what is beyond int64 no rank reaches."""
    base, powers = (words if single_root else words + 1), np.ones(words + 1, np.int64)
    for c in range(2, words + 1):
        powers[c] = powers[c - 1] * base if powers[c - 1] <= 2**62 // base else 2**62
    return powers
