"""Cells on workers: bundles, crashes, retries, limits; with workers that follow a script."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from structgrad.suites.running.engines.base import Engine, Worker
from structgrad.suites.running.engines.local import LocalEngine
from structgrad.suites.running.planning.grid import grid
from structgrad.suites.running.planning.plan import Machine
from structgrad.suites.running.runner import run
from structgrad.suites.running.work import Busy, Cell
from tests.suites.running_cases import SMALL, broken

PLAN = dataclasses.replace(SMALL, estimators=("reinforce*", "arsm", "ste"), stages=("init", "early", "final"))
MANY = grid(PLAN).cells[:24]


class Scripted(Worker):
    """Finishes its bundles, as far as a script says: each entry is the number of cells of one bundle that are lost."""

    def __init__(self, script: list[int]) -> None:
        self.script, self.given, self.closed = script, list[list[Cell]](), False

    def submit(self, cells: Sequence[Cell]) -> Future[dict[str, str]]:
        self.given.append(list(cells))
        future: Future[dict[str, str]] = Future()
        lost = self.script.pop(0) if self.script else 0
        future.set_result({cell.identity: "text" for cell in cells[: len(cells) - lost]})
        return future

    def collect(self, future: Future[dict[str, str]], cells: Sequence[Cell]) -> dict[str, str]:
        return future.result()

    def busy(self, cells: Sequence[Cell]) -> Busy:
        return Busy("", cells[0].label if cells else "idle", 0.0)

    def close(self) -> None:
        self.closed = True


class ScriptedEngine(Engine):
    def __init__(self, *scripts: list[int], bundle: float = 0.0) -> None:
        super().__init__(PLAN, Machine(), Path("unused"), lambda cell: 1.0)
        self.scripts, self.bundle, self.started = list(scripts), bundle, list[Scripted]()

    def places(self) -> int:
        return max(len(self.scripts), 1)

    def start_worker(self, place: int) -> Worker:
        self.started.append(Scripted(self.scripts[place] if self.scripts else []))
        return self.started[-1]


def order(engine: Engine, seconds: float = 0.25, stops: Callable[[], bool] = lambda: False, cells: Sequence[Cell] = MANY) -> list[Cell]:
    return [cell for _, cell, _ in engine.measured(cells, lambda cell: seconds, stops) if cell is not None]


@pytest.mark.parametrize(
    ("bundle", "seconds", "expected"), [(1.0, 0.25, [4, 4, 4, 4, 4, 2, 1, 1]), (0.0, 0.0, [1] * 24), (1.0, 0.0, [12, 6, 3, 1, 1, 1])]
)
def test_a_bundle_takes_its_seconds_and_at_most_half_of_an_equal_share(bundle: float, seconds: float, expected: list[int]) -> None:
    engine = ScriptedEngine(bundle=bundle)
    assert order(engine, seconds) == list(MANY)
    assert [len(cells) for cells in engine.started[0].given] == expected


def test_cells_that_are_lost_are_the_next_ones_and_workers_take_cells_of_different_scores() -> None:
    engine = ScriptedEngine([3], bundle=1.0)
    assert order(engine) == list(MANY)
    assert engine.started[0].given[1] == list(MANY[1:5])
    engine = ScriptedEngine([], [], [])
    assert sorted(order(engine), key=repr) == sorted(MANY, key=repr)
    first = [worker.given[0][0].scores for worker in engine.started]
    assert len(set(first)) == len({cell.scores for cell in MANY})


def test_exclusive_cells_come_last_on_one_worker() -> None:
    cells = grid(dataclasses.replace(PLAN, suites=("wall_clock", "bias"))).cells
    engine = ScriptedEngine([], [])
    assert [cell.exclusive for cell in order(engine, cells=cells)] == sorted(cell.exclusive for cell in cells)
    first, second = engine.started
    assert second.closed
    assert {cell.suite for cells in first.given for cell in cells} >= {"wall_clock"}
    assert {cell.suite for cells in second.given for cell in cells} == {"bias"}
    engine.close()
    assert first.closed


# Processes.


def texts(folder: Path, estimators: tuple[str, ...], limit: float = 60.0, **machine: Any) -> dict[str, str]:
    plan = dataclasses.replace(SMALL, estimators=estimators, instances=1)
    engine = LocalEngine(plan, Machine(**{"jobs": 1, **machine}), folder, lambda cell: limit)
    engine.bundle = 1e9
    try:
        steps = engine.measured(grid(plan).cells, lambda cell: 0.0)
        return {cell.estimators[0].rpartition(":")[2]: text for _, cell, text in steps if cell is not None}
    finally:
        engine.close()


def test_a_crash_in_a_bundle_costs_the_cell_that_was_measured(tmp_path: Path) -> None:
    found = texts(tmp_path, ("ste", "reinforce", *broken("Aborting"), "arsm", "gst"))
    assert {name for name, text in found.items() if '"status": "crash"' in text} == {"Aborting"}
    assert len(found) == 5
    assert "in surrogate" in found["Aborting"]


def test_a_worker_that_computes_too_long_is_ended_by_its_processor_time(tmp_path: Path) -> None:
    found = texts(tmp_path, broken("Busy"), limit=2.0)
    assert "took longer than 2 s of CPU time; raise --timeout" in found["Busy"]
    assert "in surrogate" in found["Busy"]


@pytest.mark.skipif(sys.platform == "win32", reason="calls sleep of the C library")
def test_a_worker_that_waits_with_the_gil_is_ended(tmp_path: Path) -> None:
    found = texts(tmp_path, (*broken("Holding"), "ste"), limit=1.25)
    assert "took longer than 1.25 s; raise --timeout" in found["Holding"]
    assert "Timeout (0:00:05)!" in found["Holding"]
    assert "in surrogate" in found["Holding"]
    assert '"status": "timeout"' not in found["ste"]


def test_a_worker_that_leaves_says_its_exit_code(tmp_path: Path) -> None:
    found = texts(tmp_path, (*broken("Exiting"), "ste"), limit=math.inf)
    assert "the worker died with exit code 7" in found["Exiting"]
    assert '"status"' not in found["ste"]


def test_a_run_ends_if_no_worker_can_be_started(tmp_path: Path) -> None:
    (tmp_path / "logs" / "worker-1.log").mkdir(parents=True)  # so that no worker can open it
    with pytest.raises(OSError, match="no worker could be started: several died before they were ready"):
        run(SMALL, tmp_path, machine=Machine(jobs=1))
