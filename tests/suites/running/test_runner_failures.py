"""A failure in a cell costs only that cell, and is a row with its reason."""

from __future__ import annotations

import dataclasses
import math
import shutil
from pathlib import Path

import pytest

from structgrad.suites.base import Row
from structgrad.suites.measures import SUITES
from structgrad.suites.measures.suite import Finding, Suite
from structgrad.suites.running.planning.grid import Cell, grid
from structgrad.suites.running.planning.plan import Machine
from structgrad.suites.running.runner import run
from structgrad.suites.running.store import Store, scratch_path
from tests.suites.broken_estimators import Failing
from tests.suites.running_cases import HERE, SMALL, broken, comparable, kept

EXCEPTIONS = {
    "Failing": ("error", "RuntimeError", "RuntimeError: a mistake", "raise RuntimeError"),
    "Hungry": ("oom", "RuntimeError", "can't allocate memory", "torch.empty"),
}
DEATHS = {
    "Aborting": ("crash", "SIGABRT", "the worker died of SIGABRT", "in surrogate"),
    "Killed": ("oom", "SIGKILL", "the worker was killed by SIGKILL, as the kernel does when memory runs out", ""),
    "Greedy": ("oom", "RuntimeError", "can't allocate memory", "torch.zeros"),
    "Hanging": ("timeout", "", "took longer than 10 s; raise --timeout", "about to hang"),
}
RIGHT = ("gst", "arsm", "ste")
"""Estimators with which nothing goes wrong, of sampled and of exact numbers."""


def check(row: Row, expected: tuple[str, str, str, str]) -> None:
    status, kind, reason, traceback = expected
    assert (row.status, row.error_type) == (status, kind)
    assert reason in row.reason
    assert traceback in row.traceback
    assert (row.suite, row.problem, row.value) == ("bias", "categorical_regimes", None)
    assert row.seconds > 0


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_an_exception_is_a_row_with_its_reason(tmp_path, name):
    (row,) = run(dataclasses.replace(SMALL, estimators=broken(name)), tmp_path, machine=HERE)
    check(row, EXCEPTIONS[name])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> list[Row]:
    """The rows of a run in this process, which no kill disturbs."""
    plan = dataclasses.replace(SMALL, estimators=(*broken("Killed"), *RIGHT[::-1]), instances=1)
    return comparable(run(plan, tmp_path_factory.mktemp("undisturbed"), machine=HERE))


@pytest.fixture(scope="module")
def disturbed(undisturbed, tmp_path_factory) -> tuple[list[Row], tuple[Cell, ...], Path]:
    """The rows of a run by workers with all kinds of death, its cells, and where it lies."""
    folder = tmp_path_factory.mktemp("disturbed")
    plan = dataclasses.replace(SMALL, estimators=(*RIGHT, *broken(*DEATHS)), instances=1)
    return run(plan, folder, machine=Machine(jobs=2, timeout=10.0, memory=2.0)), grid(plan).cells, folder


@pytest.mark.parametrize("name", DEATHS)
def test_a_worker_that_dies_costs_its_cell_which_says_why(disturbed, name):
    (row,) = [row for row in disturbed[0] if row.estimator.endswith(f":{name}")]
    check(row, DEATHS[name])


def test_workers_their_deaths_and_the_order_of_cells_change_no_number(disturbed, undisturbed):
    rows, same = ([row for row in found if row.estimator in RIGHT] for found in (disturbed[0], undisturbed))
    assert {row.status for row in rows} == {"ok"}
    assert sorted(comparable(rows), key=repr) == sorted(same, key=repr)


def test_only_failed_cells_are_measured_again(disturbed, undisturbed, tmp_path):
    shutil.copytree(disturbed[2], tmp_path, dirs_exist_ok=True)
    with Store(tmp_path) as store:
        kinds = store.known()
    assert [kinds[cell.identity][0] for cell in disturbed[1]] == ["done"] * len(RIGHT) + ["failed"] * len(DEATHS)
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
