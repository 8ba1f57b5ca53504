"""REINFORCE with rewards that are brought to unit variance."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from ...oracles.capabilities import SamplingOracle
from ...oracles.options import Count, Decay, NonNegative
from ..base import NOTHING, Loss
from .baselines import first_values
from .reinforce import ScoreFunction


@dataclass(frozen=True)
class NormalisedRewards(ScoreFunction):
    """REINFORCE with normalised rewards: ``ĝ = (1/N) Σ (L(z_i) − b) / max(1, √v′) · ∇ log p(z_i)``. Biased in its magnitude.

    b and v are running moments of the losses. The variance takes the current sample in before use, ``v′ = a·v + (1 − a)(L̄ − b)²``, with a
    the decay and ``L̄`` the mean of the N losses, which is the surrogate's value; b is updated after use. So every sample is divided by a
    number of its own: the mean of an estimate is ``E[(L̄ − b)/max(1, √v′) ∇ log p]``. Where v′ cannot pass 1 that is the gradient; as the
    decay goes to 1 it tends to the gradient divided by ``max(1, √v)``, which is the `scale`; between these the largest losses count too
    little, and the direction can change.

    The state is a value: `observed` returns a new estimator, and a `StructuredLayer` holds the last one. Measured after 64 updates, and
    then frozen, so that replicates are independent.

    Cost: that of REINFORCE, and two host copies per `observed`.

    Args:
        mean: b. ``variance``: v.
        decay: weight of the past in an update, in [0, 1); the authors' is 0.9.
        num_samples: N.

    References:
        Havrylov, Kruszewski & Joulin 2019, "Cooperative learning of disjoint syntax and semantics", section 3.2.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> from structgrad.estimators import StructuredLayer, train_step
        >>> scores, layer = torch.zeros(3, requires_grad=True), StructuredLayer(Categorical(), NormalisedRewards())
        >>> optimiser = torch.optim.SGD([scores], lr=0.5)
        >>> for _ in range(300):  # losses of 1000, 0 and 2000
        ...     values = train_step(layer, optimiser, lambda: scores, lambda z: z @ torch.tensor([1e3, 0.0, 2e3]))
        >>> scores.argmax()
        tensor(1)
    """

    mean: float = 0.0
    variance: NonNegative = 1.0
    decay: Decay = 0.9
    num_samples: Count = 1

    name: ClassVar[str] = "reinforce_normalised"
    references: ClassVar[tuple[str, ...]] = ("havrylov2019cooperative",)
    unbiased: ClassVar[bool] = False
    state: ClassVar[tuple[str, ...]] = ("mean", "variance")

    @property
    def scale(self) -> float:
        return 1 / max(1.0, math.sqrt(self.variance))

    def _weights(self, losses: Tensor) -> Tensor:
        return (losses - self.mean) / self._next_variance(losses.mean(0)).sqrt().clamp(min=1)

    def _next_variance(self, values: Tensor) -> Tensor:
        """v′ of every row by itself: the rows of a batch share nothing."""
        return self.decay * self.variance + (1 - self.decay) * (values - self.mean).square()

    def observed(self, values: Tensor = NOTHING, estimates: Tensor = NOTHING) -> Self:
        """The estimator after it has seen the values of a batch; itself after none."""
        if not values.numel():
            return self
        values = values.detach()
        mean = self.decay * self.mean + (1 - self.decay) * float(values.mean())
        return replace(self, mean=mean, variance=float(self._next_variance(values).mean()))

    def warmed_up(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Self:
        """The estimator after 64 updates at these scores, started from the first value and no variance; itself where the batch is empty."""
        values = first_values(self, loss, oracle, scores, generator)
        if not values.numel():
            return self
        state = replace(self, mean=float(values[0].mean()), variance=0.0)
        for value in values[1:]:
            state = state.observed(value)
        return state
