"""The best structures summed exactly, and one sample of the others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import DistinctSamplingOracle, EnumerableOracle, KBestOracle, MarginalOracle, Oracle
from ...oracles.capabilities.derivatives import unsqueeze_event
from ...oracles.options import Count
from ..base import Estimator, Evaluations, Loss, Objective, carry, evaluate
from ..enumeration import ListedOracle, too_many
from .without_replacement import MOST_STRUCTURES, draw_set


class _Ranked(ListedOracle, KBestOracle):
    """What sum-and-sample needs, as a type."""


@dataclass(frozen=True)
class SumAndSample(Estimator[_Ranked]):
    """Sum and sample: ``ĝ = Σ_{z∈C} p(z) (L(z) − b) ∇ log p(z) + (1 − q)(L(z′) − b) ∇ log p(z′)``, C the k best structures. Unbiased.

    z′ is drawn from the law outside C, ``p(z) / (1 − q)`` with ``q = p(C)``: it is the first of k + 1 structures without replacement that
    is not in C. Where C holds every feasible structure, the estimate is exact.

    Cost: the k best structures, k + 1 without replacement, k + 1 loss values, one log-partition and its gradient. Oracles that cannot
    draw without replacement (`DistinctSamplingOracle`) take the log-probabilities of all structures, of which memory holds all at a time.

    Args:
        k: how many of the best structures; all of them, where there are fewer.
        centred: take ``b = Σ_{z∈C} p(z) L(z) / q``, which does not depend on the sample; 0 otherwise.
        limit: the most structures that are listed.

    References:
        Liu, Regier, Tripuraneni, Jordan & McAuliffe 2019, "Rao-Blackwellized stochastic gradients for discrete distributions", section 3.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> generator = torch.Generator().manual_seed(0)
        >>> estimates = SumAndSample().gradient(loss, Categorical(), scores.expand(100_000, 3), generator=generator)
        >>> [round(value, 2) for value in estimates.mean(0).tolist()]
        [-0.04, -0.34, 0.38]
    """

    k: Count = 1
    centred: bool = True
    limit: Count = MOST_STRUCTURES

    name: ClassVar[str] = "sum_and_sample"
    references: ClassVar[tuple[str, ...]] = ("liu2019rao",)
    needs: ClassVar[tuple[type[Oracle], ...]] = (MarginalOracle, KBestOracle, EnumerableOracle)
    version: ClassVar[int] = 2
    objective: ClassVar[Objective] = "expected"
    unbiased: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.k + 1, kbest=self.k, listings=1)

    def lists(self, oracle: Any, event_shape: tuple[int, ...]) -> bool:
        return not isinstance(oracle, DistinctSamplingOracle)

    def _limitation(self, oracle: Any, event_shape: tuple[int, ...]) -> str | None:
        return too_many(self.name, oracle, event_shape, self.limit) if self.lists(oracle, event_shape) else None

    def surrogate(self, loss: Loss, oracle: _Ranked, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        event = oracle.event_ndim
        best, listed = self._best(oracle, scores.detach())
        other, mass, missed = self._other(oracle, scores.detach(), best, generator)
        # A slot without a structure of its own repeats the best one, so that the loss sees structures alone.
        structures = torch.cat([torch.where(unsqueeze_event(listed, event), best, best[:1]), other])
        losses, log_probs = evaluate(loss, structures, event), oracle.log_prob(structures, scores)
        probabilities = torch.where(listed, log_probs[:-1].detach().exp(), 0)
        # 1 − q. Where the best were not drawn, they are no larger than the rest that they are taken off: no digits cancel.
        weight = (mass - (probabilities * missed).sum(0)).clamp(min=0).to(probabilities.dtype)
        weights = torch.cat([probabilities, weight.unsqueeze(0)])
        baseline = self._baseline(losses[:-1], probabilities)
        excess = losses - baseline
        return carry(baseline + (weights * excess).sum(0), (weights * excess.detach() * log_probs).sum(0))

    def _best(self, oracle: _Ranked, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The k best structures ``[k, *batch, *event]``, and which of them are feasible, ``[k, *batch]``."""
        event = oracle.event_ndim
        best = oracle.kbest(scores, min(self.k, oracle.count(tuple(scores.shape[scores.ndim - event :]))))
        return best, (best != 0).flatten(best.ndim - event).any(-1)

    def _other(self, oracle: _Ranked, scores: Tensor, best: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """A draw ``[1, *batch, *event]`` from the law outside the best, and the mass outside of those of the best that were drawn.

        The mass ``[*batch]`` is 0 where nothing is outside; ``[k, *batch]`` are the best that were not drawn.
        """
        event = oracle.event_ndim
        if isinstance(oracle, DistinctSamplingOracle):
            drawn = oracle.sample_distinct(scores, self.k + 1, generator=generator)
        else:
            drawn = draw_set(oracle, scores, self.k + 1, generator=generator)
        structures, log_probs = drawn.structures, drawn.log_probs.movedim(-1, 0)
        same = (structures.unsqueeze(1) == best).flatten(structures.ndim + 1 - event).all(-1)
        outside = ~same.any(1) & (log_probs > -math.inf)
        first = outside.int().argmax(0, keepdim=True)
        missed = ~same.any(0) & (best != 0).flatten(best.ndim - event).any(-1)
        mass = torch.where(outside.any(0), drawn.log_rest.exp() + (log_probs.exp() * outside).sum(0), 0)
        return torch.take_along_dim(structures, unsqueeze_event(first, event), 0), mass, missed

    def _baseline(self, losses: Tensor, probabilities: Tensor) -> Tensor:
        total = probabilities.sum(0)
        if not self.centred:
            return torch.zeros_like(total)
        return (probabilities * losses).sum(0) / torch.where(total > 0, total, 1)
