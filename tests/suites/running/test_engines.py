"""Cells on workers: bundles, crashes, retries, limits; a failure in a cell costs only that cell, and is a row with its reason."""

import dataclasses
import math
import multiprocessing
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path

import pytest

from structgrad.suites.base import Row
from structgrad.suites.measures import SUITES
from structgrad.suites.measures.suite import Finding, Suite
from structgrad.suites.running.engines import local
from structgrad.suites.running.engines.local import LocalEngine
from structgrad.suites.running.planning.grid import grid
from structgrad.suites.running.planning.plan import Machine
from structgrad.suites.running.runner import run
from structgrad.suites.running.store import Store, scratch_path
from structgrad.suites.running.work import Busy, Cell, Snapshot
from tests.suites.broken_estimators import NOTICED, Failing
from tests.suites.running_cases import HERE, SMALL, broken, comparable, kept

PLAN = dataclasses.replace(SMALL, estimators=("reinforce*", "arsm", "ste"), stages=("init", "early", "final"))
many = cache(lambda: grid(PLAN).cells[:24])  # made in a test: grids load compiled kernels


class Scripted:
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


class ScriptedEngine(LocalEngine):
    def __init__(self, *scripts: list[int], bundle: float = 0.0) -> None:
        super().__init__(PLAN, Machine(), Path("unused"), lambda cell: 1.0)
        self.scripts, self.bundle, self.started = list(scripts), bundle, list[Scripted]()

    def places(self) -> int:
        return max(len(self.scripts), 1)

    def start_worker(self, place: int) -> Scripted:
        self.started.append(Scripted(self.scripts[place] if self.scripts else []))
        return self.started[-1]


def order(engine: LocalEngine, seconds: float = 0.25, stops: Callable[[], bool] = lambda: False, cells: Sequence[Cell] = ()) -> list[Cell]:
    return [cell for _, cell, _ in engine.measured(cells or many(), lambda cell: seconds, stops) if cell is not None]


@pytest.mark.parametrize(
    ("bundle", "seconds", "expected"), [(1.0, 0.25, [4, 4, 4, 4, 4, 2, 1, 1]), (0.0, 0.0, [1] * 24), (1.0, 0.0, [12, 6, 3, 1, 1, 1])]
)
def test_a_bundle_takes_its_seconds_and_at_most_half_of_an_equal_share(bundle: float, seconds: float, expected: list[int]) -> None:
    engine = ScriptedEngine(bundle=bundle)
    assert order(engine, seconds) == list(many())
    assert [len(cells) for cells in engine.started[0].given] == expected


def test_cells_that_are_lost_are_the_next_ones_and_workers_take_cells_of_different_scores() -> None:
    engine = ScriptedEngine([3], bundle=1.0)
    assert order(engine) == list(many())
    assert engine.started[0].given[1] == list(many()[1:5])
    engine = ScriptedEngine([], [], [])
    assert sorted(order(engine), key=repr) == sorted(many(), key=repr)
    first = [worker.given[0][0].scores for worker in engine.started]
    assert len(set(first)) == len({cell.scores for cell in many()})


def test_exclusive_cells_come_last_on_one_worker() -> None:
    cells = grid(dataclasses.replace(PLAN, suites=("wall_clock", "bias"))).cells
    engine = ScriptedEngine([], [])
    assert [cell.kind.exclusive for cell in order(engine, cells=cells)] == sorted(cell.kind.exclusive for cell in cells)
    first, second = engine.started
    assert second.closed
    assert {cell.suite for cells in first.given for cell in cells} >= {"wall_clock"}
    assert {cell.suite for cells in second.given for cell in cells} == {"bias"}
    engine.close()
    assert first.closed


# Processes.


