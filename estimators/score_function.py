"""The score-function family: only values of the loss are needed, and every estimate is unbiased."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..oracles.base import Oracle, SamplingOracle
from .base import Estimator, Evaluations, Loss, Objective, carry, evaluate


class ScoreFunction(Estimator[SamplingOracle]):
    """``ĝ = (1/N) Σ_i w_i ∇_θ log p_θ(z_i)`` with independent exact samples ``z_i``; a subclass says what the weights ``w_i`` are.

    The score comes from `log_prob` and autograd, so that any oracle that knows its log-probabilities is served.
    """

    num_samples: int

    needs: ClassVar[tuple[type[Oracle], ...]] = (SamplingOracle,)
    objective: ClassVar[Objective] = "expected"
    unbiased: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.num_samples, marginals=1, samples=self.num_samples)

    @abc.abstractmethod
    def _weights(self, losses: Tensor) -> Tensor:
        """[N, *batch] -> [N, *batch]."""

    def surrogate(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        samples = oracle.sample(scores, self.num_samples, generator=generator)
        losses = evaluate(loss, samples, oracle.event_ndim)
        log_probs = oracle.log_prob(samples, scores)
        return carry(losses.mean(0), (self._weights(losses.detach()) * log_probs).mean(0))


@dataclass(frozen=True)
class Reinforce(ScoreFunction):
    """REINFORCE without a baseline: ``ĝ = (1/N) Σ L(z_i) ∇ log p(z_i)``. Unbiased; the variance grows with the loss's offset.

    Args:
        num_samples: N, at least 1.

    References:
        Williams 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", section 4.

    Example:
        >>> from structgrad.oracles import Subset
        >>> scores, target = torch.zeros(100, 4), torch.tensor([1.0, 1.0, 0.0, 0.0])
        >>> estimates = Reinforce().gradient(lambda z: (z - target).square().sum(-1), Subset(2), scores, generator=torch.Generator())
        >>> estimates.shape
        torch.Size([100, 4])
    """

    num_samples: int = 1

    name: ClassVar[str] = "reinforce"
    references: ClassVar[tuple[str, ...]] = ("williams1992simple",)

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise ValueError(f"`{self.name}` got num_samples={self.num_samples}; expected at least 1")

    def _weights(self, losses: Tensor) -> Tensor:
        return losses


@dataclass(frozen=True)
class LeaveOneOut(ScoreFunction):
    """REINFORCE with a leave-one-out baseline: ``ĝ = 1/(N−1) Σ (L(z_i) − L̄) ∇ log p(z_i)``.

    Unbiased, because the baseline of a sample is the mean of the *others*. (With the mean of all N the estimate would be (N−1)/N of the
    gradient.) The same estimate as VarGrad.

    Cost: N samples, N loss values, one log-partition and its gradient.

    Args:
        num_samples: N, at least 2.

    References:
        Kool, van Hoof & Welling 2019, "Buy 4 REINFORCE samples, get a baseline for free", equation 8; Richter et al. 2020 (VarGrad).

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> generator = torch.Generator().manual_seed(0)
        >>> estimates = LeaveOneOut(num_samples=4).gradient(loss, Categorical(), scores.expand(100_000, 3), generator=generator)
        >>> [round(value, 2) for value in estimates.mean(0).tolist()]
        [-0.04, -0.35, 0.38]
    """

    num_samples: int = 2

    name: ClassVar[str] = "rloo"
    references: ClassVar[tuple[str, ...]] = ("kool2019buy", "richter2020vargrad")

    def __post_init__(self) -> None:
        if self.num_samples < 2:
            raise ValueError(f"`{self.name}` got num_samples={self.num_samples}; expected at least 2, the others are the baseline")

    def _weights(self, losses: Tensor) -> Tensor:
        return (losses - losses.mean(0)) * (self.num_samples / (self.num_samples - 1))
