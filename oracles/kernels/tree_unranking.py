"""Trees of their ranks, in compiled steps; see `structgrad.oracles.kernels.unranking`.

Neighbouring ranks share most of their trees. A derivation puts the subtree of a span of w cuts into w places that follow each other, so
that equal spans of equal rank at an equal place are equal subtrees: what the tree before has there is left as it is. Heads that are chosen
word by word go on from the longest beginning that the tree before has in common. Then few decisions are left for a tree, whatever its size.
"""

from __future__ import annotations

import numpy as np

from .compilation import compiled, inner, uncounted


@compiled
def constituency(ranks: np.ndarray, structures: np.ndarray) -> None:
    """By the split of the widest span, then by its left part, then by its right part."""
    length = structures.shape[1]
    sizes, starts = _binary_trees(length)
    flat = structures.reshape(len(ranks), length * length)
    # By place: first token, last token and rank of the span that is cut there. The stack holds these and the place.
    placed, waiting = np.full((length, 3), -1), np.empty((length, 4), np.int64)
    for row in range(len(ranks)):
        waiting[0, 0], waiting[0, 1], waiting[0, 2], waiting[0, 3] = 0, length - 1, ranks[row], 0
        _cut(sizes, starts, placed, waiting)
        tree = flat[row]
        for place in range(length - 1):
            tree[placed[place, 0] * length + placed[place, 1]] = 1
        for token in range(length):
            tree[token * (length + 1)] = 1


@uncounted
def _cut(sizes, starts, placed, waiting):
    """Cut the span on the stack, and what it falls into, where the tree before differs."""
    top = 1 if len(placed) > 1 else 0
    while top > 0:
        top -= 1
        i, j, rank, place = waiting[top, 0], waiting[top, 1], waiting[top, 2], waiting[top, 3]
        if placed[place, 0] == i and placed[place, 1] == j and placed[place, 2] == rank:
            continue
        placed[place, 0], placed[place, 1], placed[place, 2] = i, j, rank
        width, cut = j - i, 0
        while starts[width, cut + 1] <= rank:
            cut += 1
        rank -= starts[width, cut]
        behind = sizes[width - cut - 1]
        left = rank // behind
        if cut + 1 < width:
            waiting[top, 0], waiting[top, 1], waiting[top, 2], waiting[top, 3] = i + cut + 1, j, rank - left * behind, place + 1 + cut
            top += 1
        if cut > 0:
            waiting[top, 0], waiting[top, 1], waiting[top, 2], waiting[top, 3] = i, i + cut, left, place + 1
            top += 1


@inner
def _binary_trees(length):
    """Of a span of w + 1 tokens: [w], how many trees it has, and [w, d], how many of them cut it before its token d."""
    sizes, starts = np.ones(length, np.int64), np.zeros((length, length + 1), np.int64)
    for width in range(1, length):
        for cut in range(width):
            starts[width, cut + 1] = starts[width, cut] + sizes[cut] * sizes[width - cut - 1]
        sizes[width] = starts[width, width]
    return sizes, starts


RIGHT, LEFT, RIGHT_ARC, LEFT_ARC = 0, 1, 2, 3
"""Tables of what a position heads on one side, and of what an arc spans, as in `ProjectiveTree.derivations`."""


@compiled
def projective_tree(ranks: np.ndarray, structures: np.ndarray, single_root: bool) -> None:
    """By the farthest child of an item, then by the seam under its arc, then by what is lower, upper and beyond."""
    size = structures.shape[1]
    counts = _items(size, single_root)
    # By place: leftward or not, first and last position, rank; then head and child. The stack holds the first four and the place.
    placed, waiting = np.full((size, 6), -1), np.empty((size + 3, 5), np.int64)
    for row in range(len(ranks)):
        waiting[0, 0], waiting[0, 1], waiting[0, 2], waiting[0, 3], waiting[0, 4] = 0, 0, size - 1, ranks[row], 0
        _derive(counts, placed, waiting)
        for place in range(size - 1):
            structures[row, placed[place, 4], placed[place, 5]] = 1


@uncounted
def _derive(counts, placed, waiting):
    """Derive the item on the stack, and what it is made of, where the tree before differs."""
    top = 1
    while top > 0:
        top -= 1
        item, place = waiting[top], waiting[top, 4]
        leftward, first, last, rank = item[0], item[1], item[2], item[3]
        before = placed[place]
        if before[0] == leftward and before[1] == first and before[2] == last and before[3] == rank:
            continue
        before[0], before[1], before[2], before[3] = leftward, first, last, rank
        child, ways = first + 1 - leftward, np.int64(0)
        while True:
            beyond = counts[LEFT, first, child] if leftward else counts[RIGHT, child, last]
            ways = beyond * (counts[LEFT_ARC, child, last] if leftward else counts[RIGHT_ARC, first, child])
            if rank < ways:
                break
            rank -= ways
            child += 1
        low, high = (child, last) if leftward else (first, child)
        seam = low
        while True:
            upper = counts[LEFT, seam + 1, high]
            ways = counts[RIGHT, low, seam] * upper * beyond
            if rank < ways:
                break
            rank -= ways
            seam += 1
        before[4], before[5] = (last if leftward else first), child
        joint = rank // beyond
        top = _put(
            waiting, top, (leftward, first if leftward else child, child if leftward else last), rank - joint * beyond, place + high - low
        )
        top = _put(waiting, top, (np.int64(1), seam + 1, high), joint % upper, place + 1 + seam - low)
        top = _put(waiting, top, (np.int64(0), low, seam), joint // upper, place + 1)


@uncounted
def _put(waiting, top, item, rank, place):
    """Put an item down where it spans an arc; gives the height of the stack."""
    waiting[top, 0], waiting[top, 1], waiting[top, 2], waiting[top, 3], waiting[top, 4] = item[0], item[1], item[2], rank, place
    return top + (item[2] > item[1])


@inner
def _items(size, single_root):
    """[4, n + 1, n + 1]: how many ways there are to build each item."""
    counts = np.zeros((4, size, size), np.int64)
    for i in range(size):
        counts[RIGHT, i, i] = counts[LEFT, i, i] = 1
    for width in range(1, size):
        for i in range(size - width):
            j = i + width
            for r in range(i, j):
                counts[RIGHT_ARC, i, j] += counts[RIGHT, i, r] * counts[LEFT, r + 1, j]
            counts[LEFT_ARC, i, j] = counts[RIGHT_ARC, i, j] if i > 0 else 0
            for k in range(i, j):
                counts[LEFT, i, j] += counts[LEFT, i, k] * counts[LEFT_ARC, k, j]
                counts[RIGHT, i, j] += counts[RIGHT_ARC, i, k + 1] * counts[RIGHT, k + 1, j]
            if single_root and i == 0 and j < size - 1:
                counts[RIGHT, i, j] = 0
    return counts


@compiled
def spanning_tree(ranks: np.ndarray, structures: np.ndarray, single_root: bool) -> None:
    """By the head of word 1, then of word 2, and so on; the counts are those of `structgrad.oracles.spanning_tree.ranks`."""
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
