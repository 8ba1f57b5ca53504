"""Replay: exact moments of the code that ships."""

from __future__ import annotations

import itertools
import operator
from dataclasses import dataclass, replace
from typing import Any

import mpmath
import pytest
import torch

from structgrad.estimators import (
    ConditionalMeanBaseline,
    ConstantBaseline,
    DoubleControl,
    GreedyBaseline,
    LeaveOneOut,
    MuProp,
    PerturbAndMAP,
    Reinforce,
    RunningMeanBaseline,
    SampledBaseline,
    SampledStraightThrough,
    Simple,
    SparseMAP,
    VarGrad,
)
from structgrad.oracles import Assignment, Subset
from structgrad.oracles.capabilities import EnumerableOracle
from structgrad.suites.measures.bias import measure
from structgrad.suites.statistics.metrics import exact_metrics
from structgrad.suites.truth import Target, exact_truth
from structgrad.suites.truth.geometry import fisher_information
from structgrad.suites.truth.replay import REPLAY_CAP, replay, replay_samples
from structgrad.suites.truth.replay_oracle import scripted, slots_of
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


def test_samples_are_dealt_slot_by_slot():
    oracle, event = ORACLES["subset"]
    script = torch.arange(12.0).reshape(3, 2, 2).repeat_interleave(3, -1)
    copy = scripted(oracle, script)
    scores, generator = torch.zeros(2, *event), torch.Generator()
    first = copy.sample(scores, 2, generator=generator)
    second = copy.sample(scores, generator=generator)
    assert torch.equal(first, script[:2])
    assert torch.equal(second, script[2])
    assert copy.hook.taken == 3


AVERAGES = [
    Reinforce(3),
    ConstantBaseline(3.0, 3),
    GreedyBaseline(3),
    RunningMeanBaseline(0.5, num_samples=3),
    ConditionalMeanBaseline(num_samples=3),
    SampledBaseline(2),
    LeaveOneOut(2),
    LeaveOneOut(3),
    VarGrad(3),
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


def law_cases() -> list[Any]:
    """Oracles with few pairs of structures, at scores that leave some."""
    kinds = [case for case in ORACLE_CASES if 2 < case.oracle.count(case.event) <= 150 and isinstance(case.oracle, EnumerableOracle)]
    return [pytest.param(case, regime, id=f"{case}-{regime}") for case in kinds for regime in (1.0, 10.0, "masked")]


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


@pytest.mark.parametrize(("case", "regime"), law_cases())
def test_single_structures_give_the_moments_of_all_pairs_for_every_oracle(case: OracleCase, regime: Any) -> None:
    same_moments(LeaveOneOut(2), law_target(case, regime), 2)


def peaked(gap: float) -> Target:
    scores = 0.1 * torch.randn(12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores[:3] += gap
    weights = torch.randn(12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    loss = lambda z: (z @ weights) ** 2  # noqa: E731
    return Target(Subset(3), loss, scores, exact_truth(loss, Subset(3), scores))


def closed_form(target: Target, samples: int) -> tuple[float, float]:
    """Relative variance of leave-one-out and ρ in 60 digits, by Hoeffding's formula for pairs."""
    with mpmath.workdps(60):
        theta = [mpmath.mpf(value) for value in target.scores.tolist()]
        structures = list(itertools.combinations(range(12), 3))
        weights = [mpmath.exp(sum(theta[i] for i in chosen)) for chosen in structures]
        p = [weight / sum(weights) for weight in weights]
        losses = [mpmath.mpf(float(target.loss(torch.zeros(12).double().index_fill(0, torch.tensor(z), 1)))) for z in structures]
        mean = sum(map(operator.mul, p, losses))
        mu = [sum(q for q, chosen in zip(p, structures, strict=True) if i in chosen) for i in range(12)]
        scores = [[(i in chosen) - mu[i] for i in range(12)] for chosen in structures]
        terms = list(zip(p, losses, scores, [sum(x * x for x in s) for s in scores], strict=True))
        square = sum(sum(q * (loss - mean) * s[i] for q, loss, s, _ in terms) ** 2 for i in range(12))
        second = sum(q * (loss - mean) ** 2 * norm for q, loss, _, norm in terms)
        product = sum(q * (loss - mean) ** 2 for q, loss, _, _ in terms) * sum(q * norm for q, _, _, norm in terms)
        one, two = (second - square) / 4, (second + product + 2 * square) / 2 - square
        variance = 2 * (2 * (samples - 2) * one + two) / (samples * (samples - 1)) / square
        return float(variance), float(1 / mpmath.sqrt(1 + variance))


@pytest.mark.parametrize(("gap", "rare"), [(2.0, 0.9), (8.0, 1e-2), (16.2, 3e-6), (28.0, 1e-10)])
def test_variance_at_a_peaked_law_is_that_of_the_closed_form(gap, rare):
    """Replicates see one structure there: a variance of 0, and a ρ of .65."""
    target = peaked(gap)
    assert 1 - float(target.oracle.log_prob(target.oracle.argmax(target.scores), target.scores).exp()) < rare
    found = measure(LeaveOneOut(4), target.oracle, target.loss, target.scores, truth=target.truth)
    variance, rho = closed_form(target, 4)
    assert (found.tier, found.verdict) == ("exact", "unbiased-exact")
    assert found.metrics["relative_variance"].value == pytest.approx(variance, rel=1e-9)
    assert found.metrics["rho"].value == pytest.approx(rho, rel=1e-9)
    assert {found.metrics[name].method for name in found.metrics} == {"u-statistic"}
    assert found.metrics["rho"].low is None
    assert not {"kurtosis", "mean_cosine", "descent_probability"} & set(found.metrics)


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
class OneWeighsLess(LeaveOneOut):
    def _weights(self, losses):
        weights = super()._weights(losses)
        return torch.cat([0.98 * weights[:1], weights[1:]])


@dataclass(frozen=True)
class OwnSample(LeaveOneOut):
    def _weights(self, losses):
        return losses - losses.mean(0)


@dataclass(frozen=True)
class Clipped(LeaveOneOut):
    def _weights(self, losses):
        return super()._weights(losses).clamp(max=2.0)


@pytest.mark.parametrize("gap", [0.5, 16.2])
@pytest.mark.parametrize(("fault", "gain"), [(OneWeighsLess, 0.995), (OwnSample, 0.75)])
def test_a_fault_of_the_weights_has_its_exact_bias(fault, gain, gap):
    target = peaked(gap)
    found = measure(fault(4), target.oracle, target.loss, target.scores, truth=target.truth)
    assert (found.tier, found.verdict) == ("exact", "biased")
    assert found.metrics["gain"].value == pytest.approx(gain, rel=1e-9)


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
