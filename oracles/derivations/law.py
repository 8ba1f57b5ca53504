"""The Gibbs law of derivations by the conditional probabilities of their edges, exact at any scale of scores.

Log-weights of nodes lose the digits below their own rounding, and every probability with them. But any numbers at the nodes, taken off
above and added below, leave the law as it is. So log-weights serve as such numbers: what is left of each edge, summed without rounding, is
its log-probability given its node, up to the rounding of the log-weights; and once more, until nothing is left.
"""

import math
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from ..capabilities.derivatives import exchanged_for
from ..numerics import exact_sum, log_sum_exp
from . import algorithms
from .tables import Tables

ROUNDS = 3
"""Each takes 53 bits off what the scores have above the unit: enough from 1e30 on."""


class EdgeLaw:
    """The law of rows of float64 scores, differentiable.

    Args:
        tables: of the derivations.
        rows: scores ``[b, *event]``.

    Attributes:
        offsets: ``[b, ROUNDS + 1]``, whose exact sum is the log-partition; -inf in an infeasible row.
    """

    def __init__(self, tables: Tables, rows: Tensor) -> None:
        flat = rows.flatten(1)
        self.tables, self.shape, self.rows = tables, rows.shape, flat.detach()
        padded = torch.nn.functional.pad(flat, (0, 1))
        given = [padded[:, level.parts].expand(-1, *level.first.shape) for level in tables.levels]
        offsets, edges = [], [edge.detach() for edge in given]
        for _ in range(ROUNDS):
            edges, total = self._given_nodes(edges, exactly=True)
            offsets.append(total)
        moving = [exchanged_for(edge, theta) for edge, theta in zip(edges, given, strict=True)]
        self.logs, total = self._given_nodes(moving)
        self.offsets = torch.stack([*offsets, total.detach()], -1)

    def _given_nodes(self, edges: list[Tensor], *, exactly: bool = False) -> tuple[list[Tensor], Tensor]:
        """What edges ``[b, h, e]`` of every level are given their nodes, -inf where impossible; and what is left of the log-partition.

        Differentiable log-probabilities, or ``exactly`` what the log-weights of nodes leave, summed without rounding.
        """
        values, left = algorithms.leaves(self.tables, self.rows), []
        for level, edge in zip(self.tables.levels, edges, strict=True):
            nodes = algorithms.led_to(level, values)
            joined = sum(nodes, edge)
            values[:, level.heads] = total = log_sum_exp(joined, 2)
            taken = torch.where(total > -math.inf, -total, 0).unsqueeze(2).expand_as(edge)
            whole = exact_sum(torch.stack([edge, *nodes, taken], -1)) if exactly else joined + taken
            left.append(torch.where(joined > -math.inf, whole, -math.inf))
        return left, values[:, self.tables.root]

    @cached_property
    def edges(self) -> tuple[list[Tensor], Tensor]:
        """The probability ``[b, h, e]`` of each edge of every level, and ``[b, *event]`` of each part."""
        sums, found = algorithms.Sums(self.tables, self.rows), []
        for level, logs in zip(reversed(self.tables.levels), reversed(self.logs), strict=True):
            found.append(sums.above(level).unsqueeze(2) * logs.exp())
            sums.put(level, found[-1])
        return found[::-1], sums.by_part().reshape(self.shape)

    @property
    def marginals(self) -> Tensor:
        """``[b, *event]``, 0 in an infeasible row."""
        return self.edges[1]

    def entropy(self) -> Tensor:
        """``[b]``: the mean surprise of the edges."""
        return -self._mean(self.logs)

    def kl(self, other: Self) -> Tensor:
        """``[b]``, without what the other law forbids."""
        return self._mean([here - torch.where(there > -math.inf, there, here) for here, there in zip(self.logs, other.logs, strict=True)])

    def _mean(self, values: list[Tensor]) -> Tensor:
        pairs = zip(self.edges[0], values, strict=True)
        # An edge of probability 0 may be forbidden.
        return torch.stack([(p * torch.where(p > 0, value, 0)).flatten(1).sum(1) for p, value in pairs]).sum(0)
