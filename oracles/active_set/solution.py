"""The result of a Euclidean projection on a marginal polytope, with its exact backward."""

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
    """The solution for distinct rows [b, *event], in float64 and without gradients, on any device.

    Args:
        gap: [b], an upper bound of ``f(mean) − f(optimum)`` for ``f(μ) = ½‖μ − θ‖²``; ``inf`` for an infeasible row.
        decompose: gives atoms [b, m, *event] (structures) and weights [b, m] (≥ 0, of sum 1); atoms of positive weight are affinely
            independent.
        mean: [b, *event] where a closed form knows it; else it is the weighted sum of the atoms.
        lists: with ``mean``: the atoms as lists of parts, so that no gradient needs them written out.
        tangent: with ``mean``: its Jacobian, the orthogonal projection of directions on the face that holds the mean, as a differentiable
            function of means and directions [..., *event] that broadcast against each other; else that of the atoms.
    """

    gap: Tensor
    decompose: Callable[[], tuple[Tensor, Tensor]]
    mean: Tensor | None = None
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
        known, tangent = self.projection.mean, self.projection.tangent
        # The Jacobian of a projection is symmetric.
        adjoint: Callable[[Tensor], Tensor] = partial(self._grouped, from_parts=True)
        if known is None:
            known = torch.einsum("...m,...md->...d", self._plain_weights, self._flat_atoms).reshape(*self.shared, *self._event)
        elif tangent is not None:
            adjoint = partial(tangent, self._shaped(known))
        mean = self._shaped(known).to(self.scores)
        return self._attached(mean.expand(self.scores.shape), adjoint)

    @property
    @uncompiled
    def atoms(self) -> Tensor:
        """``[*batch, m, *event]``: structures; slots of weight 0 fill the batch up to a common m."""
        atoms = self._flat_atoms.to(self.scores)
        return atoms.expand(*self._batch, *atoms.shape[-2:]).reshape(*self._batch, atoms.shape[-2], *self._event)

    @property
    @uncompiled
    def weights(self) -> Tensor:
        """``[*batch, m]``: probabilities of the atoms."""
        weights = self._plain_weights.to(self.scores.device)
        return self._attached(weights.expand(*self._batch, weights.shape[-1]), self._move_weights).to(self.scores.dtype)

    @property
    @uncompiled
    def support(self) -> Tensor:
        """``[*batch]`` int64: how many structures have positive weight."""
        return (self._plain_weights > 0).sum(-1).expand(self._batch).to(self.scores.device)

    @property
    @uncompiled
    def gap(self) -> Tensor:
        """``[*batch]``: a certificate, ``½‖mean − θ‖²`` is at most this much above its minimum; ``inf`` for an infeasible item."""
        return self._shaped(self.projection.gap, event=False).expand(self._batch).to(self.scores)

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

    def _move_weights(self, direction: Tensor) -> Tensor:
        """From weights [*batch, m] back to scores; the derivative of weights in ``⟨atoms, θ⟩`` is symmetric."""
        # Lists have the atoms of positive weight alone.
        order = (self._plain_weights == 0).to(torch.int8).argsort(stable=True).to(direction.device)
        used = direction.gather(-1, order.expand(direction.shape))[..., : self._lists.padded_weights.shape[-1]]
        return self._grouped(used, from_parts=False)

    def _grouped(self, direction: Tensor, from_parts: bool) -> Tensor:
        """Move directions [*batch, ...] to [*batch, *event] at fixed atoms, those that share a row together; on the CPU."""
        dims = range(len(self.shared))
        expanded = [dim for dim in dims if self.shared[dim] != self._batch[dim]]
        order = [*(dim for dim in dims if dim not in expanded), *expanded, *range(len(dims), direction.ndim)]
        permuted = direction.cpu().permute(order)
        repeats = math.prod(self._batch[dim] for dim in expanded)
        rows = permuted.reshape(math.prod(self.shared), repeats, *direction.shape[len(dims) :])
        moved = self._lists.move(rows, from_parts, to_parts=True).reshape(*permuted.shape[: len(dims)], *self._event)
        return moved.permute([order.index(dim) for dim in dims] + list(range(len(dims), moved.ndim))).to(direction.device)

    @cached_property
    def decomposition(self) -> tuple[Tensor, Tensor]:
        """Atoms ``[b, m, *event]`` and weights ``[b, m]`` of distinct rows, without gradients."""
        return self.projection.decompose()

    @cached_property
    def _lists(self) -> AtomLists:
        return self.projection.lists or AtomLists.of(*self.decomposition)

    @property
    def _flat_atoms(self) -> Tensor:
        return self._shaped(self.decomposition[0].flatten(2).double())

    @property
    def _plain_weights(self) -> Tensor:
        lists = self.projection.lists
        return self._shaped(self.decomposition[1] if lists is None else lists.padded_weights)


@dataclass(frozen=True, eq=False)
class Start:
    """Atoms for rows that differ little from those of a solution.

    Attributes:
        solution: whose atoms they are.
        rows: int64 [b], for each row that of the solution which it begins with.
    """

    solution: SparseSolution
    rows: Tensor

    def lists(self, event: torch.Size) -> StartLists:
        """The atoms as lists of parts of this event, which may be larger than that of the solution."""
        lists = self.solution._lists
        return lists.bounds[self.rows], (lists.parts_in(event), lists.sizes, lists.weights.numpy())


class _Value(NamedTuple):
    """A value that was computed without gradients, and its Jacobian, transposed, which takes float64."""

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
        return ctx.adjoint(grads[0].double()), None


_attach = applied(_Attached)
