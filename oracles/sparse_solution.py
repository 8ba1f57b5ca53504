"""The result of a Euclidean projection on a marginal polytope, with its exact backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Projection:
    """What a solver finds for distinct rows [b, *event], in float64 and without gradients.

    Args:
        gap: [b], an upper bound of ``f(mean) − f(optimum)`` for ``f(μ) = ½‖μ − θ‖²``; ``inf`` for an infeasible row.
        decompose: gives atoms [b, m, *event] (structures) and weights [b, m] (≥ 0, of sum 1); atoms of positive weight are affinely
            independent.
        mean: [b, *event] where a closed form knows it; else it is the weighted sum of the atoms.
        free: [b, *event] bool, with ``mean``: the parts that move with the scores. The closed forms of this package share one Jacobian,
            ``diag(s) − ssᵀ/Σs`` with ``s`` the indicator of these parts.
    """

    gap: Tensor
    decompose: Callable[[], tuple[Tensor, Tensor]]
    mean: Tensor | None = None
    free: Tensor | None = None


@dataclass(frozen=True, eq=False)
class SparseSolution:
    """The projection of scores on a marginal polytope: ``mean = Σ_s weights_s atoms_s`` (SparseMAP, Niculae et al. 2018).

    `mean` and `weights` are differentiable in the scores. For fixed atoms both are affine, and their Jacobians follow from the Gram matrix
    of the atoms (Niculae et al. 2018, proposition 2). The mean is unique; where it lies on a face that is no simplex, other atoms would
    give it too, and the weights are those of the atoms that were found. Atoms are computed on first use.

    Attributes:
        projection: what the solver found, for distinct rows.
        scores: [*batch, *event], the scores that were projected.
        shared: the batch shape with expanded dimensions cut to 1.
        event_ndim: how many event dimensions there are.
    """

    projection: Projection
    scores: Tensor
    shared: tuple[int, ...]
    event_ndim: int

    @cached_property
    def mean(self) -> Tensor:
        """``[*batch, *event]``, in the marginal polytope; dtype of the scores."""
        known = self.projection.mean
        if known is None or self.projection.free is None:
            flat = torch.einsum("...m,...md->...d", self._weights, self._atoms.flatten(-self.event_ndim))
            mean = flat.reshape(*flat.shape[:-1], *self.scores.shape[-self.event_ndim :])
            return mean.expand(self.scores.shape).to(self.scores.dtype)
        free = self._shaped(self.projection.free)
        dims = tuple(range(-self.event_ndim, 0))

        def tangent(direction: Tensor) -> Tensor:
            inside = torch.where(free, direction, 0)
            average = inside.sum(dims, keepdim=True) / free.sum(dims, keepdim=True).clamp(min=1)
            return torch.where(free, inside - average, 0)

        return self._attached(self._shaped(known), tangent).expand(self.scores.shape).to(self.scores.dtype)

    @property
    def atoms(self) -> Tensor:
        """``[*batch, m, *event]``: structures; slots of weight 0 fill the batch up to a common m."""
        return self._atoms.to(self.scores.dtype).expand(*self._batch, *self._atoms.shape[len(self.shared) :])

    @property
    def weights(self) -> Tensor:
        """``[*batch, m]``: probabilities of the atoms."""
        return self._weights.expand(*self._batch, self._weights.shape[-1]).to(self.scores.dtype)

    @property
    def support(self) -> Tensor:
        """``[*batch]`` int64: how many structures have positive weight."""
        return (self._weights > 0).sum(-1).expand(self._batch)

    @property
    def gap(self) -> Tensor:
        """``[*batch]``: a certificate, ``½‖mean − θ‖²`` is at most this much above its minimum; ``inf`` for an infeasible item."""
        return self._shaped(self.projection.gap, event=False).expand(self._batch).to(self.scores.dtype)

    @property
    def _batch(self) -> tuple[int, ...]:
        return tuple(self.scores.shape[: self.scores.ndim - self.event_ndim])

    def _shaped(self, rows: Tensor, event: bool = True) -> Tensor:
        return rows.reshape((*self.shared, *(rows.shape[1:] if event else ())))

    def _attached(self, value: Tensor, linear: Callable[[Tensor], Tensor]) -> Tensor:
        """The value, with the gradient of a linear function of the scores. Forbidden parts are 0 there: -inf - -inf would be NaN."""
        if not (torch.is_grad_enabled() and self.scores.requires_grad):
            return value
        moved = linear(torch.where(self.scores > -math.inf, self.scores, 0).double())
        return value + (moved - moved.detach())

    @cached_property
    def _decomposition(self) -> tuple[Tensor, Tensor]:
        atoms, weights = self.projection.decompose()
        return self._shaped(atoms).double(), self._shaped(weights)

    @property
    def _atoms(self) -> Tensor:
        return self._decomposition[0]

    @cached_property
    def _weights(self) -> Tensor:
        weights = self._decomposition[1]
        flat = self._atoms.flatten(-self.event_ndim)

        def tangent(direction: Tensor) -> Tensor:
            correlations = torch.einsum("...md,...d->...m", flat, direction.flatten(-self.event_ndim))
            return affine_solve(flat @ flat.mT, weights > 0, correlations)

        return self._attached(weights, tangent)


def affine_solve(gram: Tensor, active: Tensor, correlations: Tensor, total: float = 0.0) -> Tensor:
    """The ``w`` that minimises ``½‖Σ w_s a_s‖² − ⟨c, w⟩`` subject to ``Σ w = total`` over the active atoms; 0 elsewhere.

    Args:
        gram: [..., m, m], inner products of the atoms ``a_s``; the active ones are affinely independent.
        active: [..., m] bool.
        correlations: [..., m], the linear term ``c``.
        total: what the weights sum to: 1 for weights, 0 for their derivative.
    """
    ones = active.to(gram.dtype)
    both = ones.unsqueeze(-1) * ones.unsqueeze(-2)
    # Adding 11ᵀ to the Gram matrix changes nothing where Σw is fixed, and makes it positive definite for affinely independent atoms.
    factor, _ = torch.linalg.cholesky_ex((gram + 1) * both + torch.diag_embed(1 - ones))
    right = torch.stack(torch.broadcast_tensors(torch.where(active, correlations, 0), ones), dim=-1)
    factor = factor.expand(*right.shape[:-2], *factor.shape[-2:])
    free, direction = torch.cholesky_solve(right, factor).unbind(-1)
    multiplier = (free.sum(-1, keepdim=True) - total) / direction.sum(-1, keepdim=True).clamp(min=1e-300)
    return torch.where(active, free - multiplier * direction, 0)
