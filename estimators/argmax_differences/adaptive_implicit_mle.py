"""Adaptive implicit maximum likelihood estimation (AIMLE)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from ...oracles.capabilities import Oracle
from ...oracles.options import Count, Decay, NonNegative, Positive
from ..base import NOTHING, Evaluations, Loss, Objective, PathwiseEstimator, moving_parts, with_backward
from ..noise import AnyNoise, Gumbel


@dataclass(frozen=True)
class AdaptiveImplicitMLE(PathwiseEstimator[Oracle]):
    """Adaptive implicit MLE: `ImplicitMLE` with ``λ = β ‖θ‖ / ‖γ‖``, β moved until estimates have a given number of non-zeros. Biased.

    Forward ``z = argmax(θ + ε)``; backward, with the same noise, ``[z(θ + λγ) − z(θ − λγ)] / 2λ``, or ``[z(θ) − z(θ − λγ)] / λ`` where not
    symmetric. The norms are those of the free parts of one row (the authors' are of a whole batch: here rows are independent), so that
    scaling γ, as a reduction of the losses does, scales the estimate and changes nothing else.

    The state is a value: `observed` returns a new estimator, and a `StructuredLayer` holds the last one. Measured after 64 updates, and
    then frozen, so that replicates are independent.

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
        noise: any `Noise`.
        num_samples: estimates that are averaged in one call of `surrogate`.

    References:
        Minervini, Franceschi & Niepert 2023, "Adaptive perturbation-based gradient estimation for discrete latent variable models":
        the central difference and the adaptive step.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> from structgrad.estimators import StructuredLayer
        >>> layer = StructuredLayer(Categorical(), AdaptiveImplicitMLE(beta=0.0, step_size=0.05))
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

    name: ClassVar[str] = "aimle"
    references: ClassVar[tuple[str, ...]] = ("minervini2023adaptive",)
    objective: ClassVar[Objective] = "perturbed"
    state: ClassVar[tuple[str, ...]] = ("beta", "nonzeros")

    @property
    def scale(self) -> float:
        return 1.0 if self.divide_by_lambda else self.beta

    def evaluations(self) -> Evaluations:
        n = self.num_samples
        return Evaluations(losses=n, loss_gradients=n, argmax=(3 if self.symmetric else 2) * n, perturbations=n)

    def observed(self, values: Tensor = NOTHING, estimates: Tensor = NOTHING) -> Self:
        """The estimator after it has seen the estimates of a batch; itself after none."""
        if not len(estimates):
            return self
        found = float((estimates != 0).sum()) / len(estimates)
        nonzeros = self.decay * self.nonzeros + (1 - self.decay) * found
        step = self.step_size if nonzeros < self.target else -self.step_size
        return replace(self, nonzeros=nonzeros, beta=max(self.beta + step, 0.0))

    def warmed_up(self, loss: Loss, oracle: Oracle, scores: Tensor, *, generator: torch.Generator) -> Self:
        """The estimator after 64 updates at these scores."""
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
