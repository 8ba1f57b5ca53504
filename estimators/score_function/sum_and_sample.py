"""The best structures summed exactly, and one sample of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import KBestOracle, Oracle, SamplingOracle
from ...oracles.capabilities.derivatives import unsqueeze_event
from ...oracles.options import Count
from ..base import Estimator, Evaluations, Loss, Objective, carry, evaluate


class _Ranked(SamplingOracle, KBestOracle):
    """What sum-and-sample needs, as a type."""


@dataclass(frozen=True)
class SumAndSample(Estimator[_Ranked]):
    """Sum and sample: ``ĝ = Σ_{z∈C} p(z) (L(z) − b) ∇ log p(z) + w (L(z′) − b) ∇ log p(z′)``, C the k best structures. Unbiased.

    z′ is the first of m exact samples that is not in C, and ``w = 1/Σ_{i<m} qⁱ`` with ``q = p(C)``; where all m are in C, its term is
    left out. That happens with probability ``q^m``, and ``(1 − q^m) w = 1 − q``, so that the estimate is unbiased for every m: m = 1 draws
    once and looks where it fell, a large m draws from the law outside C. Where C holds every feasible structure, the estimate is exact.

    Cost: the k best structures, m samples, k + 1 loss values, one log-partition and its gradient.

    Args:
        k: how many of the best structures; all of them, where there are fewer.
        candidates: m.
        centred: take ``b = Σ_{z∈C} p(z) L(z) / q``, which does not depend on the sample; 0 otherwise.

    References:
        Liu, Regier, Tripuraneni, Jordan & McAuliffe 2019, "Rao-Blackwellized stochastic gradients for discrete distributions", section 3.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> generator = torch.Generator().manual_seed(0)
        >>> estimates = SumAndSample().gradient(loss, Categorical(), scores.expand(100_000, 3), generator=generator)
        >>> [round(value, 2) for value in estimates.mean(0).tolist()]
        [-0.04, -0.35, 0.38]
    """

    k: Count = 1
    candidates: Count = 8
    centred: bool = True

    name: ClassVar[str] = "sum_and_sample"
    references: ClassVar[tuple[str, ...]] = ("liu2019rao",)
    needs: ClassVar[tuple[type[Oracle], ...]] = (SamplingOracle, KBestOracle)
    objective: ClassVar[Objective] = "expected"
    unbiased: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.k + 1, marginals=1, samples=self.candidates, kbest=self.k)

    def surrogate(self, loss: Loss, oracle: _Ranked, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        event = oracle.event_ndim
        best, listed = self._best(oracle, scores.detach())
        other, found = self._other(oracle, scores.detach(), best, generator)
        # A slot without a structure of its own repeats the best one, so that the loss sees structures alone.
        structures = torch.cat([torch.where(unsqueeze_event(listed, event), best, best[:1]), other])
        losses, log_probs = evaluate(loss, structures, event), oracle.log_prob(structures, scores)
        probabilities = torch.where(listed, log_probs[:-1].detach().exp(), 0)
        inside = probabilities.sum(0)
        powers = inside ** torch.arange(self.candidates, device=inside.device).reshape(-1, *[1] * inside.ndim)
        weights = torch.cat([probabilities, torch.where(found, 1 / powers.sum(0), 0).unsqueeze(0)])
        baseline = self._baseline(losses[:-1], probabilities)
        excess = losses - baseline
        return carry(baseline + (weights * excess).sum(0), (weights * excess.detach() * log_probs).sum(0))

    def _best(self, oracle: _Ranked, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The k best structures ``[k, *batch, *event]``, and which of them are feasible, ``[k, *batch]``."""
        event = oracle.event_ndim
        best = oracle.kbest(scores, min(self.k, oracle.count(tuple(scores.shape[scores.ndim - event :]))))
        return best, (best != 0).flatten(best.ndim - event).any(-1)

    def _other(self, oracle: _Ranked, scores: Tensor, best: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The first candidate ``[1, *batch, *event]`` that is not among the best, and whether there is one; else the first of all."""
        event = oracle.event_ndim
        drawn = oracle.sample(scores, self.candidates, generator=generator)
        same = (drawn.unsqueeze(1) == best).flatten(drawn.ndim + 1 - event).all(-1)
        outside = ~same.any(1)
        first = outside.int().argmax(0, keepdim=True)
        return torch.take_along_dim(drawn, unsqueeze_event(first, event), 0), outside.any(0)

    def _baseline(self, losses: Tensor, probabilities: Tensor) -> Tensor:
        total = probabilities.sum(0)
        if not self.centred:
            return torch.zeros_like(total)
        return (probabilities * losses).sum(0) / torch.where(total > 0, total, 1)
