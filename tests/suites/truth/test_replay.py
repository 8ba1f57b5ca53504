"""Replay: exact moments of the code that ships."""

from __future__ import annotations

import itertools
import math
import operator
from dataclasses import dataclass, replace
from typing import Any

import mpmath
import pytest
import torch

from structgrad.estimators import (
    ConditionalMeanBaseline,
    DoubleControl,
    LeaveOneOut,
    MuProp,
    PerturbAndMAP,
    Reinforce,
    RunningMeanBaseline,
    SampledBaseline,
    SampledStraightThrough,
    Simple,
    SparseMAP,
    SumAndSample,
    UnorderedSet,
)
from structgrad.oracles import Assignment, Subset
from structgrad.oracles.capabilities import DrawnSet, EnumerableOracle, KBestOracle, MarginalOracle
from structgrad.suites.measures.bias import measure
from structgrad.suites.statistics.metrics import exact_metrics
from structgrad.suites.truth import Target, exact_truth
from structgrad.suites.truth.enumeration import fisher_information
from structgrad.suites.truth.replay import REPLAY_CAP, draws_of, replay, replay_outside, replay_samples, scripted, slots_of
from tests.helpers import ORACLE_CASES, OracleCase, make_scores
from tests.suites.cases import ORACLES, BatchMeanBaseline, target_of


@pytest.mark.parametrize("samples", [2, 3, 4])
def test_a_baseline_that_holds_the_own_sample_is_found_exactly(samples):
    """It is too small by 1/K, and nothing else about it is wrong; that of the other samples is right."""
    target = target_of("categorical")
    wrong = exact_metrics(replay(BatchMeanBaseline(samples), target, samples))
    right = exact_metrics(replay(LeaveOneOut(samples), target, samples))
    assert wrong["relative_bias"].value == pytest.approx(1 / samples, rel=1e-12)
    assert wrong["gain"].value == pytest.approx(1 - 1 / samples, rel=1e-12)
    assert wrong["orthogonal_bias"].value < 1e-12
    assert right["relative_bias"].value < 1e-12


