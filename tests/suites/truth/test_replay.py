"""Replay: exact moments of the code that ships."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from structgrad.estimators import (
    ConstantBaseline,
    GreedyBaseline,
    LeaveOneOut,
    PerturbAndMAP,
    Reinforce,
    SampledStraightThrough,
    Simple,
    SparseMAP,
    StepReinforce,
    StepSampled,
    VarGrad,
)
from structgrad.oracles import LinearChain, SemiMarkov, ShiftReduce, TiedChain
from structgrad.suites.measures.bias import measure
from structgrad.suites.statistics.metrics import exact_metrics
from structgrad.suites.truth import Target, exact_truth
from structgrad.suites.truth.geometry import fisher_information
from structgrad.suites.truth.replay import REPLAY_CAP, ReplayOracle, replay, replay_order, slots_of
from tests.suites.cases import ORACLES, BatchMeanBaseline, target_of

UNBIASED = [Reinforce(), Reinforce(2), ConstantBaseline(3.0), GreedyBaseline(), LeaveOneOut(2)]


@pytest.mark.parametrize("estimator", UNBIASED, ids=repr)
@pytest.mark.parametrize("name", list(ORACLES))
def test_unbiased_estimators_have_the_exact_mean(name, estimator):
    target = target_of(name)
    found = exact_metrics(replay(estimator, target, slots_of(estimator, target.oracle, target.loss, target.scores)))
    assert found["relative_bias"].value < 1e-12
    assert found["gain"].value == pytest.approx(1, abs=1e-12)


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
    torch.testing.assert_close(found.covariance, (centred * p.unsqueeze(-1)).T @ centred, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.covariance.trace(), found.trace, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", list(ORACLES))
def test_trace_equals_the_formula(name):
    """tr Var of REINFORCE is Σ p (ℓ ‖z − μ‖)² − ‖g‖²."""
    target = target_of(name)
    oracle, truth = target.oracle, target.truth
    structures = oracle.enumerate(tuple(target.scores.shape), dtype=torch.float64)
    p = oracle.log_prob(structures, target.scores).exp()
    squares = (structures - truth.marginals).flatten(1).square().sum(-1)
    expected = p @ (target.loss(structures).square() * squares) - truth.gradient.square().sum()
    summary = replay(Reinforce(), target, 1)
    torch.testing.assert_close(summary.trace, expected, rtol=1e-10, atol=0)


def test_averaging_divides_the_variance():
    target = target_of("subset")
    one, two = replay(Reinforce(1), target, 1), replay(Reinforce(2), target, 2)
    torch.testing.assert_close(one.trace / 2, two.trace, rtol=1e-10, atol=0)


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
    scripted = ReplayOracle(oracle, script)
    scores, generator = torch.zeros(2, *event), torch.Generator()
    first = scripted.sample(scores, 2, generator=generator)
    second = scripted.sample(scores, generator=generator)
    assert torch.equal(first, script[:2])
    assert torch.equal(second, script[2])
    assert scripted.taken == 3


def test_everything_else_is_the_real_oracle():
    target = target_of("linear_chain")
    scripted = ReplayOracle(target.oracle)
    scores = target.scores
    assert torch.equal(scripted.argmax(scores), target.oracle.argmax(scores))
    assert torch.equal(scripted.marginals(scores), target.oracle.marginals(scores))
    assert torch.equal(scripted.project(scores).mean, target.oracle.project(scores).mean)
    assert torch.equal(scripted.enumerate((3, 3, 3)), target.oracle.enumerate((3, 3, 3)))
    assert scripted.count((3, 3, 3)) == 27


def test_forbidden_structures_are_not_dealt():
    target = target_of("subset")
    scores = target.scores.clone()
    scores[0] = -torch.inf
    masked = Target(target.oracle, target.loss, scores, exact_truth(target.loss, target.oracle, scores))
    summary = replay(Reinforce(), masked, 1)
    assert summary.error.norm() < 1e-12
    assert not summary.error.isnan().any()


def test_a_part_that_is_counted_weighs_as_often_as_it_is_there():
    oracle, scores = TiedChain(), torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    loss = lambda z: (z[..., 1] - z[..., 2]).sum(-1) ** 2  # noqa: E731
    target = Target(oracle, loss, scores, exact_truth(loss, oracle, scores))
    assert replay(Reinforce(), target, 1).error.norm() < 1e-12 * target.truth.gradient.norm()


def test_samples_of_other_scores_are_not_replayed():
    """Their probabilities are others: completions of a prefix come from scores that forbid the rest."""
    scores, loss = torch.zeros(4, 4, 2, dtype=torch.float64), lambda z: z[..., 2, 2, 1]
    assert slots_of(StepReinforce(), ShiftReduce("local"), loss, scores) == 1
    assert slots_of(StepSampled(), ShiftReduce("local"), loss, scores) is None


@pytest.mark.parametrize(("real", "event"), [(SemiMarkov(), (4, 2, 2, 2)), (ShiftReduce(), (5, 5, 2)), (LinearChain(), (4, 3, 3))], ids=str)
def test_a_scripted_oracle_is_served_as_the_real_one(real: Any, event: tuple[int, ...]) -> None:
    scores = torch.randn(3, *event, generator=torch.Generator().manual_seed(0))
    scripted = ReplayOracle(real)
    assert torch.equal(scripted.marginals(scores), real.marginals(scores))
    assert torch.equal(scripted.argmax(scores), real.argmax(scores))


@pytest.mark.parametrize("estimator", [Reinforce(5), LeaveOneOut(4), LeaveOneOut(16), VarGrad(5)], ids=repr)
def test_the_mean_of_an_average_over_pairs_is_that_of_a_pair(estimator):
    target = target_of("subset")
    found = replay_order(estimator, target, REPLAY_CAP)
    assert found is not None
    assert float(found.error.norm()) <= 1e-12 * float(found.gradient.norm())


@dataclass(frozen=True)
class SaysSo(LeaveOneOut):
    """Says that it is an average over pairs, and has the mean of all samples for a baseline."""

    def _weights(self, losses):
        return losses - losses.mean(0)


def test_that_it_is_such_an_average_is_looked_at():
    """Of two samples the estimate is half of what it should be, of four three quarters: no average of the former."""
    assert replay_order(SaysSo(4), target_of("subset"), REPLAY_CAP) is None
    assert measure(SaysSo(4), *measured("subset")).verdict == "biased"


def test_what_has_no_fewer_samples_or_too_many_tuples_is_not_proven_so():
    target = target_of("subset")
    assert replay_order(LeaveOneOut(2), target, REPLAY_CAP) is None
    assert replay_order(LeaveOneOut(4), target, target.truth.count**2 - 1) is None
    assert replay_order(StepSampled(), target, REPLAY_CAP) is None


def measured(name):
    target = target_of(name)
    return target.oracle, target.loss, target.scores


def test_many_samples_are_unbiased_exactly():
    found = measure(LeaveOneOut(8), *measured("subset"))
    assert (found.tier, found.verdict) == ("mc", "unbiased-exact")
