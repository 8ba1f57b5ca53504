"""Planted growth is found; an unsupported size stops its estimator and no other."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from structgrad.estimators import Reinforce, StraightThrough, make_estimator
from structgrad.oracles import Alignment, Assignment, Categorical, Constituency, LinearChain, ShiftReduce, SpanningTree, Subset
from structgrad.suites.base import Problem
from structgrad.suites.measures.cost import scaling
from structgrad.suites.measures.cost.scaling import LENGTHS, ScalingSuite, UnfitError, event_of_length, exponent, reach
from structgrad.suites.measures.suite import Finding
from tests.suites.planted import CONTEXT, QUICK, Failing, Hungry, Sleeping, problem, take_no_time_to_sleep

CPU, SIZES = torch.device("cpu"), [4, 8, 16, 32, 64]


def test_an_exponent_of_the_upper_part() -> None:
    """A cost per call hides the growth of small sizes, and one disturbed point moves nothing."""
    assert exponent(LENGTHS, [[100 + size**3 for size in LENGTHS]]).value == pytest.approx(3, abs=0.05)
    assert exponent(SIZES, [[0.0, 0.0, 16.0, 32.0, 64.0]]).value == pytest.approx(1)
    assert exponent(SIZES[:4], [[1.0, 2.0, 4.0, 800.0]]).value < 8
    for sizes, rounds in ((SIZES[:2], [[1.0, 2.0]]), (SIZES, [[0.0] * 5]), (SIZES, []), ([], [[]])):
        assert exponent(sizes, rounds).value is None


def sleeping(power: float) -> Callable[[int], Any]:
    return lambda size: lambda: time.sleep(2e-3 * size**power)


def test_sizes_grow_until_time_is_up() -> None:
    flat, steep = (reach(sleeping(power), SIZES, 0.1, CPU) for power in (0.0, 2.0))
    assert list(flat.calls) == SIZES
    assert list(steep.calls) == [4]
    assert steep.stopped is not None
    assert steep.stopped[0] == 8
    assert "more than the effort allows" in steep.stopped[1]


def test_a_small_size_is_passed_over_and_a_large_one_ends_the_sweep() -> None:
    def picky(size: int) -> Any:
        if not 8 <= size <= 16:
            raise UnfitError(f"no {size}")
        return lambda: None

    found, never = reach(picky, SIZES, 1.0, CPU), reach(lambda size: picky(0), SIZES, 1.0, CPU)
    assert (list(found.calls), found.stopped) == ([8, 16], (32, "no 32", "skipped"))
    assert (never.calls, never.stopped) == ({}, (64, "no 0", "skipped"))


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
def test_every_oracle_has_a_length(oracle: Any, event: tuple[int, ...], found: tuple[int, ...]) -> None:
    assert event_of_length(oracle, event, 40) == found


def test_an_oracle_without_a_length_is_refused() -> None:
    class Odd(Subset):
        @classmethod
        def event_shape(cls, **sizes: int) -> tuple[int, ...]:
            return cls._sizes(sizes, "width")

    with pytest.raises(UnfitError, match="names its sizes otherwise than length"):
        event_of_length(Odd(2), (8,), 40)


def table(estimators: dict[str, Any], **settings: Any) -> list[Finding]:
    return list(ScalingSuite().findings(problem(), estimators, dataclasses.replace(CONTEXT, **settings)))


def test_planted_growth_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take_no_time_to_sleep(monkeypatch)
    estimators = {"sleeping": Sleeping(0.0005, 1.0), "hungry": Hungry(), "broken": Failing(), "ste": StraightThrough()}
    found = table(estimators, effort=dataclasses.replace(QUICK, seconds=5.0))
    fitted = {(f.estimator, f.metric): f.value for f in found if f.setting == "axis=length"}
    assert fitted["sleeping", "time_exponent"] == pytest.approx(1, abs=0.35)
    assert fitted["hungry", "memory_exponent"] == pytest.approx(2, abs=0.25)
    (failed,) = [f for f in found if f.estimator == "broken" and f.metric == "total_time"]
    assert (failed.status, failed.reason, failed.setting) == ("error", "RuntimeError: planted", "length=4")
    skipped = {f.reason for f in found if f.estimator == "broken" and f.metric != "total_time"}
    assert skipped == {"fewer than 3 sizes were reached"}
    points = {f.setting: f for f in found if f.estimator == "ste" and f.metric == "total_time" and f.status == "ok"}
    assert points["length=4"].size == 4
    assert points["length=4"].value > 0


def test_kernels_are_loaded_before_memory_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first size of a process holds the code of its kernels: 231 kB, not 16."""
    loaded: list[Any] = []
    monkeypatch.setattr(scaling, "load_kernels", loaded.append)
    monkeypatch.setattr(scaling, "peak_memory", lambda call, *, device: loaded.count(call))
    peaks = [finding.value for finding in table({"reinforce": Reinforce()}) if finding.metric == "peak_memory"]
    assert peaks == [1] * len(loaded)
    assert peaks


def test_an_enumeration_stops_before_it_fills_the_memory() -> None:
    """Length 32 has 496 structures, for each of 32 rows."""
    found = table({"exact": make_estimator("exact")}, effort=dataclasses.replace(QUICK, cap=10_000))
    (stopped,) = [f for f in found if f.status == "skipped" and f.setting.startswith("length=")]
    assert stopped.size <= 32
    assert "the effort allows" in stopped.reason


def test_lengths_begin_where_there_is_a_choice() -> None:
    larger = Problem("p", "init", Subset(5), problem(parts=12).instances, "test")
    assert next(f.setting for f in ScalingSuite().findings(larger, {"ste": StraightThrough()}, CONTEXT)) == "length=8"


def test_variance_falls_with_samples_where_an_estimator_takes_them() -> None:
    found = table({name: make_estimator(name) for name in ("reinforce", "rloo", "ste")})
    curves = {
        name: {item.setting: item.value for item in found if item.estimator == name and item.metric == "relative_variance"}
        for name in ("reinforce", "rloo", "ste")
    }
    assert list(curves["rloo"]) == [f"samples={number}" for number in (2, 4, 8, 16)]  # one sample has no baseline
    assert curves["ste"] == {}
    assert curves["reinforce"]["samples=16"] == pytest.approx(curves["reinforce"]["samples=1"] / 16)
