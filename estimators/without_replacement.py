"""Score functions of sets of structures that are drawn without replacement, by a race of Gumbel variables."""

import abc
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..oracles.capabilities import DistinctSamplingOracle, DrawnSet, EnumerableOracle, KBestOracle, MarginalOracle
from ..oracles.capabilities.derivatives import unsqueeze_event
from ..oracles.numerics import log_sum_exp, share_rows
from ..oracles.options import Count
from ..oracles.random_streams import standard_gumbel
from .base import Evaluations, UnbiasedEstimator
from .exact import ListedOracle
from .surrogates import Loss, carry, evaluate

CHUNK = 4096  # structures that race at a time; a constant, because the random numbers follow it

MOST_STRUCTURES = 2**16
"""Structures that race, unless the option ``limit`` says otherwise: memory holds all of them. Of more, oracles draw the winners alone."""


class SetEstimator(UnbiasedEstimator[ListedOracle]):
    """A score function of k structures that are drawn without replacement; a subclass says how they are weighed."""

    num_samples: int
    baseline: bool
    limit: int

    needs = (MarginalOracle, EnumerableOracle)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.baseline and self.num_samples < 2:
            raise ValueError(f"`{self.name}` got num_samples={self.num_samples}; expected an integer >= 2, the others are the baseline")

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.num_samples, listings=1)

    def lists(self, oracle: Any, event_shape: tuple[int, ...]) -> bool:
        return not isinstance(oracle, DistinctSamplingOracle) or bool(oracle.count(event_shape) <= self.limit)

    def surrogate(self, loss: Loss, oracle: ListedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        listed = self.lists(oracle, tuple(scores.shape[scores.ndim - oracle.event_ndim :]))
        return self.from_set(loss, oracle, scores, draw_set(oracle, scores, self.num_samples, listed=listed, generator=generator))

    @abc.abstractmethod
    def from_set(self, loss: Loss, oracle: ListedOracle, scores: Tensor, drawn: DrawnSet) -> Tensor:
        """The surrogate of a set that was drawn already."""


def draw_set(oracle: ListedOracle, scores: Tensor, k: int, *, listed: bool = True, generator: torch.Generator) -> DrawnSet:
    """k structures (all, where there are fewer), as those of the k largest ``log p(z) + Gumbel`` (Kool et al. 2019, section 2).

    If not all structures are to be listed, an oracle that can draw without replacement does.
    """
    if not listed and isinstance(oracle, DistinctSamplingOracle):
        return oracle.sample_distinct(scores, k, generator=generator)
    batch_dims = scores.ndim - oracle.event_ndim
    batch, event = tuple(scores.shape[:batch_dims]), tuple(scores.shape[batch_dims:])
    space = oracle.enumerate(event, dtype=scores.dtype, device=scores.device)
    theta = share_rows(scores.detach(), oracle.event_ndim).double()
    structures = space.double().reshape(len(space), *[1] * batch_dims, *event)
    totals = oracle.log_prob(structures, theta).movedim(0, -1)
    log_probs = torch.where(totals > -math.inf, totals - log_sum_exp(totals, -1).unsqueeze(-1), -math.inf)
    perturbed, ranks = race(log_probs, batch, k + 1, generator)
    threshold = perturbed[..., k] if len(space) > k else torch.full(batch, -math.inf, dtype=torch.float64, device=scores.device)
    ranks = ranks[..., :k]
    chosen = log_probs.expand(*batch, -1).gather(-1, ranks)
    ranks = torch.where(chosen > -math.inf, ranks, ranks[..., :1])
    return DrawnSet(space[ranks.movedim(-1, 0)], chosen, log_mass_of_others(log_probs, ranks), threshold)


def race(log_probs: Tensor, batch: tuple[int, ...], places: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The largest ``log p + Gumbel``, best first, and their ranks: ``[*batch, places]``, or as many as there are structures."""
    leaders, ranks = log_probs.new_zeros((*batch, 0)), torch.zeros((*batch, 0), dtype=torch.int64, device=log_probs.device)
    for start in range(0, log_probs.shape[-1], CHUNK):
        running = log_probs[..., start : start + CHUNK]
        noise = standard_gumbel(batch, (running.shape[-1],), generator=generator, device=log_probs.device)
        best = noise.add_(running).topk(min(places, running.shape[-1]), -1)
        every, names = torch.cat([leaders, best.values], -1), torch.cat([ranks, best.indices + start], -1)
        best = every.topk(min(places, every.shape[-1]), -1)
        leaders, ranks = best.values, names.gather(-1, best.indices)
    return leaders, ranks


def log_mass_of_others(log_probs: Tensor, ranks: Tensor) -> Tensor:
    """Log-probability ``[*batch]`` of all structures but those of some ranks ``[*batch, k]``, which may repeat.

    In descending order the others are the gaps between the chosen, and a gap is a difference of two tails of the distribution. It holds
    structures that are at least as probable as any that follows, so that a difference loses no more digits than there are structures.
    """
    order = log_probs.argsort(dim=-1, descending=True, stable=True)
    tails = log_probs.gather(-1, order).flip(-1).logcumsumexp(-1).flip(-1)
    tails = torch.nn.functional.pad(tails, (0, 1), value=-math.inf).expand(*ranks.shape[:-1], -1)
    places = order.argsort(-1).expand(*ranks.shape[:-1], -1).gather(-1, ranks).sort(-1).values
    # From behind the one before, to the one chosen; after the last, to the end.
    first = torch.nn.functional.pad(places + 1, (1, 0), value=0)
    last = torch.nn.functional.pad(places, (0, 1), value=log_probs.shape[-1])
    whole, beyond = tails.gather(-1, first), tails.gather(-1, torch.maximum(first, last))
    shrink = torch.where(whole > -math.inf, beyond - whole, 0)
    return log_sum_exp(whole + torch.where(shrink < 0, shrink, 0).expm1().neg().log(), -1)


def log_chance_above(gap: Tensor) -> Tensor:
    """``log(1 − exp(−e^gap))``: of a Gumbel variable to exceed a value that lies ``gap`` below its location; exact at both ends."""
    small = gap < -36
    return torch.where(small, gap, torch.where(small, 0.0, gap).exp().neg().expm1().neg().log())


def shares(logits: Tensor) -> Tensor:
    """``exp``, normalised along the last dimension; 0 where every logit is -inf."""
    total = log_sum_exp(logits, -1).unsqueeze(-1)
    return (logits - torch.where(total > -math.inf, total, 0)).exp()


class _Ranked(ListedOracle, KBestOracle):
    """The oracle of sum-and-sample, as a type."""


@dataclass(frozen=True)
class SumAndSample(UnbiasedEstimator[_Ranked], name="sum_and_sample", references=("liu2019rao",)):
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
    """

    k: Count = 1
    centred: bool = True
    limit: Count = MOST_STRUCTURES

    needs = (MarginalOracle, KBestOracle, EnumerableOracle)
    version = 2

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.k + 1, kbest=self.k, listings=1)

    def lists(self, oracle: Any, event_shape: tuple[int, ...]) -> bool:
        return not isinstance(oracle, DistinctSamplingOracle)

    def surrogate(self, loss: Loss, oracle: _Ranked, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        event = oracle.event_ndim
        best = oracle.kbest(scores.detach(), min(self.k, oracle.count(tuple(scores.shape[scores.ndim - event :]))))
        listed = (best != 0).flatten(best.ndim - event).any(-1)  # those that are feasible
        other, mass, missed = self._other(oracle, scores.detach(), best, generator)
        # A slot without a structure of its own repeats the best one, so that the loss sees structures alone.
        structures = torch.cat([torch.where(unsqueeze_event(listed, event), best, best[:1]), other])
        losses, log_probs = evaluate(loss, structures, event), oracle.log_prob(structures, scores)
        probabilities = torch.where(listed, log_probs[:-1].detach().exp(), 0)
        # 1 − q. Where the best were not drawn, they are no larger than the rest that they are taken off: no digits cancel.
        weight = (mass - (probabilities * missed).sum(0)).clamp(min=0).to(probabilities.dtype)
        weights = torch.cat([probabilities, weight.unsqueeze(0)])
        total = probabilities.sum(0)
        centre = (probabilities * losses[:-1]).sum(0) / torch.where(total > 0, total, 1)
        baseline = centre if self.centred else torch.zeros_like(total)
        excess = losses - baseline
        return carry(baseline + (weights * excess).sum(0), (weights * excess.detach() * log_probs).sum(0))

    def _other(self, oracle: _Ranked, scores: Tensor, best: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """A draw ``[1, *batch, *event]`` from the law outside the best, and the mass outside of those of the best that were drawn.

        The mass ``[*batch]`` is 0 where nothing is outside; ``[k, *batch]`` are the best that were not drawn.
        """
        event = oracle.event_ndim
        drawn = draw_set(oracle, scores, self.k + 1, listed=False, generator=generator)
        structures, log_probs = drawn.structures, drawn.log_probs.movedim(-1, 0)
        same = (structures.unsqueeze(1) == best).flatten(structures.ndim + 1 - event).all(-1)
        outside = ~same.any(1) & (log_probs > -math.inf)
        first = outside.int().argmax(0, keepdim=True)
        missed = ~same.any(0) & (best != 0).flatten(best.ndim - event).any(-1)
        mass = torch.where(outside.any(0), drawn.log_rest.exp() + (log_probs.exp() * outside).sum(0), 0)
        return torch.take_along_dim(structures, unsqueeze_event(first, event), 0), mass, missed


RECURSION = 8  # the largest set whose 2^k subsets are gone through; beyond, the integral is cheaper
ROWS = 1024  # integrals of this many rows are computed at a time


@dataclass(frozen=True)
class UnorderedSet(SetEstimator, name="unordered_set", references=("kool2020estimating",)):
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
        Kool et al. 2020, "Estimating gradients for discrete random variables by sampling without replacement", section 3, appendix B.

    Example:
        >>> loss, scores = lambda z: z @ torch.tensor([1.0, -0.5, 2.0]), torch.tensor([0.3, -0.2, 0.5])
        >>> UnorderedSet(3).gradient(loss, "categorical", scores, generator=torch.Generator())  # exact: there are no others
        tensor([-0.0390, -0.3454,  0.3843])
    """

    num_samples: Count = 4
    baseline: bool = True
    limit: Count = MOST_STRUCTURES

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


@dataclass(frozen=True)
class ImportanceWeightedSet(SetEstimator, name="importance_weighted_set", references=("kool2019buy", "kool2019stochastic")):
    """Importance-weighted set: ``ĝ = Σ_{z∈S} w_z (L(z) (1 − p(z) + w_z) − B) ∇ log p(z)``, S of k structures without replacement. Unbiased.

    ``w_z = p(z)/q(z)`` and ``B = Σ_{z∈S} w_z L(z)``, where ``q(z) = 1 − exp(−exp(log p(z) − κ))`` is the chance that ``log p(z)`` plus a
    Gumbel variable passes the threshold κ, the greatest perturbed log-probability of what was left out. Given a threshold, weights of
    different structures are uncorrelated and have p as their means; the term ``w_z − p(z)`` corrects for the own loss in B.
    Where S holds every feasible structure, the estimate is exact.

    With ``normalised=True``, ``ĝ = Σ w_z/W_z (L(z) − B/W) ∇ log p(z)`` with ``W = Σ w`` and ``W_z = W − w_z + p(z)``: biased, and of less
    variance, because the weights of a small set vary much.

    Cost: that of `UnorderedSet`.

    Args:
        num_samples: k; all structures, where there are fewer.
        baseline: subtract B; it needs k of at least 2. Without, the estimate is ``Σ w_z L(z) ∇ log p(z)``, divided by W if normalised.
        normalised: the biased form, which declares that.
        limit: as for `UnorderedSet`.

    References:
        Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free", equations 9 (no baseline), 10 and 11 (normalised).
    """

    num_samples: Count = 4
    baseline: bool = True
    normalised: bool = False
    limit: Count = MOST_STRUCTURES

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "unbiased", not self.normalised)

    def from_set(self, loss: Loss, oracle: ListedOracle, scores: Tensor, drawn: DrawnSet) -> Tensor:
        losses = evaluate(loss, drawn.structures, oracle.event_ndim)
        probabilities, weights = drawn.log_probs.exp().movedim(-1, 0), inverse_chances(drawn).movedim(-1, 0)
        values, total = losses.detach().double(), weights.sum(0)
        mean, divisor = (weights * values).sum(0), _at_least_tiny(total) if self.normalised else torch.ones_like(total)
        # The factors of the scores of the structures.
        if not self.baseline:
            terms = weights * values / divisor
        elif self.normalised:
            terms = weights / _at_least_tiny(total - weights + probabilities) * (values - mean / divisor)
        else:
            terms = weights * (values * (1 - probabilities + weights) - mean)
        value = ((weights / divisor).to(losses.dtype) * losses).sum(0)
        return carry(value, (terms.to(scores.dtype) * oracle.log_prob(drawn.structures, scores)).sum(0))


def inverse_chances(drawn: DrawnSet) -> Tensor:
    """``p(z)/q(z)``, float64 ``[*batch, k]``, of a set and its threshold; 0 for slots without a structure of their own."""
    used = drawn.log_probs > -math.inf
    log_probs = torch.where(used, drawn.log_probs, 0)
    return torch.where(used, (log_probs - log_chance_above(log_probs - drawn.threshold.unsqueeze(-1))).exp(), 0)


def _at_least_tiny(total: Tensor) -> Tensor:
    """A sum of weights to divide by, where none is positive in an infeasible row."""
    return torch.where(total > 0, total, 1)
