"""Perturb-and-MAP: the best structure of noisy scores, with the backward of the identity or of the marginals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import MarginalOracle, Oracle
from ...oracles.options import Positive
from ..base import Evaluations, Objective, PathwiseEstimator, Tier, straight_through
from ..noise import AnyNoise, Gumbel
from ..straight_through import marginals_at


@dataclass(frozen=True)
class PerturbAndMAP(PathwiseEstimator[Oracle]):
    """Perturb-and-MAP: forward ``z = argmax(θ + ε)``, backward ``ĝ = γ(z)``. Biased.

    Cost: one argmax, one noise tensor, one loss gradient.

    Args:
        noise: any `Noise`: `Gumbel`, `Normal` or `SumOfGamma`.

    References:
        Papandreou & Yuille 2011, "Perturb-and-MAP random fields", section 3.

    Example:
        >>> from structgrad.oracles import Subset
        >>> scores = torch.tensor([0.3, -0.2, 0.5]).expand(5, 3)
        >>> PerturbAndMAP().structure(Subset(2), scores, generator=torch.Generator()).sum(-1)
        tensor([2., 2., 2., 2., 2.])
    """

    noise: AnyNoise = Gumbel()

    name: ClassVar[str] = "perturb_and_map"
    tier: ClassVar[Tier] = "core"
    references: ClassVar[tuple[str, ...]] = ("papandreou2011perturb",)
    objective: ClassVar[Objective] = "perturbed"
    linear: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, argmax=1, perturbations=1)

    def structure(self, oracle: Oracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        perturbed = self.noise.perturb(oracle, scores.detach(), generator=generator)
        return straight_through(oracle.argmax(perturbed), scores, oracle)


@dataclass(frozen=True)
class PerturbAndParse(PathwiseEstimator[MarginalOracle]):
    """Perturb-and-parse: forward ``z = argmax(θ + ε)``, backward of the marginals there, ``ĝ = Cov_{(θ+ε)/τ}(z) γ(z) / τ``. Biased.

    With Gumbel noise this is `StraightThroughGumbel`. The factor 1/τ is that of the derivative of ``μ((θ+ε)/τ)`` in θ. The published parser
    hands the loss the relaxed tree; here the forward is discrete, and the backward is the same.

    Cost: one argmax, one noise tensor, the marginals and a product with their Jacobian, one loss gradient.

    Args:
        noise: any `Noise`. The authors use `Gumbel`.
        temperature: τ of the backward, positive. The authors have none, which is 1.

    References:
        Corro & Titov 2019, "Differentiable perturb-and-parse", section 4.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> generator = torch.Generator().manual_seed(0)
        >>> estimates = PerturbAndParse().gradient(loss, Categorical(), scores.expand(100_000, 3), generator=generator)
        >>> round(float(estimates[:, 2].mean()), 2)  # the exact gradient is 0.38
        0.27
    """

    noise: AnyNoise = Gumbel()
    temperature: Positive = 1.0

    name: ClassVar[str] = "perturb_and_parse"
    references: ClassVar[tuple[str, ...]] = ("corro2019differentiable",)
    needs: ClassVar[tuple[type[Oracle], ...]] = (MarginalOracle,)
    objective: ClassVar[Objective] = "perturbed"
    linear: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, argmax=1, marginals=1, perturbations=1)

    def structure(self, oracle: MarginalOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return discrete_forward(oracle, self.noise.perturb(oracle, scores, generator=generator), self.temperature)


def discrete_forward(oracle: MarginalOracle, scores: Tensor, temperature: Positive = 1.0) -> Tensor:
    """The best structure, with the backward of the marginals of ``scores / temperature``."""
    return marginals_at(oracle, scores, temperature, oracle.argmax(scores))
