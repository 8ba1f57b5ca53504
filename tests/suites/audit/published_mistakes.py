"""Mistakes of published code, rebuilt; each with a correct twin."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from structgrad.estimators import (
    CARMS,
    DoubleControl,
    Estimator,
    Evaluations,
    ImplicitMLE,
    ImportanceWeightedSet,
    LeaveOneOut,
    Loss,
    MuProp,
    Noise,
    Normal,
    Reinforce,
    ReinMaxControl,
    Simple,
    SmoothNoise,
)
from structgrad.estimators.base import Objective
from structgrad.estimators.score_function import scores_of
from structgrad.estimators.surrogates import carry, evaluate, expand_samples, upstream_gradient, with_backward, with_gradient
from structgrad.oracles import SamplingOracle
from tests.suites.audit.planted_faults import ON_CLASSES, ControlVariate, Explicit, Fault, Opaque


# Batch mean called leave-one-out: SFESS indexes the losses with ~i, i an integer, which reverses them and leaves nothing out.
class BatchMean(LeaveOneOut):
    """The mean of all N losses is the baseline of each: E ĝ = (N−1)/N ∇."""

    def _carrier(self, losses: Tensor, log_probs: Tensor) -> Tensor:
        return ((losses - losses.mean(0)) * log_probs).mean(0)


# Normalised weights without replacement, which are said to be unbiased.
class NormalisedWeights(ImportanceWeightedSet):
    """The biased form under the declaration of the other."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "unbiased", True)


# Own gradient in the double control: the mean over all samples in place of the others, which the authors' code leaves out.
class OwnGradient(DoubleControl):
    """``b_i = α ⟨γ̄, z_i − μ⟩``, whose product with the score has another mean than the correction."""

    def _slopes(self, slopes: Tensor) -> Tensor:
        return slopes.mean(0).expand_as(slopes)


# A control variate whose mean is forgotten.
class NothingReturned(MuProp):
    """MuProp without ``Cov(z) γ(μ)``: the part of the gradient that a linear loss would have is gone."""

    def _returned(self, slope: Tensor, mean: Tensor, event_ndim: int) -> Tensor:
        return torch.zeros_like(super()._returned(slope, mean, event_ndim))


# Clipped weights of a coupling: the code of CARMS smooths them too.
@dataclass(frozen=True)
class ClippedWeights(CARMS):
    """Every weight at most ``most``."""

    most: float = 0.8

    def _weights(self, chance: Tensor) -> Tensor:
        return super()._weights(chance).clamp(max=self.most)


# The loss of the batch in the place of each row's: `approx_bce_gradient` of the ReinMax examples reduces it before it meets the scores.
class BatchLoss(Reinforce):
    """Every row's score is weighed by the mean loss of all rows: E ĝ = ∇/B."""

    def _carrier(self, losses: Tensor, log_probs: Tensor) -> Tensor:
        return (losses.mean() * log_probs).mean(0)


