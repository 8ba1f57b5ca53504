"""Exactly k of n."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import MAX_RANK, EnumerableOracle, KBestOracle, ProjectionOracle, RowArgmax, SamplingOracle
from .masking import log_sum_exp
from .sparse_solution import Projection


@dataclass(frozen=True)
class Subset(SamplingOracle, ProjectionOracle, EnumerableOracle, KBestOracle):
    """Exactly ``k`` of ``n``: event ``[n]``, structures hold k ones.

    The Gibbs law is the conditional Poisson law (not Plackett-Luce, which Gumbel top-k draws). Log-partition by the dynamic programme of
    elementary symmetric polynomials in log space, O(nk); a sample walks back through it with n uniforms; the projection sorts 2n
    breakpoints, and its atoms come from systematic sampling.

    Args:
        k: size of the subset, at least 1.

    References:
        Chen & Liu 1997, "Statistical applications of the Poisson-binomial and conditional Bernoulli distributions", section 2;
        Ahmed et al. 2023, "SIMPLE", section 3; Madow 1949 (systematic sampling).

    Example:
        >>> oracle = Subset(2)
        >>> oracle.marginals(torch.zeros(4))
        tensor([0.5000, 0.5000, 0.5000, 0.5000])
        >>> oracle.count((30,))
        435
    """

    k: int

    name: ClassVar[str] = "subset"
    event_ndim: ClassVar[int] = 1
    references: ClassVar[tuple[str, ...]] = ("chen1997statistical", "ahmed2023simple")

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 1:
            raise ValueError(f"`Subset` got k={self.k!r}; expected an integer of at least 1")

    @classmethod
    def event_shape(cls, **sizes: int) -> tuple[int, ...]:
        return cls._sizes(sizes, "length")

    def count(self, event_shape: tuple[int, ...]) -> int:
        return math.comb(event_shape[0], self.k)

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        if len(event_shape) != 1:
            raise ValueError(f"`{call}` got event shape {event_shape}; expected (n,)")
        if event_shape[0] < self.k:
            raise ValueError(f"`{call}` got n={event_shape[0]} parts for k={self.k}; expected n >= k, choose a smaller k")

    def _argmax(self, rows: Tensor) -> Tensor:
        # The order of ties in `topk` is not defined, so only its last value is used: ties with it are taken from the left.
        last = rows.topk(self.k, dim=-1).values[..., -1:]
        above, equal = rows > last, rows == last
        return above | (equal & (equal.cumsum(-1) <= self.k - above.sum(-1, keepdim=True)))

    def _suffixes(self, rows: Tensor) -> Tensor:
        """[n + 1, b, k + 1]: ``[i, :, j]`` is the log-weight of choosing j of the parts i, ..., n − 1."""
        empty = rows.new_full((rows.shape[0], self.k + 1), -math.inf)
        last = torch.cat([torch.zeros_like(empty[:, :1]), empty[:, 1:]], -1)
        tables = [last]
        for i in reversed(range(rows.shape[-1])):
            chosen = torch.cat([empty[:, :1], tables[-1][:, :-1] + rows[:, i : i + 1]], -1)
            tables.append(log_sum_exp(torch.stack([tables[-1], chosen], -1), -1))
        return torch.stack(tables[::-1])

    def _log_partition(self, rows: Tensor) -> Tensor:
        return self._suffixes(rows)[0, :, self.k]

    def _noise_size(self, event_shape: tuple[int, ...]) -> int:
        return event_shape[0]

    def _sample(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        scores = rows.double()
        tables = self._suffixes(scores)
        remaining = torch.full(uniforms.shape[:-1], self.k, dtype=torch.int64, device=rows.device)
        chosen = []
        for i in range(rows.shape[-1]):
            included = torch.cat([torch.full_like(tables[i][:, :1], -math.inf), tables[i + 1][:, :-1] + scores[:, i : i + 1]], -1)
            reachable = tables[i] > -math.inf
            probability = torch.where(reachable, (included - torch.where(reachable, tables[i], 0)).exp(), 0)
            taken = uniforms[..., i] < probability.expand(*remaining.shape, -1).gather(-1, remaining.unsqueeze(-1)).squeeze(-1)
            remaining = remaining - taken.long()
            chosen.append(taken)
        return torch.stack(chosen, -1)

    def _project(self, rows: Tensor, argmax: RowArgmax) -> Projection:
        feasible = (rows > -math.inf).sum(-1, keepdim=True) >= self.k
        finite = torch.where(rows > -math.inf, rows, torch.where(rows > -math.inf, rows, math.inf).amin(-1, keepdim=True) - 2)
        finite = torch.where(feasible, finite, 0)
        mean = torch.where(feasible, capped_simplex(finite, self.k), 0)
        free = (mean > 0) & (mean < 1)
        residual = torch.where(rows > -math.inf, rows - mean, -math.inf)
        best = residual.sort(-1, descending=True).values[..., : self.k].sum(-1)
        expected = torch.where(mean > 0, residual * mean, 0).sum(-1)
        gap = torch.where(feasible.squeeze(-1), (best - expected).clamp(min=0), math.inf)
        return Projection(gap=gap, decompose=lambda: systematic_atoms(mean, self.k), mean=mean, free=free)

    def _kbest(self, rows: Tensor, k: int) -> Tensor:
        """Part by part, the k best subsets of every size: [b, size + 1, k], and what they hold."""
        totals = rows.new_full((rows.shape[0], self.k + 1, k), -math.inf)
        totals[:, 0, 0] = 0
        held = rows.new_zeros(rows.shape[0], self.k + 1, k, rows.shape[1], dtype=torch.bool)
        for i in range(rows.shape[1]):
            grown, holding = totals.roll(1, 1) + rows[:, i, None, None], held.roll(1, 1)
            grown[:, 0] = -math.inf
            holding[..., i] = True
            order = torch.cat([grown, totals], -1).sort(dim=-1, descending=True, stable=True)
            totals, places = order.values[..., :k], order.indices[..., :k]
            both = torch.cat([holding, held], 2)
            held = both.gather(2, places.unsqueeze(-1).expand(*places.shape, rows.shape[1]))
        return held[:, self.k].movedim(1, 0)

    def _holding(self, size: int, i: int) -> list[int]:
        """By how many parts are still to be chosen: how many ways there are once part i is. What is beyond int64 no valid rank reaches."""
        return [0] + [min(math.comb(size - i - 1, j - 1), MAX_RANK) for j in range(1, self.k + 1)]

    def _rank(self, structures: Tensor) -> Tensor:
        size = structures.shape[-1]
        rank = torch.zeros(len(structures), dtype=torch.int64, device=structures.device)
        remaining = torch.full_like(rank, self.k)
        for i in range(size):
            holding = torch.tensor(self._holding(size, i), device=structures.device)[remaining]
            taken = structures[:, i] != 0
            rank = torch.where(taken, rank, rank + holding)
            remaining = (remaining - taken.long()).clamp(min=0)
        return rank

    def _unrank(self, ranks: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        """Lexicographic: of the subsets that agree so far, those that hold the next part come first."""
        size = event_shape[0]
        remaining = torch.full_like(ranks, self.k)
        chosen = []
        for i in range(size):
            with_part = torch.tensor(self._holding(size, i), device=ranks.device)[remaining]
            taken = ranks < with_part
            ranks = torch.where(taken, ranks, ranks - with_part)
            remaining = remaining - taken.long()
            chosen.append(taken)
        return torch.stack(chosen, -1)


def capped_simplex(rows: Tensor, k: int) -> Tensor:
    """Euclidean projection on ``{x : 0 ≤ x ≤ 1, Σx = k}``: ``clip(θ − τ, 0, 1)`` with τ found exactly among 2n breakpoints.

    Between neighbouring breakpoints ``Σ clip(θ − τ, 0, 1)`` is affine in τ, so the segment that holds the value k gives τ in closed form.
    """
    size = rows.shape[-1]
    rows = rows - rows.amax(-1, keepdim=True)
    breakpoints = torch.cat([rows, rows - 1], -1).sort(-1, descending=True).values
    # Walking τ downwards, the sum rises with slope (parts entered − parts saturated).
    totals = (rows.unsqueeze(-2) - breakpoints.unsqueeze(-1)).clamp(0, 1).sum(-1) if size <= 64 else _totals(rows, breakpoints)
    segment = (totals < k).sum(-1, keepdim=True).clamp(1, 2 * size - 1)
    upper, lower = breakpoints.gather(-1, segment - 1), breakpoints.gather(-1, segment)
    middle = (upper + lower) / 2
    inside = (rows > middle) & (rows - 1 < middle)
    saturated = rows - 1 >= middle
    count = inside.sum(-1, keepdim=True)
    threshold = (torch.where(inside, rows, 0).sum(-1, keepdim=True) + saturated.sum(-1, keepdim=True) - k) / count.clamp(min=1)
    threshold = torch.where(count > 0, torch.minimum(torch.maximum(threshold, lower), upper), lower)
    return (rows - threshold).clamp(0, 1)


def _totals(rows: Tensor, breakpoints: Tensor) -> Tensor:
    """``Σ clip(θ − τ, 0, 1)`` at every breakpoint τ in O(n log n), from prefix sums of the sorted scores."""
    ordered = rows.sort(-1, descending=True).values.contiguous()
    sums = torch.nn.functional.pad(ordered.cumsum(-1), (1, 0))
    ascending = -ordered
    above = torch.searchsorted(ascending, (-breakpoints).contiguous())
    full = torch.searchsorted(ascending, (-breakpoints - 1).contiguous(), right=True)
    return sums.gather(-1, above) - sums.gather(-1, full) - (above - full) * breakpoints + full


def systematic_atoms(mean: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Write points of the capped simplex as at most n weighted k-subsets, by systematic sampling.

    Lay the parts end to end as intervals of lengths ``x_i`` on ``[0, k]``; for u in [0, 1) choose the parts that hold a point ``u + j``.
    Part i is chosen for a set of u of measure ``x_i``, and the choice changes only at the fractional parts of the running sums.
    Neighbouring choices differ by exchanges ``e_{i+1} − e_i`` of their own, so that the atoms are affinely independent.

    Args:
        mean: [b, n].
        k: their sum.

    Returns:
        Atoms [b, n, n] and weights [b, n].
    """
    ends = mean.cumsum(-1)
    ends = ends * torch.where(ends[..., -1:] > 0, k / ends[..., -1:], 0)
    nearest = ends.round()
    ends = torch.where((ends - nearest).abs() < 1e-12, nearest, ends)
    starts = torch.nn.functional.pad(ends[..., :-1], (1, 0))
    cuts = (ends - ends.floor()).sort(-1).values
    lengths = torch.nn.functional.pad(cuts[..., 1:], (0, 1), value=1.0) - cuts
    offsets = (cuts + lengths / 2).unsqueeze(-1)
    atoms = (ends.unsqueeze(-2) - offsets).floor() - (starts.unsqueeze(-2) - offsets).floor()
    weights = torch.where((lengths > 1e-12) & (mean.sum(-1, keepdim=True) > 0), lengths, 0)
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-300)
    return atoms, weights
