"""The score function of a set that is drawn without replacement, with the order of its draws integrated out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import DrawnSet
from ...oracles.numerics import log_sum_exp
from ...oracles.options import Count
from ..base import Loss, carry, evaluate
from ..enumeration import ListedOracle
from .without_replacement import MOST_STRUCTURES, SetEstimator, log_chance_above, shares

RECURSION = 8
"""The largest set whose 2^k subsets are gone through; beyond, the integral is cheaper."""

ROWS = 1024
"""Integrals of this many rows are computed at a time."""


@dataclass(frozen=True)
class UnorderedSet(SetEstimator):
    """Unordered set: ``ĝ = Σ_{z∈S} p(z) R(S, z) (L(z) − b_z) ∇ log p(z)``, S of k structures without replacement. Unbiased.

    ``R(S, z) = P(the others of S | z came first) / P(S)``, so that ``p(z) R(S, z)`` is the probability that z was the first draw, given the
    set: the estimate is the conditional mean, given the set, of REINFORCE on the first draw. The baseline uses the other draws,
    ``b_z = Σ_{y∈S} p(y) R(S, y | z) L(y)`` with R for the law that goes on after z; it can raise the variance where k is small. Where S
    holds every feasible structure, the estimate is exact.

    The draws are a race of ``log p(z) + Gumbel`` over all structures. The probabilities come from a recursion over the subsets of S for k
    up to 8, and from a trapezoidal rule that is exact to rounding beyond; ratios are formed in the log domain and in float64, so that a set
    that holds all but a sliver of the mass loses nothing.

    Cost: k loss values, and the log-probabilities of all structures, of which memory holds all at a time; of more than ``limit``, a
    log-partition and what k samples take, by an oracle that draws them without replacement (`DistinctSamplingOracle`).

    Args:
        num_samples: k; all structures, where there are fewer.
        baseline: subtract ``b_z``; it needs k of at least 2.
        limit: the most structures that are listed; of more, oracles draw those of the set alone, and others are refused.

    References:
        Kool, van Hoof & Welling 2020, "Estimating gradients for discrete random variables by sampling without replacement", section 3 and
        appendix B.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> generator = torch.Generator().manual_seed(0)
        >>> estimates = UnorderedSet(2).gradient(loss, Categorical(), scores.expand(100_000, 3), generator=generator)
        >>> [round(value, 2) for value in estimates.mean(0).tolist()]
        [-0.04, -0.34, 0.38]
        >>> UnorderedSet(3).gradient(loss, Categorical(), scores, generator=generator)
        tensor([-0.0390, -0.3454,  0.3843])
    """

    num_samples: Count = 4
    baseline: bool = True
    limit: Count = MOST_STRUCTURES

    name: ClassVar[str] = "unordered_set"
    references: ClassVar[tuple[str, ...]] = ("kool2020estimating",)

    def from_set(self, loss: Loss, oracle: ListedOracle, scores: Tensor, drawn: DrawnSet) -> Tensor:
        losses = evaluate(loss, drawn.structures, oracle.event_ndim)
        singles, pairs = completions(drawn.log_probs, drawn.log_rest)
        first = shares(drawn.log_probs + singles)
        values = losses.detach().movedim(0, -1).double()
        excess = first * (self._excess(values, drawn, pairs) if self.baseline else values)
        weights, excess = (each.movedim(-1, 0).to(scores.dtype) for each in (first, excess))
        return carry((weights * losses).sum(0), (excess * oracle.log_prob(drawn.structures, scores)).sum(0))

    def _excess(self, values: Tensor, drawn: DrawnSet, pairs: Tensor) -> Tensor:
        """``L(z) − b_z = (1 − p(z)) Σ_y P(y was second | z first, S) (L(z) − L(y))``, [*batch, k]: offsets of the loss cancel at once."""
        own = torch.eye(values.shape[-1], dtype=torch.bool, device=values.device)
        others = drawn.log_probs.unsqueeze(-2).masked_fill(own, -math.inf)
        second = shares(others + pairs)
        left = torch.logaddexp(log_sum_exp(others, -1), drawn.log_rest.unsqueeze(-1)).exp()
        return left * (second * (values.unsqueeze(-1) - values.unsqueeze(-2))).sum(-1)


def completions(log_probs: Tensor, log_rest: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities that the draws after {z}, and after {z, y}, complete the set: ``[*batch, k]`` and ``[*batch, k, k]``.

    The diagonal of the second is the first. Slots of log-probability ``-inf`` count as drawn.

    Args:
        log_probs: float64 ``[*batch, k]``, of the set.
        log_rest: float64 ``[*batch]``, of everything else.
    """
    return (by_recursion if log_probs.shape[-1] <= RECURSION else by_quadrature)(log_probs, log_rest)


