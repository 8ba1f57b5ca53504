"""A stored cell is measured again bit-identically; changed numbers are named."""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from structgrad.suites.base import SCHEMA_VERSION
from structgrad.suites.measures.suite import Effort
from structgrad.suites.problems.score_files import Convention, ScoreFile
from structgrad.suites.running.planning.plan import Machine, Plan, Portion
from structgrad.suites.running.replay_cell import cells_of, find_cells, plan_from, plan_of_run, raise_live, replay_cell
from structgrad.suites.running.runner import run
from structgrad.suites.running.store import Store
from tests.suites.running_cases import forget, rewrite

FAILING = "tests.suites.broken_estimators:Failing"
PLAN = Plan(
    suites=("bias", "sparsity"),
    problems=("categorical_regimes",),
    stages=("h=0.95",),
    estimators=("rloo", "imle", FAILING),
    instances=1,
    effort=Effort(replicates=64, most_replicates=64),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    run(PLAN, path, machine=Machine(jobs=0))
    (path / "run.json").write_text(json.dumps({"schema_version": SCHEMA_VERSION, "plan": dataclasses.asdict(PLAN)}))
    return path


def test_the_plan_comes_back(folder: Path) -> None:
    assert plan_of_run(folder) == PLAN


def test_a_plan_with_everything_comes_back() -> None:
    file = ScoreFile("scores.npz", "subset[k=2]", convention=Convention(temperature=2.0))
    plan = dataclasses.replace(PLAN, file=file, portions=(("memory", Portion(1, 2)),))
    settings = json.loads(json.dumps(dataclasses.asdict(plan)))
    assert plan_from(settings) == plan
    assert plan_from({**settings, "effort": {**settings["effort"], "strict": True}}) == plan
    for name in ("effort", "file"):
        with pytest.raises(ValueError, match=rf"Unexpected keyword argument at {name}.colour"):
            plan_from({**settings, name: {**settings[name], "colour": 1}})
    with pytest.raises(ValueError, match=r"Unexpected keyword argument at portions.0.1.colour"):
        plan_from({**settings, "portions": [["memory", {"colour": 1}]]})


@pytest.mark.parametrize("pattern", ["bias categorical_regimes h=0.95 imle", "bias*rloo", "sparsity*rloo"])
def test_a_cell_comes_out_bit_identical(folder: Path, pattern: str) -> None:
    (cell,) = find_cells(cells_of(folder), pattern)
    found = replay_cell(folder, PLAN, cell)
    assert found.differences == ()
    assert found.rows > 3
    assert not found.is_timed


def test_a_number_that_moved_is_named(folder: Path, tmp_path: Path) -> None:
    (cell,) = find_cells(cells_of(folder), "bias*imle")
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    with Store(tmp_path) as store:
        gain, snr = (next(row for row in store.rows() if (row.cell, row.metric) == (cell.identity, name)) for name in ("gain", "snr"))
    rewrite(tmp_path, cell.identity, lambda row: replace(row, value=row.value * (1 + 1e-12)) if row == gain else row)
    rewrite(tmp_path, cell.identity, lambda row: None if row == snr else row)
    lost, moved = sorted(replay_cell(tmp_path, PLAN, cell).differences, key=lambda one: one.row[2] == "gain")
    assert (lost.row[2], lost.column, lost.stored, lost.measured) == ("snr", "row", None, "there")
    assert (moved.row[2], moved.column, moved.relative) == ("gain", "value", pytest.approx(1e-12, rel=1e-3))


def test_a_failed_cell_fails_again_and_shows_where(folder: Path) -> None:
    (cell,) = find_cells(cells_of(folder), f"bias*{FAILING}")
    found = replay_cell(folder, PLAN, cell)
    assert found.differences == ()
    assert "RuntimeError: a mistake" in found.traceback
    with pytest.raises(RuntimeError, match="a mistake"):
        raise_live(PLAN, cell)


def test_cells_are_found_by_the_beginning_of_their_names(folder: Path) -> None:
    cells = cells_of(folder)
    assert [find_cells(cells, cell.identity[:8]) for cell in cells] == [[cell] for cell in cells]
    assert len(find_cells(cells, "bias")) == 3
    with pytest.raises(ValueError, match=r"`replay` got 'bias categorical_regimes h=0.95 rlo0', which is no cell.*h=0.95 rloo"):
        find_cells(cells, "bias categorical_regimes h=0.95 rlo0")


def test_what_cannot_be_replayed(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"expected the folder of a run"):
        plan_of_run(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run.json cannot be read"):
        plan_of_run(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"schema_version": SCHEMA_VERSION + 1, "plan": {}}))
    with pytest.raises(ValueError, match=r"has the schema version"):
        plan_of_run(tmp_path)
    with pytest.raises(ValueError, match=r"the setting 'colour'"):
        plan_from({"colour": 1})
    forget(shutil.copytree(folder, tmp_path / "run"), cells_of(folder)[0].identity)
    with pytest.raises(ValueError, match=r"nothing stored of bias"):
        replay_cell(tmp_path / "run", PLAN, cells_of(folder)[0])
