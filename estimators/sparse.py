"""SparseMAP: as a relaxation, and as a sparse distribution to marginalise over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..oracles.base import Oracle, ProjectionOracle
from ..oracles.derivatives import unsqueeze_event
from .base import Estimator, Evaluations, Loss, Objective, PathwiseEstimator, evaluate


@dataclass(frozen=True)
class SparseMAP(PathwiseEstimator[ProjectionOracle]):
    """SparseMAP: the loss sees its mean ``argmin_{μ ∈ conv Z} ½‖μ − θ‖²``, with the exact gradient of ``L`` there. Deterministic.

    Cost: one projection, one loss gradient.

    References:
        Niculae, Martins, Blondel & Cardie 2018, "SparseMAP: differentiable sparse structured inference", section 3.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> SparseMAP().gradient(loss, Categorical(), scores, generator=torch.Generator())
        tensor([-0.5000,  0.0000,  0.5000])
    """

    name: ClassVar[str] = "sparsemap"
    references: ClassVar[tuple[str, ...]] = ("niculae2018sparsemap",)
    needs: ClassVar[tuple[type[Oracle], ...]] = (ProjectionOracle,)
    objective: ClassVar[Objective] = "relaxed"
    unbiased: ClassVar[bool] = True
    deterministic: ClassVar[bool] = True
    inside_hull: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, projections=1)

    def structure(self, oracle: ProjectionOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return oracle.project(scores).mean


@dataclass(frozen=True)
class SparseMAPMarginalisation(Estimator[ProjectionOracle]):
    """SparseMAP marginalisation: ``Σ_s w_s(θ) L(a_s)`` over the atoms, with its exact gradient.

    Where the mean lies on a face of the polytope that is no simplex, which is the rule for chains, other atoms would give the same mean,
    and another estimate: the distribution, unlike the mean, is not unique. The atoms are those that the active set met; rounding, and so
    another version of the solver, can choose others.

    The loss is evaluated on structures only. Deterministic, and exact for its own objective; only values of the loss are needed.

    Cost: one projection, one loss value per atom.

    References:
        Correia, Niculae, Aziz & Martins 2020, "Efficient marginalization of discrete and structured latent variables via sparsity",
        section 4.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> SparseMAPMarginalisation().gradient(loss, Categorical(), scores, generator=torch.Generator())
        tensor([-0.5000,  0.0000,  0.5000])
    """

    name: ClassVar[str] = "sparsemap_marginalisation"
    references: ClassVar[tuple[str, ...]] = ("correia2020efficient",)
    needs: ClassVar[tuple[type[Oracle], ...]] = (ProjectionOracle,)
    objective: ClassVar[Objective] = "sparse"
    unbiased: ClassVar[bool] = True
    deterministic: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(projections=1, support_losses=1)

    def surrogate(self, loss: Loss, oracle: ProjectionOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        solution = oracle.project(scores)
        weights, atoms, event = solution.weights, solution.atoms, oracle.event_ndim
        # A slot without weight repeats the heaviest atom, so that the loss sees structures alone.
        heaviest = torch.take_along_dim(atoms, unsqueeze_event(weights.argmax(-1, keepdim=True), event), dim=-event - 1)
        structures = torch.where(unsqueeze_event(weights > 0, event), atoms, heaviest)
        losses = evaluate(loss, structures.movedim(-event - 1, 0), event).movedim(0, -1)
        return (weights * losses).sum(-1)
