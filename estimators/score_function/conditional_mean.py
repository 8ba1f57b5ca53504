"""REINFORCE minus the exact expected loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import EnumerableOracle, Oracle, SamplingOracle
from ...oracles.options import Count
from ..base import Evaluations, Loss
from ..enumeration import LIMIT, expected_loss, too_many
from .baselines import Baseline


@dataclass(frozen=True)
class ConditionalMeanBaseline(Baseline):
    """REINFORCE minus the exact mean: ``b = E L(z) = Σ_z p(z) L(z)`` of every row, by enumeration. Unbiased.

    Who can afford b has the exact gradient too; this is what learned and running baselines are compared with. It is the best baseline for
    samples whose scores have one length, and close to it elsewhere.

    Cost: N samples, N loss values, and the loss on every structure; the log-partition belongs to the enumeration.

    Args:
        num_samples: N.
        chunk: structures per loss call.
        limit: the most structures that are enumerated; spaces with more are refused.

    References:
        Greensmith, Bartlett & Baxter 2004, "Variance reduction techniques for gradient estimates in reinforcement learning", section 5.2.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> generator = torch.Generator().manual_seed(0)
        >>> estimates = ConditionalMeanBaseline().gradient(loss, Categorical(), scores.expand(100_000, 3), generator=generator)
        >>> [round(value, 2) for value in estimates.mean(0).tolist()]
        [-0.04, -0.34, 0.38]
    """

    num_samples: Count = 1
    chunk: Count = 64
    limit: Count = LIMIT

    name: ClassVar[str] = "reinforce_conditional_mean"
    references: ClassVar[tuple[str, ...]] = ("greensmith2004variance",)
    needs: ClassVar[tuple[type[Oracle], ...]] = (SamplingOracle, EnumerableOracle)

    def evaluations(self) -> Evaluations:
        return replace(self.inner.evaluations(), marginals=0, enumerations=1)

    def _limitation(self, oracle: Any, event_shape: tuple[int, ...]) -> str | None:
        return too_many(self.name, oracle, event_shape, self.limit)

    def _baseline(self, loss: Loss, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return expected_loss(loss, oracle, scores, self.chunk)
