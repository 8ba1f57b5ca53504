"""Perturbed optimizers: the mean of the best structures of noisy scores, whose derivative needs no derivative of the solver."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ...oracles.capabilities import Oracle
from ...oracles.capabilities.derivatives import unsqueeze_event
from ...oracles.options import Count, Positive
from ..base import Evaluations, Objective, PathwiseEstimator, expand_samples, moving_parts, with_backward
from ..noise import AnySmoothNoise, Normal, SmoothNoise

ControlVariate = Literal["none", "argmax", "leave_one_out"]


class MeanOfPerturbed(PathwiseEstimator[Oracle]):
    """Forward ``y = (1/M) Σ z_m`` with ``z_m = argmax θ_m``, θ_m noisy scores; backward ``ĝ = (1/M) Σ ⟨z_m − b_m, γ(y)⟩ s_m``.

    ``s_m`` is the derivative in θ of minus the log-density of θ_m. Its mean is 0, so that a control variate b that does not depend on the
    noise of z_m changes the variance alone. A subclass says how scores are perturbed and what their score is.
    """

    sigma: float
    num_samples: int
    control_variate: ControlVariate

    objective: ClassVar[Objective] = "relaxed"
    inside_hull: ClassVar[bool] = True
    linear: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.control_variate == "leave_one_out" and self.num_samples < 2:
            raise ValueError(f"`{self.name}` got num_samples={self.num_samples}; expected at least 2, the others are the control variate")

    @abc.abstractmethod
    def _noise(self) -> SmoothNoise: ...

    @abc.abstractmethod
    def _perturbed(self, scores: Tensor, noise: Tensor) -> Tensor:
        """θ_m in float64, which the oracle gets in the dtype of the scores."""

    @abc.abstractmethod
    def _score(self, scores: Tensor, noise: Tensor) -> Tensor:
        """s_m; anything where a part is forbidden or ignored."""

    def evaluations(self) -> Evaluations:
        n = self.num_samples
        return Evaluations(losses=1, loss_gradients=1, argmax=n + (self.control_variate == "argmax"), perturbations=n)

    def structure(self, oracle: Oracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        sample_dim = scores.ndim - oracle.event_ndim
        theta = expand_samples(scores.detach(), self.num_samples, oracle.event_ndim)
        noise = self._noise().draw(oracle, theta, generator=generator)
        structures = oracle.argmax(self._perturbed(theta, noise).to(scores.dtype))
        mean = structures.mean(sample_dim)
        moving = moving_parts(mean, scores, oracle)
        excess = self._excess(oracle, scores.detach(), structures, mean)

        def pull_back(gamma: Tensor) -> Tensor:
            along = torch.where(moving, gamma, 0).unsqueeze(sample_dim)
            weights = (excess * along).flatten(sample_dim + 1).sum(-1)
            estimate = (unsqueeze_event(weights, oracle.event_ndim) * self._score(theta, noise)).mean(sample_dim)
            return torch.where(moving, estimate, 0).to(gamma.dtype)

        return with_backward(mean, scores, pull_back)

    def _excess(self, oracle: Oracle, scores: Tensor, structures: Tensor, mean: Tensor) -> Tensor:
        """``z_m − b_m``: [*batch, M, *event]."""
        if self.control_variate == "none":
            return structures
        sample_dim = scores.ndim - oracle.event_ndim
        if self.control_variate == "argmax":
            return structures - oracle.argmax(scores).unsqueeze(sample_dim)
        # b_m is the mean of the others.
        return (structures - mean.unsqueeze(sample_dim)) * (self.num_samples / (self.num_samples - 1))


@dataclass(frozen=True)
class PerturbedOptimizer(MeanOfPerturbed):
    """Perturbed optimizer: forward ``y = (1/M) Σ argmax(θ + σ Z_m)``, backward ``ĝ = (1/Mσ) Σ ⟨z_m − b_m, γ(y)⟩ ν(Z_m)``.

    ``ν = −(log f)'`` is the score of the noise. Of the relaxed objective ``L(E argmax(θ + σZ))``. The Jacobian of the mean is unbiased, for
    every M and control variate; the product with γ, which is evaluated at a mean of the same samples, is biased unless the loss is linear.
    At M = 1 the loss sees a structure.

    Cost: M argmax (one more for ``control_variate="argmax"``), M noise tensors, one loss gradient.

    Args:
        sigma: σ, positive. The authors use .05 to 1.
        num_samples: M. The authors use up to 1000; the default is what a training step can afford.
        noise: `Normal`, where ν(Z) is Z, or `Gumbel`, where it is 1 − e^{−Z}.
        control_variate: b_m: ``none``, ``argmax`` (the best structure of θ) or ``leave_one_out`` (the mean of the other samples; M ≥ 2).

    References:
        Berthet, Blondel, Teboul, Cuturi, Vert & Bach 2020, "Learning with differentiable perturbed optimizers", proposition 3.1 and section
        4; Abernethy, Lee & Tewari 2016, "Perturbation techniques in online learning and optimization", section 1.3.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> generator = torch.Generator().manual_seed(0)
        >>> from structgrad.estimators import Gumbel
        >>> estimator = PerturbedOptimizer(noise=Gumbel())
        >>> estimates = estimator.gradient(loss, Categorical(), scores.expand(100_000, 3), generator=generator)
        >>> [round(value, 2) for value in estimates.mean(0).tolist()]
        [-0.04, -0.35, 0.39]
    """

    sigma: Positive = 1.0
    num_samples: Count = 10
    noise: AnySmoothNoise = Normal()
    control_variate: ControlVariate = "leave_one_out"

    name: ClassVar[str] = "perturbed_optimizer"
    references: ClassVar[tuple[str, ...]] = ("berthet2020learning", "abernethy2016perturbation")

    def _noise(self) -> SmoothNoise:
        return self.noise

    def _perturbed(self, scores: Tensor, noise: Tensor) -> Tensor:
        return scores + self.sigma * noise

    def _score(self, scores: Tensor, noise: Tensor) -> Tensor:
        return self.noise.score(noise) / self.sigma


@dataclass(frozen=True)
class MultiplicativePerturbation(MeanOfPerturbed):
    """Multiplicative perturbation: forward ``y = (1/M) Σ argmax θ_m`` with ``θ_m = θ ⊙ exp(σ Z_m − σ²/2)`` and normal Z.

    Backward ``ĝ = (1/Mσ) Σ ⟨z_m − b_m, γ(y)⟩ Z_m / θ``. The mean of the factor is 1, and scores keep their sign, which a solver may ask
    for. Of the relaxed objective ``L(E argmax θ_m)``, biased as `PerturbedOptimizer` is. A score of 0 is not perturbed, so that this says
    nothing of how the mean depends on it: the estimate is 0 there.

    Cost: M argmax (one more for ``control_variate="argmax"``), M noise tensors, one loss gradient.

    Args:
        sigma: σ, positive.
        num_samples: M.
        control_variate: b_m: ``none``, ``argmax`` (the best structure of θ) or ``leave_one_out`` (the mean of the other samples; M ≥ 2).

    References:
        Dalle, Baty, Bouvier & Parmentier 2022, "Learning with combinatorial optimization layers: a probabilistic approach":
        the multiplicative perturbation.

    Example:
        >>> from structgrad.oracles import Subset
        >>> scores, target = torch.tensor([0.3, 0.2, 0.5, 0.4]).repeat(50, 1).requires_grad_(), torch.tensor([1.0, 1.0, 0.0, 0.0])
        >>> loss, optimiser = lambda z: (z - target).square().sum(-1), torch.optim.SGD([scores], lr=0.05)
        >>> generator = torch.Generator().manual_seed(0)
        >>> for _ in range(50):
        ...     optimiser.zero_grad()
        ...     MultiplicativePerturbation().surrogate(loss, Subset(2), scores, generator=generator).sum().backward()
        ...     optimiser.step()
        >>> bool(loss(Subset(2).argmax(scores.detach())).mean() < 0.1)  # at first 4
        True
    """

    sigma: Positive = 1.0
    num_samples: Count = 10
    control_variate: ControlVariate = "leave_one_out"

    name: ClassVar[str] = "perturbed_multiplicative"
    references: ClassVar[tuple[str, ...]] = ("dalle2022learning",)

    def _noise(self) -> SmoothNoise:
        return Normal()

    def _perturbed(self, scores: Tensor, noise: Tensor) -> Tensor:
        return scores * (self.sigma * noise - self.sigma**2 / 2).exp()

    def _score(self, scores: Tensor, noise: Tensor) -> Tensor:
        perturbed = (scores != 0) & scores.isfinite()
        return torch.where(perturbed, noise / (self.sigma * torch.where(perturbed, scores, 1)), 0)