@pytest.mark.parametrize("name", list(ORACLES))
def test_everything_about_single_estimates_equals_its_definition(name):
    """Against one pass over the structures, without batches or streams."""
    target = target_of(name)
    oracle, truth = target.oracle, target.truth
    information = fisher_information(oracle, target.scores)
    found = replay(Reinforce(), target, 1, information)
    structures = oracle.enumerate(tuple(target.scores.shape), dtype=torch.float64)
    p = oracle.log_prob(structures, target.scores).exp()
    estimates = (target.loss(structures).unsqueeze(-1) * (structures - truth.marginals).flatten(1)).double()
    g = truth.gradient.flatten()
    inner, norms, active = estimates @ g, estimates.norm(dim=-1), g != 0
    # Entries that are no parts differ from 0 by rounding here and not there.
    estimates = estimates * active
    agree = ((estimates * g > 0) & active).double()
    expected = {
        "descent": p @ (inner > 0).double(),
        "cosine": p @ (inner / (norms * g.norm())),
        "quartic": p @ norms.pow(4),
        "agreeing": p @ agree.sum(-1),
        "signed": p @ ((estimates != 0) & active).double().sum(-1),
        "informed": p @ ((estimates @ information) * estimates).sum(-1),
    }
    for field, value in expected.items():
        torch.testing.assert_close(getattr(found.estimates, field), value, rtol=1e-10, atol=1e-12)
    centred = estimates - g
    torch.testing.assert_close(found.trace, p @ centred.square().sum(-1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("estimator", "slots"),
    [(Reinforce(3), 3), (LeaveOneOut(4), 4), (Simple(), 1), (SampledStraightThrough(), 1), (SparseMAP(), 0), (PerturbAndMAP(), None)],
    ids=repr,
)
def test_counts_the_samples_and_notices_other_noise(estimator, slots):
    target = target_of("subset")
    assert slots_of(estimator, target.oracle, target.loss, target.scores) == slots


AVERAGES = [
    Reinforce(3),
    RunningMeanBaseline(0.5, num_samples=3),
    ConditionalMeanBaseline(num_samples=3),
    SampledBaseline(2),
    LeaveOneOut(3),
    MuProp(3),
]


def same_moments(estimator: Any, target: Target, slots: int) -> None:
    """Single structures and all tuples of samples give the same moments."""
    information = fisher_information(target.oracle, target.scores)
    found = replay_samples(estimator, target, slots, REPLAY_CAP, information)
    expected = replay(estimator, target, slots, information)
    assert found is not None
    size = float(expected.trace.sqrt() + expected.gradient.norm())
    torch.testing.assert_close(found.error, expected.error, rtol=1e-9, atol=1e-11 * size)
    torch.testing.assert_close(found.trace, expected.trace, rtol=1e-9, atol=0)
    torch.testing.assert_close(found.estimates.informed, expected.estimates.informed, rtol=1e-9, atol=0)


@pytest.mark.parametrize("estimator", AVERAGES, ids=repr)
@pytest.mark.parametrize("name", list(ORACLES))
def test_single_structures_give_the_moments_of_all_tuples(name, estimator):
    target = target_of(name)
    same_moments(estimator, target, slots_of(estimator, target.oracle, target.loss, target.scores))


def law_cases(*capabilities: type) -> Any:
    """Oracles with few pairs of structures, at scores that leave some."""
    few = [case for case in ORACLE_CASES if all(isinstance(case.oracle, kind) for kind in (EnumerableOracle, *capabilities))]
    few = [case for case in few if 2 < case.oracle.count(case.event) <= 150]
    cases = [pytest.param(case, regime, id=f"{case}-{regime}") for case in few for regime in (1.0, 10.0, "masked")]
    return pytest.mark.parametrize(("case", "regime"), cases)


def law_target(case: OracleCase, regime: Any) -> Target:
    """A squared loss at scores of a regime; skips the test if fewer than three structures are feasible."""
    scores = next(row for row in make_scores(case, regime) if case.oracle.free_parts(row).any())
    weights = torch.randn(scores.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def loss(z: torch.Tensor) -> torch.Tensor:
        return ((z * weights).flatten(z.ndim - scores.ndim).sum(-1) + 0.3) ** 2

    truth = exact_truth(loss, case.oracle, scores)
    if truth.support < 3:
        pytest.skip("one structure is left")
    return Target(case.oracle, loss, scores, truth)


def peaked(gap: float) -> Target:
    scores = 0.1 * torch.randn(12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores[:3] += gap
    weights = torch.randn(12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    loss = lambda z: (z @ weights) ** 2  # noqa: E731
    return Target(Subset(3), loss, scores, exact_truth(loss, Subset(3), scores))


def closed_form(target: Target, samples: int | None) -> float:
    """The relative variance in 60 digits: of leave-one-out by Hoeffding's formula for pairs, of sum-and-sample for None.

    The latter is ``(1 − q) E[(L − b)² ‖s‖²; z ≠ z*] / ‖g‖² − 1`` with the loss b of the best structure z*.
    """
    with mpmath.workdps(60):
        theta = [mpmath.mpf(value) for value in target.scores.tolist()]
        structures = list(itertools.combinations(range(12), 3))
        weights = [mpmath.exp(sum(theta[i] for i in chosen)) for chosen in structures]
        p = [weight / sum(weights) for weight in weights]
        losses = [mpmath.mpf(float(target.loss(torch.zeros(12).double().index_fill(0, torch.tensor(z), 1)))) for z in structures]
        mu = [sum(q for q, chosen in zip(p, structures, strict=True) if i in chosen) for i in range(12)]
        scores = [[(i in chosen) - mu[i] for i in range(12)] for chosen in structures]
        best = p.index(max(p))
        centre = sum(map(operator.mul, p, losses)) if samples else losses[best]
        terms = list(zip(p, [loss - centre for loss in losses], scores, [sum(x * x for x in s) for s in scores], strict=True))
        square = sum(sum(q * loss * s[i] for q, loss, s, _ in terms) ** 2 for i in range(12))
        second = sum(q * loss**2 * norm for q, loss, _, norm in terms)
        if samples is None:
            return float(sum(q for i, q in enumerate(p) if i != best) * second / square - 1)
        product = sum(q * loss**2 for q, loss, _, _ in terms) * sum(q * norm for q, _, _, norm in terms)
        one, two = (second - square) / 4, (second + product + 2 * square) / 2 - square
        return float(2 * (2 * (samples - 2) * one + two) / (samples * (samples - 1)) / square)


@pytest.mark.parametrize(("gap", "rare"), [(2.0, 0.9), (8.0, 1e-2), (16.5, 3e-6), (28.0, 1e-10)])
@pytest.mark.parametrize("samples", [4, None], ids=["rloo", "sum_and_sample"])
def test_variance_at_a_peaked_law_is_that_of_the_closed_form(gap, rare, samples):
    """Replicates see one structure there: a variance of 0, and a ρ of .65."""
    target = peaked(gap)
    assert 1 - float(target.oracle.log_prob(target.oracle.argmax(target.scores), target.scores).exp()) < rare
    estimator = LeaveOneOut(samples) if samples else SumAndSample()
    found = measure(estimator, target.oracle, target.loss, target.scores, truth=target.truth)
    variance = closed_form(target, samples)
    assert (found.tier, found.verdict) == ("exact", "unbiased-exact")
    assert found.metrics["relative_variance"].value == pytest.approx(variance, rel=1e-9)
    assert found.metrics["rho"].value == pytest.approx((1 + variance) ** -0.5, rel=1e-9)
    assert found.metrics["rho"].low is None
    assert ("kurtosis" in found.metrics) == (samples is None)
    if samples:
        assert {found.metrics[name].method for name in found.metrics} == {"u-statistic"}
        assert not {"mean_cosine", "descent_probability"} & set(found.metrics)


@pytest.mark.parametrize("estimator", [LeaveOneOut(4), Reinforce(4), SampledBaseline(3)], ids=repr)
def test_a_loss_that_one_rare_structure_alone_lacks_is_seen(estimator):
    """Samples never show it, and where all losses are equal leave-one-out is 0, which every form explains."""
    gold = torch.eye(7, dtype=torch.float64)
    loss = lambda z: 1 - (z == gold).all(-1).all(-1).double()  # noqa: E731
    scores = torch.randn(7, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = measure(estimator, Assignment(), loss, scores)
    assert (found.tier, found.verdict) == ("exact", "unbiased-exact")
    assert found.metrics["relative_bias"].value < 1e-6
    constant = measure(estimator, Assignment(), lambda z: z.new_ones(z.shape[:-2]), scores)
    assert constant.tier == "mc"


@dataclass(frozen=True)
class OwnSample(LeaveOneOut):
    def _weights(self, losses):
        return losses - losses.mean(0)


@dataclass(frozen=True)
class Clipped(LeaveOneOut):
    def _weights(self, losses):
        return super()._weights(losses).clamp(max=2.0)


@pytest.mark.parametrize("gap", [0.5, 16.2])
def test_a_fault_of_the_weights_has_its_exact_bias(gap):
    target = peaked(gap)
    found = measure(OwnSample(4), target.oracle, target.loss, target.scores, truth=target.truth)
    assert (found.tier, found.verdict) == ("exact", "biased")
    assert found.metrics["gain"].value == pytest.approx(0.75, rel=1e-9)


@pytest.mark.parametrize("gap", [0.5, 16.2])
def test_what_is_no_average_is_left_to_replicates(gap):
    target = peaked(gap)
    assert slots_of(Clipped(4), target.oracle, target.loss, target.scores) == 4
    assert replay_samples(Clipped(4), target, 4, REPLAY_CAP) is None


def test_samples_that_are_no_average_or_too_many_are_left_to_replicates():
    target = target_of("subset")
    assert replay_samples(DoubleControl(num_samples=4), target, 4, REPLAY_CAP) is None
    assert replay_samples(MuProp(4), target, 4, 4 * target.truth.count - 1) is None
    assert replay_samples(LeaveOneOut(2000), target, 2000, REPLAY_CAP) is None
    unknown = replace(target, truth=replace(target.truth, method="none"))
    assert replay_samples(LeaveOneOut(4), unknown, 4, REPLAY_CAP) is None


# Draws without replacement, from one pass over the structures outside the best.


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


def same_moments_outside(estimator: Any, target: Target, draws: int) -> None:
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


@law_cases(KBestOracle, MarginalOracle)
def test_one_pass_gives_the_moments_of_all_draws_for_every_oracle(case: OracleCase, regime: Any) -> None:
    same_moments_outside(SumAndSample(), law_target(case, regime), 2)


@dataclass(frozen=True)
class LastDraw(SumAndSample):
    """Takes the last one outside instead of the first: of another law."""

    def _other(self, oracle, scores, best, generator):
        flipped = oracle.sample_distinct(scores, self.k + 1, generator=generator)
        flipped = replace(flipped, structures=flipped.structures.flip(0), log_probs=flipped.log_probs.flip(-1))
        return super()._other(scripted(oracle, drawn_set=flipped), scores, best, generator)


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
