"""Monotone alignments of two sequences (dynamic time warping)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from .derivations import DEAD, UNIT, Builder, Derivations, DerivedOracle
from .numerics import in_double
from .tensor_kinds import inside_lengths


@dataclass(frozen=True)
class Alignment(DerivedOracle):
    """Monotone alignments: event ``[n, m]``, ``scores[..., i, j]`` scores that the path passes cell (i, j).

    A path leads from cell (0, 0) to (n − 1, m − 1) by steps to the right (i, j + 1), down (i + 1, j) and diagonal (i + 1, j + 1); its score
    is the sum over its cells, so paths have max(n, m) to n + m − 1 parts. For costs, see `from_costs`. Items of a batch may be smaller than
    the event: ``lengths`` is then int ``[*batch, 2]``, how many rows and columns each has. Indices ``[n + m − 1]`` are the cells
    ``i m + j`` along the path, then -1.

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
    axes: ClassVar[tuple[str, ...]] = ("rows", "columns")
    references: ClassVar[tuple[str, ...]] = ("sakoe1978dynamic", "cuturi2017soft", "mensch2018differentiable")
    _ignores_entries: ClassVar[bool] = False

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

    def _most_parts(self, event_shape: tuple[int, ...]) -> int:
        return sum(event_shape) - 1

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

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        """A node per cell, for the paths to it; a level per antidiagonal. Edges come from the cell of lowest index first."""
        rows, columns = event_shape
        parts = torch.arange(rows * columns).reshape(event_shape)
        builder = Builder(parts.numel())
        # One row and one column before the first; the corner is where paths begin.
        nodes = torch.full((rows + 1, columns + 1), DEAD)
        nodes[0, 0] = UNIT
        for diagonal in range(rows + columns - 1):
            i = torch.arange(max(0, diagonal - columns + 1), min(rows, diagonal + 1))
            j = diagonal - i
            first = torch.stack([nodes[i, j], nodes[i, j + 1], nodes[i + 1, j]], 1)
            nodes[i + 1, j + 1] = builder.add(first, parts[i, j].unsqueeze(1))
        return builder.finish(nodes[-1, -1])

    def _argmax(self, rows: Tensor) -> Tensor:
        # A forbidden cell costs more than any sum of scores: where all paths are forbidden, the best one passes the fewest of them.
        return super()._argmax(rows.clamp(min=torch.finfo(rows.dtype).min / (2 * sum(rows.shape[1:]))))

    # Derivations go through paths from the last cell. Turned round, a path begins there; and where derivations put the diagonal step first,
    # the order of cells puts it last.

    def _rank(self, structures: Tensor) -> Tensor:
        return self.count(tuple(structures.shape[1:])) - 1 - super()._rank(structures.flip(1, 2))

    def _unrank(self, ranks: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        return super()._unrank(self.count(event_shape) - 1 - ranks, event_shape).flip(1, 2)


def _cells(event_shape: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Row and column numbers of a grid, [n, 1] and [m]."""
    return torch.arange(event_shape[0], device=device).unsqueeze(-1), torch.arange(event_shape[1], device=device)


def _squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """``‖x_i − y_j‖²``, [*batch, n, m]: by products, which take no memory for each feature, in float64, as they cancel."""
    x, y = in_double(x), in_double(y)
    return x.square().sum(-1, keepdim=True) + y.square().sum(-1).unsqueeze(-2) - 2 * x @ y.mT


def soft_dtw_divergence(  # noqa: PLR0913 - two series, and options by name
    x: Tensor,
    y: Tensor,
    *,
    gamma: float = 1.0,
    lengths: Tensor | None = None,
    cost: Callable[[Tensor, Tensor], Tensor] | None = None,
    kind: Literal["soft", "sharp", "mean"] = "soft",
) -> Tensor:
    """The soft-DTW divergence of time series: ``[*batch]``, 0 with gradient 0 at x = y; a loss for predicted series.

    ``D(x, y) = s(C(x, y)) − ½ s(C(x, x)) − ½ s(C(y, y))`` of costs C of pairs of steps. ``s(C) = −γ log Σ_z exp(−⟨C, z⟩ / γ)`` over all
    monotone alignments z is the soft-DTW value, which is below 0 for equal series, and not least there. Differentiable to any order.

    Cost: three log-partitions, O(n²) each; marginals for the other kinds.

    Args:
        x: ``[*batch, n, d]``.
        y: ``[*batch, m, d]``, of another number of steps.
        gamma: the temperature γ > 0.
        lengths: integers ``[*batch, 2]``, the numbers of steps of x and y; nothing beyond them is read.
        cost: from two series to the costs ``[*batch, n, m]``, differentiable; ``inf`` forbids a pair. None for squared Euclidean distances.
        kind: ``"sharp"`` for ``s(C) = ⟨C, μ⟩`` of the marginals μ, without the entropy of the law; ``"mean"`` for its limit of large γ, the
            mean cost of all alignments. Both may be below 0 for series of different lengths.

    References:
        Blondel, Mensch & Vert 2021, "Differentiable divergences between time series", section 3, with the costs for which D >= 0 is proven;
        Cuturi & Blondel 2017, "Soft-DTW".

    Example:
        >>> x, y = torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[0.0], [1.0], [1.0], [3.0]])
        >>> soft_dtw_divergence(x, y), soft_dtw_divergence(x, 2 * y), soft_dtw_divergence(x, x)
        (tensor(0.3783), tensor(10.4286), tensor(0.))
    """
    if x.ndim < 2 or y.ndim < 2 or x.shape[-1] != y.shape[-1]:
        raise ValueError(
            f"`soft_dtw_divergence` got x of shape {tuple(x.shape)} and y of shape {tuple(y.shape)}; expected [*batch, n, d] and "
            "[*batch, m, d]"
        )
    if not (x.is_floating_point() and y.is_floating_point()):
        raise ValueError(f"`soft_dtw_divergence` got x of {x.dtype} and y of {y.dtype}; expected floating-point series: take x.float()")
    if not 0 < gamma < math.inf or kind not in {"soft", "sharp", "mean"}:
        raise ValueError(
            f"`soft_dtw_divergence` got gamma={gamma} and kind={kind!r}; expected a finite number above 0, and 'soft', 'sharp' or 'mean'"
        )
    oracle, batch = Alignment(), torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    series = list[Tensor]()
    for i, each in enumerate((x, y)):
        inside = inside_lengths("soft_dtw_divergence", None if lengths is None else lengths[..., i], each.shape[-2])
        masked = each if inside is None else torch.where(inside.unsqueeze(-1), each, 0)
        series.append(masked.expand(*batch, *each.shape[-2:]))

    def value(one: int, other: int) -> Tensor:
        costs = in_double((cost or _squared_distances)(series[one], series[other]))
        scores = Alignment.from_costs(torch.where(costs < math.inf, 0, costs) if kind == "mean" else costs, gamma)
        of = None if lengths is None else lengths[..., [one, other]]
        if kind == "soft":
            return -gamma * oracle.log_partition(scores, lengths=of)
        marginals = oracle.marginals(scores, lengths=of)
        mean = (marginals * torch.where(marginals > 0, costs, 0)).sum((-2, -1))
        return torch.where(oracle.feasible(scores, lengths=of), mean, math.inf)

    return (value(0, 1) - (value(0, 0) + value(1, 1)) / 2).to(x.dtype)
