"""Ranks of dependency trees: how many trees go on from the heads of the first words.

Trees are ordered by the head of word 1, then that of word 2, and so on. Heads chosen so far make a forest; with N positions in all, a root
component of s positions and c other components, ``s N^(c − 1)`` trees contain it (Moon 1970, "Counting labelled trees", section 6.2;
1 where c = 0). With a single root the words alone are counted, N = n, and the root component is that of the word below the root; while
there is none yet, its place is open to every component, which makes ``n^(c − 1)`` trees.
"""

import torch
from torch import Tensor

from ..capabilities.enumeration import MAX_RANK
from ..numerics import made_once


@made_once
def _powers(base: int, most: int, device: torch.device) -> Tensor:
    """[c + 1]: base^(c − 1), and 1 for c = 0; what is beyond int64 no valid rank reaches."""
    return torch.tensor([min(base ** max(c - 1, 0), MAX_RANK) for c in range(most + 1)], device=device)


def rank(heads: Tensor, *, single_root: bool) -> Tensor:
    """The int64 ranks [c] of trees by heads [c, n].

    Forests are over the positions 0..n; a component is labelled by its top, 0 for that of the root.
    """
    words, device = heads.shape[-1], heads.device
    positions, powers = torch.arange(words + 1, device=device), _powers(words if single_root else words + 1, words, device)
    component, ranks = positions.repeat(len(heads), 1), torch.zeros(len(heads), dtype=torch.int64, device=device)
    size = torch.ones_like(component)
    size[:, 0] = 0 if single_root else 1
    for word in range(1, words + 1):
        head, root, own = heads[:, word - 1 : word], size[:, :1].clone(), size[:, word : word + 1].clone()
        # By the head of the word, how many trees go on from there; the components but the root's, once it has one, are ``others``.
        others = words - word
        rooted, joined = (powers[others] * (root + own), powers[others] * root) if others else (torch.ones_like(root), 0)
        ways = torch.where(component == 0, rooted, joined)
        if single_root:
            # While no word is below the root, joining another component leaves one more place open to all, the root's.
            ways = torch.where(root > 0, ways, powers[others])
            ways[:, :1] = torch.where(root > 0, 0, rooted)
        ranks += torch.where((positions < head) & (component != word), ways, 0).sum(-1)
        into = component.gather(-1, head)
        size.scatter_add_(-1, into, own)
        component = torch.where(component == word, into, component)
    return ranks
