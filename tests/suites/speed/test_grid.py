from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from structgrad.suites.speed import grid, table
from structgrad.suites.speed.cases import CASES
from structgrad.suites.speed.comparison import SpeedComparison
from structgrad.suites.speed.floor import MachineLimits
from structgrad.suites.speed.grid import SpeedGrid, beside_survivors, read_results, to_frame
from structgrad.suites.speed.isolation import Call, IsolatedAnswer, in_turn

MACHINE = MachineLimits(bytes_per_second=1e9, multiply_adds_per_second=1e9)
SMALL = CASES["subset 20/5"]


def asking(deadly: Sequence[str], most: int = 9, asked: list[list[str]] | None = None) -> Any:
    """A process that ends where a deadly contender is in it, or more than so many are."""

    def ask(peers: list[str]) -> IsolatedAnswer:
        if asked is not None:
            asked.append(peers)
        wrong = [peer for peer in (*peers, "structgrad") if peer in deadly]
        if wrong or len(peers) > most:
            return IsolatedAnswer({}, f"ended by SIGKILL: {(wrong or ['all'])[0]}")
        return IsolatedAnswer({"hot": {"seconds": dict.fromkeys(("structgrad", *peers), 1.0)}})

    return ask


def test_whoever_ends_the_process_is_found_and_the_others_are_timed() -> None:
    asked: list[list[str]] = []
    values, failures = beside_survivors(asking(["greedy"], asked=asked), ["good", "greedy", "fine"])
    assert set(values["hot"]["seconds"]) == {"structgrad", "good", "fine"}
    assert failures == {"greedy": "ended by SIGKILL: greedy"}
    assert asked == [["good", "greedy", "fine"], ["good"], ["greedy"], ["fine"], ["good", "fine"]]


def test_without_a_failure_everybody_is_asked_once() -> None:
    asked: list[list[str]] = []
    assert beside_survivors(asking([], asked=asked), ["good", "fine"])[1] == {}
    assert asked == [["good", "fine"]]


def test_peers_that_are_too_much_together_are_timed_one_by_one() -> None:
    """A slow one took the others' time with it."""
    values, failures = beside_survivors(asking(["greedy"], most=1), ["good", "fine", "greedy"])
    assert values["hot"]["seconds"] == {"structgrad": 1.0, "good": 1.0, "fine": 1.0}
    assert failures == {"greedy": "ended by SIGKILL: greedy"}


def test_a_failure_of_ours_is_ours() -> None:
    values, failures = beside_survivors(asking(["structgrad"]), ["good"])
    assert values == {}
    assert failures == {"structgrad": "ended by SIGKILL: structgrad"}


def test_what_asks_for_too_much_memory_fails_and_the_machine_does_not() -> None:
    ((_, answer),) = in_turn([[Call("tests.suites.planted_calls:greedy", {"limit": 2.0**32, "wanted": 2**35}, 60.0)]])
    assert "MemoryError" in answer.failure or "allocate" in answer.failure
    ((_, answer),) = in_turn([[Call("tests.suites.planted_calls:greedy", {"limit": 2.0**32, "wanted": 2**10}, 60.0)]])
    assert answer == IsolatedAnswer({"got": 2**10})


def results() -> list[SpeedComparison]:
    return [
        SpeedComparison(
            "case 1", "argmax", 1, "hot", {"structgrad": 2.0, "fast": 1.0}, 0.5, {"fast": 0.25}, {"greedy": "ended, by: a signal"}
        ),
        SpeedComparison("case 1", "argmax", 1, "pause", {"structgrad": 2.0, "fast": 3.0}, 0.5),
        SpeedComparison("case 2", "argmax", 64, "hot", {}, 0.5, {}, {"structgrad": "took longer"}),
    ]


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "speed.csv"
    assert read_results(path) == []
    to_frame(results()).to_csv(path, index=False)
    assert read_results(path) == results()


def test_what_is_known_is_not_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[tuple[str, int, list[str]]] = []

    def compare(self: Any, operation: str, batch: int, ways: list[str], machine: MachineLimits) -> dict[str, SpeedComparison]:
        timed.append((operation, batch, ways))
        return {way: SpeedComparison(self.case.name, operation, batch, way, {"structgrad": 1.0}) for way in ways}

    monkeypatch.setattr(grid.CaseProcess, "compare", compare)
    wanted = SpeedGrid([SMALL], [1, 2], ["hot", "pause"], ["argmax"])
    known = [SpeedComparison(SMALL.name, "argmax", 1, way, {"structgrad": 5.0}) for way in ("pause",)]
    found = list(wanted.compare(MACHINE, known))
    assert timed == [("argmax", 1, ["hot"]), ("argmax", 2, ["hot", "pause"])]
    assert [(result.batch, result.way, result.seconds["structgrad"]) for result in found] == [
        (1, "hot", 1.0),
        (1, "pause", 5.0),
        (2, "hot", 1.0),
        (2, "pause", 1.0),
    ]


def test_rows_say_what_failed_and_the_end_says_where_ours_is_slower() -> None:
    head, *lines = table.slower(results())
    assert head == "slower than a peer: 1 of 2 with a peer"
    assert len(lines) == 1
    assert "0.50x" in lines[0]
    assert "4 floors  fast 1000*; greedy failed: ended, by: a signal" in lines[0]
    assert math.isnan(results()[2].ratio)
    assert "structgrad failed: took longer" in table._line(results()[2])
