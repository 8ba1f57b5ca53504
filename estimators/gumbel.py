"""Straight-through Gumbel-softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..oracles.base import MarginalOracle, Oracle
from .base import Evaluations, Objective, PathwiseEstimator
from .noise import Gumbel
from .perturb_and_map import discrete_forward


@dataclass(frozen=True)
class StraightThroughGumbel(PathwiseEstimator[MarginalOracle]):
    """Straight-through Gumbel-softmax: forward ``z = argmax(θ + G)``, backward ``ĝ = Cov_{(θ+G)/τ}(z) γ(z) / τ``. Biased.

    On `categorical` this is the straight-through Gumbel-softmax of the papers, and its forward is an exact sample. On other structures the
    softmax becomes the marginals at the noisy scores, and the forward samples the perturbed, not the Gibbs, distribution.

    Cost: one argmax, one noise tensor, the marginals and a product with their Jacobian, one loss gradient.

    Args:
        temperature: τ, positive.

    References:
        Jang, Gu & Poole 2017, "Categorical reparameterization with Gumbel-softmax", section 2.2; Maddison, Mnih & Teh 2017.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> generator = torch.Generator().manual_seed(0)
        >>> estimates = StraightThroughGumbel(temperature=0.5).gradient(loss, Categorical(), scores.expand(100_000, 3), generator=generator)
        >>> [round(value, 2) for value in estimates.mean(0).tolist()]
        [-0.02, -0.32, 0.34]
    """

    temperature: float = 1.0

    name: ClassVar[str] = "st_gumbel"
    references: ClassVar[tuple[str, ...]] = ("jang2017categorical", "maddison2017concrete")
    needs: ClassVar[tuple[type[Oracle], ...]] = (MarginalOracle,)
    objective: ClassVar[Objective] = "perturbed"

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"`{self.name}` got temperature={self.temperature}; expected a positive number")

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, argmax=1, marginals=1, perturbations=1)

    def structure(self, oracle: MarginalOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return discrete_forward(oracle, Gumbel().perturb(oracle, scores, generator=generator), self.temperature)
