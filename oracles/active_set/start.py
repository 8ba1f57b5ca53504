"""The atoms of an earlier solution, which an active set begins with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .atoms import AtomLists
from .solution import SparseSolution

Lists = tuple[Tensor, tuple[np.ndarray, np.ndarray, np.ndarray]]
"""Of b rows, int64 [b, 3]: first atom, how many, where their parts begin; and parts, sizes and weights of all atoms."""


@dataclass(frozen=True, eq=False)
class Start:
    """Atoms for rows that differ little from those of a solution.

    Attributes:
        solution: whose atoms they are.
        rows: int64 [b], for each row that of the solution which it begins with.
    """

    solution: SparseSolution
    rows: Tensor

    def dense(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Atoms [b, m, d] and weights [b, m] in dtype and on the device of a tensor."""
        atoms, weights = self.solution.decomposition
        rows = self.rows.to(atoms.device)
        return atoms.flatten(2)[rows].to(like), weights[rows].to(like)

    def lists(self, event: torch.Size) -> Lists:
        """The atoms as lists of parts of this event, which may be larger than that of the solution."""
        lists = self.solution.projection.lists or AtomLists.of(*self.solution.decomposition)
        return lists.bounds[self.rows], (lists.parts_in(event), lists.sizes, lists.weights.numpy())


def nothing(count: int) -> Lists:
    """`Start.lists` of rows that begin again."""
    return torch.zeros(count, 3, dtype=torch.int64), (np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0))
