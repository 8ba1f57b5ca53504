"""``structgrad replay``."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from typer.testing import Result

from structgrad.suites.running.replay_cell import cells_of, find_cells
from tests.reports.calling import call, refused
from tests.suites.running.test_replay_cell import FAILING, folder
from tests.suites.running_cases import rewrite

__all__ = ["folder"]  # the fixture


def replay(*words: object) -> Result:
    return call("replay", *words)


def test_an_identical_cell(folder: Path) -> None:
    found = replay("bias*rloo", "--run", folder)
    assert found.exit_code == 0
    assert "bias categorical_regimes h=0.95 rloo: bit-identical" in found.stdout


def test_a_cell_that_differs(folder: Path, tmp_path: Path) -> None:
    (cell,) = find_cells(cells_of(folder), "sparsity*imle")
    folder = shutil.copytree(folder, tmp_path / "changed")
    rewrite(folder, cell.identity, lambda row: replace(row, value=row.value + 1.0) if row.value else row)
    found, record = replay(cell.identity[:10], "--run", folder), replay(cell.identity, "--run", folder, "--json")
    assert (found.exit_code, record.exit_code) == (1, 1)
    assert "differs in" in found.stdout
    assert "value: stored" in found.stdout
    (result,) = json.loads(record.stdout)
    assert result["differs"]
    assert not result["identical"]
    assert {difference["column"] for difference in result["differences"]} == {"value"}


def test_a_failed_cell_shows_its_traceback(folder: Path) -> None:
    found = replay(f"bias*{FAILING}", "--run", folder)
    assert found.exit_code == 0
    assert "RuntimeError: a mistake" in found.stdout


def test_several_cells(folder: Path) -> None:
    several = replay("sparsity", "--run", folder)
    assert several.exit_code == 2
    assert "matches 3 cells; name one of them, or use --all" in several.stderr
    every = replay("sparsity", "--run", folder, "--all", "--json")
    assert every.exit_code == 0
    assert [record["identical"] for record in json.loads(every.stdout)] == [True] * 3


def test_bad_input(folder: Path, tmp_path: Path) -> None:
    assert "which is no cell of the run" in refused("replay", "nothing", "--run", folder)
    assert "Missing argument" in refused("replay", "--run", folder)
    assert "expected the folder of a run" in refused("replay", "bias", "--run", tmp_path)
