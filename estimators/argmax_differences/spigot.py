"""SPIGOT."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import Oracle, ProjectionOracle
from ...oracles.capabilities.derivatives import unsqueeze_event
from ...oracles.options import Positive, Within
from ..base import Evaluations, Objective, PathwiseEstimator, Tier, moving_parts, with_backward


@dataclass(frozen=True)
class SPIGOT(PathwiseEstimator[ProjectionOracle]):
    """SPIGOT, structured projection of intermediate gradients: forward ``z = argmax θ``, backward ``ĝ = z − P(z − η γ)``.

    P is the Euclidean projection on the marginal polytope (the authors project on a relaxation of it). The estimate is 0 exactly where z
    already minimises ``⟨γ, ·⟩``; it is bounded by the polytope's diameter, and its scale is η.

    Cost: one argmax, one projection, one loss gradient.

    Args:
        step_size: η, positive. The authors use 1.
        max_norm: γ, of the free parts, is scaled down to this norm first. The authors use 1; the default does not clip.

    References:
        Peng, Thomson & Smith 2018, "Backpropagating through structured argmax using a SPIGOT", section 3.2.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> SPIGOT(step_size=0.1).gradient(loss, Categorical(), scores, generator=torch.Generator())
        tensor([ 0.0000, -0.1250,  0.1250])
    """

    step_size: Positive = 1.0
    max_norm: Annotated[float, Within(above=0, infinite=True)] = math.inf

    name: ClassVar[str] = "spigot"
    tier: ClassVar[Tier] = "core"
    references: ClassVar[tuple[str, ...]] = ("peng2018backpropagating",)
    needs: ClassVar[tuple[type[Oracle], ...]] = (ProjectionOracle,)
    objective: ClassVar[Objective] = "argmax"
    deterministic: ClassVar[bool] = True

    @property
    def scale(self) -> float:
        return self.step_size

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, argmax=1, projections=1)

    def structure(self, oracle: ProjectionOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        best = oracle.argmax(scores)
        moving = moving_parts(best, scores, oracle)

        def pull_back(gamma: Tensor) -> Tensor:
            step = self.step_size * self._clipped(torch.where(moving, gamma, 0), oracle.event_ndim)
            return torch.where(moving, best - nearest_point(oracle, best - step, moving), 0)

        return with_backward(best, scores, pull_back)

    def _clipped(self, gamma: Tensor, event_ndim: int) -> Tensor:
        if self.max_norm == math.inf:
            return gamma
        norm = gamma.flatten(gamma.ndim - event_ndim).norm(dim=-1)
        return gamma * unsqueeze_event((self.max_norm / norm.clamp(min=1e-300)).clamp(max=1.0), event_ndim)


def nearest_point(oracle: ProjectionOracle, point: Tensor, moving: Tensor) -> Tensor:
    """The projection of a point on the hull of the structures that use moving parts alone; 0 in the other parts."""
    return torch.where(moving, oracle.project(torch.where(moving, point, -math.inf)).mean, 0)
