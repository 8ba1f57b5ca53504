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
        self.name, self.script, self.given, self.killed = name, list(script), [], False
        self.inbox = [self.script.pop(0)]

    def give(self, cells):
        self.given.append(cells)
        for cell in cells:
            act = self.script.pop(0) if self.script else "done"
            self.inbox.append(Done(encode(cell, [], 0.0)) if act == "done" else act)

    def heard(self):
        return self.inbox.pop(0) if self.inbox else None

    def kill(self, *, traceback=False):
        self.killed = True
        return "last words" if traceback else ""


class PaperEngine(Engine):
    def __init__(self, *scripts, retries=0, bundle=0.0):
        self.scripts, self.retries, self.workers, self.hired, self.most = list(scripts), retries, [], [], 0
        self.bundle = bundle

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


@pytest.mark.parametrize(
    ("seconds", "cpu", "excess"),
    [
        (9.0, 9.0, ""),
        (100.0, 9.0, ""),  # a busy machine
        (100.0, 11.0, "took longer than 10 s of CPU time"),
        (100.0, 1.0, "took longer than 10 s"),  # it waits for something
        (11.0, None, "took longer than 10 s"),
    ],
)
def test_limits_are_seconds_of_a_processor(monkeypatch, seconds, cpu, excess):
    worker = Paper("", [Ready()])
    hired = dispatch._Hired(worker, since=0.0, cpu_since=None if cpu is None else 50.0, limit=10.0)
    monkeypatch.setattr(dispatch.time, "monotonic", lambda: seconds)
    monkeypatch.setattr(worker, "cpu_seconds", lambda: None if cpu is None else 50.0 + cpu)
    assert hired.overdue(threads=1) == excess
    assert hired.overdue(threads=2) == ("" if cpu == 11.0 else excess)


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


# Bundles.

MANY = grid(dataclasses.replace(SMALL, estimators=("reinforce*", "arsm", "ste"), stages=("init", "early", "final"))).cells[:24]


def of_many(engine: PaperEngine, limit: float = 1e9, seconds: float = 0.25) -> dict[str, str]:
    """The status of each of `MANY`, in the order in which they were finished; of a cell that is measured ``""``."""
    dispatcher = Dispatcher(SMALL, Path("unused"), engine, lambda cell: limit, lambda cell: seconds)
    results = [result for result in dispatcher.measured(MANY, 1) if result is not None]
    assert len(results) == len(MANY) == 24
    return {cell.identity: json.loads(text)["shared"].get("status", "") for cell, text in results}


def sizes(worker: Paper) -> list[int]:
    return [len(cells) for cells in worker.given]


def test_a_bundle_takes_its_seconds_and_at_most_half_of_an_equal_share():
    engine = PaperEngine(bundle=1.0)
    assert list(of_many(engine)) == [cell.identity for cell in MANY]
    assert sizes(engine.workers[0]) == [4, 4, 4, 4, 4, 2, 1, 1]


def test_a_bundle_has_a_largest_number_of_cells(monkeypatch):
    monkeypatch.setattr(dispatch, "LARGEST", 3)
    engine = PaperEngine(bundle=1.0)
    of_many(engine, seconds=0.0)
    assert sizes(engine.workers[0]) == [3, 3, 3, 3, 3, 3, 3, 1, 1, 1]


def test_signs_of_life_come_once_a_second(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(dispatch.time, "monotonic", lambda: clock[0])
    engine = PaperEngine(bundle=1.0)
    engine.wait = lambda workers, seconds: clock.__setitem__(0, clock[0] + 0.25)
    signs = [result is None for result in Dispatcher(SMALL, Path("unused"), engine, lambda cell: 1e9).measured(MANY, 1)]
    assert signs.count(False) == len(MANY)
    assert signs.count(True) == len(MANY) // 4


def test_an_engine_without_bundles_gives_cell_by_cell():
    engine = PaperEngine()
    of_many(engine, seconds=0.0)
    assert sizes(engine.workers[0]) == [1] * 24


def test_a_lost_worker_costs_the_cell_that_it_was_at_and_the_rest_of_its_bundle_goes_elsewhere():
    engine = PaperEngine([Ready(), "done", Dead(DEATH, lost=True)], bundle=1.0)
    found = of_many(engine)
    assert [place for place, status in enumerate(found.values()) if status] == [1]
    assert list(found) == [cell.identity for cell in MANY], "a cell that was heard of was measured again, or one not heard of came late"


def test_a_cell_that_lost_a_worker_goes_alone():
    engine = PaperEngine([Ready(), "done", Dead(DEATH, lost=True)], retries=1, bundle=1.0)
    assert not any(of_many(engine).values())
    assert engine.workers[1].given[0] == (MANY[1],)
    assert engine.workers[1].given[1] == MANY[2:6]


def test_a_cell_that_lost_a_worker_is_not_put_behind_another():
    engine = PaperEngine([Ready()], bundle=1.0)
    dispatcher = Dispatcher(SMALL, Path("unused"), engine, lambda cell: 1e9, lambda cell: 0.25)
    dispatcher.lost[MANY[2].identity] = 1
    list(dispatcher.measured(MANY, 1))
    assert engine.workers[0].given[:3] == [MANY[:2], (MANY[2],), MANY[3:7]]


def test_a_cell_that_hangs_in_a_bundle_costs_itself():
    engine = PaperEngine([Ready(), "done", None], bundle=1.0)
    assert [status for status in of_many(engine, limit=0.0).values() if status] == ["timeout"]
    assert engine.workers[0].killed
    assert engine.workers[1].given[0] == MANY[2:6]


def test_every_cell_of_a_bundle_has_its_own_time(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(dispatch.time, "monotonic", lambda: clock[0])

    class Ticking(Paper):
        def heard(self):
            clock[0] += 3.0
            return None if int(clock[0]) % 2 else super().heard()

    engine = PaperEngine(bundle=1.0)
    engine.hire = lambda directory, place: Ticking("ticking", [Ready()])
    assert not any(of_many(engine, limit=10.0).values()), "six seconds each, but more than ten together"


def test_after_a_worker_without_memory_the_rest_of_its_bundle_goes_elsewhere():
    text = encode(MANY[0], [], 0.0).replace('"rows": []', '"rows": [{"status": "oom"}]')
    engine = PaperEngine([Ready(), Done(text)], bundle=1.0)
    assert len(of_many(engine)) == 24
    assert engine.workers[1].given[0] == MANY[1:5]


def test_what_is_stopped_ends_with_the_cells_that_are_being_measured():
    dispatcher = Dispatcher(SMALL, Path("unused"), PaperEngine(bundle=1.0), lambda cell: 1e9, lambda cell: 0.25)
    heard = []
    for result in dispatcher.measured(MANY, 1):
        if result is not None:
            heard.append(result[0])
            dispatcher.stop()
    assert heard == list(MANY[:2])
