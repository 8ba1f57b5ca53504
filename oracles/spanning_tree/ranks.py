"""Ranks of dependency trees: how many trees go on from the heads of the first words.

Trees are ordered by the head of word 1, then that of word 2, and so on. Heads chosen so far make a forest; with N positions in all, a root
component of s positions and c other components, ``s N^(c − 1)`` trees contain it (Moon 1970, "Counting labelled trees", section 6.2;
1 where c = 0). With a single root the words alone are counted, N = n, and the root component is that of the word below the root; while
there is none yet, its place is open to every component, which makes ``n^(c − 1)`` trees.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..capabilities.enumeration import MAX_RANK
from ..numerics import made_once


def rank(heads: Tensor, *, single_root: bool) -> Tensor:
    """The int64 ranks [c] of trees by heads [c, n]."""
    words = heads.shape[-1]
    forest = _Forest(len(heads), words, single_root, heads.device)
    ranks = torch.zeros(len(heads), dtype=torch.int64, device=heads.device)
    for word in range(1, words + 1):
        head = heads[:, word - 1]
        lower = torch.arange(words + 1, device=heads.device) < head.unsqueeze(-1)
        ranks = ranks + torch.where(lower, forest.ways(word), 0).sum(-1)
        forest.attach(word, head)
    return ranks


@made_once
def _powers(base: int, most: int, device: torch.device) -> Tensor:
    """[c + 1]: base^(c − 1), and 1 for c = 0; what is beyond int64 no valid rank reaches."""
    return torch.tensor([min(base ** max(c - 1, 0), MAX_RANK) for c in range(most + 1)], device=device)


class _Forest:
    """Forests [c] over the positions 0..n; a component is labelled by its top, 0 for that of the root."""

    def __init__(self, number: int, words: int, single_root: bool, device: torch.device) -> None:
        positions = torch.arange(words + 1, device=device)
        self.single_root, self.words = single_root, words
        self.component = positions.repeat(number, 1)
        self.size = torch.ones_like(self.component)
        if single_root:
            self.size[:, 0] = 0
        self.power = _powers(words if single_root else words + 1, words, device)

    def ways(self, word: int) -> Tensor:
        """By the head of a word that has none yet: how many trees go on from there, [c, n + 1]."""
        root_size = self.size[:, :1]
        others = self.words - word  # components but the root's, once the word is attached to one of them
        power = self.power[others]
        rooted = power * (root_size + self.size[:, word : word + 1]) if others else torch.ones_like(root_size)
        joined = power * root_size if others else torch.zeros_like(root_size)
        ways = torch.where(self.component == 0, rooted, joined)
        if self.single_root:
            # While no word is below the root, joining another component leaves one more place open to all, the root's.
            used = root_size > 0
            ways = torch.where(used, ways, power)
            ways[:, :1] = torch.where(used, 0, rooted)
        return torch.where(self.component == word, 0, ways)

    def attach(self, word: int, head: Tensor) -> None:
        """Give the word the heads [c]."""
        joined = self.component.gather(-1, head.unsqueeze(-1))
        self.size.scatter_add_(-1, joined, self.size[:, word : word + 1].clone())
        self.component = torch.where(self.component == word, joined, self.component)
