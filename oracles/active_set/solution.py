"""The result of a Euclidean projection on a marginal polytope, with its exact backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..transforms import applied, transforming, uncompiled
from .atoms import AtomLists

StartLists = tuple[Tensor, tuple[np.ndarray, np.ndarray, np.ndarray]]
"""Of b rows, int64 [b, 3]: first atom, how many, where their parts begin; and parts, sizes and weights of all atoms."""


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
        lists: with ``mean``: the atoms as lists of parts, so that no gradient needs them written out.
        tangent: with ``mean``: its Jacobian, where it is another than that of ``free``: the orthogonal projection of directions on the face
            that holds the mean, as a differentiable function of means and directions [..., *event] that broadcast against each other.
    """

    gap: Tensor
    decompose: Callable[[], tuple[Tensor, Tensor]]
    mean: Tensor | None = None
    free: Tensor | None = None
    lists: AtomLists | None = None
    tangent: Callable[[Tensor, Tensor], Tensor] | None = None


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
        oracle: that projected them; None where a solver was called directly.
        lengths: of every row, where items differ.
    """

    projection: Projection
    scores: Tensor
    shared: tuple[int, ...]
    event_ndim: int
    oracle: Any = None
    lengths: Tensor | None = None

    @cached_property
    @uncompiled
    def mean(self) -> Tensor:
        """``[*batch, *event]``, in the marginal polytope; dtype of the scores."""
        known, lists, tangent = self.projection.mean, self.projection.lists, self.projection.tangent
        if known is None:
            mean = torch.einsum("...m,...md->...d", self._weights, self._flat_atoms)
            return mean.reshape(*mean.shape[:-1], *self._event).expand(self.scores.shape).to(self.scores.dtype)
        # The Jacobian of a projection is symmetric.
        adjoint: Callable[[Tensor], Tensor] = self._move_free
        if lists is not None:
            adjoint = partial(self._grouped, lists=lists, from_parts=True)
        elif tangent is not None:
            adjoint = partial(self._move_on_face, tangent, known)
        return self._attached(self._shaped(known).to(self.scores.dtype).expand(self.scores.shape), adjoint)

    @property
    @uncompiled
    def atoms(self) -> Tensor:
        """``[*batch, m, *event]``: structures; slots of weight 0 fill the batch up to a common m."""
        atoms = self._flat_atoms.to(self.scores.dtype)
        return atoms.expand(*self._batch, *atoms.shape[-2:]).reshape(*self._batch, atoms.shape[-2], *self._event)

    @property
    @uncompiled
    def weights(self) -> Tensor:
        """``[*batch, m]``: probabilities of the atoms."""
        return self._weights.expand(*self._batch, self._weights.shape[-1]).to(self.scores.dtype)

    @property
    @uncompiled
    def support(self) -> Tensor:
        """``[*batch]`` int64: how many structures have positive weight."""
        return (self._plain_weights > 0).sum(-1).expand(self._batch)

    @property
    @uncompiled
    def gap(self) -> Tensor:
        """``[*batch]``: a certificate, ``½‖mean − θ‖²`` is at most this much above its minimum; ``inf`` for an infeasible item."""
        return self._shaped(self.projection.gap, event=False).expand(self._batch).to(self.scores.dtype)

    @property
    def _event(self) -> tuple[int, ...]:
        return tuple(self.scores.shape[self.scores.ndim - self.event_ndim :])

    @property
    def _batch(self) -> tuple[int, ...]:
        return tuple(self.scores.shape[: self.scores.ndim - self.event_ndim])

    def _shaped(self, rows: Tensor, event: bool = True) -> Tensor:
        return rows.reshape((*self.shared, *(rows.shape[1:] if event else ())))

    def _attached(self, value: Tensor, adjoint: Callable[[Tensor], Tensor]) -> Tensor:
        """The value [*batch, ...], as a function of the scores that is linear at fixed atoms; ``adjoint`` is its Jacobian, transposed."""
        if not (self.scores.requires_grad and torch.is_grad_enabled()):
            return value
        apply: Callable[..., Tensor] = _Attached.apply if transforming() else _attach
        return apply(self.scores, _Value(value.clone(), adjoint))

    def _move_on_face(self, tangent: Callable[[Tensor, Tensor], Tensor], known: Tensor, direction: Tensor) -> Tensor:
        return tangent(self._shaped(known), direction.double())

    def _move_free(self, direction: Tensor) -> Tensor:
        """A direction as the free parts of a closed form follow it, in float64: less their average, and 0 for the others."""
        assert self.projection.free is not None
        free, dims = self._shaped(self.projection.free), tuple(range(-self.event_ndim, 0))
        inside = torch.where(free, direction.double(), 0)
        average = inside.sum(dims, keepdim=True) / free.sum(dims, keepdim=True).clamp(min=1)
        return torch.where(free, inside - average, 0)

    def _move_weights(self, direction: Tensor) -> Tensor:
        """From weights [*batch, m] back to scores; the derivative of weights in ``⟨atoms, θ⟩`` is symmetric."""
        if self.projection.lists is not None:
            return self._grouped(direction, self.projection.lists, from_parts=False)
        atoms, active = self._flat_atoms, self._plain_weights > 0
        moved = solve_factored(affine_factor(atoms @ atoms.mT, active), active, direction.double(), total=0.0)
        return torch.einsum("...m,...md->...d", moved, atoms).reshape(*direction.shape[:-1], *self._event)

    def _grouped(self, direction: Tensor, lists: AtomLists, from_parts: bool) -> Tensor:
        """Move directions [*batch, ...] to [*batch, *event], those that share a row together."""
        dims = range(len(self.shared))
        expanded = [dim for dim in dims if self.shared[dim] != self._batch[dim]]
        order = [*(dim for dim in dims if dim not in expanded), *expanded, *range(len(dims), direction.ndim)]
        permuted = direction.double().permute(order)
        repeats = math.prod(self._batch[dim] for dim in expanded)
        rows = permuted.reshape(math.prod(self.shared), repeats, *direction.shape[len(dims) :])
        moved = lists.move(rows, from_parts, to_parts=True).reshape(*permuted.shape[: len(dims)], *self._event)
        return moved.permute([order.index(dim) for dim in dims] + list(range(len(dims), moved.ndim)))

    @cached_property
    def decomposition(self) -> tuple[Tensor, Tensor]:
        """Atoms ``[b, m, *event]`` and weights ``[b, m]`` of distinct rows, without gradients."""
        return self.projection.decompose()

    @property
    def _flat_atoms(self) -> Tensor:
        return self._shaped(self.decomposition[0].flatten(2).double())

    @property
    def _plain_weights(self) -> Tensor:
        lists = self.projection.lists
        return self._shaped(self.decomposition[1] if lists is None else lists.padded_weights)

    @cached_property
    def _weights(self) -> Tensor:
        weights = self._plain_weights
        return self._attached(weights.expand(*self._batch, weights.shape[-1]), self._move_weights)


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

    def lists(self, event: torch.Size) -> StartLists:
        """The atoms as lists of parts of this event, which may be larger than that of the solution."""
        lists = self.solution.projection.lists or AtomLists.of(*self.solution.decomposition)
        return lists.bounds[self.rows], (lists.parts_in(event), lists.sizes, lists.weights.numpy())


class _Value(NamedTuple):
    """A value that was computed without gradients, and its Jacobian, transposed."""

    value: Tensor
    adjoint: Callable[[Tensor], Tensor]


class _Attached(torch.autograd.Function):
    """A value with its gradient: linear operations, so exact to any order."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, found: _Value) -> Tensor:
        ctx.adjoint = found.adjoint
        return found.value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.adjoint(grads[0]), None


