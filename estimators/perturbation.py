"""The best structure of noisy scores: perturb-and-MAP, stochastic softmax tricks and perturbed optimizers."""

import abc
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..oracles.capabilities import MarginalOracle, Oracle, ProjectionOracle
from ..oracles.capabilities.derivatives import unsqueeze_event
from ..oracles.options import Count, Positive
from .base import Evaluations, O, PathwiseEstimator, Relaxation
from .noise import AnyNoise, AnySmoothNoise, Gumbel, Normal
from .straight_through import marginals_at
from .surrogates import expand_samples, moving_parts, straight_through, with_backward


@dataclass(frozen=True)
class PerturbAndMAP(PathwiseEstimator[Oracle], name="perturb_and_map", tier="core", references=("papandreou2011perturb",)):
    """Perturb-and-MAP: forward ``z = argmax(θ + ε)``, backward ``ĝ = γ(z)``. Biased.

    Args:
        noise: any `Noise`: `Gumbel`, `Normal` or `SumOfGamma`.

    References:
        Papandreou & Yuille 2011, "Perturb-and-MAP random fields", section 3.

    Example:
        >>> scores = torch.tensor([0.3, -0.2, 0.5]).expand(5, 3)
        >>> PerturbAndMAP().structure("subset[k=2]", scores, generator=torch.Generator()).sum(-1)
        tensor([2., 2., 2., 2., 2.])
    """

    noise: AnyNoise = Gumbel()

    objective = "perturbed"
    linear = True
    calls = Evaluations(losses=1, loss_gradients=1, argmax=1, perturbations=1)

    def structure(self, oracle: Oracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        perturbed = self.noise.perturb(oracle, scores.detach(), generator=generator)
        return straight_through(oracle.argmax(perturbed), scores, oracle)


@dataclass(frozen=True)
class PerturbAndParse(PathwiseEstimator[MarginalOracle], name="perturb_and_parse", references=("corro2019differentiable",)):
    """Perturb-and-parse: forward ``z = argmax(θ + ε)``, backward of the marginals there, ``ĝ = Cov_{(θ+ε)/τ}(z) γ(z) / τ``. Biased.

    With Gumbel noise this is `StraightThroughGumbel`. The factor 1/τ is that of the derivative of ``μ((θ+ε)/τ)`` in θ. The published parser
    hands the loss the relaxed tree; here the forward is discrete, and the backward is the same.

    Args:
        noise: any `Noise`. The authors use `Gumbel`.
        temperature: τ of the backward, positive. The authors have none, which is 1.

    References:
        Corro & Titov 2019, "Differentiable perturb-and-parse", section 4.
    """

    noise: AnyNoise = Gumbel()
    temperature: Positive = 1.0

    objective = "perturbed"
    linear = True
    calls = Evaluations(losses=1, loss_gradients=1, argmax=1, marginals=1, perturbations=1)

    def structure(self, oracle: MarginalOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        perturbed = self.noise.perturb(oracle, scores, generator=generator)
        return marginals_at(oracle, perturbed, self.temperature, oracle.argmax(perturbed))


@dataclass(frozen=True)
class NoisyRelaxation(Relaxation[O]):
    """The loss sees ``X = argmax_{x ∈ conv Z} ⟨θ + ε, x⟩ − t Ω(x)``, and θ its derivative; a subclass says what Ω is.

    The estimate is the derivative of ``L(X)`` for one draw of the noise, and so unbiased for its own, relaxed, objective.
    """

    temperature: Positive = 1.0
    noise: AnyNoise = Gumbel()

    def _utilities(self, oracle: O, scores: Tensor, generator: torch.Generator) -> Tensor:
        return self.noise.perturb(oracle, scores, generator=generator) / self.temperature


@dataclass(frozen=True)
class StochasticSoftmax(NoisyRelaxation[MarginalOracle], name="stochastic_softmax", references=("paulus2020gradient",)):
    """Stochastic softmax trick with the entropy of the Gibbs law: the loss sees ``X = μ((θ + ε) / t)``, ``ĝ = Cov_{(θ+ε)/t}(z) γ(X) / t``.

    Unbiased for its relaxed objective ``E L(X)``, biased for that of structures; the smaller t, the less biased and the noisier. On
    `categorical` with Gumbel noise this is the Gumbel-softmax.

    Args:
        temperature: t, positive; the authors tune it, between .1 and 2.

    References:
        Paulus, Choi, Tarlow, Krause & Maddison 2020, "Gradient estimation with stochastic softmax tricks", definition 2.
    """

    calls = Evaluations(losses=1, loss_gradients=1, marginals=1, perturbations=1)

    def structure(self, oracle: MarginalOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return oracle.marginals(self._utilities(oracle, scores, generator))


@dataclass(frozen=True)
class StochasticSparseMAP(NoisyRelaxation[ProjectionOracle], name="stochastic_sparsemap", references=("paulus2020gradient",)):
    """Stochastic softmax trick with ``Ω = ½‖x‖²``: the loss sees the projection ``X = P((θ + ε) / t)``, sparse in structures.

    Unbiased for its relaxed objective ``E L(X)``, biased for that of structures. Where X is a vertex, its derivative is 0.

    Args:
        temperature: t, positive.

    References:
        Paulus et al. 2020, "Gradient estimation with stochastic softmax tricks", definition 2.

    Example:
        >>> scores = torch.tensor([0.3, -0.2, 0.5]).expand(4, 3)
        >>> structure = StochasticSparseMAP().structure("categorical", scores, generator=torch.Generator().manual_seed(0))
        >>> structure.sum(-1), bool((structure == 0).any())
        (tensor([1., 1., 1., 1.]), True)
    """

    calls = Evaluations(losses=1, loss_gradients=1, projections=1, perturbations=1)

    def structure(self, oracle: ProjectionOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return oracle.project(self._utilities(oracle, scores, generator)).mean


ControlVariate = Literal["none", "argmax", "leave_one_out"]


class MeanOfPerturbed(PathwiseEstimator[Oracle]):
    """Forward ``y = (1/M) Σ z_m`` with ``z_m = argmax θ_m``, θ_m noisy scores; backward ``ĝ = (1/M) Σ ⟨z_m − b_m, γ(y)⟩ s_m``.

    ``s_m`` is the derivative in θ of minus the log-density of θ_m. Its mean is 0, so that a control variate b that does not depend on the
    noise of z_m changes the variance alone. A subclass says how scores are perturbed and what their score is, by normal noise if it has no
    option ``noise``.
    """

    sigma: float
    num_samples: int
    control_variate: ControlVariate

    objective = "relaxed"
    inside_hull = True
    linear = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.control_variate == "leave_one_out" and self.num_samples < 2:
            raise ValueError(f"`{self.name}` got num_samples={self.num_samples}; expected at least 2, the others are the control variate")

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
        noise = getattr(self, "noise", Normal()).draw(oracle, theta, generator=generator)
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
class PerturbedOptimizer(MeanOfPerturbed, name="perturbed_optimizer", references=("berthet2020learning", "abernethy2016perturbation")):
    """Perturbed optimizer: forward ``y = (1/M) Σ argmax(θ + σ Z_m)``, backward ``ĝ = (1/Mσ) Σ ⟨z_m − b_m, γ(y)⟩ ν(Z_m)``.

    ``ν = −(log f)'`` is the score of the noise. Of the relaxed objective ``L(E argmax(θ + σZ))``. The Jacobian of the mean is unbiased, for
    every M and control variate; the product with γ, which is evaluated at a mean of the same samples, is biased unless the loss is linear.
    At M = 1 the loss sees a structure.

    Args:
        sigma: σ, positive. The authors use .05 to 1.
        num_samples: M. The authors use up to 1000; the default is what a training step can afford.
        noise: `Normal`, where ν(Z) is Z, or `Gumbel`, where it is 1 − e^{−Z}.
        control_variate: b_m: ``none``, ``argmax`` (the best structure of θ) or ``leave_one_out`` (the mean of the other samples; M ≥ 2).

    References:
        Berthet, Blondel, Teboul, Cuturi, Vert & Bach 2020, "Learning with differentiable perturbed optimizers", proposition 3.1 and section
        4; Abernethy, Lee & Tewari 2016, "Perturbation techniques in online learning and optimization", section 1.3.

    Example:
        >>> loss, scores = lambda z: z @ torch.tensor([1.0, -0.5, 2.0]), torch.tensor([0.3, -0.2, 0.5]).expand(100_000, 3)
        >>> from structgrad.estimators import Gumbel
        >>> estimator = PerturbedOptimizer(noise=Gumbel())
        >>> estimator.gradient(loss, "categorical", scores, generator=torch.Generator().manual_seed(0)).mean(0).round(decimals=2)
        tensor([-0.0400, -0.3500, 0.3900])
    """

    sigma: Positive = 1.0
    num_samples: Count = 10
    noise: AnySmoothNoise = Normal()
    control_variate: ControlVariate = "leave_one_out"

    def _perturbed(self, scores: Tensor, noise: Tensor) -> Tensor:
        return scores + self.sigma * noise

    def _score(self, scores: Tensor, noise: Tensor) -> Tensor:
        return self.noise.score(noise) / self.sigma


@dataclass(frozen=True)
class MultiplicativePerturbation(MeanOfPerturbed, name="perturbed_multiplicative", references=("dalle2022learning",)):
    """Multiplicative perturbation: forward ``y = (1/M) Σ argmax θ_m`` with ``θ_m = θ ⊙ exp(σ Z_m − σ²/2)`` and normal Z.

    Backward ``ĝ = (1/Mσ) Σ ⟨z_m − b_m, γ(y)⟩ Z_m / θ``. The mean of the factor is 1, and scores keep their sign, which a solver may ask
    for. Of the relaxed objective ``L(E argmax θ_m)``, biased as `PerturbedOptimizer` is. A score of 0 is not perturbed, so that this says
    nothing of how the mean depends on it: the estimate is 0 there.

    Args:
        sigma: σ, positive.
        num_samples: M.
        control_variate: b_m: ``none``, ``argmax`` (the best structure of θ) or ``leave_one_out`` (the mean of the other samples; M ≥ 2).

    References:
        Dalle et al. 2022, "Learning with combinatorial optimization layers: a probabilistic approach": the multiplicative perturbation.
    """

    sigma: Positive = 1.0
    num_samples: Count = 10
    control_variate: ControlVariate = "leave_one_out"

    def _perturbed(self, scores: Tensor, noise: Tensor) -> Tensor:
        return scores * (self.sigma * noise - self.sigma**2 / 2).exp()

    def _score(self, scores: Tensor, noise: Tensor) -> Tensor:
        perturbed = (scores != 0) & scores.isfinite()
        return torch.where(perturbed, noise / (self.sigma * torch.where(perturbed, scores, 1)), 0)
