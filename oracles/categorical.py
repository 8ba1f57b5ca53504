"""One of n categories."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .active_set.solution import Projection
from .capabilities import EnumerableOracle, FactorisedOracle, KBestOracle, ProjectionOracle
from .capabilities.base import at_least_single
from .capabilities.projection import RowArgmax
from .numerics import log_sum_exp, running_sums
from .simplex import projection


@dataclass(frozen=True)
class Categorical(FactorisedOracle, ProjectionOracle, EnumerableOracle, KBestOracle):
    """One of n: event ``[n]``, structures are one-hot.

    Cost: O(n) each; the projection (sparsemax) sorts, but for the CPU, where it is compiled and O(n).

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
        return torch.zeros_like(rows).scatter_(-1, rows.argmax(-1, keepdim=True), 1)

    def _log_partition(self, rows: Tensor) -> Tensor:
        return log_sum_exp(rows, -1)

    # Closed forms of what the base class would differentiate.

    def _compute_marginals(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        probabilities, log_partition = self._rowwise_all(softmax, scores)
        return probabilities, log_partition

    def _compute_covariance_product(self, scores: Tensor, direction: Tensor) -> Tensor:
        probabilities, along = softmax(at_least_single(scores))[0], at_least_single(direction)
        return (probabilities * (along - (probabilities * along).sum(-1, keepdim=True))).to(scores.dtype)

    def _noise_size(self, event_shape: tuple[int, ...]) -> int:
        return 1

    def _sample(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        index = inverse_cdf(running_sums(rows.double()), uniforms.squeeze(-1))
        feasible = (rows.amax(-1, keepdim=True) > -math.inf).to(rows.dtype).expand(*index.shape, 1)
        return rows.new_zeros(*index.shape, rows.shape[-1]).scatter_(-1, index.unsqueeze(-1), feasible)

    def _project(self, rows: Tensor, argmax: RowArgmax, inside: Tensor | None) -> Projection:
        mean, free, gap = projection.project(rows, 1)

        def decompose() -> tuple[Tensor, Tensor]:
            atoms = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device)
            return atoms.expand(*rows.shape, rows.shape[-1]), mean

        return Projection(gap=gap, decompose=decompose, mean=mean, free=free)

    def _kbest(self, rows: Tensor, k: int) -> Tensor:
        order = rows.sort(dim=-1, descending=True, stable=True).indices[:, :k]
        return torch.zeros((k, *rows.shape), dtype=torch.bool, device=rows.device).scatter_(-1, order.T.unsqueeze(-1), True)

    def _rank(self, structures: Tensor) -> Tensor:
        return structures.to(torch.uint8).argmax(-1)

    def _unrank(self, ranks: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        return torch.nn.functional.one_hot(ranks, event_shape[0])


def softmax(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities [..., n] proportional to ``exp θ``, and the logarithm [...] of their sum; 0 and -inf for a row of -inf alone."""
    # A finite number for -inf, so that the difference is -inf; and a sum that holds the maximum is at least 1.
    top = rows.amax(-1, keepdim=True).clamp(min=torch.finfo(rows.dtype).min)
    weights = (rows - top).exp_()
    total = weights.sum(-1, keepdim=True)
    return weights.div_(total.clamp(min=1)), (total.log() + top).squeeze(-1)


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