def by_recursion(log_probs: Tensor, log_rest: Tensor) -> tuple[Tensor, Tensor]:
    """``h(A) = Σ_{y∈S∖A} p(y) h(A ∪ y) / (1 − p(A))`` from ``h(S) = 1`` down to the pairs, a subset A being the bits of a number.

    ``1 − p(A)`` is the mass of the rest and of ``S ∖ A``: a sum, never a difference.
    """
    k = log_probs.shape[-1]
    log_h = {2**k - 1: torch.zeros_like(log_rest)}
    for subset in range(2**k - 2, 0, -1):
        left = [y for y in range(k) if not subset >> y & 1]
        following = torch.stack([log_h[subset | 1 << y] for y in left], -1)
        mass = log_sum_exp(log_probs[..., left], -1)
        moved = log_sum_exp(log_probs[..., left] + following, -1) - torch.logaddexp(mass, log_rest)
        log_h[subset] = torch.where(mass > -math.inf, moved, 0)
    pairs = torch.stack([torch.stack([log_h[1 << z | 1 << y] for y in range(k)], -1) for z in range(k)], -2)
    return pairs.diagonal(dim1=-2, dim2=-1), pairs


def by_quadrature(log_probs: Tensor, log_rest: Tensor) -> tuple[Tensor, Tensor]:
    """``h(A) = ∫ e^{x − e^x} ∏_{y∈S∖A} (1 − exp(−e^x p(y)/p(rest))) dx``: everyone else of the set beats the best of the rest in the race.

    The integrand is analytic and falls off fast to both sides, so that equal steps give all digits: to the left it is at most e^x of its
    greatest value; the steps are a fraction of its width, ``1/√(k + 1)`` where the set is improbable.
    """
    k = log_probs.shape[-1]
    step = min(0.25, 0.5 / math.sqrt(k + 1))
    points = torch.arange(-38, math.log(40 + 4 * k), step, dtype=log_probs.dtype, device=log_probs.device)
    rows = zip(log_probs.reshape(-1, k).split(ROWS), log_rest.reshape(-1).split(ROWS), strict=True)
    pairs = torch.cat([_integrals(*each, points) for each in rows]).reshape(*log_probs.shape, k) + math.log(step)
    return pairs.diagonal(dim1=-2, dim2=-1), pairs


def _integrals(log_probs: Tensor, log_rest: Tensor, points: Tensor) -> Tensor:
    """[b, k, k]: sums over the points of the integrand without two factors (without one, on the diagonal), of rows [b, k] and [b].

    A factor varies by at most e^43 over the points, so that its inverse, scaled to at most 1, cannot underflow, and all pairs are one
    product of matrices.
    """
    used = (log_probs > -math.inf).unsqueeze(-1)
    gaps = torch.where(used, log_probs.unsqueeze(-1), 0) - torch.where(log_rest > -math.inf, log_rest, -1e6)[:, None, None]
    beats = torch.where(used, log_chance_above(gaps + points), 0)
    least = beats[..., :1]
    inverse = (least - beats).exp()
    whole = beats.sum(-2) + points - points.exp()
    top = whole.amax(-1, keepdim=True)
    integrand = (whole - top).exp().unsqueeze(-2)
    pairs = ((inverse * integrand) @ inverse.mT).log() - least - least.mT
    singles = (inverse * integrand).sum(-1, keepdim=True).log() - least
    own = torch.eye(log_probs.shape[-1], dtype=torch.bool, device=log_probs.device)
    return torch.where(own, singles, pairs) + top.unsqueeze(-1)
