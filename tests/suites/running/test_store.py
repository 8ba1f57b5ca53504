"""The database of a run: rows come back as they were, whenever its writer is killed, and damage is one sentence."""

import dataclasses
import json
import math
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from structgrad.suites.base import SCHEMA_VERSION, Row
from structgrad.suites.running import runner, store
from structgrad.suites.running.planning.grid import grid
from structgrad.suites.running.planning.plan import Plan
from structgrad.suites.running.store import LockedError, NewerSchemaError, OtherSchemaError, Store, locked
from structgrad.suites.running.work import Cell, Grid, decode, encode
from tests.covering import RUN
from tests.suites.running_cases import HERE, comparable, kept
from tests.suites.simulated import simulated_plan

ROW = Row("a", "bias", "p", "s", "", "o", "l", "e", "f", value=1.5, low=-math.inf, high=math.inf, p_value=0.0, seed=3, seconds=0.5)
ODD = dataclasses.replace(ROW, value=None, low=None, status="nonfinite", reason="ü\x00", vertex_degree=2, batches=(0.1, 1e-17))
FAILED = dataclasses.replace(ROW, metric="", value=None, status="error", reason="r", traceback="t")
CELLS = tuple(Cell(suite, "p", "s", ("e", "f[k=2]"), 3, name) for suite, name in (("bias", "a"), ("cost", "b"), ("bias", "c")))
SKIP = dataclasses.replace(ROW, cell="", suite="", value=None, low=None, high=None, seconds=None, status="skipped", reason="no")
WORK = Grid(CELLS, (SKIP,))


def keep(folder: Path, contents: dict[str, list[Row]], work: Grid = WORK) -> None:
    with Store(folder, write=True) as found:
        found.freeze(work)
        for identity, rows in contents.items():
            text = encode([dataclasses.replace(row, cell=identity) for row in rows], 0.5)
            found.keep(identity, text)


def test_rows_and_plans_come_back_as_they_were(tmp_path: Path) -> None:
    keep(tmp_path, {"c": [ROW], "a": [ROW], "other": [ROW]})
    keep(tmp_path, {"c": [ROW, ODD], "a": [FAILED], "b": []})  # a cell is there once, with its latest rows
    with Store(tmp_path) as found:
        assert found.planned() == Grid(CELLS, (SKIP,), places=(0, 1, 2))
        assert list(found.rows()) == [FAILED, dataclasses.replace(ROW, cell="c"), dataclasses.replace(ODD, cell="c"), SKIP]
        assert {name: kind for name, (kind, _) in found.known().items()} == {"a": "failed", "b": "done", "c": "nonfinite"}
        assert found.counts() == ({("bias", "failed"): 1, ("bias", "nonfinite"): 1, ("cost", "done"): 1}, 1)
        assert [cell.rows for cell in found.failed(3)] == [[FAILED]]
    assert [path.name for path in tmp_path.iterdir()] == [store.FILE]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\x00 no JSON",
        "null",
        "[]",
        "{}",
        '{"seconds": 1}',
        '{"seconds": 1, "rows": [{}]}',
        '{"seconds": 1, "rows": 3}',
        '{"seconds": "x", "rows": []}',
        '{"seconds": 1, "rows": [], "colour": 1}',
        "[" * 5000,
        *(
            json.dumps({"seconds": 1, "rows": [{**json.loads(encode([ROW], 1))["rows"][0], **change}]})
            for change in ({"value": "x"}, {"seed": 2**70}, {"seed": None}, {"batches": ["x"]}, {"suite": 2}, {"colour": 1})
        ),
    ],
)
def test_anything_but_rows_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(text)


def test_a_run_is_read_and_copied_while_it_is_written(tmp_path: Path) -> None:
    with Store(tmp_path, write=True) as found:
        found.freeze(Grid(CELLS, ()))
        text = encode([ROW], 0.5)
        found.keep("a", text)
        assert kept(tmp_path) == {"a": 0.5}
        (tmp_path / "copy").mkdir()
        (tmp_path / "copy" / store.FILE).write_bytes(found.copied())
    assert kept(tmp_path / "copy") == {"a": 0.5}


def test_a_second_process_does_not_write(tmp_path: Path) -> None:
    code = "import sys, pathlib; from structgrad.suites.running.store import locked\nwith locked(pathlib.Path(sys.argv[1])): pass"
    with locked(tmp_path):
        found = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
        assert f"LockedError: {tmp_path} is being written by another process; wait until" in found.stderr
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True).returncode == 0
    child = os.fork()
    if child == 0:
        with locked(tmp_path):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    with locked(tmp_path):
        pass
    assert issubclass(LockedError, ValueError)


