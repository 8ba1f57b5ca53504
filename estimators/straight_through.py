"""Straight-through estimators: a discrete forward, and the backward of something smooth."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..oracles.capabilities import MarginalOracle, Oracle, PolicyOracle, SamplingOracle
from ..oracles.numerics import scaled
from ..oracles.options import Positive
from .base import Evaluations, PathwiseEstimator
from .factorised import conditional_race
from .noise import AnyNoise, Gumbel
from .surrogates import moving_parts, straight_through, with_backward


@dataclass(frozen=True)
class StraightThrough(PathwiseEstimator[Oracle], name="ste", tier="core", references=("bengio2013estimating",)):
    """Straight-through on the best structure: forward ``z = argmax θ``, backward ``ĝ = γ(z)``. Biased; deterministic.

    References:
        Bengio, Léonard & Courville 2013, "Estimating or propagating gradients through stochastic neurons", section 4.

    Example:
        >>> scores = torch.tensor([0.1, 0.7, 0.2], requires_grad=True)
        >>> z = StraightThrough().structure("categorical", scores, generator=torch.Generator())
        >>> (z * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
        >>> z.detach(), scores.grad
        (tensor([0., 1., 0.]), tensor([1., 2., 3.]))
    """

    objective = "argmax"
    deterministic = True
    linear = True
    calls = Evaluations(losses=1, loss_gradients=1, argmax=1)

    def structure(self, oracle: Oracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return straight_through(oracle.argmax(scores), scores, oracle)


@dataclass(frozen=True)
class StraightThroughMarginals(
    PathwiseEstimator[MarginalOracle], name="ste_marginals", tier="core", references=("jang2017categorical", "martins2019latent")
):
    """Straight-through with the backward of the marginals: forward ``z = argmax θ``, backward ``ĝ = Cov(z) γ(z)``. Biased; deterministic.

    The whole Jacobian of the marginals is used: its diagonal alone, as in some published code, is another vector. With a temperature τ it
    is that of ``μ(θ/τ)`` in θ, ``Cov_{θ/τ}(z) / τ``: the factor 1/τ, which some published code drops, is part of it.

    Args:
        temperature: τ of the backward, positive.

    References:
        Jang, Gu & Poole 2017, section 2.2, without noise; Martins & Niculae 2019, "Latent structure models for NLP" (tutorial), part 3.
    """

    temperature: Positive = 1.0

    objective = "argmax"
    deterministic = True
    linear = True
    calls = Evaluations(losses=1, loss_gradients=1, argmax=1, marginals=1)

    def structure(self, oracle: MarginalOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return marginals_at(oracle, scores, self.temperature, oracle.argmax(scores))


@dataclass(frozen=True)
class SampledStraightThrough(PathwiseEstimator[SamplingOracle], name="ste_sample", references=("bengio2013estimating",)):
    """Straight-through on an exact sample: forward ``z ∼ p_θ``, backward ``ĝ = γ(z)``. Biased even for linear losses, by ``(I − Cov)γ``.

    References:
        Bengio, Léonard & Courville 2013, section 4.
    """

    objective = "expected"
    linear = True
    calls = Evaluations(losses=1, loss_gradients=1, samples=1)

    def structure(self, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return straight_through(oracle.sample(scores, generator=generator), scores, oracle)


@dataclass(frozen=True)
class Simple(PathwiseEstimator[SamplingOracle], name="simple", references=("ahmed2023simple",)):
    """SIMPLE: forward an exact sample, backward the exact marginals, ``ĝ = Cov(z) γ(z)``.

    Unbiased for losses whose gradient is constant on the hull (linear losses), biased else; the variance is small. With a temperature τ the
    backward is that of ``μ(θ/τ)`` in θ, ``Cov_{θ/τ}(z) γ(z) / τ``, which is biased for linear losses too; the sample is one of θ itself.

    Args:
        temperature: τ of the backward, positive. The authors have none.

    References:
        Ahmed, Zeng, Niepert & Van den Broeck 2023, "SIMPLE: a gradient estimator for k-subset sampling", section 3.
    """

    temperature: Positive = 1.0

    objective = "expected"
    linear = True
    calls = Evaluations(losses=1, loss_gradients=1, samples=1, marginals=1)

    def structure(self, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return marginals_at(oracle, scores, self.temperature, oracle.sample(scores, generator=generator))


def marginals_at(oracle: MarginalOracle, scores: Tensor, temperature: float, structure: Tensor) -> Tensor:
    """The structure, with the derivative of ``μ(θ/τ)`` in θ; rows that share their scores go on sharing them."""
    return oracle.marginals(scores if temperature == 1 else scaled(scores, 1 / temperature, oracle.event_ndim), at=structure)


def replace_value(smooth: Tensor, structure: Tensor) -> Tensor:
    """The structure, with the gradient of the smooth value."""
    return with_backward(structure, smooth, lambda gamma: gamma.view_as(gamma))


class ProjectedIdentity(PathwiseEstimator[Oracle]):
    """``γ`` pulled back through ``Π: θ → c / ‖c‖``, ``c = θ − mean θ``, over the free parts of each row: ``(I − 11ᵀ/n)(I − uuᵀ) γ / ‖c‖``.

    Π is what the best structure does not see, where all structures have the same number of parts: a shift and a positive factor. Where
    they have several (alignments), a shift of the scores changes the best structure; the forward is that of the scores as they are, and
    ``centre=False`` keeps Π from hiding that direction.
    """

    centre: bool
    normalise: bool

    linear = True

    def _through(self, oracle: Oracle, scores: Tensor, best: Tensor) -> Tensor:
        """``best``, with the backward through Π at scores that it is the best structure of."""
        moving, event = moving_parts(best, scores, oracle), tuple(range(-oracle.event_ndim, 0))
        free = torch.where(moving, scores, 0)
        count = moving.sum(event, keepdim=True).clamp(min=1)

        def centred(values: Tensor) -> Tensor:
            return torch.where(moving, values - values.sum(event, keepdim=True) / count, 0) if self.centre else values

        shifted = centred(free)
        norm, size = _norm(shifted, event), _norm(free, event)
        # Equal scores have no direction; centred, they are the rounding of their mean.
        lengthy = norm > 16 * torch.finfo(norm.dtype).eps * size
        inverse = torch.where(lengthy, 1 / torch.where(lengthy, norm, 1), 0)
        unit = shifted * inverse

        def pull_back(gamma: Tensor) -> Tensor:
            gamma = torch.where(moving, gamma, 0)
            if self.normalise:
                gamma = (gamma - unit * (unit * gamma).sum(event, keepdim=True)) * inverse
            return centred(gamma)

        return with_backward(best, scores, pull_back)


def _norm(values: Tensor, event: tuple[int, ...]) -> Tensor:
    return values.square().sum(event, keepdim=True).sqrt()


@dataclass(frozen=True)
class Identity(ProjectedIdentity, name="identity", tier="core", references=("sahoo2023backpropagation",)):
    """Identity with projection: forward ``z = argmax θ``, backward ``ĝ = (I − 11ᵀ/n)(I − uuᵀ) γ(z) / ‖c‖``. Biased; deterministic.

    ``c = θ − mean θ`` over the free parts of each row and ``u = c / ‖c‖``. Equal scores give 0. (For a solver of least cost the authors
    hand −γ back, whence "negative identity": here argmax is a maximum.) Without both options it is `StraightThrough`. Where structures have
    different numbers of parts a shift does change the best one; the forward is then still the argmax of the scores as they are.

    Args:
        centre: project shifts out.
        normalise: project the scale out. The authors use both.

    References:
        Sahoo et al. 2023, "Backpropagation through combinatorial algorithms: identity with projection works", section 3.

    Example:
        >>> loss, scores = lambda z: z @ torch.tensor([1.0, -0.5, 2.0]), torch.tensor([0.3, -0.2, 0.5])
        >>> Identity().gradient(loss, "categorical", scores, generator=torch.Generator())
        tensor([-0.3520,  0.1006,  0.2514])
    """

    centre: bool = True
    normalise: bool = True

    objective = "argmax"
    deterministic = True
    calls = Evaluations(losses=1, loss_gradients=1, argmax=1)

    def structure(self, oracle: Oracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return self._through(oracle, scores, oracle.argmax(scores))


@dataclass(frozen=True)
class PerturbedIdentity(ProjectedIdentity, name="identity_perturbed", references=("sahoo2023backpropagation",)):
    """Identity with projection on noisy scores: forward ``z = argmax(θ + ε)``, backward γ through Π at ``θ + ε``. Biased.

    The noise comes before the projection, as in the authors' code, so that u and ‖c‖ are those of the noisy scores.

    Args:
        centre: project shifts out.
        normalise: project the scale out. The authors use both.

    References:
        Sahoo et al. 2023; the order of noise and projection is that of the code.
    """

    noise: AnyNoise = Gumbel()
    centre: bool = True
    normalise: bool = True

    objective = "perturbed"
    calls = Evaluations(losses=1, loss_gradients=1, argmax=1, perturbations=1)

    def structure(self, oracle: Oracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        perturbed = self.noise.perturb(oracle, scores, generator=generator)
        return self._through(oracle, perturbed, oracle.argmax(perturbed))


@dataclass(frozen=True)
class StepRelaxed(PathwiseEstimator[PolicyOracle]):
    """At every state that the sample visits, the backward of the softmax of the choice there."""

    temperature: Positive = 1.0

    objective = "expected"
    linear = True

    def _relaxed(self, sample: Tensor, logits: Tensor) -> Tensor:
        """The sample, with the gradient of ``softmax(logits / τ)`` at the states that it visits; -inf where an action is impossible."""
        visited = sample.any(-1, keepdim=True)
        choices = torch.where(visited, logits / self.temperature, 0).softmax(-1)
        return replace_value(choices.to(sample.dtype), sample)


@dataclass(frozen=True)
class StepStraightThrough(StepRelaxed, name="step_ste", references=("bengio2013estimating",)):
    """Straight-through, action by action: forward an exact sample, backward ``Σ_s 1[s visited] (∂π_τ(·|s)/∂θ)ᵀ γ(s)``. Biased.

    ``π_τ = softmax(log π / τ)``. Under a locally normalised policy the Jacobian is ``(diag π_τ − π_τ π_τᵀ)/τ`` on the scores of the state
    itself. Under a globally normalised one the probabilities of the next action depend on the scores of all that may follow, and the
    gradient flows on to these.

    What an action does to the states that follow is left out: for a linear loss ``⟨w, z⟩`` and τ = 1 the mean of the estimate is
    ``∇E L − Σ_s ⟨π(·|s), w(s)⟩ ∇P(s visited)``.

    References:
        Bengio, Léonard & Courville 2013, "Estimating or propagating gradients through stochastic neurons", section 4, for one choice.

    Example:
        >>> scores, generator = torch.zeros(4, 4, 2, requires_grad=True), torch.Generator().manual_seed(0)
        >>> optimiser, policy = torch.optim.SGD([scores], lr=0.5), "shift_reduce[normalization=local]"
        >>> for _ in range(100):
        ...     optimiser.zero_grad()
        ...     (1 - StepStraightThrough().structure(policy, scores, generator=generator)[2, 2, 1]).backward()
        ...     optimiser.step()
        >>> bool(scores[2, 2, 1] > scores[2, 2, 0] + 2)
        True
    """

    calls = Evaluations(losses=1, loss_gradients=1, samples=1, marginals=1)

    def structure(self, oracle: PolicyOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        sample = oracle.sample(scores, generator=generator)
        return self._relaxed(sample, oracle.step_log_probs(scores))


@dataclass(frozen=True)
class StepStraightThroughGumbel(StepRelaxed, name="step_st_gumbel", references=("jang2017categorical", "paulus2021rao")):
    """Straight-through Gumbel-softmax, action by action: forward an exact sample, backward ``softmax((log π + G)/τ)`` on its way. Biased.

    At each visited state the Gumbel variables are drawn from their law *given* the action, so that their race has the winner that the
    sample says: ``x_a = −log E_a`` for the action and ``x_b = −log(E_a + E_b/π_b)`` for the others, E exponential. Sample and noise have
    the joint law of a walk that decides by a race at each state, but the walk is the oracle's. The noise is held fixed in θ; the
    gradient flows through ``log π`` as in `StepStraightThrough`.

    References:
        Jang, Gu & Poole 2017, "Categorical reparameterization with Gumbel-softmax", section 2.2; Paulus, Maddison & Krause 2021,
        "Rao-Blackwellizing the straight-through Gumbel-softmax gradient estimator", section 3.1 (the law given the winner).
    """

    calls = Evaluations(losses=1, loss_gradients=1, samples=1, marginals=1, perturbations=1)

    def structure(self, oracle: PolicyOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        sample = oracle.sample(scores, generator=generator)
        log_probs = oracle.step_log_probs(scores).double()
        noisy = conditional_race(log_probs.detach(), sample, Gumbel().draw(oracle, scores, generator=generator))
        possible = log_probs > -math.inf
        shift = torch.where(possible, noisy - torch.where(possible, log_probs.detach(), 0), 0)
        return self._relaxed(sample, log_probs + shift)
