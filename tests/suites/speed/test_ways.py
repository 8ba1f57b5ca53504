from __future__ import annotations

import time

import numpy as np
import pytest

from structgrad.suites.speed import ways
from structgrad.suites.speed.ways import WAYS, OtherWork, TrainingStep, interleaved, settle


@pytest.mark.parametrize("way", WAYS)
def test_contenders_take_turns(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "ROUNDS", dict.fromkeys(WAYS, 3))
    order: list[str] = []
    timed = interleaved({"first": lambda: order.append("first"), "second": lambda: order.append("second")}, way)
    assert set(timed) == {"first", "second"}
    assert all(seconds > 0 for seconds in timed.values())
    assert order.index("second") < len(order) - 1 - order[::-1].index("first")


def test_single_calls_are_timed_without_what_is_done_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(ways, "BETWEEN", {"training": lambda: lambda: order.append("step")})
    interleaved({"first": lambda: order.append("call")}, "training")
    timed = order[order.index("step") :]
    assert timed == ["step", "call"] * ways.ROUNDS["training"]


@pytest.mark.parametrize("way", ["training", "pause"])
def test_a_step_and_other_work_are_not_charged_to_the_call(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "ROUNDS", dict.fromkeys(WAYS, 5))
    assert interleaved({"nothing": lambda: None}, way)["nothing"] < 1e-4


def test_a_long_call_is_timed_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "BUDGET", 0.02)
    calls: list[int] = []

    def long() -> None:
        calls.append(1)
        end = time.process_time() + 0.03
        while time.process_time() < end:
            pass

    assert interleaved({"long": long})["long"] >= 0.03
    assert len(calls) == 2


class Clock:
    """Of a process whose threads spin during some of the looks."""

    def __init__(self, spinning: list[bool]) -> None:
        self.now, self.busy, self.spinning, self.looks = 0.0, 0.0, spinning, 0

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.busy

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.busy += 0.9 * seconds if self.looks < len(self.spinning) and self.spinning[self.looks] else 0.01 * seconds
        self.looks += 1


@pytest.mark.parametrize(("spinning", "looks"), [([], 2), ([True] * 5, 7), ([True, False, True], 5), ([True] * 10_000, 400)])
def test_settling_waits_for_threads_that_spin_until_it_gives_up(spinning: list[bool], looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(spinning)
    monkeypatch.setattr(ways, "time", clock)
    settle()
    assert clock.looks == pytest.approx(looks, abs=1 if looks > 100 else 0)


def test_what_is_done_between_calls_is_work() -> None:
    step, work = TrainingStep(), OtherWork()
    before = [parameter.detach().clone() for parameter in step.network.parameters()]
    step()
    assert all(bool((old != new).any()) for old, new in zip(before, step.network.parameters(), strict=True))
    start = time.perf_counter()
    work()
    assert time.perf_counter() - start >= ways.PAUSE
    assert np.all(work.memory >= 1.0)
