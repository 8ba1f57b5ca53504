"""Best perfect matchings of a batch of square matrices, in lockstep.

Source: the shortest augmenting path method (Tomizawa 1971; Jonker & Volgenant 1987) and its ranking (Murty 1968).
"""

from __future__ import annotations

import math
from collections.abc import Callable

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


def ranked_columns(solve: Callable[[Tensor], Tensor], rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The columns of the k best matchings, int64 [b, k, n], and their scores [b, k]: -inf where fewer than k are allowed.

    Murty's partition: the matchings that a node allows, its best one left out, are those that agree with it in the first rows and differ
    in the next, for each choice of "first". A node is a fixed prefix of the best matching and the columns banned from the row after it.

    Args:
        solve: the best matchings as 0/1 matrices [i, n, n] of float64 scores [i, n, n], -inf where an entry is forbidden; 0 without one.
        rows: float64 [b, n, n].
        k: how many; each takes n calls' worth of matchings, O(n⁴).
    """
    items = torch.arange(len(rows), device=rows.device)
    pool = _Pool(rows, solve)
    listed, totals = [], []
    for _ in range(k):
        total, columns, prefix, banned = pool.take_best(items)
        listed.append(columns)
        totals.append(total)
        pool.add_children(columns, prefix, banned, total > -math.inf)
    return torch.stack(listed, 1), torch.stack(totals, 1)


class _Pool:
    """Nodes of Murty's search: score [b, p], best matching [b, p, n], length of the fixed prefix [b, p], banned columns [b, p, n]."""

    def __init__(self, rows: Tensor, solve: Callable[[Tensor], Tensor]) -> None:
        self.rows, self.solve = rows, solve
        size = rows.shape[1]
        self.places = torch.arange(size, device=rows.device)
        self.totals, self.columns = self._best(rows.unsqueeze(1))
        self.prefixes = torch.zeros_like(self.columns[..., 0])
        self.banned = torch.zeros_like(self.columns, dtype=torch.bool)

    def _best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Score [b, p] and columns [b, p, n] of the best matchings of scores [b, p, n, n]."""
        best = self.solve(scores.flatten(0, 1)).unflatten(0, scores.shape[:2])
        columns = best.argmax(-1)
        totals = scores.gather(-1, columns.unsqueeze(-1)).squeeze(-1).sum(-1)
        return totals.masked_fill(~best.flatten(2).any(-1), -math.inf), columns

    def take_best(self, items: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Remove and give the best node of each item."""
        total, place = self.totals.max(-1)
        self.totals[items, place] = -math.inf
        return total, self.columns[items, place], self.prefixes[items, place], self.banned[items, place]

    def add_children(self, columns: Tensor, prefix: Tensor, banned: Tensor, exists: Tensor) -> None:
        """The parts of a node without its best matching: child i keeps the columns of the rows below i and bans that of row i."""
        used = columns.unsqueeze(-1) == self.places
        first = self.places < prefix.unsqueeze(-1)
        bans = used | (banned.unsqueeze(1) & (self.places == prefix.unsqueeze(-1)).unsqueeze(-1))
        child, row = self.places.unsqueeze(-1), self.places
        forbidden = ((row < child).unsqueeze(-1) & ~used.unsqueeze(1)) | ((row == child).unsqueeze(-1) & bans.unsqueeze(1))
        totals, best = self._best(self.rows.unsqueeze(1).masked_fill(forbidden, -math.inf))
        totals = totals.masked_fill(first | ~exists.unsqueeze(-1), -math.inf)
        self.totals = torch.cat([self.totals, totals], 1)
        self.columns = torch.cat([self.columns, best], 1)
        self.prefixes = torch.cat([self.prefixes, self.places.expand_as(totals)], 1)
        self.banned = torch.cat([self.banned, bans], 1)
