"""Planted growth is found; an unsupported size stops its estimator and no other."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest
import torch

from structgrad.estimators import LeaveOneOut, Reinforce, StraightThrough, make_estimator
from structgrad.oracles import Alignment, Assignment, Categorical, Constituency, LinearChain, ShiftReduce, SpanningTree, Subset
from structgrad.suites.base import Problem
from structgrad.suites.measures.cost import scaling
from structgrad.suites.measures.cost.scaling import (
    ScalingSuite,
    UnfitError,
    doublings,
    event_of_length,
    exponent,
    exponent_of_counts,
    exponent_of_jackknife,
    exponent_of_rounds,
    sweep,
    traces,
    with_samples,
)
from structgrad.suites.statistics.moments import BATCHES
from tests.suites.planted import CONTEXT, QUICK, Failing, Hungry, Sleeping, problem, take_no_time_to_sleep

CPU = torch.device("cpu")


def test_an_exponent_of_the_upper_part():
    """A cost per call hides the growth of small sizes."""
    sizes = doublings(1, 1024)
    assert exponent(sizes, [100 + size**3 for size in sizes]) == pytest.approx(3, abs=0.05)
    assert exponent(sizes[:2], [1.0, 2.0]) is None
    assert exponent([4, 8, 16, 32], [1.0, 2.0, 4.0, 800.0]) < 8


def test_kernels_are_loaded_before_memory_is_measured(monkeypatch):
    """Else the first size of a process holds the code of its kernels: 231 kB, not 16."""
    loaded = []
    monkeypatch.setattr(scaling, "load_kernels", loaded.append)
    monkeypatch.setattr(scaling, "peak_memory", lambda call, *, device: loaded.count(call))
    found = list(ScalingSuite().findings(problem(), {"reinforce": Reinforce()}, CONTEXT))
    peaks = [finding.value for finding in found if finding.metric == "peak_memory"]
    assert peaks == [1] * len(loaded)
    assert peaks


def test_a_slow_round_leaves_its_slope():
    sizes, mood = doublings(4, 64), np.array([1, 1, 5, 1, 1, 1, 9.0])
    found = exponent_of_rounds(sizes, mood[:, None] * np.array(sizes, dtype=float) ** 2)
    assert (found.value, found.low, found.high) == pytest.approx((2, 2, 2))


def test_the_interval_of_an_exponent_covers():
    random, sizes, hits = np.random.default_rng(0), doublings(4, 64), 0
    for _ in range(300):
        found = exponent_of_rounds(sizes, np.array(sizes) ** 1.5 * np.exp(0.2 * random.standard_normal((9, 5))))
        hits += found.low <= 1.5 <= found.high
    assert 0.94 <= hits / 300 <= 1


def test_counts_that_bend_have_a_wide_interval_and_zeros_say_nothing():
    sizes = doublings(4, 64)
    squares = [float(size**2) for size in sizes]
    for values in (squares, [0.0, 0.0, *squares[2:]]):
        assert (*vars(exponent_of_counts(sizes, values)).values(),)[:3] == pytest.approx((2, 2, 2))
    bent = exponent_of_counts(sizes, [size + size**2 for size in sizes])
    assert bent.low < bent.value < bent.high < 2
    assert exponent_of_counts(sizes, [0.0] * len(sizes)).value is None


def test_the_jackknife_of_a_variance_covers():
    random, hits = torch.Generator().manual_seed(0), 0
    for _ in range(200):
        noise = torch.randn(512, 3, 4, generator=random, dtype=torch.float64)
        found = [traces(noise[:, :, : 2**step].mean(-1)) for step in range(3)]
        interval = exponent_of_jackknife([1, 2, 4], [whole for whole, _ in found], torch.stack([fold for _, fold in found], 1).tolist())
        hits += interval.low <= -1 <= interval.high
    assert 0.9 <= hits / 200 <= 0.99


def test_traces_are_those_of_the_kept_rows():
    found = torch.randn(100, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1e6
    whole, without = traces(found)
    parts = found.tensor_split(BATCHES)
    assert whole == pytest.approx(float(found.var(0).sum()), rel=1e-9)
    for index in (0, 31):
        kept = torch.cat([part for other, part in enumerate(parts) if other != index])
        assert float(without[index]) == pytest.approx(float(kept.var(0).sum()), rel=1e-9)


def sleeping(power):
    return lambda size: lambda: time.sleep(2e-3 * size**power)


def test_sizes_grow_until_time_is_up():
    found = sweep({"flat": sleeping(0.0), "steep": sleeping(2.0)}, doublings(1, 64), rounds=7, budget=0.4, device=CPU)
    assert list(found.seconds["flat"]) == doublings(1, 64)[: len(found.seconds["flat"])]
    assert 1 <= len(found.seconds["steep"]) < len(found.seconds["flat"])
    size, reason = found.stopped["steep"]
    assert size == 2 * list(found.seconds["steep"])[-1]
    assert "more than the effort allows" in reason


def test_a_small_size_is_passed_over_and_a_large_one_ends_the_sweep():
    def picky(size):
        if not 2 <= size <= 4:
            raise UnfitError(f"no {size}")
        return lambda: None

    found = sweep({"picky": picky, "never": lambda size: picky(0)}, doublings(1, 64), rounds=7, budget=1.0, device=CPU)
    assert list(found.seconds["picky"]) == [2, 4]
    assert found.stopped["picky"] == (8, "no 8")
    assert "never" not in found.seconds
    assert found.stopped["never"][1] == "no 0"
    assert found.failed == set()


@pytest.mark.parametrize(
    ("oracle", "event", "found"),
    [
        (Categorical(), (10,), (40,)),
        (Subset(3), (12,), (40,)),
        (LinearChain(), (6, 5, 5), (40, 5, 5)),
        (Alignment(), (3, 4), (40, 40)),
        (SpanningTree(), (4, 4), (41, 41)),
        (Constituency(), (4, 4), (40, 40)),
        (ShiftReduce(), (4, 4, 2), (41, 41, 2)),
        (Assignment(), (4, 4), (40, 40)),
    ],
)
def test_every_oracle_has_a_length(oracle, event, found):
    assert event_of_length(oracle, event, 40) == found


def test_sizes_that_do_not_fit_are_refused():
    class Odd(Subset):
        @classmethod
        def event_shape(cls, **sizes):
            return cls._sizes(sizes, "width")

    assert with_samples(Reinforce(), 8).num_samples == 8
    for refused, message in (
        (lambda: event_of_length(Subset(4), (8,), 4), "subset has fewer than two structures of length 4"),
        (lambda: event_of_length(Odd(2), (8,), 40), "names its sizes otherwise than length"),
        (lambda: with_samples(LeaveOneOut(), 1), "expected an integer >= 2"),
    ):
        with pytest.raises(UnfitError, match=message):
            refused()


def table(estimators, instances=1, **settings):
    context = dataclasses.replace(CONTEXT, **settings)
    return list(ScalingSuite().findings(problem(instances=instances), estimators, context))


def exponents(found, name):
    return {(f.metric, f.setting): f for f in found if f.estimator == name and f.metric.endswith("exponent")}


def test_planted_growth_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take_no_time_to_sleep(monkeypatch)
    estimators = {"sleeping": Sleeping(0.0005, 1.0), "hungry": Hungry(), "broken": Failing(), "ste": StraightThrough()}
    found = table(estimators, effort=dataclasses.replace(QUICK, seconds=5.0))
    slow, fast = exponents(found, "sleeping"), exponents(found, "hungry")
    assert slow["time_exponent", "axis=length"].value == pytest.approx(1, abs=0.35)
    assert slow["time_exponent", "axis=batch"].value == pytest.approx(0, abs=0.35)
    assert fast["memory_exponent", "axis=length"].value == pytest.approx(2, abs=0.25)
    assert fast["memory_exponent", "axis=batch"].value == pytest.approx(1, abs=0.05)
    assert {(f.status, f.reason, f.setting) for f in found if f.estimator == "broken" and f.metric == "total_time"} == {
        ("error", "RuntimeError: planted", "length=4"),
        ("error", "RuntimeError: planted", "batch=8"),
    }
    points = {f.setting: f for f in found if f.estimator == "ste" and f.metric == "total_time" and f.status == "ok"}
    assert points["length=4"].size == 4
    assert points["length=4"].value > 0


def test_variance_falls_with_the_samples():
    found = table({"reinforce": Reinforce()}, effort=dataclasses.replace(QUICK, seconds=0.3))
    fitted = exponents(found, "reinforce")["variance_exponent", "axis=samples"]
    assert fitted.low < -1 < fitted.high
    assert fitted.high - fitted.low < 0.2
    points = {f.setting: f.value for f in found if f.metric == "relative_variance"}
    assert points["samples=1"] / points["samples=16"] == pytest.approx(16, rel=0.25)


def test_the_variance_does_not_depend_on_the_batch_size():
    small, large = (
        [
            f
            for f in table({"reinforce": Reinforce()}, batch_size=size, effort=dataclasses.replace(QUICK, seconds=0.03, replicates=300))
            if f.metric in ("relative_variance", "variance_exponent")
        ]
        for size in (1, 4096)
    )
    assert small == large
    assert len(small) == 6


def test_an_enumeration_stops_before_it_fills_the_memory():
    """Length 32 has 496 structures, for each of 32 rows."""
    found = table({"exact": make_estimator("exact")}, effort=dataclasses.replace(QUICK, cap=10_000))
    (stopped,) = [f for f in found if f.status == "skipped" and f.setting.startswith("length=")]
    assert stopped.size <= 32
    assert "the effort allows" in stopped.reason


def test_lengths_begin_where_there_is_a_choice():
    subset = problem(parts=12)
    found = list(ScalingSuite().findings(Problem("p", "init", Subset(5), subset.instances, "test"), {"ste": StraightThrough()}, CONTEXT))
    assert next(f.setting for f in found) == "length=8"
