"""Implicit maximum likelihood estimation (I-MLE)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import Oracle
from ...oracles.options import Count, Positive
from ..base import Evaluations, Objective, PathwiseEstimator, Tier, moving_parts, with_backward
from ..noise import AnyNoise, Gumbel


@dataclass(frozen=True)
class ImplicitMLE(PathwiseEstimator[Oracle]):
    """Implicit MLE: forward ``z = argmax(θ + ε)``, backward ``ĝ = z − argmax(θ − λγ + ε)`` with the same noise. Biased.

    The scale is λ, or 1 where divided by λ.

    γ is the gradient of the loss of one structure: `surrogate` evaluates it per row, whatever reduction follows. As a layer (`structure`)
    the estimator sees γ as the reduction scaled it, which shrinks λ by the batch size under a mean.

    Cost: two argmax, one noise tensor and one loss gradient per sample.

    Args:
        lambda_: λ, the size of the step that defines the target distribution, positive. On the command line: ``imle[lambda=2.5]``.
        noise: any `Noise`; the authors use `SumOfGamma`.
        num_samples: estimates that are averaged in one call of `surrogate`.
        divide_by_lambda: return ``ĝ/λ``; the authors fold 1/λ into the learning rate.

    References:
        Niepert, Minervini & Franceschi 2021, "Implicit MLE", algorithm 1 and equation 12.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> generator = torch.Generator().manual_seed(0)
        >>> estimates = ImplicitMLE(lambda_=1.0).gradient(loss, Categorical(), scores.expand(100_000, 3), generator=generator)
        >>> [round(value, 2) for value in estimates.mean(0).tolist()]
        [0.11, -0.44, 0.32]
    """

    lambda_: Positive = 1.0
    noise: AnyNoise = Gumbel()
    num_samples: Count = 1
    divide_by_lambda: bool = False

    name: ClassVar[str] = "imle"
    tier: ClassVar[Tier] = "core"
    references: ClassVar[tuple[str, ...]] = ("niepert2021implicit",)
    objective: ClassVar[Objective] = "perturbed"

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
