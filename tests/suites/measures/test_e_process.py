"""Looks at a growing sample: doubling looks, bets, confidence sequences."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from structgrad.estimators import (
    ConditionalMeanBaseline,
    ConstantBaseline,
    GreedyBaseline,
    ImplicitMLE,
    LeaveOneOut,
    Reinforce,
    RunningMeanBaseline,
    SampledBaseline,
    Simple,
    VarGrad,
)
from structgrad.oracles import ShiftReduce
from structgrad.suites.measures.suite import Effort
from structgrad.suites.measures.testing.e_process import BettingProcess, BiasBets, gain_sequence, mixture_half_width
from structgrad.suites.measures.testing.group_sequential import look_sizes, sequential_test
from structgrad.suites.measures.testing.ranges import RANGED, ranges_of, score_function_ranges
from structgrad.suites.statistics.moments import Moments
from structgrad.suites.studies.simulations.instances import instance, law
from structgrad.suites.truth import Target, exact_truth
from tests.suites.cases import target_of

EFFORT = Effort(replicates=4096, most_replicates=32_768, seconds=math.inf, equivalence=0.02)


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


class Source:
    """Draws from a law, and notes what it was asked for."""

    def __init__(self, sample, fresh=None):
        self.sample, self.fresh, self.random, self.asked = sample, fresh or sample, np.random.default_rng(0), []

    def __call__(self, slot, replicates):
        self.asked.append((slot, replicates))
        return (self.fresh if slot == "confirmation" else self.sample).moments(replicates, self.random)


def outcome_of(sample, fresh=None, **changes):
    source = Source(sample, fresh)
    return sequential_test(source, instance("subset10", 0.5).truth, dataclasses.replace(EFFORT, **changes)), source.asked


def unbiased():
    return law(ConditionalMeanBaseline(), "subset10", 0.5)


def scaled(factor):
    return unbiased().changed(unbiased().estimates * factor)


def test_looks_double_up_to_the_budget():
    assert look_sizes(4096, 32_768) == (4096, 8192, 16_384, 32_768)
    assert look_sizes(4096, 4096) == (4096,)
    assert look_sizes(4096, 100) == (100,)


def test_every_look_adds_the_replicates_that_it_lacks():
    found, asked = outcome_of(unbiased(), equivalence=0.0)
    assert asked == [("look-0", 4096), ("look-1", 4096), ("look-2", 8192), ("look-3", 16_384)]
    assert found.moments.total == 32_768
    assert (found.verdict, found.sampling) == ("unresolved", "budget")


def test_a_large_error_is_found_at_the_first_look_and_confirmed_with_four_times_the_replicates():
    found, asked = outcome_of(scaled(1.5))
    assert asked == [("look-0", 4096), ("confirmation", 16_384)]
    assert (found.verdict, found.sampling) == ("biased", "converged")
    assert found.p_value < EFFORT.alpha**2


def test_what_is_not_confirmed_is_not_called_biased():
    found, asked = outcome_of(scaled(1.5), fresh=unbiased())
    assert asked[-1] == ("confirmation", 16_384)
    assert found.verdict == "unresolved"
    assert found.p_value > 1e-4


def test_equivalence_stops_the_looks():
    found, asked = outcome_of(unbiased(), equivalence=0.3)
    assert len(asked) < 4
    assert (found.verdict, found.sampling) == ("equivalent", "converged")
    assert found.bound <= 0.3


def test_the_seconds_stop_the_looks_too():
    assert len(outcome_of(unbiased(), seconds=-1.0)[1]) == 1


def test_p_values_count_the_looks():
    single, several = (outcome_of(unbiased(), equivalence=0.0, replicates=32_768 // n)[0].p_value for n in (1, 8))
    assert 0 < single < 1
    assert 0 < several <= 1


def test_capital_is_the_mean_over_columns_sides_and_sizes_of_bets():
    means, low, high = numbers(0.3, 0.5), numbers(0.0, 0.0), numbers(1.0, 1.0)
    values = torch.rand(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    process = BettingProcess(means, low, high)
    process.update(values[:20])
    process.update(values[20:])
    padding = 1e-4 + 1e-9
    bets = [(column, bet) for column, m in enumerate(means.tolist()) for bet in (1 / (m + padding), -1 / (1 + padding - m))]
    sizes = 0.5 ** np.arange(1, 13)
    capitals = [np.prod(1 + size * bet * (values[:, column] - means[column]).numpy()) for column, bet in bets for size in sizes]
    assert process.e_value == pytest.approx(np.mean(capitals))


def test_capital_has_mean_one_under_the_hypothesis():
    """Exactly, over all outcomes of three tosses: nothing is asymptotic."""
    total = 0.0
    for outcome in range(8):
        tosses = numbers(*(float(outcome >> bit & 1) for bit in range(3)))
        process = BettingProcess(numbers(0.2), numbers(0.0), numbers(1.0))
        process.update(tosses.unsqueeze(-1))
        total += process.e_value * float((0.2**tosses * 0.8 ** (1 - tosses)).prod())
    assert total == pytest.approx(1, abs=1e-12)


def test_a_value_outside_its_range_refutes_the_hypothesis():
    process = BettingProcess(numbers(0.5), numbers(0.0), numbers(1.0))
    process.update(numbers(1.1).unsqueeze(-1))
    assert process.e_value > 1e300


def test_columns_that_do_not_move_bet_nothing():
    process = BettingProcess(numbers(0.5, 3.0), numbers(0.0, 3.0), numbers(1.0, 3.0))
    process.update(numbers(1.0, 3.0).expand(2, 2))
    assert math.isfinite(process.log_e_value)
    with pytest.raises(ValueError, match="`BettingProcess` got a mean outside its range; expected low <= mean <= high"):
        BettingProcess(numbers(2.0), numbers(0.0), numbers(1.0))


def test_bets_raise_no_false_alarm_where_structures_are_rare():
    """At this instance most structures that carry the variance do not occur, and T² rejects half of the time."""
    sample, truth = law(ConditionalMeanBaseline(), "categorical10", 5.0), instance("categorical10", 5.0).truth
    random, alarms = np.random.default_rng(0), 0
    for _ in range(30):
        bets = BiasBets(truth.gradient, ranges_of(sample.estimates, truth.gradient))
        bets.update(sample.estimates[torch.from_numpy(sample.draw(5000, random))])
        alarms += bets.e_value >= 100
    assert alarms == 0


@pytest.mark.parametrize("error", ["scale", "part"])
def test_bets_find_errors(error):
    sample, truth = unbiased(), instance("subset10", 0.5).truth
    estimates = sample.estimates * 1.3 if error == "scale" else sample.estimates + 0.3 * torch.eye(10, dtype=torch.float64)[0]
    bets = BiasBets(truth.gradient, ranges_of(estimates, truth.gradient))
    bets.update(estimates[torch.from_numpy(sample.draw(20_000, np.random.default_rng(0)))])
    assert bets.e_value > 1e6


SINGLE = [Reinforce(), ConstantBaseline(2.0), RunningMeanBaseline(mean=0.5), GreedyBaseline(), ConditionalMeanBaseline()]
PAIRS = [LeaveOneOut(2), VarGrad(2), Reinforce(2)]


@pytest.mark.parametrize("estimator", SINGLE, ids=lambda e: e.name)
def test_the_range_of_one_sample_is_reached(estimator):
    target = instance("subset10", 0.5)
    sample, found = law(estimator, "subset10", 0.5), score_function_ranges(estimator, target)
    expected = ranges_of(sample.estimates, target.truth.gradient)
    for name in ("low", "high", "along"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("estimator", [*PAIRS, SampledBaseline()], ids=repr)
def test_no_estimate_of_several_samples_leaves_its_range(estimator):
    target = instance("categorical10", 2.0)
    sample, found = law(estimator, "categorical10", 2.0), score_function_ranges(estimator, target)
    inside = ranges_of(sample.estimates, target.truth.gradient)
    assert bool((inside.low >= found.low - 1e-9).all())
    assert bool((inside.high <= found.high + 1e-9).all())
    assert found.along[0] - 1e-9 <= inside.along[0] <= inside.along[1] <= found.along[1] + 1e-9


def test_every_estimator_with_a_range_is_tested_here():
    assert {type(estimator) for estimator in [*SINGLE, *PAIRS, SampledBaseline()]} == set(RANGED)


def test_forbidden_structures_have_no_part_in_the_range():
    target = target_of("subset")
    scores = target.scores.clone()
    scores[0] = -math.inf
    masked = Target(target.oracle, target.loss, scores, exact_truth(target.loss, target.oracle, scores))
    found = score_function_ranges(Reinforce(), masked)
    assert bool(found.low.isfinite().all())
    assert found.low[0] == found.high[0] == 0


def test_the_score_of_a_policy_is_that_of_its_scores():
    """It is normalised locally, so that it is not z − μ."""
    oracle, scores = ShiftReduce("local"), torch.randn(4, 4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    loss = lambda z: z.flatten(-3) @ torch.arange(32, dtype=z.dtype)  # noqa: E731
    target = Target(oracle, loss, scores, exact_truth(loss, oracle, scores))
    found = score_function_ranges(Reinforce(), target)
    estimates = Reinforce().gradient(loss, oracle, scores.expand(200, 4, 4, 2), generator=torch.Generator().manual_seed(0))
    inside = ranges_of(estimates, target.truth.gradient)
    assert bool((inside.low >= found.low - 1e-9).all())
    torch.testing.assert_close(inside.high, found.high)


@pytest.mark.parametrize("estimator", [Simple(), ImplicitMLE()], ids=lambda e: e.name)
def test_refuses_estimators_without_a_range(estimator):
    with pytest.raises(ValueError, match=f"`score_function_ranges` got {estimator.name}, whose estimates have no range that enumeration"):
        score_function_ranges(estimator, target_of("subset"))


def test_the_mixture_is_the_boundary_of_its_martingale():
    """∫ exp(λS − λ²n/2) dN(λ; 0, r²) is 1/α exactly where |S|/n is the half-width."""
    alpha, n, tuned_for = 0.05, 1000.0, 2048
    variance = (-2 * math.log(alpha) + math.log(-2 * math.log(alpha) + 1)) / tuned_for
    total = n * mixture_half_width(1.0, n, alpha=alpha, tuned_for=tuned_for)
    grid = np.linspace(-1, 1, 200_001)
    density = np.exp(grid * total - grid**2 * n / 2 - grid**2 / 2 / variance) / math.sqrt(2 * math.pi * variance)
    assert np.trapezoid(density, grid) == pytest.approx(1 / alpha, rel=1e-6)


def test_the_sequence_is_narrowest_relative_to_a_single_interval_where_it_is_tuned():
    excess = [mixture_half_width(1.0, n, tuned_for=4096) * math.sqrt(n) for n in (256.0, 4096.0, 65_536.0)]
    assert excess[1] < min(excess[0], excess[2])


def test_the_gain_lies_in_its_sequence_at_all_looks():
    random, sample = np.random.default_rng(0), unbiased()
    moments = Moments.empty(sample.gradient, sample.information)
    for _ in range(64):
        moments = moments.merged(sample.moments(512, random))
        found = gain_sequence(moments)
        assert found.low <= 1 <= found.high
    assert found.high - found.low < 0.2
    assert gain_sequence(Moments.empty(torch.zeros(2))).value is None
