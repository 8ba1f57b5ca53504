"""Timing: what is measured, and in which order. No test judges a time."""

from __future__ import annotations

import numpy as np
import torch

from structgrad.estimators import ImplicitMLE, Reinforce, StraightThrough
from structgrad.oracles import Subset
from structgrad.suites.measures import wall_clock
from structgrad.suites.measures.wall_clock import BATCH, FEWEST_ROUNDS, WARM_UP, measure_times, median_interval, time_once, timing_batch


def loss(z):
    return z.square().sum(-1)


def scores():
    return timing_batch(torch.zeros(6, dtype=torch.float64), generator=torch.Generator().manual_seed(0))


def test_rows_are_distinct_and_not_shared():
    batch = scores()
    assert batch.shape == (BATCH, 6)
    assert len(batch.unique(dim=0)) == BATCH
    assert batch.stride(0) == 6


def test_times_are_positive_and_complete():
    times = measure_times({"reinforce": Reinforce(), "ste": StraightThrough()}, Subset(2), loss, scores(), rounds=5)
    assert list(times) == ["reinforce", "ste"]
    for entry in times.values():
        assert 0 < entry.forward.low <= entry.forward.value <= entry.forward.high
        assert entry.backward.value > 0
    assert times["reinforce"].ratio.value == 1


def test_without_the_reference_there_is_no_ratio():
    times = measure_times({"ste": StraightThrough()}, Subset(2), loss, scores(), rounds=5)
    assert times["ste"].ratio.value is None


def test_estimators_take_turns_in_random_order(monkeypatch):
    order = []

    def recorded(estimator, *rest):
        order.append(estimator.name)
        return 1.0, 1.0

    monkeypatch.setattr(wall_clock, "time_once", recorded)
    measure_times({"reinforce": Reinforce(), "ste": StraightThrough()}, Subset(2), loss, scores(), rounds=10)
    rounds = [order[i : i + 2] for i in range(0, len(order), 2)]
    assert len(rounds) == WARM_UP + 10
    assert all(set(pair) == {"reinforce", "ste"} for pair in rounds)
    assert len({tuple(pair) for pair in rounds}) == 2


def test_warm_up_rounds_are_not_counted(monkeypatch):
    calls = iter([100.0] * WARM_UP + [1.0] * 8)
    monkeypatch.setattr(wall_clock, "time_once", lambda *rest: (next(calls), 0.5))
    assert measure_times({"reinforce": Reinforce()}, Subset(2), loss, scores(), rounds=8)["reinforce"].forward.high == 1


def test_the_budget_ends_the_rounds_but_not_before_the_fewest(monkeypatch):
    calls = []
    monkeypatch.setattr(wall_clock, "BUDGET", 0.0)
    monkeypatch.setattr(wall_clock, "time_once", lambda *rest: (calls.append(1) or 1.0, 1.0))
    measure_times({"reinforce": Reinforce()}, Subset(2), loss, scores())
    assert len(calls) == WARM_UP + FEWEST_ROUNDS


def test_a_layer_is_timed_as_a_layer():
    """The surrogate of a layer runs its backward inside: timed as in training, forward and backward are apart."""
    calls = []

    class Counted(Subset):
        def _best(self, rows):
            calls.append("argmax")
            return super()._best(rows)

    forward, backward = time_once(ImplicitMLE(), Counted(2), loss, scores())
    assert calls == ["argmax", "argmax"]
    assert min(forward, backward) > 0


def test_interval_of_the_median_covers():
    random = np.random.default_rng(0)
    hits = sum(
        interval.low <= np.log(2) <= interval.high for interval in (median_interval(random.exponential(size=30)) for _ in range(400))
    )
    assert 0.93 * 400 <= hits < 400


def test_the_clock_waits_for_the_device(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    cuda = torch.device("cuda")
    assert wall_clock.clock(torch.device("cpu")) < wall_clock.clock(cuda) < wall_clock.clock()
    assert waited == [cuda, None]