_attach = applied(_Attached)


def affine_factor(gram: Tensor, active: Tensor) -> Tensor:
    """The Cholesky factor [..., m, m] of the Gram matrix of the active atoms, which are affinely independent, plus 11ᵀ; 1 for the others.

    Adding 11ᵀ to the Gram matrix changes nothing where Σw is fixed, and makes it positive definite for affinely independent atoms.
    """
    ones = active.to(gram.dtype)
    both = ones.unsqueeze(-1) * ones.unsqueeze(-2)
    factor: Tensor = torch.linalg.cholesky_ex((gram + 1) * both + torch.diag_embed(1 - ones))[0]
    return factor


def solve_factored(factor: Tensor, active: Tensor, correlations: Tensor, total: float) -> Tensor:
    """The ``w`` that minimises ``½‖Σ w_s a_s‖² − ⟨c, w⟩`` subject to ``Σ w = total`` over the active atoms; 0 elsewhere.

    Args:
        factor: `affine_factor` of the atoms ``a_s``.
        active: [..., m] bool.
        correlations: [..., m], the linear term ``c``.
        total: what the weights sum to: 1 for weights, 0 for their derivative.
    """
    ones = active.to(factor.dtype)
    right = torch.stack(torch.broadcast_tensors(torch.where(active, correlations, 0), ones), dim=-1)
    factor = factor.expand(*right.shape[:-2], *factor.shape[-2:])
    free, direction = torch.cholesky_solve(right, factor).unbind(-1)
    multiplier = (free.sum(-1, keepdim=True) - total) / direction.sum(-1, keepdim=True).clamp(min=1e-300)
    return torch.where(active, free - multiplier * direction, 0)