# Other versions and damage.


@pytest.mark.parametrize(("version", "kind"), [(SCHEMA_VERSION + 1, NewerSchemaError), (SCHEMA_VERSION - 1, OtherSchemaError)])
def test_a_run_of_another_version_is_one_sentence(tmp_path: Path, version: int, kind: type[Exception]) -> None:
    keep(tmp_path, {"a": [ROW]})
    with sqlite3.connect(tmp_path / store.FILE) as base:
        base.execute(f"PRAGMA user_version={version}")
    with pytest.raises(kind, match=f"has the schema version {version}, this structgrad reads {SCHEMA_VERSION}"):
        Store(tmp_path)
    if kind is NewerSchemaError:
        with pytest.raises(kind, match="nothing was changed: upgrade structgrad"):
            Store(tmp_path, write=True)
    else:
        keep(tmp_path, {"b": [ROW]})
        assert set(kept(tmp_path)) == {"a", "b"}


@pytest.mark.parametrize(("length", "more"), [(10, 0), (5000, 0), (4096, 20_000)])
def test_a_damaged_file_is_one_sentence(tmp_path: Path, length: int, more: int) -> None:
    keep(tmp_path, {"a": [ROW], "b": [ODD] * 50})
    path = tmp_path / store.FILE
    path.write_bytes(path.read_bytes()[:length] + random.Random(0).randbytes(more))
    with pytest.raises(ValueError, match=r"cells.sqlite (cannot be read|has the schema version)"), Store(tmp_path) as found:
        found.planned(), found.known(), list(found.rows())


def test_a_folder_is_on_the_file_system_of_its_own_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"disk / ext4 rw 0 0\nhost:/ {tmp_path}/lab nfs4 rw 0 0\ndisk {tmp_path}/lab/a ext4 rw 0 0\n")
    found = {name: store._is_on_network(tmp_path / name, mounts) for name in ("lab", "lab/a", "lab/a/run", "lab/ab", "laboratory")}
    assert found == {"lab": True, "lab/a": False, "lab/a/run": False, "lab/ab": True, "laboratory": False}


# Kills.


def drive(plan: Plan, folder: Path, work: Grid, pipe: int) -> None:
    """Run a plan, and write the identity of each cell that was kept into a pipe."""
    real = Store.keep

    def told(self: Store, identity: str, text: str) -> Any:
        cell = real(self, identity, text)
        os.write(pipe, f"{identity} ".encode())
        return cell

    try:
        Store.keep = told  # type: ignore[method-assign]
        runner.measure(plan, folder, work, HERE)
    finally:
        os._exit(0)


def lives(folder: Path, plan: Plan, work: Grid, count: int, chance: random.Random) -> None:
    """Start a run in a process of its own, and kill it at some moment, until it was killed so many times."""
    expected: dict[str, list[str]] = {}
    kills = 0
    while kills < count:
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            drive(plan, folder, work, theirs)
        os.close(theirs)
        time.sleep(chance.uniform(0.0, 0.12))
        os.kill(child, signal.SIGKILL)
        kills += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        with os.fdopen(ours) as stream:
            said = {word for word in stream.read().split(" ") if len(word) == len(work.cells[0].identity)}
        if not store.holds_run(folder):
            assert not said
            continue
        with Store(folder, write=True) as found:  # of a run that was killed before it had tables, too
            assert found.base.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            there = found.known() if found.planned().cells else {}
            assert said <= there.keys(), "a cell that was kept is lost"
            rows = [row for row in found.rows() if row.cell]
        assert {row.cell for row in rows} == there.keys()
        by_cell: dict[str, list[str]] = {}
        for row in rows:
            by_cell.setdefault(row.cell, []).append(repr(dataclasses.replace(row, seconds=None)))
        for identity, found_rows in by_cell.items():
            assert expected.setdefault(identity, found_rows) == found_rows, "a cell has other rows, or has them twice"
        if len(there) == len(work.cells):
            shutil.rmtree(folder)
            folder.mkdir()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes")
@pytest.mark.parametrize("on_network", [False, True], ids=["log ahead", "rollback"])
def test_a_run_that_is_killed_many_times_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_network: bool) -> None:
    monkeypatch.setattr(store, "_is_on_network", lambda directory: on_network)
    plan = simulated_plan(120)
    work = grid(plan)
    (tmp_path / "run").mkdir()
    lives(tmp_path / "run", plan, work, 50 if RUN["whole"] else 8, random.Random(f"{RUN['seed']}"))
    rows = runner.run(plan, tmp_path / "run", machine=HERE)
    assert comparable(rows) == comparable(runner.run(plan, tmp_path / "whole", machine=HERE))
