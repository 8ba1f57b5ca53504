"""Monotone alignments of two sequences (dynamic time warping)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..capabilities import EnumerableOracle, KBestOracle, ProjectionOracle, RelaxedOracle, SamplingOracle
from ..capabilities.base import Maximum
from ..numerics import log_sum_exp

DIAGONAL, ABOVE, LEFT = 0, 1, 2
"""Where a path comes from, in the order that ties go to: the cell of lowest index first."""


@dataclass(frozen=True)
class Alignment(RelaxedOracle, SamplingOracle, ProjectionOracle, EnumerableOracle, KBestOracle):
    """Monotone alignments: event ``[n, m]``, ``scores[..., i, j]`` scores that the path passes cell (i, j).

    A path leads from cell (0, 0) to (n − 1, m − 1) by steps to the right (i, j + 1), down (i + 1, j) and diagonal (i + 1, j + 1); its score
    is the sum over its cells, so paths have max(n, m) to n + m − 1 parts. For costs, see `from_costs`. Items of a batch may be smaller than
    the event: ``lengths`` is then int ``[*batch, 2]``, how many rows and columns each has.

    One dynamic programme over the n + m − 1 antidiagonals, O(nm): all cells of one are computed at once. Samples walk back from the last
    cell with n + m − 1 uniforms each. The projection is the active set over argmax calls. Of equal scores, the path is taken that, walking
    back from the last cell, comes from the cell of lowest index; `enumerate` orders paths by where they go on to, lowest index first.

    References:
        Sakoe & Chiba 1978, "Dynamic programming algorithm optimization for spoken word recognition"; Cuturi & Blondel 2017, "Soft-DTW",
        section 2; Mensch & Blondel 2018, "Differentiable dynamic programming for structured prediction and attention", section 4.2.

    Example:
        >>> oracle = Alignment()
        >>> scores = Alignment.from_costs(torch.tensor([[0.0, 2.0, 4.0], [1.0, 0.0, 2.0]]), gamma=1.0)
        >>> oracle.argmax(scores)
        tensor([[1., 0., 0.],
                [0., 1., 1.]])
        >>> oracle.log_partition(scores)
        tensor(-1.5047)
        >>> oracle.count((2, 3))
        5
    """

    name: ClassVar[str] = "alignment"
    event_ndim: ClassVar[int] = 2
    kernel: ClassVar[str | None] = "alignment"
    references: ClassVar[tuple[str, ...]] = ("sakoe1978dynamic", "cuturi2017soft", "mensch2018differentiable")

    @classmethod
    def event_shape(cls, **sizes: int) -> tuple[int, ...]:
        return cls._sizes(sizes, "rows", "columns")

    @classmethod
    def from_costs(cls, costs: Tensor, gamma: float) -> Tensor:
        """Scores ``−costs / γ``: then ``−γ`` times the log-partition is the soft-DTW value (Cuturi & Blondel 2017, equation 1).

        Args:
            costs: [*batch, n, m]; ``inf`` forbids a cell.
            gamma: the temperature γ > 0. The smaller, the nearer the law is to the cheapest path alone.
        """
        if not gamma > 0:
            raise ValueError(f"`from_costs` got gamma={gamma}; expected a number above 0, for gamma -> 0 call argmax")
        return costs / -gamma

    def count(self, event_shape: tuple[int, ...]) -> int:
        """The Delannoy number D(n − 1, m − 1), by its number of diagonal steps."""
        down, right = event_shape[0] - 1, event_shape[1] - 1
        return sum(math.comb(down, k) * math.comb(right, k) << k for k in range(min(down, right) + 1))

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        if len(event_shape) != 2:
            raise ValueError(f"`{call}` got event shape {event_shape}; expected (n, m)")

    def length_limits(self, event_shape: tuple[int, ...]) -> tuple[int, ...]:
        return event_shape

    def _inside(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        last_row, last_column = lengths.unsqueeze(-1).unsqueeze(-1).unbind(-3)
        i, j = _cells(event_shape, lengths.device)
        return (i < last_row) & (j < last_column)

    def _complete(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """One row and one column more: diagonally out of the item, right along its next row, and down the last column.

        Where such a path would turn, the corner is forbidden, and the diagonal step past it is the only one.
        """
        n, m = scores.shape[-2:]
        rows, columns = lengths.unsqueeze(-1).unsqueeze(-1).unbind(-3)
        i, j = _cells((n + 1, m + 1), scores.device)
        turns = (rows < n) & (columns < m)
        free = ((i == rows) & (j >= columns) & ((j < m) | ~turns)) | ((j == m) & (i > rows))
        completion = torch.where(free, 0.0, -math.inf).to(scores.dtype)
        return torch.where((i < rows) & (j < columns), pad(scores, (0, 1, 0, 1)), completion)

    def _tables(self, rows: Tensor, maximum: Maximum) -> list[Tensor]:
        """n + m − 1 tensors [b, n], one per antidiagonal d: the value of all paths to cell (i, d − i); -inf outside the grid."""
        skewed = _skewed(rows)
        before, current = torch.full_like(skewed[0], -math.inf), skewed[0]
        tables = [current]
        for scores in skewed[1:]:
            moves = torch.stack([_shifted(before), _shifted(current), current], -1)
            before, current = current, scores + maximum(moves, -1)
            tables.append(current)
        return tables

    def _value(self, rows: Tensor, maximum: Maximum) -> Tensor:
        # A maximum over the last cell alone changes nothing, but gives a grid of one cell its derivatives, which are 0 beyond the first.
        return maximum(self._tables(rows, maximum)[-1][:, -1:], -1)

    def _argmax(self, rows: Tensor) -> Tensor:
        # A forbidden cell costs more than any sum of scores, so that a path leads to every cell of the grid.
        finite = rows.clamp(min=torch.finfo(rows.dtype).min / (2 * sum(rows.shape[1:])))
        tables = self._tables(finite, lambda values, dim: values.amax(dim))

        def best(moves: Tensor, step: int) -> Tensor:
            diagonal, above, left = moves
            straight = torch.where(above >= left, ABOVE, LEFT)
            return torch.where((diagonal >= above) & (diagonal >= left), DIAGONAL, straight)

        return _walk_back(tables, best, samples=1)[0]

    def _noise_size(self, event_shape: tuple[int, ...]) -> int:
        return sum(event_shape) - 1

    def _sample(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        tables = self._tables(rows.double(), log_sum_exp)

        def draw(moves: Tensor, step: int) -> Tensor:
            top = moves.amax(0)
            diagonal, above, left = (moves - torch.where(top > -math.inf, top, 0)).exp()
            threshold = uniforms[..., step] * (diagonal + above + left)
            # A uniform is below 1, and so the threshold below the total: what has weight 0 is never chosen.
            straight = torch.where(threshold >= diagonal, ABOVE, DIAGONAL)
            return torch.where(threshold >= diagonal + above, LEFT, straight)

        feasible = tables[-1][:, -1] > -math.inf
        return _walk_back(tables, draw, samples=len(uniforms)) * feasible.reshape(-1, 1, 1)

    def _kbest(self, rows: Tensor, k: int) -> Tensor:
        """The recursion with the k best paths to every cell: [b, n, k], and for each the step and the place that it comes from."""
        batch, n, m = rows.shape
        skewed = _skewed(rows)
        before = rows.new_full((batch, n, k), -math.inf)
        current = before.clone()
        current[..., 0] = skewed[0]
        pointers = [torch.zeros(batch, n, k, dtype=torch.int32, device=rows.device)]
        for scores in skewed[1:]:
            moves = torch.cat([_shifted(before, 1), _shifted(current, 1), current], -1)
            order = moves.sort(dim=-1, descending=True, stable=True)
            before, current = current, order.values[..., :k] + scores.unsqueeze(-1)
            pointers.append(order.indices[..., :k].to(torch.int32))
        # [b, antidiagonal, row and place], to be looked up for all k paths at once.
        steps = torch.stack(pointers, 1).flatten(1)
        i, j = (torch.full((batch, k), size - 1, device=rows.device) for size in (n, m))
        place = torch.arange(k, device=rows.device).expand(batch, k)
        cells = [i * m + j]
        for _ in range(n + m - 2):
            pointer = steps.gather(1, ((i + j) * n + i) * k + place).long()
            going = i + j > 0
            move, place = pointer // k, pointer % k
            i, j = i - (going & (move != LEFT)).long(), j - (going & (move != ABOVE)).long()
            cells.append(i * m + j)
        return _marked(torch.stack(cells, -1), (n, m)).movedim(1, 0)

    def _rank(self, structures: Tensor) -> Tensor:
        n, m = structures.shape[1:]
        used = pad(structures != 0, (0, 1, 0, 1)).flatten(1)
        ways, width = _ways(n, m, structures.device), m + 1
        rank = torch.zeros(len(structures), dtype=torch.int64, device=structures.device)
        cell = torch.zeros_like(rank)
        for _ in range(n + m - 2):
            right, down = (used.gather(1, (cell + step).unsqueeze(1)).squeeze(1) for step in (1, width))
            rank = rank + torch.where(right, 0, ways[cell + 1] + torch.where(down, 0, ways[cell + width]))
            step = torch.where(right, 1, torch.where(down, width, width + 1))
            cell = torch.where(cell < n * width - 2, cell + step, cell).clamp(max=n * width - 2)
        return rank

    def _unrank(self, ranks: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        n, m = event_shape
        ways, width = _ways(n, m, ranks.device), m + 1
        cell = torch.zeros_like(ranks)
        cells = [cell]
        for _ in range(n + m - 2):
            right, down = ways[cell + 1], ways[cell + width]
            goes_right = ranks < right
            goes_down = ~goes_right & (ranks < right + down)
            ranks = ranks - torch.where(goes_right, 0, right + torch.where(goes_down, 0, down))
            step = torch.where(goes_right, 1, torch.where(goes_down, width, width + 1))
            cell = torch.where(cell < n * width - 2, cell + step, cell)
            cells.append(cell)
        return _marked(torch.stack(cells, -1), (n, width))[..., :m]


def _cells(event_shape: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Row and column numbers of a grid, [n, 1] and [m]."""
    return torch.arange(event_shape[0], device=device).unsqueeze(-1), torch.arange(event_shape[1], device=device)


