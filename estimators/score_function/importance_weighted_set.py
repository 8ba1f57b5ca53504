"""The score function of a set that is drawn without replacement, weighted by the inverse of the chances to be in it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import DrawnSet
from ...oracles.options import Count
from ..base import Loss, carry, evaluate
from ..enumeration import ListedOracle
from .without_replacement import MOST_STRUCTURES, SetEstimator, log_chance_above


@dataclass(frozen=True)
class ImportanceWeightedSet(SetEstimator):
    """Importance-weighted set: ``ĝ = Σ_{z∈S} w_z (L(z) (1 − p(z) + w_z) − B) ∇ log p(z)``, S of k structures without replacement. Unbiased.

    ``w_z = p(z)/q(z)`` and ``B = Σ_{z∈S} w_z L(z)``, where ``q(z) = 1 − exp(−exp(log p(z) − κ))`` is the chance that ``log p(z)`` plus a
    Gumbel variable passes the threshold κ, the greatest perturbed log-probability of what was left out. Given a threshold, weights of
    different structures are uncorrelated and have p as their means; the term ``w_z − p(z)`` corrects for the own loss in B.
    Where S holds every feasible structure, the estimate is exact.

    With ``normalised=True``, ``ĝ = Σ w_z/W_z (L(z) − B/W) ∇ log p(z)`` with ``W = Σ w`` and ``W_z = W − w_z + p(z)``: biased, and of less
    variance, because the weights of a small set vary much.

    Cost: k loss values, and the log-probabilities of all structures, of which memory holds all at a time; of more than ``limit``, a
    log-partition and what k samples take, by an oracle that draws them without replacement (`DistinctSamplingOracle`).

    Args:
        num_samples: k; all structures, where there are fewer.
        baseline: subtract B; it needs k of at least 2. Without, the estimate is ``Σ w_z L(z) ∇ log p(z)``, divided by W if normalised.
        normalised: the biased form; the declared `unbiased` is that of the other.
        limit: the most structures that are listed; of more, oracles draw those of the set alone, and others are refused.

    References:
        Kool, van Hoof & Welling 2019, "Buy 4 REINFORCE samples, get a baseline for free", equations 9 (no baseline), 10 and 11
        (normalised).

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> generator = torch.Generator().manual_seed(0)
        >>> estimates = ImportanceWeightedSet(2).gradient(loss, Categorical(), scores.expand(100_000, 3), generator=generator)
        >>> [round(value, 2) for value in estimates.mean(0).tolist()]
        [-0.04, -0.34, 0.38]
    """

    num_samples: Count = 4
    baseline: bool = True
    normalised: bool = False
    limit: Count = MOST_STRUCTURES

    name: ClassVar[str] = "importance_weighted_set"
    references: ClassVar[tuple[str, ...]] = ("kool2019buy", "kool2019stochastic")

    def from_set(self, loss: Loss, oracle: ListedOracle, scores: Tensor, drawn: DrawnSet) -> Tensor:
        losses = evaluate(loss, drawn.structures, oracle.event_ndim)
        probabilities, weights = drawn.log_probs.exp().movedim(-1, 0), inverse_chances(drawn).movedim(-1, 0)
        terms = self._terms(losses.detach().double(), probabilities, weights)
        averaged = weights / _at_least_tiny(weights.sum(0)) if self.normalised else weights
        value = (averaged.to(losses.dtype) * losses).sum(0)
        return carry(value, (terms.to(scores.dtype) * oracle.log_prob(drawn.structures, scores)).sum(0))

    def _terms(self, losses: Tensor, probabilities: Tensor, weights: Tensor) -> Tensor:
        """What the score of every structure is multiplied with, [k, *batch]."""
        total, mean = weights.sum(0), (weights * losses).sum(0)
        if not self.baseline:
            return weights * losses / (_at_least_tiny(total) if self.normalised else 1)
        if not self.normalised:
            return weights * (losses * (1 - probabilities + weights) - mean)
        return weights / _at_least_tiny(total - weights + probabilities) * (losses - mean / _at_least_tiny(total))


def inverse_chances(drawn: DrawnSet) -> Tensor:
    """``p(z)/q(z)``, float64 ``[*batch, k]``, of a set and its threshold; 0 for slots without a structure of their own."""
    used = drawn.log_probs > -math.inf
    log_probs = torch.where(used, drawn.log_probs, 0)
    return torch.where(used, (log_probs - log_chance_above(log_probs - drawn.threshold.unsqueeze(-1))).exp(), 0)


def _at_least_tiny(total: Tensor) -> Tensor:
    """A sum of weights to divide by, where none is positive in an infeasible row."""
    return torch.where(total > 0, total, 1)
