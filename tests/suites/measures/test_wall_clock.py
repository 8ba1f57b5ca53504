"""Timing: the measured calls and their order. No test judges a time."""

from collections import Counter

import numpy as np
import pytest
import torch

from structgrad.estimators import Reinforce, StraightThrough, make_estimator
from structgrad.oracles import Subset
from structgrad.suites.measures.cost import steps
from structgrad.suites.measures.cost.steps import MIN_ROUNDS, PATIENCE, WARM_UP, WallClock, interleave, measure_times, timing_batch
from tests.suites.planted import CONTEXT, Failing, Sleeping, problem, take_no_time_to_sleep


def loss(z):
    return z.square().sum(-1)


def scores():
    return timing_batch(torch.zeros(6, dtype=torch.float64), generator=torch.Generator().manual_seed(0))


def test_times_are_positive_and_complete_and_ratios_need_the_reference():
    times, *_ = measure_times({"reinforce": Reinforce(), "ste": StraightThrough()}, Subset(2), loss, scores(), rounds=7, budget=60)
    assert list(times) == ["reinforce", "ste"]
    for entry in times.values():
        assert 0 < entry["forward_time"].low <= entry["forward_time"].value <= entry["forward_time"].high
        assert entry["backward_time"].value > 0
    assert times["reinforce"]["time_ratio"].value == 1
    assert measure_times({"ste": StraightThrough()}, Subset(2), loss, scores(), rounds=5)[0]["ste"]["time_ratio"].value is None


PLANTED = {"reinforce": 1e-3, "ste": 1e-4, "rloo": 7e-3, "exact": 2e-2, "identity": 1e-3}
"""Seconds of a step: that of the middle is 1 millisecond, so that launches of 8 have 8 batches."""


def test_the_ratio_is_that_of_launches_of_as_many_rows_in_the_same_round(monkeypatch):
    """A round that is slow for all moves no ratio; a slower estimator is compared with fewer rows of the reference."""
    mood = np.random.default_rng(0).uniform(1, 100, 30)
    plant_launches(monkeypatch, {"ste": 3.0, "exact": 50.0}, lambda name, turn: mood[turn])
    times, *_ = measure_times({name: make_estimator(name) for name in PLANTED}, Subset(2), loss, scores(), rounds=30, budget=60)
    assert (times["ste"]["time_ratio"].value, times["exact"]["time_ratio"].value) == (pytest.approx(3), pytest.approx(50))
    assert times["ste"]["time_ratio"].half_width < 1e-9


@pytest.mark.parametrize(("calm_after", "turns"), [(30, 120), (0, 30), (10**9, 120)])
def test_an_uncertain_ratio_is_timed_again_and_that_is_bounded(monkeypatch, calm_after, turns):
    noise = np.random.default_rng(0).lognormal(0, 3, 1000)
    called = plant_launches(monkeypatch, {}, lambda name, turn: noise[turn] if name == "ste" and turn < calm_after else 1.0)
    times, *_ = measure_times({"reinforce": Reinforce(), "ste": StraightThrough()}, Subset(2), loss, scores(), rounds=30, budget=60)
    assert 30 <= called["ste"] <= turns
    assert steps.uncertain(times["ste"]["time_ratio"]) == (calm_after == 10**9)


def plant_launches(monkeypatch, slower, factor):
    """Let a launch of a row take a second times the given factor, by estimator and timed turn; count the turns."""
    called = Counter()
    monkeypatch.setattr(steps, "time_once", lambda estimator, *given: (PLANTED.get(estimator.name, 1e-3), 0.0))

    def launch(estimator, oracle, loss, batch):
        turn = called[estimator.name, len(batch)]
        called[estimator.name, len(batch)] += 1
        if turn % (WARM_UP + 30) >= WARM_UP:
            called[estimator.name] += 1
        timed = max(turn % (WARM_UP + 30) - WARM_UP, 0) + 30 * (turn // (WARM_UP + 30))
        return (len(batch) * slower.get(estimator.name, 1.0) * float(factor(estimator.name, timed)),)

    monkeypatch.setattr(steps, "_launch", launch)
    return called


def contender(order, name, *seconds):
    def call():
        order.append(name)
        return seconds

    return call


def test_contenders_take_turns_in_random_order():
    order = []
    interleave({name: contender(order, name, 1.0) for name in "ab"}, rounds=10, budget=1.0)
    rounds = [order[i : i + 2] for i in range(0, len(order), 2)]
    assert len(rounds) == WARM_UP + 10
    assert all(set(pair) == {"a", "b"} for pair in rounds)
    assert len({tuple(pair) for pair in rounds}) == 2


def test_warm_up_rounds_are_not_counted():
    calls = iter([100.0] * WARM_UP + [1.0] * 8)
    found = interleave({"a": lambda: (next(calls), 0.5)}, rounds=8, budget=1.0)[0]["a"]
    assert found.tolist() == [[1.0, 0.5]] * 8


def test_a_short_call_is_repeated_and_counts_as_the_mean():
    order = []
    seconds, _ = interleave({"a": contender(order, "a", 3e-4, 1e-4), "b": contender(order, "b", 1e-3)}, rounds=7, budget=1.0)
    assert order.count("a") == WARM_UP + 7 * 3
    assert order.count("b") == WARM_UP + 7
    np.testing.assert_allclose(seconds["a"], [[3e-4, 1e-4]] * 7)


def test_over_its_budget_a_contender_makes_the_fewest_rounds():
    order = []
    spent = {"a": 1.5, "b": 1.0 + PATIENCE, "c": 0.0}
    calls = {name: contender(order, name, 1.0) for name in "abc"}
    seconds, _ = interleave(calls, rounds=20, budget=1.0, spent=spent)
    assert [order.count(name) for name in "abc"] == [WARM_UP + MIN_ROUNDS, 1, WARM_UP + 20]
    assert [len(seconds[name]) for name in "abc"] == [MIN_ROUNDS, 1, 20]


def found(estimators):
    return {(f.estimator, f.metric): f for f in WallClock().findings(problem(), estimators, CONTEXT)}


def test_the_suite_finds_a_planted_cost(monkeypatch):
    take_no_time_to_sleep(monkeypatch)
    table = found({"slow": Sleeping(0.004), "reinforce": Reinforce(), "broken": Failing()})
    slow = table["slow", "forward_time"]
    assert 0.004 <= slow.low <= slow.value <= slow.high
    assert slow.interval == "order-statistic"
    assert table["slow", "time_ratio"].value > 1
    assert table["slow", "seconds_per_estimate"].value >= 0.004 / table["slow", "seconds_per_estimate"].size
    assert table["reinforce", "threads"].value == 1
    assert [(f.status, f.reason, f.value) for f in table.values() if f.estimator == "broken"] == [("error", "RuntimeError: planted", None)]


def test_the_reference_takes_part_unasked():
    table = found({"ste": StraightThrough()})
    assert {name for name, _ in table} == {"ste"}
    assert table["ste", "time_ratio"].value > 0
