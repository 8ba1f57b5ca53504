"""REINFORCE minus the constant of least variance, from pilot samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import Oracle, SamplingOracle
from ...oracles.capabilities.derivatives import unsqueeze_event
from ...oracles.options import Count
from ..base import Estimator, Evaluations, Loss, Objective, evaluate_samples, with_gradient
from ..indices import draw
from .reinforce import scores_of


@dataclass(frozen=True)
class OptimalBaseline(Estimator[SamplingOracle]):
    """REINFORCE minus the best constant: ``ĝ = (1/N) Σ (L(z_i) − b) s_i``, where ``b = Σ L(z) ‖s‖² / Σ ‖s‖²`` over pilot samples.

    ``b* = E[L ‖s‖²] / E‖s‖²``, with the score ``s = ∇ log p(z)``, is the constant of least variance; part by part it is
    ``E[L s_j²] / E[s_j²]``. Unbiased, because the pilots are independent of the samples ``z_i``; with b from these it would not be. Where
    every pilot's score is 0, b is their mean loss.

    Cost: samples and loss values of the pilots and the N samples; the log-partition and its gradient per sample, shared where the scores
    are.

    Args:
        pilots: pilot samples per estimate.
        per_part: a constant for every part, instead of one for all.
        num_samples: N.

    References:
        Weaver & Tao 2001, "The optimal reward baseline for gradient-based reinforcement learning", theorem 1; Mohamed, Rosca, Figurnov &
        Mnih 2020, "Monte Carlo gradient estimation in machine learning", section 7.4.1 (fresh samples for the coefficient).

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> generator = torch.Generator().manual_seed(0)
        >>> estimates = OptimalBaseline().gradient(loss, Categorical(), scores.expand(100_000, 3), generator=generator)
        >>> [round(value, 2) for value in estimates.mean(0).tolist()]
        [-0.04, -0.34, 0.38]
    """

    pilots: Count = 25
    per_part: bool = False
    num_samples: Count = 1

    name: ClassVar[str] = "reinforce_optimal"
    references: ClassVar[tuple[str, ...]] = ("weaver2001optimal", "mohamed2020monte")
    needs: ClassVar[tuple[type[Oracle], ...]] = (SamplingOracle,)
    objective: ClassVar[Objective] = "expected"
    unbiased: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        both = self.pilots + self.num_samples
        return Evaluations(losses=both, marginals=both, samples=both)

    def surrogate(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        baseline = self._baseline(loss, oracle, scores.detach(), generator)
        samples = draw(loss, oracle, scores, self.num_samples, generator=generator)
        losses = evaluate_samples(loss, samples)
        excess = unsqueeze_event(losses.detach(), oracle.event_ndim) - baseline
        return with_gradient(
            losses.mean(0), scores, (excess * scores_of(oracle, samples.drawn, scores, as_indices=samples.compact)).mean(0)
        )

    def _baseline(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, generator: torch.Generator) -> Tensor:
        """``[*batch, *event]``, or with ones in place of the event."""
        samples = draw(loss, oracle, scores, self.pilots, generator=generator)
        losses = unsqueeze_event(evaluate_samples(loss, samples).detach(), oracle.event_ndim)
        squares = scores_of(oracle, samples.drawn, scores, as_indices=samples.compact).square()
        if not self.per_part:
            squares = squares.sum(tuple(range(-oracle.event_ndim, 0)), keepdim=True)
        total = squares.sum(0)
        return torch.where(total > 0, (losses * squares).sum(0) / torch.where(total > 0, total, 1), losses.mean(0))
