"""Structured attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import MarginalOracle, Oracle
from ..base import Evaluations, Objective, PathwiseEstimator, Tier


@dataclass(frozen=True)
class StructuredAttention(PathwiseEstimator[MarginalOracle]):
    """Structured attention network: the loss sees the marginals, ``L(μ(θ))``, with the exact gradient ``Cov(z) γ(μ)``.

    Exact for its own, relaxed, objective; equal to the gradient of ``E L(z)`` where the loss is linear. Cost: one inside-outside pass and
    one more for the backward.

    References:
        Kim, Denton, Hoang & Rush 2017, "Structured attention networks", section 3.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> StructuredAttention().gradient(loss, Categorical(), scores, generator=torch.Generator())
        tensor([-0.0390, -0.3454,  0.3843])
    """

    name: ClassVar[str] = "structured_attention"
    tier: ClassVar[Tier] = "core"
    references: ClassVar[tuple[str, ...]] = ("kim2017structured",)
    needs: ClassVar[tuple[type[Oracle], ...]] = (MarginalOracle,)
    objective: ClassVar[Objective] = "relaxed"
    unbiased: ClassVar[bool] = True
    deterministic: ClassVar[bool] = True
    inside_hull: ClassVar[bool] = True
    linear: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, marginals=1)

    def structure(self, oracle: MarginalOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return oracle.marginals(scores)