@pytest.fixture(autouse=True, scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Workers are forks of a process that has imported all, so that each starts at once; the file that ends the pretended compilation.

    Those of users are spawned, as the tests of whole commands have them.
    """
    noticed = tmp_path_factory.mktemp("noticed") / "noticed"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(NOTICED, str(noticed))  # before the first worker: forks have the environment of then
        if "forkserver" in multiprocessing.get_all_start_methods():
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload([local.__name__, "scipy.stats", "torch.fx.experimental.symbolic_shapes"])
            patched.setattr(local, "_CONTEXT", context)
        yield noticed


def test_a_run_ends_if_no_worker_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "MAX_FAILED_STARTS", 1)
    (tmp_path / "logs" / "worker-1.log").mkdir(parents=True)  # so that no worker can open it
    with pytest.raises(OSError, match="no worker could be started: several died before they were ready"):
        run(SMALL, tmp_path, machine=Machine(jobs=1))


EXCEPTIONS = {
    "Failing": ("error", "RuntimeError", "RuntimeError: a mistake", "raise RuntimeError"),
    "Hungry": ("oom", "RuntimeError", "can't allocate memory", "torch.empty"),
}
FAILURES = {
    # Its 5 s pass while the other worker has the rest.
    "Holding": ("timeout", "", "took longer than 1.25 s; raise --timeout", "Timeout (0:00:05)!"),
    "Aborting": ("crash", "SIGABRT", "the worker died of SIGABRT", "in surrogate"),
    "Killed": ("oom", "SIGKILL", "the worker was killed by SIGKILL, as the kernel does when memory runs out", ""),
    "Greedy": ("oom", "RuntimeError", "can't allocate memory", "torch.zeros"),
    "Exiting": ("crash", "", "the worker died with exit code 7", ""),
    "Hanging": ("timeout", "", "took longer than 1.25 s; raise --timeout", "about to hang"),
    "Busy": ("timeout", "", "took longer than 1.25 s of CPU time; raise --timeout", "in surrogate"),
}
if sys.platform == "win32":
    del FAILURES["Holding"]  # calls sleep of the C library
RIGHT = ("gst", *broken("Compiling"), "arsm", "ste")
"""Estimators with which nothing goes wrong, of sampled and of exact numbers; one pretends to compile until that is noticed."""


def check(row: Row, expected: tuple[str, str, str, str]) -> None:
    status, kind, reason, traceback = expected
    assert (row.status, row.error_type) == (status, kind)
    assert reason in row.reason
    assert traceback in row.traceback
    assert (row.suite, row.problem, row.value) == ("bias", "categorical_regimes", None)
    assert row.seconds > 0


def test_an_exception_is_a_row_with_its_reason(tmp_path):
    for row in run(dataclasses.replace(SMALL, estimators=broken(*EXCEPTIONS)), tmp_path, machine=HERE):
        check(row, EXCEPTIONS[row.estimator.rpartition(":")[2]])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> list[Row]:
    """The rows of a run in this process, which no kill disturbs."""
    plan = dataclasses.replace(SMALL, estimators=(*broken("Killed"), *RIGHT[::-1]), instances=1)
    return comparable(run(plan, tmp_path_factory.mktemp("undisturbed"), machine=HERE))


@pytest.fixture(scope="module")
def disturbed(forks, undisturbed, tmp_path_factory) -> tuple[list[Row], tuple[Cell, ...], Path]:
    """The rows of a run by workers with all kinds of failure, its cells, and where it lies."""
    folder = tmp_path_factory.mktemp("disturbed")
    plan = dataclasses.replace(SMALL, estimators=(*RIGHT, *broken(*FAILURES)), instances=1)

    def progress(snapshot: Snapshot) -> None:
        if any(busy.compiling for busy in snapshot.busy):
            forks.touch()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(local, "TICK", 0.1)
        rows = run(plan, folder, machine=Machine(jobs=2, timeout=1.25, memory=2.0), progress=progress)
    return rows, grid(plan).cells, folder


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_costs_its_cell_which_says_why(disturbed, name):
    (row,) = [row for row in disturbed[0] if row.estimator.endswith(f":{name}")]
    check(row, FAILURES[name])


def test_workers_their_deaths_and_the_order_of_cells_change_no_number(disturbed, undisturbed):
    rows, same = ([row for row in found if row.estimator in RIGHT] for found in (disturbed[0], undisturbed))
    assert {row.status for row in rows} == {"ok"}
    assert sorted(comparable(rows), key=repr) == sorted(same, key=repr)


def test_only_failed_cells_are_measured_again(disturbed, undisturbed, tmp_path):
    shutil.copytree(disturbed[2], tmp_path, dirs_exist_ok=True)
    with Store(tmp_path) as store:
        kinds = store.known()
    assert [kinds[cell.identity][0] for cell in disturbed[1]] == ["done"] * len(RIGHT) + ["failed"] * len(FAILURES)
    plan = dataclasses.replace(SMALL, estimators=(*broken("Killed"), *RIGHT[::-1]), instances=1)
    before = kept(tmp_path)
    assert comparable(run(plan, tmp_path, machine=HERE)) == undisturbed
    assert len(kept(tmp_path).items() - before.items()) == 1


def test_logs_hold_the_cells_that_printed_and_no_scratch_folder_stays(disturbed):
    _, cells, folder = disturbed
    logs = "".join(path.read_text() for path in (folder / "logs").glob("worker-*.log"))
    logged = {cell.estimators[0].rpartition(":")[2] for cell in cells if f"== {cell.label}\n" in logs}
    assert {"Aborting", "Hanging"} <= logged
    assert "ste" not in logged
    assert not any(scratch_path(folder, cell).exists() for cell in cells)


def test_a_number_that_is_not_finite_has_a_status_of_its_own(tmp_path, monkeypatch):
    class Odd(Suite):
        name = "sparsity"
        summary = "odd numbers"

        def findings(self, problem, estimators, context):
            for name in estimators:
                yield Finding(name, "support", math.nan, 0.0, 1.0)
                yield Finding(name, "rho", math.inf)
                yield Finding(name, "gain", 1.0, math.nan, math.inf)
                yield Finding(name, "cosine", None)

    monkeypatch.setitem(SUITES, "sparsity", Odd)
    plan = dataclasses.replace(SMALL, suites=("sparsity",), estimators=("ste",))
    rows = run(plan, tmp_path, machine=HERE)
    assert [(row.status, row.reason, row.value, row.low, row.high) for row in rows] == [
        ("nonfinite", "the value is nan", None, None, None),
        ("nonfinite", "the value is inf", None, None, None),
        ("ok", "", 1.0, None, math.inf),
        ("ok", "", None, None, None),
    ]
    with Store(tmp_path) as store:
        assert [kind for kind, _ in store.known().values()] == ["nonfinite"]


def failing(*before: str, alone: bool = True) -> type[Suite]:
    """A suite of all estimators together, which fails after findings of some names, at a broken estimator or (not alone) at several."""

    class Together(Suite):
        name = "sparsity"
        summary = "side by side"
        together = True

        def findings(self, problem, estimators, context):
            for name in before:
                yield Finding(name, "support", 1.0)
            if before or (len(estimators) > 1 and not alone):
                raise RuntimeError("a mistake")
            for name, estimator in estimators.items():
                if isinstance(estimator, Failing):
                    raise RuntimeError("a mistake")
                yield Finding(name, "support", float(len(estimators)))

    return Together


@pytest.mark.parametrize(
    ("suite", "estimators", "expected"),
    [
        (failing(), (*broken("Failing"), "ste", "imle"), [("ste", "ok", 2.0), ("imle", "ok", 2.0), (*broken("Failing"), "error", None)]),
        (failing(alone=False), ("ste", "imle"), [("ste", "error", None), ("imle", "error", None)]),
        (failing("ste"), ("ste",), [("ste", "ok", 1.0), ("ste", "error", None)]),
    ],
    ids=["a broken estimator costs its own rows", "a failure of none alone is that of all", "rows before a failure are kept"],
)
def test_failures_of_estimators_side_by_side(tmp_path, monkeypatch, suite, estimators, expected):
    monkeypatch.setitem(SUITES, "sparsity", suite)
    rows = run(dataclasses.replace(SMALL, suites=("sparsity",), estimators=estimators), tmp_path, machine=HERE)
    assert [(row.estimator, row.status, row.value) for row in rows] == expected
    assert {row.reason for row in rows if row.status == "error"} == {"RuntimeError: a mistake"}
