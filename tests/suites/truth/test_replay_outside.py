"""Exact moments of an estimate of draws without replacement, from one pass over the structures outside the best."""

from __future__ import annotations

import itertools
import math
import operator
from dataclasses import dataclass, replace
from typing import Any

import mpmath
import pytest
import torch

from structgrad.estimators import SumAndSample, UnorderedSet
from structgrad.oracles.capabilities import DrawnSet, EnumerableOracle, KBestOracle, MarginalOracle
from structgrad.suites.measures.bias import measure
from structgrad.suites.truth import Target, exact_truth
from structgrad.suites.truth.geometry import fisher_information
from structgrad.suites.truth.replay import REPLAY_CAP, replay_outside
from structgrad.suites.truth.replay_oracle import draws_of, scripted, slots_of
from tests.helpers import ORACLE_CASES, OracleCase
from tests.suites.cases import target_of
from tests.suites.truth.test_replay import law_target, peaked


def all_draws(estimator: Any, target: Target, draws: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The estimates of all ordered draws without replacement, and their probabilities."""
    space = target.oracle.enumerate(tuple(target.scores.shape), dtype=torch.float64)
    log_probs = target.oracle.log_prob(space, target.scores).log_softmax(0)
    space, log_probs = space[log_probs > -math.inf], log_probs[log_probs > -math.inf]
    ranks = torch.tensor(list(itertools.permutations(range(len(space)), draws)))
    left = torch.ones(len(ranks), len(space), dtype=torch.bool)
    weights = torch.zeros(len(ranks), dtype=torch.float64)
    for drawn in ranks.T:
        weights += log_probs[drawn] - torch.where(left, log_probs, -math.inf).logsumexp(-1)
        left.scatter_(1, drawn.unsqueeze(-1), value=False)
    rest = torch.where(left, log_probs, -math.inf).logsumexp(-1)
    dealt = scripted(target.oracle, drawn_set=DrawnSet(space[ranks.T], log_probs[ranks], rest, rest))
    rows = target.scores.expand(len(ranks), *target.scores.shape)
    return estimator.gradient(target.loss, dealt, rows, generator=torch.Generator()).flatten(1), weights.exp()


def same_moments(estimator: Any, target: Target, draws: int) -> None:
    """One pass and all ordered draws give the same moments."""
    information = fisher_information(target.oracle, target.scores)
    assert draws_of(estimator, target.oracle, target.loss, target.scores) == (0, draws)
    found = replay_outside(estimator, target, draws, REPLAY_CAP, information)
    estimates, weights = all_draws(estimator, target, draws)
    mean, size = weights @ estimates, float(estimates.norm(dim=-1).max())
    assert found is not None
    torch.testing.assert_close(found.error + found.gradient, mean, rtol=1e-9, atol=1e-11 * size)
    torch.testing.assert_close(found.error, torch.zeros_like(mean), rtol=0, atol=1e-11 * size)
    variance = weights @ (estimates - mean).square().sum(-1)
    torch.testing.assert_close(found.trace, variance, rtol=1e-9, atol=1e-20 * size**2)
    informed = weights @ torch.einsum("ri,ij,rj->r", estimates, information, estimates)
    torch.testing.assert_close(found.estimates.informed, informed, rtol=1e-9, atol=1e-20 * size**2)


def law_cases() -> list[Any]:
    fitting = [case for case in ORACLE_CASES if isinstance(case.oracle, EnumerableOracle) and isinstance(case.oracle, KBestOracle)]
    few = [case for case in fitting if isinstance(case.oracle, MarginalOracle) and 2 < case.oracle.count(case.event) <= 150]
    return [pytest.param(case, regime, id=f"{case}-{regime}") for case in few for regime in (1.0, 10.0, "masked")]


@pytest.mark.parametrize(("case", "regime"), law_cases())
def test_one_pass_gives_the_moments_of_all_draws_for_every_oracle(case: OracleCase, regime: Any) -> None:
    same_moments(SumAndSample(), law_target(case, regime), 2)


@pytest.mark.parametrize("k", [3, 14, 15, 20])
def test_where_few_structures_are_feasible_the_estimate_is_their_sum(k):
    target = target_of("subset")
    scores = target.scores.index_fill(0, torch.tensor([0, 1, 2]), -math.inf)
    masked = Target(target.oracle, target.loss, scores, exact_truth(target.loss, target.oracle, scores))
    found = measure(SumAndSample(k), target.oracle, target.loss, scores, truth=masked.truth)
    assert (found.tier, found.verdict) == ("exact", "unbiased-exact")
    assert found.metrics["relative_variance"].value < 1e-24


def closed_form(target: Target) -> float:
    """Relative variance in 60 digits: ``(1 − q) E[(L − b)² ‖s‖²; z ≠ z*] / ‖g‖² − 1`` with the loss b of the best structure z*."""
    with mpmath.workdps(60):
        theta = [mpmath.mpf(value) for value in target.scores.tolist()]
        structures = list(itertools.combinations(range(len(theta)), 3))
        weights = [mpmath.exp(sum(theta[i] for i in chosen)) for chosen in structures]
        p = [weight / sum(weights) for weight in weights]
        ones = (torch.zeros(len(theta)).double().index_fill(0, torch.tensor(chosen), 1) for chosen in structures)
        losses = [mpmath.mpf(float(target.loss(z))) for z in ones]
        best = p.index(max(p))
        mu = [sum(q for q, chosen in zip(p, structures, strict=True) if i in chosen) for i in range(len(theta))]
        scores = [[(i in chosen) - mu[i] for i in range(len(theta))] for chosen in structures]
        terms = list(zip(p, [loss - losses[best] for loss in losses], scores, strict=True))
        gradient = [sum(q * loss * s[i] for q, loss, s in terms) for i in range(len(theta))]
        second = sum(q * loss**2 * sum(map(operator.mul, s, s)) for q, loss, s in terms)
        rest = sum(q for i, q in enumerate(p) if i != best)
        return float(rest * second / sum(x * x for x in gradient) - 1)


@pytest.mark.parametrize(("gap", "rare"), [(2.0, 0.9), (8.0, 1e-2), (16.8, 1.5e-6), (28.0, 1e-10)])
def test_variance_at_a_peaked_law_is_that_of_the_closed_form(gap, rare):
    target = peaked(gap)
    assert 1 - float(target.oracle.log_prob(target.oracle.argmax(target.scores), target.scores).exp()) < rare
    found = measure(SumAndSample(), target.oracle, target.loss, target.scores, truth=target.truth)
    variance = closed_form(target)
    assert (found.tier, found.verdict) == ("exact", "unbiased-exact")
    assert found.metrics["relative_bias"].value < 1e-12
    assert found.metrics["relative_variance"].value == pytest.approx(variance, rel=1e-9)
    assert found.metrics["rho"].value == pytest.approx((1 + variance) ** -0.5, rel=1e-9)
    assert found.metrics["rho"].low is None
    assert "kurtosis" in found.metrics


@dataclass(frozen=True)
class Unweighted(SumAndSample):
    """Lacks the weight 1 − q."""

    def _other(self, *args):
        other, mass, missed = super()._other(*args)
        return other, torch.ones_like(mass), torch.zeros_like(missed)


@dataclass(frozen=True)
class LastDraw(SumAndSample):
    """Takes the last one outside instead of the first: of another law."""

    def _other(self, oracle, scores, best, generator):
        flipped = oracle.sample_distinct(scores, self.k + 1, generator=generator)
        flipped = replace(flipped, structures=flipped.structures.flip(0), log_probs=flipped.log_probs.flip(-1))
        return super()._other(scripted(oracle, drawn_set=flipped), scores, best, generator)


@pytest.mark.parametrize("gap", [0.5, 8.0, 16.8])
def test_a_missing_weight_has_its_exact_bias(gap):
    target = peaked(gap)
    found = measure(Unweighted(), target.oracle, target.loss, target.scores, truth=target.truth)
    log_probs = target.oracle.log_prob(target.oracle.enumerate((12,), dtype=torch.float64), target.scores)
    rest = log_probs.index_fill(0, log_probs.argmax(), -math.inf).exp().sum()
    assert (found.tier, found.verdict) == ("exact", "biased")
    assert found.metrics["gain"].value == pytest.approx(1 / float(rest), rel=1e-9)


def test_draws_of_another_form_are_left_to_replicates():
    target = peaked(0.5)
    called = (target.oracle, target.loss, target.scores)
    assert draws_of(LastDraw(2), *called) == (0, 3)
    assert replay_outside(LastDraw(2), target, 3, REPLAY_CAP) is None
    assert draws_of(UnorderedSet(4), *called) is None
    assert draws_of(UnorderedSet(4, limit=10), *called) == (0, 4)
    assert replay_outside(UnorderedSet(4, limit=10), target, 4, REPLAY_CAP) is None
    assert slots_of(SumAndSample(), *called) is None
    assert replay_outside(SumAndSample(), target, 2, target.truth.count - 1) is None