# Off by σ: optax's `make_perturbed_fun` before its rewrite.
@dataclass(frozen=True)
class PerturbedFunction(Estimator[Any]):
    """``E L(argmax(θ + σZ))`` by the score of the noise, which is ``Z/σ``."""

    noise: SmoothNoise = Normal(scale=0.5)
    num_samples: int = 4
    forgets_sigma: bool = False

    name: ClassVar[str] = "perturbed_function"
    objective: ClassVar[Objective] = "perturbed"
    unbiased: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.num_samples, argmax=self.num_samples, perturbations=self.num_samples)

    def surrogate(self, loss: Loss, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        theta, dim = expand_samples(scores.detach(), self.num_samples, oracle.event_ndim), scores.ndim - oracle.event_ndim
        noise = self.noise.draw(oracle, theta, generator=generator)
        losses = evaluate(loss, oracle.argmax((theta + noise).to(scores.dtype)).movedim(dim, 0), oracle.event_ndim)
        excess = (losses - losses.mean(0)).detach() * (self.num_samples / (self.num_samples - 1))
        weights = excess.movedim(0, dim).reshape(*theta.shape[: dim + 1], *[1] * oracle.event_ndim)
        score = self.noise.score(noise) * (self.noise.scale if self.forgets_sigma else 1.0)  # type: ignore[attr-defined]
        estimate = torch.where(oracle.free_parts(scores), (weights * score).mean(dim), 0)
        return with_gradient(losses.mean(0), scores, estimate.to(scores.dtype))


# λ shrunk by the reduction: torch-imle takes the gradient of the mean over the batch.
@dataclass(frozen=True)
class ReducedImplicitMLE(Estimator[Any]):
    """I-MLE whose γ is that of the mean loss of the batch, or of the sum."""

    lambda_: float = 1.0
    noise: Noise = ImplicitMLE().noise
    mean: bool = True

    name: ClassVar[str] = "reduced_imle"
    objective: ClassVar[Objective] = "perturbed"

    @property
    def scale(self) -> float:
        return self.lambda_

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, argmax=2, perturbations=1)

    def surrogate(self, loss: Loss, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        perturbed = self.noise.perturb(oracle, scores.detach(), generator=generator)
        point = oracle.argmax(perturbed).requires_grad_()
        with torch.enable_grad():
            losses = loss(point)
            reduced = losses.mean() if self.mean else losses.sum()
        gamma = upstream_gradient(self.name, reduced, point)
        gamma = torch.where(oracle.free_parts(scores), gamma, 0)
        return with_gradient(losses, scores, point.detach() - oracle.argmax(perturbed - self.lambda_ * gamma))


# A running mean that is updated before it is used: storchastic's `MovingAverageBaseline`.
@dataclass(frozen=True)
class RunningMeanFirst(Reinforce):
    """The current losses enter the mean before they are compared with it: E ĝ = (1 − (1 − decay)/N) ∇."""

    num_samples: int = 2
    decay: float = 0.9
    mean: float = 0.7
    updates_first: bool = True

    def _carrier(self, losses: Tensor, log_probs: Tensor) -> Tensor:
        mean = self.decay * self.mean + (1 - self.decay) * losses.mean(0) if self.updates_first else self.mean
        return ((losses - mean) * log_probs).mean(0)


@dataclass(frozen=True, eq=False)
class RunningMeanInPlace(Reinforce):
    """A running mean in the object, over the whole batch."""

    decay: float = 0.9
    history: dict[str, float] = field(default_factory=lambda: {"mean": 0.0})

    def _carrier(self, losses: Tensor, log_probs: Tensor) -> Tensor:
        self.history["mean"] = self.decay * self.history["mean"] + (1 - self.decay) * float(losses.mean())
        return ((losses - self.history["mean"]) * log_probs).mean(0)


# Diagonal-only Jacobian: understanding-spigot's `STESoftmax.backward` sums over "bii,bi->bi".
class DiagonalSimple(Simple):
    """Straight-through on samples with ``diag(J) γ``."""

    def structure(self, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        marginals = oracle.marginals(scores.detach())
        return with_backward(oracle.sample(scores, generator=generator), scores, lambda gamma: marginals * (1 - marginals) * gamma)


# A log-probability without its normaliser: understanding-spigot's `REINFORCEClassifier`.


class NoNormaliser(Reinforce):
    """``log p`` is ``⟨θ, z⟩``."""

    def surrogate(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        samples = oracle.sample(scores, self.num_samples, generator=generator)
        losses = evaluate(loss, samples, oracle.event_ndim)
        # Without it, nothing of the marginals is asked for; declared as it is.
        return carry(losses.mean(0), (losses.detach() * oracle.score(samples, scores)).mean(0))

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.num_samples, samples=self.num_samples)


# As plain functions, as a user would write them.


def leave_one_out(loss: Loss, oracle: Any, scores: Tensor, generator: torch.Generator, own_sample: bool = False) -> Tensor:
    """Leave-one-out with four samples; or with the own sample in the baseline."""
    samples = oracle.sample(scores, 4, generator=generator)
    losses = loss(samples)
    excess = (losses - losses.mean(0)) * (1 if own_sample else 4 / 3)
    score = scores_of(oracle, samples, scores)
    return (excess.reshape(*excess.shape, *[1] * oracle.event_ndim) * score).mean(0)


def unseeded(loss: Loss, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
    """REINFORCE whose samples come from the global generator."""
    samples = oracle.sample(scores, 1, generator=torch.default_generator)
    losses = loss(samples)[0]
    return losses.reshape(*losses.shape, *[1] * oracle.event_ndim) * scores_of(oracle, samples, scores)[0]


REINMAX: dict[str, Any] = {**ON_CLASSES, "mean_of": "reinmax"}

PUBLISHED: dict[str, Fault] = {
    "batch mean called leave-one-out": Fault(BatchMean, ON_CLASSES),
    "the same as a function, whose N is fixed": Fault(functools.partial(leave_one_out, own_sample=True), ON_CLASSES),
    "own gradient in the double control": Fault(OwnGradient, ON_CLASSES),
    "a control variate whose mean is forgotten": Fault(NothingReturned, ON_CLASSES),
    "weights of a coupling that are clipped": Fault(ClippedWeights, ON_CLASSES),
    "a control variate that moves the mean": Fault(lambda: ReinMaxControl(num_conditionals=4), REINMAX),
    "normalised weights without replacement": Fault(lambda: NormalisedWeights(2, normalised=True), ON_CLASSES),
    "the loss of the batch": Fault(BatchLoss, ON_CLASSES),
    "off by sigma": Fault(lambda: PerturbedFunction(forgets_sigma=True), ON_CLASSES),
    "lambda shrunk by the reduction": Fault(ReducedImplicitMLE, ON_CLASSES),
    "running mean updated before use": Fault(RunningMeanFirst, ON_CLASSES),
    "running mean in place": Fault(RunningMeanInPlace, ON_CLASSES),
    "diagonal-only Jacobian, straight-through": Fault(DiagonalSimple, ON_CLASSES),
    "no normaliser": Fault(NoNormaliser, {"structures": ("subset",)}),
}
"""Mistakes by name."""

RIGHT: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "leave-one-out as a function": (lambda: leave_one_out, ON_CLASSES),
    "divided by sigma": (PerturbedFunction, ON_CLASSES),
    "the sum of the losses": (lambda: ReducedImplicitMLE(mean=False), ON_CLASSES),
    "running mean used before": (lambda: RunningMeanFirst(updates_first=False), ON_CLASSES),
    "REINFORCE, written out": (Explicit, ON_CLASSES),
    "both terms of a control variate": (ControlVariate, {}),
    "leave-one-out with its own generator": (Opaque, {}),
}
"""Estimators without a fault, and options of their audit."""
