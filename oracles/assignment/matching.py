"""Best perfect matchings of a batch of square matrices, in lockstep.

Source: the shortest augmenting path method (Tomizawa 1971; Jonker & Volgenant 1987).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def one_hot_rows(columns: Tensor, dtype: torch.dtype) -> Tensor:
    """Matrices [..., n, n] with a 1 in each row, from columns [..., n]."""
    return (columns.unsqueeze(-1) == torch.arange(columns.shape[-1], device=columns.device)).to(dtype)


def best_columns(rows: Tensor) -> Tensor:
    """The column of each row in a matching of greatest score: int64 [b, n] from float64 scores [b, n, n].

    Where every matching holds a forbidden (-inf) entry, one with the fewest of them. Row by row, a shortest path in reduced costs is
    found and flipped: n(n + 1)/2 steps, each over all columns of all items, and no item waits for what is in the batch with it.

    Example:
        >>> best_columns(torch.tensor([[[3.0, 2.0], [2.0, 0.0]]], dtype=torch.float64))
        tensor([[1, 0]])
    """
    allowed = rows > -math.inf
    costs = torch.where(allowed, rows.amax((-2, -1), keepdim=True) - rows, 0)
    # A forbidden entry costs more than all allowed ones of a matching together.
    state = _Matching(torch.where(allowed, costs, rows.shape[-1] * costs.amax((-2, -1), keepdim=True) + 1))
    for row in range(rows.shape[1]):
        state.match(row)
    return state.column_of


class _Matching:
    """Partial matchings with dual variables: a reduced cost ``c − u − v`` is never negative, and 0 where matched."""

    def __init__(self, costs: Tensor) -> None:
        self.costs = costs
        self.u, self.v = costs.new_zeros(costs.shape[:2]), costs.new_zeros(costs.shape[:2])
        self.row_of = torch.full(costs.shape[:2], -1, dtype=torch.int64, device=costs.device)
        self.column_of = self.row_of.clone()
        self.items = torch.arange(len(costs), device=costs.device)
        self.columns = torch.arange(costs.shape[1], device=costs.device)

    def match(self, first: int) -> None:
        """Match the row ``first``, the rows below being matched."""
        row, low = torch.full_like(self.items, first), self.costs.new_zeros(len(self.costs))
        distance, previous = torch.full_like(self.v, math.inf), torch.zeros_like(self.row_of)
        scanned, free = torch.zeros_like(self.v, dtype=torch.bool), self.row_of < 0
        sink, searching = torch.zeros_like(self.items), torch.ones_like(self.items, dtype=torch.bool)
        for _ in range(first + 1):
            reduced = self.costs[self.items, row] - (self.u[self.items, row] - low).unsqueeze(-1) - self.v
            better = (reduced < distance) & ~scanned & searching.unsqueeze(-1)
            distance = torch.where(better, reduced, distance)
            previous = torch.where(better, row.unsqueeze(-1), previous)
            nearest, column = distance.masked_fill(scanned, math.inf).min(-1)
            low, sink = torch.where(searching, nearest, low), torch.where(searching, column, sink)
            scanned = scanned | ((self.columns == sink.unsqueeze(-1)) & searching.unsqueeze(-1))
            searching = searching & ~free[self.items, sink]
            row = self.row_of[self.items, sink].clamp(min=0)
        # Only scanned columns move, so that no reduced cost of the others turns negative.
        fall = torch.where(scanned, low.unsqueeze(-1) - distance, 0)
        self.v = self.v - fall
        self.u = self.u.scatter_add(1, self.row_of.clamp(min=0), torch.where(self.row_of >= 0, fall, 0))
        self.u[:, first] += low
        self._flip(previous, sink, first)

    def _flip(self, previous: Tensor, column: Tensor, first: int) -> None:
        """Match along the path that ends in an unmatched column, back to the row ``first``."""
        moving = torch.ones_like(self.items, dtype=torch.bool)
        for _ in range(first + 1):
            row = previous[self.items, column]
            replaced = self.column_of[self.items, row]
            self.row_of[self.items, column] = torch.where(moving, row, self.row_of[self.items, column])
            self.column_of[self.items, row] = torch.where(moving, column, replaced)
            moving = moving & (row != first)
            column = torch.where(moving, replaced, column)
