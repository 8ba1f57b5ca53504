"""Blackbox differentiation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import Oracle
from ...oracles.options import Positive
from ..base import Evaluations, Objective, PathwiseEstimator, moving_parts, with_backward


@dataclass(frozen=True)
class BlackboxDifferentiation(PathwiseEstimator[Oracle]):
    """Blackbox differentiation: forward ``z = argmax θ``, backward ``ĝ = [z(θ) − z(θ − λγ)] / λ``. Biased; deterministic.

    The gradient of a piecewise linear interpolation of the loss; λ times it is `ImplicitMLE` without noise. It is 0 where λ is too small to
    change the best structure, on one of n categories below ``min_j (θ_k − θ_j) / (γ_k − γ_j)``, k being the best one.

    γ is the gradient of the loss of one structure: `surrogate` evaluates it per row, whatever reduction follows. As a layer (`structure`)
    the estimator sees γ as the reduction scaled it: a mean over B rows makes λ B times smaller.

    Cost: two argmax, one loss gradient.

    Args:
        lambda_: λ, the range of the interpolation, positive. The authors' code has 5, their experiments up to 20. On the command line:
            ``blackbox[lambda=10]``.

    References:
        Vlastelica, Paulus, Musil, Martius & Rolínek 2020, "Differentiation of blackbox combinatorial solvers", algorithm 1.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> BlackboxDifferentiation(lambda_=0.1).gradient(loss, Categorical(), scores, generator=torch.Generator())
        tensor([0., 0., 0.])
        >>> BlackboxDifferentiation(lambda_=2.0).gradient(loss, Categorical(), scores, generator=torch.Generator())
        tensor([ 0.0000, -0.5000,  0.5000])
    """

    lambda_: Positive = 5.0

    name: ClassVar[str] = "blackbox"
    references: ClassVar[tuple[str, ...]] = ("vlastelica2020differentiation",)
    objective: ClassVar[Objective] = "argmax"
    deterministic: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, argmax=2)

    def structure(self, oracle: Oracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        theta = scores.detach()
        best = oracle.argmax(theta)
        moving = moving_parts(best, theta, oracle)

        def pull_back(gamma: Tensor) -> Tensor:
            return (best - oracle.argmax(theta - self.lambda_ * torch.where(moving, gamma, 0))) / self.lambda_

        return with_backward(best, scores, pull_back)
