"""The weight of all spanning trees relative to one of them, as a determinant of what deviates from it.

Let T be a tree, and ``ρ(h → m)`` the weight of an arc relative to that of the arc into m in T. The matrix-tree theorem gives
``Z = w(T) det(I + B)`` with ``B(i, m) = Σ_h ρ(h → m) ([i is above m] − [i is above h])``, sums over the arcs that are not in T, where
"above" means in T, and includes the word itself. (Multiply the Laplacian of all arcs by the inverse of that of T, which is the matrix of
"above".) So an entry is a sum of terms of one sign: over the heads beside the subtree of i where i is above m, over those in it, negative,
where it is not. Nothing cancels; and if T is the best tree and probable, B is small, so that what is rare keeps its digits, which the
Laplacian itself loses. With a single root, let the weights of the root tend to 0 together: then only the top word of T knows the root.

Sources: Tutte 1948, "The dissection of equilateral triangles into equilateral triangles", section 3; Koo et al. 2007, "Structured
prediction models via the matrix-tree theorem", section 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

MARGIN = 0.5
"""By how much, in logarithms, entries are kept below the pivots: √2 is lost where |Re| + |Im| stands for the modulus."""


class TreeScaling(NamedTuple):
    """How to keep B in range.

    columns: [n], what to take off ``log ρ``. factors: [n, n], what to multiply B with then: a similarity, which no determinant feels, and
    what was taken off. graded: whether every entry beside the diagonal is smaller than 1, as where T is probable: elimination then takes
    its pivots from the diagonal, and leaves small numbers their digits.
    """

    columns: Tensor
    factors: Tensor
    graded: bool


@dataclass(frozen=True, eq=False)
class Deviations:
    """What deviates from a tree T on words 1..n.

    Attributes:
        heads: [n], of T.
        above: [n, n + 1], whether word i + 1 is position h or above it in T.
        single_root: whether the root has one child only.
    """

    heads: Tensor
    above: Tensor
    single_root: bool

    @classmethod
    def of(cls, heads: Tensor, *, single_root: bool) -> Deviations:
        """From the heads [n] of T."""
        size = len(heads) + 1
        parents = torch.nn.functional.one_hot(torch.nn.functional.pad(heads, (1, 0)), size).double()
        parents[0] = 0
        reach = torch.eye(size, dtype=torch.float64, device=heads.device) + parents
        for _ in range(size.bit_length()):
            reach = ((reach @ reach) > 0).double()
        return cls(heads, reach.mT[1:] > 0, single_root)

    def relative(self, scores: Tensor) -> Tensor:
        """Scores [..., n + 1, n + 1] of arcs to ``log ρ``: [..., n + 1, n], -inf on T, on the diagonal and where forbidden."""
        into = scores[..., 1:]
        size = into.shape[-2]
        own = torch.nn.functional.one_hot(self.heads, size).mT.bool()
        best = torch.where(own, into, 0).sum(-2, keepdim=True)
        itself = torch.nn.functional.pad(torch.eye(size - 1, dtype=torch.bool, device=own.device), (0, 0, 1, 0))
        return (into - best).masked_fill(own | itself, -math.inf)

    def less_tree(self, weights: Tensor) -> Tensor:
        """Weights [..., n + 1, n + 1] of arcs as the change that an arc brings: [..., n + 1, n], 0 on T."""
        into = weights[..., 1:]
        return into - into.gather(-2, self.heads.expand(*into.shape[:-2], 1, -1))

    def matrix(self, ratios: Tensor) -> Tensor:
        """B [..., n, n] of ρ [..., n + 1, n]."""
        subtree = self.above.to(ratios.dtype)
        beside = 1 - subtree
        if self.single_root:
            top = self.heads == 0
            beside = torch.cat([torch.where(top, beside[:, 0], 0).unsqueeze(1), beside[:, 1:]], 1)
        return torch.where(self.above[:, 1:], beside @ ratios, -(subtree @ ratios))

    def log_weight(self, relative: Tensor) -> Tensor:
        """Of all trees relative to T: [...] for ``log ρ`` [..., n + 1, n], scaled as the first of them needs it."""
        scaling = self.scaling(relative.detach().reshape(-1, *relative.shape[-2:])[0])
        matrix = self.matrix((relative - scaling.columns).exp()) * scaling.factors
        logarithm: Tensor = torch.linalg.slogdet(matrix + torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device))[1]
        return logarithm

    def scaling(self, relative: Tensor) -> TreeScaling:
        """For ``log ρ`` [n + 1, n]."""
        columns = relative.amax(0).clamp(min=-1e300)
        size = self.matrix((relative - columns).exp()).abs().log() + columns
        size.fill_diagonal_(-math.inf)
        potential, slack = torch.zeros_like(columns), -MARGIN
        while True:
            for _ in range(len(columns) + 1):
                raised = torch.maximum(potential, (size - slack + potential).amax(1))
                if torch.equal(raised, potential):
                    return TreeScaling(columns, (columns + potential - potential.unsqueeze(1)).exp(), slack < 0)
                potential = raised
            # A cycle of gain: nothing settles until every step costs more.
            potential, slack = torch.zeros_like(columns), 2 * max(slack, 0) + 1
