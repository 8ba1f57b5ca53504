"""A finished run that is asked for again says the same at once; whatever was touched, it is looked at anew."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from structgrad.reports import results
from structgrad.reports.verbs.run import again, launch, stamps
from structgrad.suites.running import cell_writer, store
from structgrad.suites.running.parts import whole_run
from tests.reports.calling import FEW, SMALL, call


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, as it was left."""
    folder = tmp_path_factory.mktemp("again") / "run"
    assert call(*SMALL, *FEW, "-e", "ste", "--out", folder).exit_code == 0
    shutil.copytree(folder, folder.with_name("kept"))
    return folder


@pytest.fixture
def folder(finished: Path) -> Path:
    """The finished run at its place, for as long as a test does with it what it likes: what was said names the place."""
    shutil.rmtree(finished)
    shutil.copytree(finished.with_name("kept"), finished)
    return finished


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How often a run was planned."""
    found: list[str] = []
    real = launch.planned
    monkeypatch.setattr(launch, "planned", lambda *given: found.append("planned") or real(*given))
    return found


def repeated(folder: Path, *more: object, estimator: str = "ste") -> str:
    result = call(*SMALL, *FEW, "-e", estimator, "--out", folder, *more)
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("voice", [(), ("--quiet",), ("--verbose",), ("--json",)])
def test_the_same_is_said_without_planning(folder: Path, planned: list[str], voice: tuple[str, ...]) -> None:
    (folder / again.FILE).unlink()
    looked_at = repeated(folder, *voice)
    before = stamps.of_folder(folder, ".")
    assert repeated(folder, *voice) == looked_at
    assert planned == ["planned"]
    assert stamps.of_folder(folder, ".") == before


def cell_of(folder: Path) -> Path:
    return next((folder / "cells").glob("*/*.json"))


TOUCHED: dict[str, Callable[[Path], object]] = {
    "a cell that is gone": lambda folder: cell_of(folder).unlink(),
    "a cell that is cut off": lambda folder: cell_of(folder).write_text(cell_of(folder).read_text()[:40]),
    "a cell of another time": lambda folder: os.utime(cell_of(folder), (1, 1)),
    "a table that is cut off": lambda folder: (folder / results.TABLE).write_bytes(b"PAR1"),
    "another page": lambda folder: (folder / results.PAGE).write_text("mine"),
    "another manifest": lambda folder: results.write_manifest(folder, {"status": "running"}),
    "another plan": lambda folder: (folder / store.PLAN).write_text(""),
    "half of what was said": lambda folder: (folder / again.FILE).write_text((folder / again.FILE).read_text()[:-9]),
    "something else that was said": lambda folder: (folder / again.FILE).write_text("[]"),
}


@pytest.mark.parametrize("touch", TOUCHED)
def test_what_was_touched_is_looked_at(folder: Path, planned: list[str], touch: str) -> None:
    page = (folder / results.PAGE).read_text()
    TOUCHED[touch](folder)
    repeated(folder)
    assert planned == ["planned"]
    assert results.manifest_of(folder)["status"] == "finished"
    assert len((folder / results.PAGE).read_text()) == pytest.approx(len(page), rel=0.01)


def test_another_request_is_planned(folder: Path, planned: list[str]) -> None:
    repeated(folder, "--seed", 5)
    repeated(folder, estimator="rloo")
    repeated(folder, "--fresh")
    assert planned == ["planned"] * 3


def test_other_code_is_looked_at(folder: Path, planned: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamps, "of_code", lambda: "other")
    repeated(folder)
    assert planned == ["planned"]


def test_a_class_of_ones_own_is_always_looked_at() -> None:
    options = {
        "estimator": ["ste"],
        "problem": ["chain_regimes", "task:clusters", "subset[n=4,k=2]"],
        "oracle": None,
        "device": "cpu",
        "data": None,
        "builtin": True,
        "out": None,
    }
    options |= dict.fromkeys(("file", "plugin", "rerun", "fresh", "dry_run"))
    assert again.request(options) is not None
    assert again.request({**options, "estimator": ["./mine.py:Mine"]}) is None
    assert again.request({**options, "problem": ["./mine.py:Mine[n=8]"]}) is None
    assert again.request({**options, "problem": ["task:./mine.py:task"]}) is None
    assert again.request({**options, "plugin": ["mine.py"]}) is None
    assert again.request({**options, "device": "cuda"}) is None
    assert again.request({**options, "rerun": "failed"}) is None


def test_what_follows_from_code_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made: list[int] = []

    def make() -> list[int]:
        made.append(1)
        return list(made)

    assert [stamps.kept("it", make) for _ in range(2)] == [[1]] * 2
    next(tmp_path.glob("structgrad/it-*.json")).write_text("{")
    assert stamps.kept("it", make) == [1, 1]
    monkeypatch.setattr(stamps, "of_code", lambda: "other")
    assert stamps.kept("it", make) == [1, 1, 1]


def test_a_run_of_too_many_rows_to_be_held_has_the_same_table_and_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, sizes = results.read(folder)[0], results.manifest_of(folder)["catalogue"]
    monkeypatch.setattr(whole_run, "MOST", 0)
    monkeypatch.setattr(cell_writer, "BATCH", 1)
    said = call(*SMALL, *FEW, "-e", "ste", "--out", folder, "--rerun", "ste", "--json")
    assert said.exit_code == 0
    path = folder / results.PAGE
    assert f"report:  {path}" in said.stderr
    assert (json.loads(said.stdout)["ok"], json.loads(said.stdout)["report"]) == (1, str(path))
    large, manifest = results.read(folder)
    assert manifest["catalogue"] == sizes
    # Anything but the time that the cell took is as it was.
    pd.testing.assert_frame_equal(large.drop(columns="seconds"), small.drop(columns="seconds"), check_categorical=False)


def test_another_run_into_the_folder_says_what_becomes_of_the_one_before(folder: Path) -> None:
    other = repeated(folder, estimator="identity")
    command = json.loads((folder.with_name("kept") / results.MANIFEST).read_text())["command"]
    assert f"{folder} holds a run with 1 other cell:" in other
    assert f"its command gives it again: {command}; another --out keeps both" in other
    assert set(results.read(folder)[0]["estimator"]) >= {"identity"}
    assert "other cell" not in repeated(folder, "-e", "ste", estimator="identity")
    assert "holds a run with 1 other cell:" in repeated(folder)
    assert results.read(folder)[0].equals(results.read(folder.with_name("kept"))[0])
