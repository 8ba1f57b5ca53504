"""Projections on the marginal polytope."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from .. import kernels
from ..active_set import solver
from ..active_set.solution import Projection, SparseSolution
from ..numerics import share_rows
from ..transforms import operation, refuse_duals, transforming, uncompiled
from .base import Oracle, at_least_single

RowArgmax = Callable[[Tensor, Tensor], Tensor]
"""MAP of directions [i, *event] that belong to the rows of these indices [i]."""


class ProjectionOracle(Oracle):
    """An oracle that projects on the marginal polytope: SparseMAP (Niculae et al. 2018).

    Example:
        >>> from structgrad.oracles import Subset
        >>> solution = Subset(2).project(torch.tensor([1.0, 0.6, 0.2, -3.0]))
        >>> solution.mean
        tensor([1.0000, 0.7000, 0.3000, 0.0000])
        >>> int(solution.support), float(solution.gap) < 1e-12
        (2, True)
    """

    def _project(self, rows: Tensor, argmax: RowArgmax, inside: Tensor | None) -> Projection:
        """The projection of float64 rows [b, *event], without gradients, which `SparseSolution` adds: by the active set, or a closed form.

        ``inside`` [b, *event] is False in the padding of shorter items (None where there is none): padding is forbidden in the rows, and is
        0 in every atom, which is a structure of the item alone. ``argmax(direction, items)`` is `_argmax` for some rows, so cut.
        """
        return solver.solve(argmax, rows, empty=lambda: self._holds_empty(self._event(rows)))

    @final
    @uncompiled
    def project(self, scores: Tensor, *, lengths: Tensor | None = None) -> SparseSolution:
        """``argmin_{μ ∈ conv Z} ½‖μ − θ‖²``: the sparse mean with its atoms and weights, differentiable, with a certified gap.

        Forbidden parts (``-inf``) are 0 in every atom. An infeasible item gives mean 0, weights 0 and gap ``inf``. Computed in float64.
        """
        if transforming():
            return self._project_transformed(scores, lengths)
        refuse_duals("project", scores)
        self._check_tensor("project", scores)
        inside = None if lengths is None else self._prepared("project", scores, lengths)[1]
        if inside is None:
            valid = self._cleaned(self._checked("project", scores))
        else:
            beyond = self._cleaned(torch.full_like(scores, -math.inf))
            valid = torch.where(self._parts_inside(self._event(scores), inside), scores, beyond)
        batch = scores.shape[: scores.ndim - self.event_ndim]
        shared = share_rows(valid.detach(), self.event_ndim)
        rows = at_least_single(shared.reshape(-1, *self._event(scores))).double()
        sizes = None if lengths is None else self._row_lengths(lengths, tuple(batch), self._event(scores))
        projection = self._project_rows(rows, sizes)
        return SparseSolution(projection, valid, tuple(shared.shape[: len(batch)]), self.event_ndim)

    def _project_transformed(self, scores: Tensor, lengths: Tensor | None) -> SparseSolution:
        """The solution under a transform, whose gradients are those of two operations: each of them solves anew."""
        mean, gap = self._projected(scores, lengths)
        batch = tuple(scores.shape[: scores.ndim - self.event_ndim])

        def decompose() -> tuple[Tensor, Tensor]:
            atoms, weights = self._decomposed(scores, lengths)
            return atoms.reshape(-1, *atoms.shape[len(batch) :]), weights.reshape(-1, *weights.shape[len(batch) :])

        projection = Projection(gap=gap.reshape(-1), decompose=decompose, mean=mean.reshape(-1, *self._event(scores)))
        return SparseSolution(projection, scores.detach(), batch, self.event_ndim)

    @operation()
    def _projected(self, scores: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        solution = self.project(scores, lengths=lengths)
        return solution.mean, solution.gap

    @operation()
    def _decomposed(self, scores: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        solution = self.project(scores, lengths=lengths)
        return solution.atoms, solution.weights

    def _project_rows(self, rows: Tensor, lengths: Tensor | None) -> Projection:
        kernel = self._kernel("project", rows)
        inside = None if lengths is None else self._inside(self._event(rows), lengths).expand_as(rows)

        def argmax(direction: Tensor, items: Tensor) -> Tensor:
            return self._argmax_inside(direction, None if lengths is None else lengths[items])

        if kernel is None:
            return self._project(rows, argmax, inside)
        completed = rows if lengths is None else self._complete(rows, lengths)
        if isinstance(kernel, kernels.Kernel):
            return solver.solve_compiled(kernel, completed, inside)
        return solver.solve_on_device(kernel, completed, inside, lambda: self._project(rows, argmax, inside), self._best)

    def _row_lengths(self, lengths: Tensor, batch: tuple[int, ...], event: tuple[int, ...]) -> Tensor:
        """Lengths of every row: [b], or [b, several]."""
        several = tuple(lengths.shape[lengths.ndim - 1 :]) if len(self.length_limits(event)) > 1 else ()
        return lengths.expand((*batch, *several)).reshape(math.prod(batch), *several)

    def _argmax_inside(self, rows: Tensor, lengths: Tensor | None) -> Tensor:
        if lengths is None:
            return self._best(rows)
        return self._cut(self._best(self._complete(rows, lengths)), self._inside(self._event(rows), lengths).expand_as(rows))
