"""Finite differences of argmax: blackbox differentiation and implicit maximum likelihood estimation."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from ..oracles.capabilities import Oracle
from ..oracles.options import Count, Decay, NonNegative, Positive
from .base import NOTHING, Evaluations, PathwiseEstimator
from .noise import AnyNoise, Gumbel
from .surrogates import Loss, moving_parts, with_backward


@dataclass(frozen=True)
class BlackboxDifferentiation(PathwiseEstimator[Oracle], name="blackbox", references=("vlastelica2020differentiation",)):
    """Blackbox differentiation: forward ``z = argmax θ``, backward ``ĝ = [z(θ) − z(θ − λγ)] / λ``. Biased; deterministic.

    The gradient of a piecewise linear interpolation of the loss; λ times it is `ImplicitMLE` without noise. It is 0 where λ is too small to
    change the best structure, on one of n categories below ``min_j (θ_k − θ_j) / (γ_k − γ_j)``, k being the best one.

    γ is the gradient of the loss of one structure: `surrogate` evaluates it per row, whatever reduction follows. As a layer (`structure`)
    the estimator sees γ as the reduction scaled it: a mean over B rows makes λ B times smaller.

    Args:
        lambda_: λ, the range of the interpolation, positive. The authors' code has 5, their experiments up to 20. On the command line:
            ``blackbox[lambda=10]``.

    References:
        Vlastelica, Paulus, Musil, Martius & Rolínek 2020, "Differentiation of blackbox combinatorial solvers", algorithm 1.

    Example:
        >>> loss, scores = lambda z: z @ torch.tensor([1.0, -0.5, 2.0]), torch.tensor([0.3, -0.2, 0.5])
        >>> BlackboxDifferentiation(lambda_=0.1).gradient(loss, "categorical", scores, generator=torch.Generator())
        tensor([0., 0., 0.])
        >>> BlackboxDifferentiation(lambda_=2.0).gradient(loss, "categorical", scores, generator=torch.Generator())
        tensor([ 0.0000, -0.5000,  0.5000])
    """

    lambda_: Positive = 5.0

    objective = "argmax"
    deterministic = True
    calls = Evaluations(losses=1, loss_gradients=1, argmax=2)

    def structure(self, oracle: Oracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        theta = scores.detach()
        best = oracle.argmax(theta)
        moving = moving_parts(best, theta, oracle)

        def pull_back(gamma: Tensor) -> Tensor:
            return (best - oracle.argmax(theta - self.lambda_ * torch.where(moving, gamma, 0))) / self.lambda_

        return with_backward(best, scores, pull_back)


@dataclass(frozen=True)
class ImplicitMLE(PathwiseEstimator[Oracle], name="imle", tier="core", references=("niepert2021implicit",)):
    """Implicit MLE: forward ``z = argmax(θ + ε)``, backward ``ĝ = z − argmax(θ − λγ + ε)`` with the same noise. Biased.

    The scale is λ, or 1 where divided by λ.

    γ is the gradient of the loss of one structure: `surrogate` evaluates it per row, whatever reduction follows. As a layer (`structure`)
    the estimator sees γ as the reduction scaled it, which shrinks λ by the batch size under a mean.

    Args:
        lambda_: λ, the size of the step that defines the target distribution, positive. On the command line: ``imle[lambda=2.5]``.
        noise: any `Noise`; the authors use `SumOfGamma`.
        num_samples: estimates that are averaged in one call of `surrogate`.
        divide_by_lambda: return ``ĝ/λ``; the authors fold 1/λ into the learning rate.

    References:
        Niepert, Minervini & Franceschi 2021, "Implicit MLE", algorithm 1 and equation 12.

    Example:
        >>> loss, scores = lambda z: z @ torch.tensor([1.0, -0.5, 2.0]), torch.tensor([0.3, -0.2, 0.5]).expand(100_000, 3)
        >>> generator = torch.Generator().manual_seed(0)
        >>> ImplicitMLE(lambda_=1.0).gradient(loss, "categorical", scores, generator=generator).mean(0).round(decimals=2)
        tensor([ 0.1100, -0.4400,  0.3200])
    """

    lambda_: Positive = 1.0
    noise: AnyNoise = Gumbel()
    num_samples: Count = 1
    divide_by_lambda: bool = False

    objective = "perturbed"

    @property
    def scale(self) -> float:
        return 1.0 if self.divide_by_lambda else self.lambda_

    def evaluations(self) -> Evaluations:
        n = self.num_samples
        return Evaluations(losses=n, loss_gradients=n, argmax=2 * n, perturbations=n)

    def _draws(self) -> int:
        return self.num_samples

    def structure(self, oracle: Oracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        perturbed = self.noise.perturb(oracle, scores.detach(), generator=generator)
        best = oracle.argmax(perturbed)
        # Ignored entries are never read, so that nothing is to be masked where nothing is forbidden.
        moving = None if oracle.forbids_nothing(scores) else moving_parts(best, scores, oracle)
        divisor = self.lambda_ if self.divide_by_lambda else 1.0

        def pull_back(gamma: Tensor) -> Tensor:
            step = gamma if moving is None else torch.where(moving, gamma, 0)
            difference = best - oracle.argmax(perturbed - (step if self.lambda_ == 1 else self.lambda_ * step))
            return difference if divisor == 1 else difference / divisor

        return with_backward(best, scores, pull_back)


@dataclass(frozen=True)
class AdaptiveImplicitMLE(PathwiseEstimator[Oracle], name="aimle", references=("minervini2023adaptive",)):
    """Adaptive implicit MLE: `ImplicitMLE` with ``λ = β ‖θ‖ / ‖γ‖``, β moved until estimates have a given number of non-zeros. Biased.

    Forward ``z = argmax(θ + ε)``; backward, with the same noise, ``[z(θ + λγ) − z(θ − λγ)] / 2λ``, or ``[z(θ) − z(θ − λγ)] / λ`` where not
    symmetric. The norms are those of the free parts of one row (the authors' are of a whole batch: here rows are independent), so that
    scaling γ, as a reduction of the losses does, scales the estimate and changes nothing else.

    The state is a value, as that of `RunningMeanBaseline`. Measured after 64 updates, and then frozen.

    Cost: three argmax per sample, two where not symmetric; one noise tensor and one loss gradient per sample; one host copy per `observed`.

    Args:
        beta: β. The authors start at 0, where estimates are 0, and so the number of non-zeros raises it; here it starts at 1, a step as
            long as the scores, so that an estimator without updates works too.
        nonzeros: the running mean of non-zeros per row, before the first update.
        target: the number of non-zeros per row that is aimed at, positive. The authors use 1 and 10.
        step_size: by how much an update moves β, positive. The authors use 1e-4 and 1e-3.
        decay: weight of the past in the running mean, in [0, 1).
        symmetric: the central difference, whose error is of second order in λ.
        divide_by_lambda: divide by λ. Without, the scale is λ, which differs from row to row; `scale` then gives its factor β.
        num_samples: estimates that are averaged in one call of `surrogate`.

    References:
        Minervini, Franceschi & Niepert 2023, "Adaptive perturbation-based gradient estimation for discrete latent variable models":
        the central difference and the adaptive step.

    Example:
        >>> loss, scores = lambda z: z @ torch.tensor([1.0, -0.5, 2.0]), torch.tensor([0.3, -0.2, 0.5])
        >>> from structgrad.estimators import StructuredLayer
        >>> layer = StructuredLayer("categorical", AdaptiveImplicitMLE(beta=0.0, step_size=0.05))
        >>> for _ in range(200):
        ...     layer.surrogate(loss, scores.requires_grad_().expand(64, 3)).sum().backward()
        >>> round(layer.estimator.nonzeros)
        1
    """

    beta: NonNegative = 1.0
    nonzeros: NonNegative = 1.0
    target: Positive = 1.0
    step_size: Positive = 1e-3
    decay: Decay = 0.9
    symmetric: bool = True
    divide_by_lambda: bool = True
    noise: AnyNoise = Gumbel()
    num_samples: Count = 1

    objective = "perturbed"
    state = ("beta", "nonzeros")

    @property
    def scale(self) -> float:
        return 1.0 if self.divide_by_lambda else self.beta

    def evaluations(self) -> Evaluations:
        n = self.num_samples
        return Evaluations(losses=n, loss_gradients=n, argmax=(3 if self.symmetric else 2) * n, perturbations=n)

    def observed(self, values: Tensor = NOTHING, estimates: Tensor = NOTHING) -> Self:
        if not len(estimates):
            return self
        found = float((estimates != 0).sum()) / len(estimates)
        nonzeros = self.decay * self.nonzeros + (1 - self.decay) * found
        step = self.step_size if nonzeros < self.target else -self.step_size
        return replace(self, nonzeros=nonzeros, beta=max(self.beta + step, 0.0))

    def warmed_up(self, loss: Loss, oracle: Oracle, scores: Tensor, *, generator: torch.Generator) -> Self:
        state, event = self, scores.shape[scores.ndim - oracle.event_ndim :]
        for _ in range(64):
            state = state.observed(estimates=state.gradient(loss, oracle, scores, generator=generator).reshape(-1, *event))
        return state

    def _draws(self) -> int:
        return self.num_samples

    def structure(self, oracle: Oracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        perturbed = self.noise.perturb(oracle, scores.detach(), generator=generator)
        best = oracle.argmax(perturbed)
        moving, event = moving_parts(best, scores, oracle), tuple(range(-oracle.event_ndim, 0))
        length = torch.where(moving, scores.detach(), 0).square().sum(event, keepdim=True).sqrt()

        def pull_back(gamma: Tensor) -> Tensor:
            gamma = torch.where(moving, gamma, 0)
            norm = gamma.square().sum(event, keepdim=True).sqrt()
            step = self.beta * length / torch.where(norm > 0, norm, 1)
            below = oracle.argmax(perturbed - step * gamma)
            difference = (oracle.argmax(perturbed + step * gamma) - below) / 2 if self.symmetric else best - below
            estimate = difference / torch.where(step > 0, step, 1) if self.divide_by_lambda else difference
            return torch.where(moving & (step > 0), estimate, 0)

        return with_backward(best, scores, pull_back)
