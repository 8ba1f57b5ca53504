"""Projective dependency trees."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .dependency_tree import DependencyTree
from .derivations import DEAD, UNIT, Builder, Derivations, DerivedOracle


@dataclass(frozen=True)
class ProjectiveTree(DependencyTree, DerivedOracle):
    """Dependency trees without crossing arcs: event ``[n + 1, n + 1]``, ``scores[..., h, m]`` scores the arc from head h to modifier m.

    Index 0 is the root, words are 1..n; every word has one head. Column 0 and the diagonal are no arcs, and are ignored. An arc crosses
    no other one, those from the root included, so that every subtree is a stretch of words.

    Eisner's recursion, O(n³). A sample takes 2n uniforms, two for each word: for the farthest child of an item, and for the seam under
    the arc to it. ``lengths`` counts words. Of equal trees the MAP is the one that takes the leftmost farthest child, then the leftmost
    seam, from the top down; `enumerate` lists trees in the order of these decisions.

    Args:
        single_root: exactly one word is headed by the root; with False, any number of words.

    References:
        Eisner 1996, "Three new probabilistic models for dependency parsing", section 3; Niculae et al. 2018, "SparseMAP", section 3.2.

    Example:
        >>> oracle = ProjectiveTree()
        >>> scores = torch.zeros(4, 4)
        >>> scores[0, 2] = scores[2, 1] = 1.0
        >>> ProjectiveTree.heads(oracle.argmax(scores))
        tensor([2, 0, 2])
        >>> oracle.count((4, 4)), ProjectiveTree(single_root=False).count((4, 4))
        (7, 12)
    """

    name: ClassVar[str] = "projective_tree"
    event_ndim: ClassVar[int] = 2
    references: ClassVar[tuple[str, ...]] = ("eisner1996three", "niculae2018sparsemap")

    def count(self, event_shape: tuple[int, ...]) -> int:
        words = event_shape[0] - 1
        return math.comb(3 * words - 2, words - 1) // words if self.single_root else math.comb(3 * words, words) // (2 * words + 1)

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        return eisner(torch.arange(event_shape[0] ** 2).reshape(event_shape), single_root=self.single_root)

    def _noise_size(self, event_shape: tuple[int, ...]) -> int:
        return 2 * (event_shape[0] - 1)


def eisner(parts: Tensor, *, single_root: bool) -> Derivations:
    """Trees whose arc from head h to modifier m is ``parts[h, m]``, or one of them, ``parts[h, m, label]``.

    Three nodes for each pair of positions i < j: what i heads up to j, what j heads down to i, and what an arc between them spans. An arc
    spans a right part and a left part, which meet over a seam. What a word heads on one side is made of the arc to its farthest child,
    what that spans, and what the child heads beyond. With a single root, the root must be bare when it takes its child: all that it heads,
    but for the whole, is struck out. Labels of an arc take a node more for each direction.
    """
    size, labels = len(parts), parts.shape[2:]
    builder = Builder(parts.numel())
    right, left, spanned = (torch.full((size, size), DEAD) for _ in range(3))
    right.fill_diagonal_(UNIT)
    left.fill_diagonal_(UNIT)
    # With labels, what an arc spans has taken it.
    arc = torch.full((size, size), builder.parts) if labels else parts
    # Under the arcs between neighbours: a node between them and the empty item, so that their seam takes a uniform, as every seam does.
    nothing = builder.add(torch.full((size - 1, 1), UNIT))
    for width in range(1, size):
        first = torch.arange(size - width)
        last = first + width
        i, j = first.unsqueeze(1), last.unsqueeze(1)
        inner, outer = i + torch.arange(width), i + torch.arange(1, width + 1)
        lower = right[i, inner] if width > 1 else nothing.unsqueeze(1)
        seams = builder.add(lower, None, left[inner + 1, j])
        spanned[first, last] = spanned[last, first] = seams
        if labels:
            under = seams.unsqueeze(1).expand(-1, *labels)
            spanned[first, last] = builder.add(under, parts[first, last])
            if len(first) > 1:
                spanned[last[1:], first[1:]] = builder.add(under[1:], parts[last[1:], first[1:]])
        # No arc leads into the root, at position 0.
        rightward = spanned[i, outer], arc[i, outer], right[outer, j]
        leftward = spanned[j, inner], arc[j, inner], left[i, inner]
        under, arcs, beyond = (torch.cat([one, other[1:]]) for one, other in zip(rightward, leftward, strict=True))
        right[first, last], left[first[1:], last[1:]] = builder.add(under, arcs, beyond).split([len(first), len(first) - 1])
        if single_root and width < size - 1:
            right[0, width] = DEAD
    return builder.finish(right[0, -1])
