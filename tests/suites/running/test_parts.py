"""Finished cells as parts: the same rows, whatever kills the writer and whenever, each of them once."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from structgrad.suites.base import SCHEMA_VERSION, Row
from structgrad.suites.running import cell_writer, runner, store
from structgrad.suites.running.cell_writer import CellWriter, GarbageError, examined
from structgrad.suites.running.parts import columns, compaction, journal
from structgrad.suites.running.parts.locking import LockedError, locked
from structgrad.suites.running.work import Cell, Grid
from tests.suites.running_cases import HERE, SMALL, comparable

CELLS = [Cell(("bias", "cost")[place % 2], ("p", "../q r")[place // 4], "s", (f"e{place}",), 1, f"{place:02x}" * 16) for place in range(7)]
BATCH = 3


def rows_of(cell: Cell, rows: int = 2) -> list[Row]:
    """Rows with whatever a column may hold."""
    place = CELLS.index(cell)
    first = Row(cell.identity, cell.suite, cell.problem, "s", "", "o", "l", cell.estimators[0], "e", value=place / 3, low=float("-inf"))
    other = dataclasses.replace(first, value=None, low=None, status="nonfinite", reason="ü", vertex_degree=2, batches=(0.1, 0.2))
    return [first, other][:rows]


def text_of(cell: Cell) -> str:
    return store.encode(cell, rows_of(cell), 0.01)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_writer, "BATCH", BATCH)


def written(folder: Path, told: Callable[[Cell], object] = lambda cell: None) -> None:
    """A run, or what is left of it."""
    writer = CellWriter(folder, CELLS)
    there = store.known(folder, CELLS)
    for cell in CELLS:
        if cell.identity not in there:
            writer.keep(cell, text_of(cell), 0.01)
            told(cell)
    writer.close()


def found(folder: Path) -> list[Row]:
    """What a reader of all files finds: parts that count, and files of cells."""
    parts = store.index(folder).parts
    rows = [row for file in parts for row in columns.to_rows(compaction.read_part(folder, file))]
    return rows + [row for cell in CELLS if cell.identity in store.loose(folder) for row in store.stored(folder, cell)["rows"]]


EXPECTED = [row for cell in CELLS for row in rows_of(cell)]


def test_cells_become_parts_and_come_back_as_they_were(tmp_path: Path) -> None:
    written(tmp_path)
    assert store.loose(tmp_path) == set()
    parts = store.index(tmp_path).parts
    assert {Path(file).parent.name for file in parts} == {"bias", "cost"}
    assert all(store.stored(tmp_path, cell)["rows"] == rows_of(cell) for cell in CELLS)
    assert list(store.stored_rows(tmp_path, Grid(tuple(CELLS), ()))) == EXPECTED
    assert {known.kind for known in store.known(tmp_path, CELLS).values()} == {"nonfinite"}
    assert sorted(map(repr, found(tmp_path))) == sorted(map(repr, EXPECTED))


def test_a_run_of_fewer_cells_keeps_its_files(tmp_path: Path) -> None:
    writer = CellWriter(tmp_path, CELLS)
    for cell in CELLS[: BATCH - 1]:
        writer.keep(cell, text_of(cell), 0.01)
    writer.close()
    assert len(store.loose(tmp_path)) == BATCH - 1
    assert not (tmp_path / journal.FOLDER).exists()


@pytest.mark.parametrize(("held", "kept"), [(cell_writer.HELD, CELLS[:2]), (0, CELLS[1:2])], ids=["held", "read again"])
def test_what_a_writer_holds_goes_into_parts_whatever_became_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int, kept: list[Cell]
) -> None:
    monkeypatch.setattr(cell_writer, "HELD", held)
    writer = CellWriter(tmp_path, CELLS)
    for cell in CELLS[:2]:
        writer.keep(cell, text_of(cell), 0.01, json.loads(text_of(cell)))
    store.cell_path(tmp_path, CELLS[0]).write_text("no more")
    writer.compact()
    assert set(store.index(tmp_path).owner) == {cell.identity for cell in kept}
    assert all(store.stored(tmp_path, cell)["rows"] == rows_of(cell) for cell in kept)


def test_a_cell_that_is_measured_again_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    written(tmp_path)
    writer = CellWriter(tmp_path, CELLS)
    writer.keep(CELLS[1], store.encode(CELLS[1], rows_of(CELLS[1], 1), 0.02), 0.02)
    assert len(store.stored(tmp_path, CELLS[1])["rows"]) == 1
    writer.close()
    expected = [row for cell in CELLS for row in rows_of(cell, 1 if cell == CELLS[1] else 2)]
    assert sorted(map(repr, found(tmp_path))) == sorted(map(repr, expected))
    assert store.loose(tmp_path) == set()
    files = {str(path.relative_to(tmp_path / journal.FOLDER)) for path in (tmp_path / journal.FOLDER).glob("*/*.parquet")}
    assert files == set(store.index(tmp_path).parts)


def dying(at: int) -> None:
    """From now on this process is killed at an operation on files: before it, in the middle of it, or after it."""
    count = 0

    def die(now: int) -> None:
        if now == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def patched(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def operation(*given: Any, **named: Any) -> Any:
            nonlocal count
            count += 3
            die(count)
            if name == "pwrite" and count + 1 == at:
                real(given[0], given[1][: len(given[1]) // 2], given[2])
            if name == "write_table" and count + 1 == at:
                given[1].write(b"PAR1 and no more")
            die(count + 1)
            result = real(*given, **named)
            die(count + 2)
            return result

        setattr(owner, name, operation)

    for owner, name in ((os, "replace"), (os, "fsync"), (os, "pwrite"), (os, "ftruncate"), (os, "unlink"), (pq, "write_table")):
        patched(owner, name)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a process")
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.sweep), 8])
def test_a_kill_at_any_write_loses_nothing_and_counts_nothing_twice(tmp_path: Path, step: int) -> None:
    """A process for each of the operations on files of a small run, killed there, and one that goes on."""
    survived, at = False, 3
    while not survived:
        folder = tmp_path / str(at)
        folder.mkdir()
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                dying(at)
                written(folder, lambda cell, pipe=theirs: os.write(pipe, cell.identity[:2].encode()))
                os._exit(0)
            finally:
                os._exit(1)
        os.close(theirs)
        with os.fdopen(ours, "rb") as stream:
            told = stream.read().decode()
        _, status = os.waitpid(child, 0)
        survived = os.waitstatus_to_exitcode(status) == 0
        assert survived or os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        kept = {cell.identity for cell in CELLS if cell.identity[:2] in {told[place : place + 2] for place in range(0, len(told), 2)}}
        there = store.known(folder, CELLS)
        assert kept <= set(there), at
        assert all(store.stored(folder, cell)["rows"] == rows_of(cell) for cell in CELLS if cell.identity in there)
        written(folder)
        assert sorted(map(repr, found(folder))) == sorted(map(repr, EXPECTED)), at
        assert store.loose(folder) == set()
        at += step
    assert at > 60, "the operations were not those of the store"


def test_a_journal_that_is_lost_is_made_anew(tmp_path: Path) -> None:
    written(tmp_path)
    journal.path_of(tmp_path).unlink()
    assert store.known(tmp_path, CELLS) == {}
    written(tmp_path, lambda cell: pytest.fail("measured again"))
    assert sorted(map(repr, found(tmp_path))) == sorted(map(repr, EXPECTED))


@pytest.mark.parametrize("rest", [b"", b"{" * 100_000], ids=["half", "long"])
def test_half_a_line_of_the_journal_does_not_count(tmp_path: Path, rest: bytes) -> None:
    """What a killed process left of a line is cut off before the next one is written, however long it is."""
    written(tmp_path)
    path = journal.path_of(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][: len(lines[-1]) // 2 if not rest else 0] + rest)
    assert len(store.known(tmp_path, CELLS)) < len(CELLS)
    written(tmp_path)
    assert sorted(map(repr, found(tmp_path))) == sorted(map(repr, EXPECTED))
    assert set(store.known(tmp_path, CELLS)) == {cell.identity for cell in CELLS}
    assert all(line.endswith(b"}\n") and line.startswith(b'{"digest"') for line in path.read_bytes().splitlines(keepends=True))


def test_a_line_of_the_journal_that_was_changed_does_not_count(tmp_path: Path) -> None:
    written(tmp_path)
    path = journal.path_of(tmp_path)
    content = path.read_bytes()
    changed = content.replace(b"0.01", b"0.02", 1)
    assert changed != content
    path.write_bytes(changed)
    assert len(store.known(tmp_path, CELLS)) < len(CELLS)


def test_the_cells_of_a_damaged_part_are_measured_again(tmp_path: Path) -> None:
    written(tmp_path)
    file = next(iter(store.index(tmp_path).parts))
    path = tmp_path / journal.FOLDER / file
    path.write_bytes(path.read_bytes()[:-20])
    assert store.damaged(tmp_path, Grid(tuple(CELLS), ())) == [path]
    assert len(store.known(tmp_path, CELLS)) < len(CELLS)
    written(tmp_path)
    assert sorted(map(repr, found(tmp_path))) == sorted(map(repr, EXPECTED))


def test_parts_of_a_newer_version_are_one_sentence(tmp_path: Path) -> None:
    index = journal.Index()
    part = journal.CellPart("bias/000001.parquet", 4, SCHEMA_VERSION + 1, ["a"], [1], [0.1], ["done"], ["0" * 16])
    (tmp_path / journal.FOLDER / "bias").mkdir(parents=True)
    (tmp_path / journal.FOLDER / part.file).write_bytes(b"PAR1")
    journal.append(tmp_path, index, [part], [])
    with pytest.raises(store.NewerSchemaError, match=rf"000001.parquet has the schema version {SCHEMA_VERSION + 1}, this structgrad reads"):
        store.known(tmp_path, CELLS)


@pytest.mark.parametrize("file", ["../out.parquet", "/tmp/out.parquet"])
def test_a_journal_names_nothing_outside_of_its_folder(tmp_path: Path, file: str) -> None:
    journal.append(tmp_path, journal.Index(), [journal.CellPart(file, 0, 3, [], [], [], [], [])], [])
    assert journal.read(tmp_path).parts == {}


def test_a_run_that_is_compacted_has_the_rows_of_one_that_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_writer, "BATCH", 2)
    rows = runner.run(SMALL, tmp_path / "parts", machine=HERE)
    assert store.index(tmp_path / "parts").parts
    monkeypatch.setattr(runner, "execute", lambda *rest: pytest.fail("measured again"))
    assert runner.run(SMALL, tmp_path / "parts", machine=HERE) == rows
    monkeypatch.undo()
    assert comparable(rows) == comparable(runner.run(SMALL, tmp_path / "files", machine=HERE))


@pytest.mark.parametrize(
    "text", ["", "{", "null", "[]", "\x00", '{"cell": {"identity": "x"}, "seconds": 1, "rows": [], "shared": {}}', "[" * 9999]
)
def test_what_is_no_content_of_a_cell_is_garbage(text: str) -> None:
    with pytest.raises(GarbageError, match=r"bias p s e0"):
        examined(CELLS[0], text)
    wrong = json.loads(text_of(CELLS[0]))
    wrong["rows"][0]["unheard_of"] = 1
    with pytest.raises(GarbageError, match="got something else than the rows of bias p s e0"):
        examined(CELLS[0], json.dumps(wrong))


def test_a_worker_that_returns_garbage_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "execute", lambda *rest: "garbage")
    (row,) = runner.run(dataclasses.replace(SMALL, estimators=("ste",)), tmp_path, machine=HERE)
    assert row.status == "crash"
    assert row.reason.startswith("the worker got no rows for bias categorical_regimes init ste (JSONDecodeError")


def test_a_folder_has_one_writer_at_a_time(tmp_path: Path) -> None:
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        with locked(tmp_path):
            os.write(ready[1], b"x")
            os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    with pytest.raises(LockedError, match=rf"{tmp_path} is being written by process {child} on .*; wait until it has ended, or name"):
        runner.run(SMALL, tmp_path, machine=HERE)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with locked(tmp_path), locked(tmp_path):
        pass
    for end in (*ready, *go):
        os.close(end)


def test_a_glance_at_a_plan_says_what_the_plan_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip = dataclasses.replace(rows_of(CELLS[0])[0], cell="", status="skipped", low=None)
    for places in ((), tuple(range(len(CELLS)))):
        store.freeze(tmp_path, Grid(tuple(CELLS), (skip, dataclasses.replace(skip, stage="early")), places=places))
        exact = store.glance(tmp_path)
        assert exact == ([(cell.suite, cell.identity) for cell in CELLS], 1)
        with monkeypatch.context() as patched:
            patched.setattr(store, "MANY", 0)
            patched.setattr(store, "planned", lambda directory: pytest.fail("parsed"))
            assert store.glance(tmp_path) == exact
    written(tmp_path)
    assert store.kinds(tmp_path) == {identity: known.kind for identity, known in store.known(tmp_path, CELLS).items()}
