"""One of n categories."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import EnumerableOracle, KBestOracle, ProjectionOracle, RowArgmax, SamplingOracle
from .masking import log_sum_exp
from .sparse_solution import Projection


@dataclass(frozen=True)
class Categorical(SamplingOracle, ProjectionOracle, EnumerableOracle, KBestOracle):
    """One of n: event ``[n]``, structures are one-hot.

    Cost: O(n) each, O(n log n) for the projection (sparsemax by sorting).

    References:
        Martins & Astudillo 2016, "From Softmax to Sparsemax", algorithm 1.

    Example:
        >>> oracle = Categorical()
        >>> scores = torch.tensor([1.0, 0.8, -1.0])
        >>> oracle.argmax(scores)
        tensor([1., 0., 0.])
        >>> oracle.project(scores).mean
        tensor([0.6000, 0.4000, 0.0000])
    """

    name: ClassVar[str] = "categorical"
    event_ndim: ClassVar[int] = 1
    references: ClassVar[tuple[str, ...]] = ("martins2016softmax",)

    @classmethod
    def event_shape(cls, **sizes: int) -> tuple[int, ...]:
        return cls._sizes(sizes, "length")

    def count(self, event_shape: tuple[int, ...]) -> int:
        return event_shape[0]

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        if len(event_shape) != 1:
            raise ValueError(f"`{call}` got event shape {event_shape}; expected (n,)")

    def _argmax(self, rows: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(rows.argmax(-1), rows.shape[-1])

    def _log_partition(self, rows: Tensor) -> Tensor:
        return log_sum_exp(rows, -1)

    def _noise_size(self, event_shape: tuple[int, ...]) -> int:
        return 1

    def _sample(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        top = rows.amax(-1, keepdim=True)
        cumulative = (rows - torch.where(top > -math.inf, top, 0)).double().exp().cumsum(-1)
        index = inverse_cdf(cumulative, uniforms.squeeze(-1))
        return torch.nn.functional.one_hot(index, rows.shape[-1]) * (top > -math.inf)

    def _project(self, rows: Tensor, argmax: RowArgmax) -> Projection:
        mean, free = sparsemax(rows)
        size = rows.shape[-1]
        atoms = torch.eye(size, dtype=rows.dtype, device=rows.device).expand(*rows.shape[:-1], size, size)
        gap = simplex_gap(rows, mean)
        return Projection(gap=gap, decompose=lambda: (atoms, mean), mean=mean, free=free)

    def _kbest(self, rows: Tensor, k: int) -> Tensor:
        order = rows.sort(dim=-1, descending=True, stable=True).indices[:, :k]
        return torch.nn.functional.one_hot(order.T, rows.shape[-1])

    def _rank(self, structures: Tensor) -> Tensor:
        return structures.to(torch.uint8).argmax(-1)

    def _unrank(self, ranks: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        return torch.nn.functional.one_hot(ranks, event_shape[0])


def inverse_cdf(cumulative: Tensor, uniforms: Tensor) -> Tensor:
    """Index of the category that a uniform falls in; never one of weight 0.

    Args:
        cumulative: [..., n], running sums of non-negative weights with a positive total.
        uniforms: [s, ...] in [0, 1).
    """
    thresholds = uniforms * cumulative[..., -1]
    moved = thresholds.movedim(0, -1).contiguous()
    index = torch.searchsorted(cumulative.contiguous(), moved, right=True)
    return index.clamp(max=cumulative.shape[-1] - 1).movedim(-1, 0)


def sparsemax(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Euclidean projection on the simplex: the point and its support. A row of -inf alone gives 0."""
    top = rows.amax(-1, keepdim=True)
    feasible = top > -math.inf
    # More than 1 below the maximum is never in the support, so any finite value there stands for a forbidden part.
    shifted = torch.where(rows > -math.inf, rows - torch.where(feasible, top, 0), -2.0).clamp(min=-2.0)
    ordered = shifted.sort(-1, descending=True).values
    sizes = torch.arange(1, rows.shape[-1] + 1, dtype=rows.dtype, device=rows.device)
    excess = ordered.cumsum(-1) - 1
    size = (ordered * sizes > excess).sum(-1, keepdim=True)
    threshold = excess.gather(-1, size - 1) / size
    mean = torch.where(feasible, (shifted - threshold).clamp(min=0), 0)
    return mean, mean > 0


def simplex_gap(rows: Tensor, mean: Tensor) -> Tensor:
    """``max_z ⟨θ − μ, z⟩ − ⟨θ − μ, μ⟩`` over one-hot structures; ``inf`` for an infeasible row."""
    top = rows.amax(-1)
    residual = torch.where(rows > -math.inf, rows - torch.where(top > -math.inf, top, 0).unsqueeze(-1), -math.inf) - mean
    expected = torch.where(mean > 0, residual * mean, 0).sum(-1)
    return torch.where(top > -math.inf, (residual.amax(-1) - expected).clamp(min=0), math.inf)
