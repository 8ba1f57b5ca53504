"""Trees of their ranks, in the order and by the counts of `structgrad.oracles.spanning_tree.ranks`."""

import numpy as np

from ...kernels.compilation import compiled, inner, uncounted


@compiled
def unrank(ranks, structures, single_root):
    """Set the arcs of the trees of ranks [c] in zeros [c, n + 1, n + 1].

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
