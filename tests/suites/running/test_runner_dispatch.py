"""Giving cells to workers that may die, with workers made of paper."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from structgrad.suites.running import dispatch
from structgrad.suites.running.cells import Failure
from structgrad.suites.running.dispatch import HOPELESS, Dispatcher
from structgrad.suites.running.engines.base import Dead, Done, Engine, Ready, Worker
from structgrad.suites.running.planning.grid import grid
from structgrad.suites.running.store import encode
from tests.suites.running_cases import SMALL

CELLS = grid(SMALL).cells
DEATH = Failure("crash", "a death")


class Paper(Worker):
    """Does what a script says: one entry for its start, one for each cell."""

    def __init__(self, name, script):
        self.name, self.script, self.cell, self.killed = name, list(script), None, False
        self.inbox = [self.script.pop(0)]

    def give(self, cell):
        self.cell = cell
        act = self.script.pop(0) if self.script else "done"
        self.inbox.append(Done(encode(cell, [], 0.0)) if act == "done" else act)

    def heard(self):
        return self.inbox.pop(0) if self.inbox else None

    def kill(self, *, traceback=False):
        self.killed = True
        return "last words" if traceback else ""


class PaperEngine(Engine):
    def __init__(self, *scripts, retries=0):
        self.scripts, self.retries, self.workers, self.hired, self.most = list(scripts), retries, [], [], 0

    def places(self):
        return 2

    def hire(self, directory, place):
        self.hired.append(place)
        self.workers.append(Paper(f"w{len(self.workers)}", self.scripts.pop(0) if self.scripts else [Ready()]))
        return self.workers[-1]

    def wait(self, workers, seconds):
        self.most = max(self.most, len(workers))


def finished(engine: PaperEngine, places: int = 2, limit: float = 1e9) -> dict[str, str]:
    """The status of every cell, by its estimator; of a cell that is measured ``""``."""
    dispatcher = Dispatcher(SMALL, Path("unused"), engine, lambda cell: limit)
    results = [result for result in dispatcher.measured(CELLS, places) if result is not None]
    dispatcher.close()
    found = {cell.estimators[0]: json.loads(text)["shared"].get("status", "") for cell, text in results}
    assert len(results) == len(found) == len(CELLS)
    return found


def test_every_cell_is_measured_once_and_all_workers_are_ended():
    engine = PaperEngine()
    assert finished(engine) == {"reinforce": "", "arsm": "", "ste": ""}
    assert all(worker.killed for worker in engine.workers)


@pytest.mark.parametrize("places", [1, 2])
def test_no_more_workers_than_places(places):
    engine = PaperEngine()
    finished(engine, places)
    assert engine.most == places


def test_a_worker_that_dies_costs_its_cell_and_is_replaced():
    engine = PaperEngine([Ready(), Dead(DEATH)])
    assert finished(engine, places=1) == {"reinforce": "crash", "arsm": "", "ste": ""}
    assert len(engine.workers) == 2


def test_a_worker_that_dies_before_it_is_ready_costs_one_cell():
    assert finished(PaperEngine([Dead(DEATH)]), places=1) == {"reinforce": "crash", "arsm": "", "ste": ""}


def test_where_no_worker_can_be_started_every_cell_says_so():
    engine = PaperEngine(*[[Dead(DEATH)]] * 99)
    many = grid(dataclasses.replace(SMALL, estimators=("reinforce*",))).cells
    results = [result for result in Dispatcher(SMALL, Path("unused"), engine, lambda cell: 1e9).measured(many, 1) if result is not None]
    assert [cell for cell, _ in results] == list(many)
    assert {json.loads(text)["shared"]["status"] for _, text in results} == {"crash"}
    assert len(engine.workers) == HOPELESS < len(many)


def test_while_one_worker_lives_the_start_of_others_is_given_up_after_a_few_deaths():
    engine = PaperEngine([Ready()], *[[Dead(DEATH)]] * 99)
    many = grid(dataclasses.replace(SMALL, estimators=("reinforce*",), stages=("init", "early", "final"))).cells
    results = [result for result in Dispatcher(SMALL, Path("unused"), engine, lambda cell: 1e9).measured(many, 2) if result is not None]
    statuses = [json.loads(text)["shared"].get("status", "") for _, text in results]
    assert len(results) == len(many)
    assert statuses.count("crash") == HOPELESS


def test_a_worker_that_is_not_ready_in_time_counts_as_dead(monkeypatch):
    engine = PaperEngine([None])
    engine.start_limit = 0.0
    assert finished(engine, places=1) == {"reinforce": "crash", "arsm": "", "ste": ""}


def test_a_cell_whose_worker_is_lost_is_tried_again_elsewhere():
    engine = PaperEngine([Ready(), Dead(DEATH, lost=True)], [Ready(), Dead(DEATH, lost=True)], retries=2)
    assert finished(engine, places=1) == {"reinforce": "", "arsm": "", "ste": ""}
    assert len(engine.workers) == 3


def test_a_cell_that_loses_every_worker_is_given_up():
    engine = PaperEngine(*[[Ready(), Dead(DEATH, lost=True)]] * 3, retries=2)
    assert finished(engine, places=1) == {"reinforce": "crash", "arsm": "", "ste": ""}


def test_a_worker_that_hangs_is_killed_and_its_last_words_are_kept(monkeypatch):
    engine = PaperEngine([Ready(), None])
    monkeypatch.setattr(dispatch.Dispatcher, "_finished", dispatch.Dispatcher._finished)
    assert finished(engine, places=1, limit=0.0)["reinforce"] == "timeout"
    assert engine.workers[0].killed


def test_a_worker_without_memory_is_replaced():
    text = encode(CELLS[0], [], 0.0).replace('"rows": []', '"rows": [{"status": "oom"}]')
    engine = PaperEngine([Ready(), Done(text)])
    dispatcher = Dispatcher(SMALL, Path("unused"), engine, lambda cell: 1e9)
    assert sum(result is not None for result in dispatcher.measured(CELLS, 1)) == 3
    assert len(engine.workers) == 2
    assert engine.workers[0].killed


def test_workers_have_places_and_what_needs_the_machine_alone_has_the_first() -> None:
    engine = PaperEngine([Ready(), Dead(DEATH)])
    dispatcher = Dispatcher(SMALL, Path("unused"), engine, lambda cell: 1e9)
    list(dispatcher.measured(CELLS, 2))
    assert engine.hired == [0, 1]
    assert [hired.place for hired in dispatcher.hired] == [1], "nothing was left for a worker in place of the dead one"
    list(dispatcher.measured(CELLS[:1], 1))
    assert engine.hired == [0, 1, 0]
    assert engine.workers[1].killed
    dispatcher.close()
