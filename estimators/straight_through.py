"""Straight-through estimators: a discrete forward, and the backward of something smooth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..oracles.capabilities import MarginalOracle, Oracle, SamplingOracle
from ..oracles.numerics import scaled
from ..oracles.options import Positive
from .base import Evaluations, Objective, PathwiseEstimator, Tier, straight_through, with_backward


@dataclass(frozen=True)
class StraightThrough(PathwiseEstimator[Oracle]):
    """Straight-through on the best structure: forward ``z = argmax θ``, backward ``ĝ = γ(z)``. Biased; deterministic.

    References:
        Bengio, Léonard & Courville 2013, "Estimating or propagating gradients through stochastic neurons", section 4.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> scores = torch.tensor([0.1, 0.7, 0.2], requires_grad=True)
        >>> z = StraightThrough().structure(Categorical(), scores, generator=torch.Generator())
        >>> (z * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
        >>> z.detach(), scores.grad
        (tensor([0., 1., 0.]), tensor([1., 2., 3.]))
    """

    name: ClassVar[str] = "ste"
    tier: ClassVar[Tier] = "core"
    references: ClassVar[tuple[str, ...]] = ("bengio2013estimating",)
    objective: ClassVar[Objective] = "argmax"
    deterministic: ClassVar[bool] = True
    linear: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, argmax=1)

    def structure(self, oracle: Oracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return straight_through(oracle.argmax(scores), scores, oracle)


@dataclass(frozen=True)
class StraightThroughMarginals(PathwiseEstimator[MarginalOracle]):
    """Straight-through with the backward of the marginals: forward ``z = argmax θ``, backward ``ĝ = Cov(z) γ(z)``. Biased; deterministic.

    The whole Jacobian of the marginals is used: its diagonal alone, as in some published code, is another vector. With a temperature τ it
    is that of ``μ(θ/τ)`` in θ, ``Cov_{θ/τ}(z) / τ``: the factor 1/τ, which some published code drops, is part of it.

    Cost: one argmax, the marginals and a product with their Jacobian, one loss gradient.

    Args:
        temperature: τ of the backward, positive.

    References:
        Jang, Gu & Poole 2017, section 2.2, without noise; Martins & Niculae 2019, "Latent structure models for NLP" (tutorial), part 3.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> StraightThroughMarginals().gradient(loss, Categorical(), scores, generator=torch.Generator())
        tensor([-0.0390, -0.3454,  0.3843])
    """

    temperature: Positive = 1.0

    name: ClassVar[str] = "ste_marginals"
    tier: ClassVar[Tier] = "core"
    references: ClassVar[tuple[str, ...]] = ("jang2017categorical", "martins2019latent")
    needs: ClassVar[tuple[type[Oracle], ...]] = (MarginalOracle,)
    objective: ClassVar[Objective] = "argmax"
    deterministic: ClassVar[bool] = True
    linear: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, argmax=1, marginals=1)

    def structure(self, oracle: MarginalOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return marginals_at(oracle, scores, self.temperature, oracle.argmax(scores))


@dataclass(frozen=True)
class SampledStraightThrough(PathwiseEstimator[SamplingOracle]):
    """Straight-through on an exact sample: forward ``z ∼ p_θ``, backward ``ĝ = γ(z)``. Biased even for linear losses, by ``(I − Cov)γ``.

    Cost: one exact sample, one loss gradient.

    References:
        Bengio, Léonard & Courville 2013, section 4.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> SampledStraightThrough().gradient(loss, Categorical(), scores, generator=torch.Generator())
        tensor([ 1.0000, -0.5000,  2.0000])
    """

    name: ClassVar[str] = "ste_sample"
    references: ClassVar[tuple[str, ...]] = ("bengio2013estimating",)
    needs: ClassVar[tuple[type[Oracle], ...]] = (SamplingOracle,)
    objective: ClassVar[Objective] = "expected"
    linear: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, samples=1)

    def structure(self, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return straight_through(oracle.sample(scores, generator=generator), scores, oracle)


@dataclass(frozen=True)
class Simple(PathwiseEstimator[SamplingOracle]):
    """SIMPLE: forward an exact sample, backward the exact marginals, ``ĝ = Cov(z) γ(z)``.

    Unbiased for losses whose gradient is constant on the hull (linear losses), biased else; the variance is small. With a temperature τ the
    backward is that of ``μ(θ/τ)`` in θ, ``Cov_{θ/τ}(z) γ(z) / τ``, which is biased for linear losses too; the sample is one of θ itself.

    Cost: one exact sample, the marginals and a product with their Jacobian, one loss gradient.

    Args:
        temperature: τ of the backward, positive. The authors have none.

    References:
        Ahmed, Zeng, Niepert & Van den Broeck 2023, "SIMPLE: a gradient estimator for k-subset sampling", section 3.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> Simple().gradient(loss, Categorical(), scores, generator=torch.Generator())
        tensor([-0.0390, -0.3454,  0.3843])
    """

    temperature: Positive = 1.0

    name: ClassVar[str] = "simple"
    references: ClassVar[tuple[str, ...]] = ("ahmed2023simple",)
    needs: ClassVar[tuple[type[Oracle], ...]] = (SamplingOracle,)
    objective: ClassVar[Objective] = "expected"
    linear: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, samples=1, marginals=1)

    def structure(self, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return marginals_at(oracle, scores, self.temperature, oracle.sample(scores, generator=generator))


def marginals_at(oracle: MarginalOracle, scores: Tensor, temperature: float, structure: Tensor) -> Tensor:
    """The structure, with the derivative of ``μ(θ/τ)`` in θ; rows that share their scores go on sharing them."""
    return oracle.marginals(scores if temperature == 1 else scaled(scores, 1 / temperature, oracle.event_ndim), at=structure)


def replace_value(smooth: Tensor, structure: Tensor) -> Tensor:
    """The structure, with the gradient of the smooth value."""
    return with_backward(structure, smooth, lambda gamma: gamma.view_as(gamma))