def _skewed(rows: Tensor) -> Tensor:
    """[b, n, m] -> [n + m − 1, b, n]: antidiagonal d, row i holds cell (i, d − i); -inf where there is none."""
    batch, n, m = rows.shape
    # Rows padded to n + m and read in steps of n + m − 1 slip by one column each.
    flat = pad(rows, (0, n), value=-math.inf).flatten(1)[:, : n * (n + m - 1)]
    return flat.reshape(batch, n, n + m - 1).permute(2, 0, 1).contiguous()


def _shifted(table: Tensor, trailing: int = 0) -> Tensor:
    """[b, n, ...]: row i holds what row i − 1 held; -inf in the first. ``trailing`` dimensions follow the rows."""
    return pad(table.narrow(1, 0, table.shape[1] - 1), (*[0] * (2 * trailing), 1, 0), value=-math.inf)


def _walk_back(tables: list[Tensor], choose: Callable[[Tensor, int], Tensor], samples: int) -> Tensor:
    """Paths [s, b, n, m] from the last cell to the first, all at once.

    Args:
        tables: n + m − 1 tensors [b, n] as `Alignment._tables` gives them.
        choose: from the values [3, s, b] of the cells that a path may come from, -inf for what is no cell, and the number of the step.
        samples: how many paths per item.
    """
    batch, n = tables[0].shape
    m, width = len(tables) - n + 1, n + 1
    # Two antidiagonals and one row of -inf before the first, so that what lies outside the grid can be looked up.
    values = pad(torch.stack(tables, 1), (1, 0, 2, 0), value=-math.inf).flatten(1).expand(samples, -1, -1)
    i, j = (torch.full((samples, batch), size - 1, device=values.device) for size in (n, m))
    cells = [i * m + j]
    for step in range(n + m - 2):
        here = (i + j + 2) * width + i + 1
        came_from = torch.stack([here - 2 * width - 1, here - width - 1, here - width], -1)
        moves = values.gather(-1, came_from).movedim(-1, 0)
        move, going = choose(moves, step), moves.amax(0) > -math.inf
        i, j = i - (going & (move != LEFT)).long(), j - (going & (move != ABOVE)).long()
        cells.append(i * m + j)
    return _marked(torch.stack(cells, -1), (n, m)).to(tables[0].dtype)


def _marked(cells: Tensor, shape: tuple[int, int]) -> Tensor:
    """Flat cell numbers [*batch, c], repeated at will, to 0/1 grids [*batch, *shape]."""
    grid = torch.zeros(*cells.shape[:-1], math.prod(shape), dtype=torch.uint8, device=cells.device)
    return grid.scatter_(-1, cells, 1).reshape(*cells.shape[:-1], *shape)


def _ways(n: int, m: int, device: torch.device) -> Tensor:
    """Flat int64 [(n + 1)(m + 1)]: how many paths lead from cell (i, j) to the last one; 0 beyond the grid."""
    counts = [torch.ones(m, dtype=torch.int64, device=device)]
    for _ in range(n - 1):
        counts.append((counts[-1] + pad(counts[-1][:-1], (1, 0))).cumsum(-1))
    return pad(torch.stack(counts).flip(0, 1), (0, 1, 0, 1)).flatten()
