"""Gumbel-softmax, relaxed and straight-through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import FactorisedOracle, MarginalOracle, Oracle
from ...oracles.options import Positive
from ..base import Evaluations, Objective, PathwiseEstimator, Tier
from ..factorised.common import gumbels, log_probabilities, possible_parts
from ..noise import Gumbel
from .perturb_and_map import discrete_forward


@dataclass(frozen=True)
class GumbelSoftmax(PathwiseEstimator[FactorisedOracle]):
    """Gumbel-softmax, the Concrete relaxation: the loss sees ``y = softmax((θ + G)/τ)``, with the exact gradient of ``L(y)``.

    Unbiased for its own relaxed objective ``E_G L(y)``, which tends to the expected loss as τ → 0, while the variance grows without bound.

    Cost: one noise tensor, one loss gradient.

    Args:
        temperature: τ, positive. Published runs lower it from 1 in training.

    References:
        Jang, Gu & Poole 2017, section 2.1; Maddison, Mnih & Teh 2017, "The Concrete distribution", section 3.

    Example:
        A decoder's loss falls as the scores learn.

        >>> from structgrad.oracles import IndependentCategoricals
        >>> scores, target = torch.zeros(3, 2, requires_grad=True), torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> optimiser, generator = torch.optim.Adam([scores], lr=0.3), torch.Generator().manual_seed(0)
        >>> for _ in range(50):
        ...     optimiser.zero_grad()
        ...     y = GumbelSoftmax(temperature=0.5).structure(IndependentCategoricals(), scores.expand(16, 3, 2), generator=generator)
        ...     (y - target).square().sum((-2, -1)).mean().backward()
        ...     optimiser.step()
        >>> bool((scores.softmax(-1) * target).sum(-1).min() > 0.95)
        True
    """

    temperature: Positive = 1.0

    name: ClassVar[str] = "gumbel_softmax"
    references: ClassVar[tuple[str, ...]] = ("jang2017categorical", "maddison2017concrete")
    needs: ClassVar[tuple[type[Oracle], ...]] = (FactorisedOracle,)
    objective: ClassVar[Objective] = "relaxed"
    unbiased: ClassVar[bool] = True
    inside_hull: ClassVar[bool] = True
    linear: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, perturbations=1)

    def structure(self, oracle: FactorisedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        noise = gumbels(oracle, scores, generator=generator)
        relaxed = ((log_probabilities(oracle, scores) + noise) / self.temperature).softmax(-1)
        return torch.where(possible_parts(oracle, scores), relaxed, 0).to(scores.dtype)


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

    temperature: Positive = 1.0

    name: ClassVar[str] = "st_gumbel"
    tier: ClassVar[Tier] = "core"
    references: ClassVar[tuple[str, ...]] = ("jang2017categorical", "maddison2017concrete")
    needs: ClassVar[tuple[type[Oracle], ...]] = (MarginalOracle,)
    objective: ClassVar[Objective] = "perturbed"
    linear: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, argmax=1, marginals=1, perturbations=1)

    def structure(self, oracle: MarginalOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return discrete_forward(oracle, Gumbel().perturb(oracle, scores, generator=generator), self.temperature)


@dataclass(frozen=True)
class DecoupledGumbel(PathwiseEstimator[MarginalOracle]):
    """Decoupled straight-through Gumbel: forward ``z = argmax(θ/τ_f + G)``, backward ``ĝ = Cov_{θ/τ_b + G}(z) γ(z) / τ_b``. Biased.

    Both ways share the noise G, which is not divided by the temperatures as `StraightThroughGumbel` does: so the forward is the law of
    scores ``θ/τ_f``, at τ_f = 1 the model's own, however smooth the backward. For a linear loss on classes the mean does not depend on τ_f.

    Cost: one argmax, one noise tensor, the marginals and a product with their Jacobian, one loss gradient.

    Args:
        forward_temperature: τ_f, positive. ``backward_temperature``: τ_b, positive. Which of them should be the greater one depends on
            the task, in the paper too.

    References:
        Shah, Yan, Mozer & Liu 2024, "Improving discrete optimisation via decoupled straight-through Gumbel-softmax", whose abstract
        alone could be read; that the noise is added to ``θ/τ`` is what a public review says of its algorithm 1.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> generator = torch.Generator().manual_seed(0)
        >>> estimates = DecoupledGumbel(1.0, 2.0).gradient(loss, Categorical(), scores.expand(100_000, 3), generator=generator)
        >>> round(float(estimates[:, 2].mean()), 2)  # the exact gradient is 0.38
        0.13
    """

    forward_temperature: Positive = 1.0
    backward_temperature: Positive = 0.5

    name: ClassVar[str] = "decoupled_st_gumbel"
    references: ClassVar[tuple[str, ...]] = ("shah2024decoupled",)
    needs: ClassVar[tuple[type[Oracle], ...]] = (MarginalOracle,)
    objective: ClassVar[Objective] = "perturbed"
    linear: ClassVar[bool] = True

    @property
    def noise(self) -> Gumbel:
        """What the scores are perturbed by, in their own scale: ``τ_f G``."""
        return Gumbel(self.forward_temperature)

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, argmax=1, marginals=1, perturbations=1)

    def structure(self, oracle: MarginalOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        noise = Gumbel().draw(oracle, scores, generator=generator).to(scores.dtype)
        structure = oracle.argmax(scores.detach() / self.forward_temperature + noise)
        return oracle.marginals(scores / self.backward_temperature + noise, at=structure)
