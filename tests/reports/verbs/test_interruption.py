"""Interrupted runs: one sentence, finished cells are kept, and the same command continues."""

import contextlib
import errno
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from structgrad.reports import results
from structgrad.suites.base import SCHEMA_VERSION
from structgrad.suites.running import store
from tests.reports.calling import FEW, SMALL, call, refused
from tests.suites.broken_estimators import HOLD
from tests.suites.running_cases import broken, kept

HELD, TERMINATED = ("ste", *broken("Held"), "rloo"), ("ste", *broken("Terminated"), "rloo")
"""Three cells, in the second of which something happens where the environment says so."""


sessions = pytest.mark.skipif(sys.platform == "win32", reason="starts a session of processes")


def words(folder: Path, *estimators: str) -> list[str]:
    return [*SMALL, *FEW, *(word for name in estimators for word in ("-e", name)), "-o", str(folder)]


HEARD = """
import signal
from structgrad.reports import cli
signal.signal(signal.SIGINT, signal.default_int_handler)
cli.main()
"""
"""The command line where Ctrl-C is heard, though this process may be one in the background, which ignores it."""


@contextlib.contextmanager
def held(folder: Path, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A run in a session of its own, whose worker has finished the first cell, and is in the middle of the second one for ever."""
    command = [sys.executable, "-c", HEARD, *words(folder, *HELD), "-j", "1"]
    with log.open("w") as file:
        process = subprocess.Popen(command, env={**os.environ, HOLD: "1"}, start_new_session=True, stdout=subprocess.DEVNULL, stderr=file)
    try:
        wait_until(lambda: bool(kept(folder)) and any("Held" in log.read_text() for log in (folder / "logs").glob("*.log")), process)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until(condition: Callable[[], bool], process: Any = None) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process is None or process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


def check_that_it_goes_on(folder: Path, told: str, *estimators: str) -> None:
    """Check the message and the cells of an interrupted run, and that the same command continues it."""
    before = kept(folder)
    assert len(before) == 1
    last = told.splitlines()[-1]
    assert last.startswith(f"error: interrupted; 1 of 3 cells are in {folder}; finished cells are kept, continue with: structgrad run")
    assert "Traceback" not in told
    assert results.manifest_of(folder)["status"] == "interrupted"
    assert set(results.read(folder)[0]["cell"]) - {""} == set(before)
    assert call("status", folder).stdout.startswith(f"{folder}: interrupted")
    assert call(*words(folder, *estimators)).exit_code == 0
    assert before.items() <= kept(folder).items()
    assert len(kept(folder)) == 3
    assert results.manifest_of(folder)["status"] == "finished"


@sessions
def test_an_interrupted_run_says_what_is_kept_and_goes_on(tmp_path: Path) -> None:
    """Ctrl-C, which the workers receive too, when the first cell is finished, and the second one is measured."""
    with held(tmp_path / "run", tmp_path / "log") as process:
        os.killpg(process.pid, signal.SIGINT)
        code = process.wait(60)
    told = (tmp_path / "log").read_text()
    assert code == 130, told
    check_that_it_goes_on(tmp_path / "run", told, *HELD)


def alive(session: int) -> list[int]:
    """The processes of a session that still run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, _, _, owner = entry.read_text().rpartition(") ")[2].split()[:4]
            found += [int(entry.parent.name)] if int(owner) == session and state not in "ZX" else []
    return found


@sessions
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_a_killed_run_leaves_no_worker_and_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    with held(killed, tmp_path / "log") as process:
        process.kill()
        process.wait()
        wait_until(lambda: not alive(process.pid))
    before = kept(killed)
    assert len(before) == 1
    assert call(*words(killed, *HELD)).exit_code == call(*words(whole, *HELD)).exit_code == 0
    assert before.items() <= kept(killed).items()
    frames = [results.read(folder)[0].drop(columns="seconds") for folder in (killed, whole)]
    assert frames[0].equals(frames[1])


@pytest.fixture
def survived() -> Iterator[None]:
    """An unhandled signal fails the test instead of ending the session."""

    def unheard(number: int, frame: object) -> None:
        pytest.fail(f"no handler received {signal.Signals(number).name}")

    before = signal.signal(signal.SIGTERM, unheard)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("survived")
def test_a_run_that_is_told_to_end_says_what_is_kept_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOLD, "1")
    result = call(*words(tmp_path, *TERMINATED))
    assert result.exit_code == 130, result.output
    monkeypatch.delenv(HOLD)
    check_that_it_goes_on(tmp_path, result.stderr, *TERMINATED)


# A disk that is full.


@pytest.fixture
def full_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """The disk takes so many more files and cells."""

    def fill(count: int) -> None:
        left = iter(range(count))

        def counted(write: Callable[..., Any]) -> Callable[..., Any]:
            def writing(*given: Any) -> Any:
                if next(left, None) is None:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return write(*given)

            return writing

        monkeypatch.setattr(os, "fsync", counted(os.fsync))
        monkeypatch.setattr(store.Store, "keep", counted(store.Store.keep))

    return fill


@pytest.mark.parametrize("files", [0, 2, 5])
def test_a_full_disk_ends_a_run_with_a_sentence_and_loses_nothing(
    tmp_path: Path, full_after: Any, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    """The files are run.json, three cells, the table, run.json, the page."""
    full_after(files)
    told = refused(*words(tmp_path, "rloo", "ste", "reinforce"), "-q", code=3)
    before = kept(tmp_path)
    assert len(before) == max(min(files - 1, 3), 0)
    assert told.startswith("error: cannot write (No space left on device); ")
    assert f"{len(before)} of 3 cells are in {tmp_path}; finished cells are kept, continue with: structgrad run bias" in told
    assert not list(tmp_path.rglob("*.tmp"))
    if before:
        assert set(results.read(tmp_path)[0]["cell"]) - {""} == set(before)
    monkeypatch.undo()
    assert call(*words(tmp_path, "rloo", "ste", "reinforce")).exit_code == 0
    assert before.items() <= kept(tmp_path).items()
    assert results.manifest_of(tmp_path)["status"] == "finished"


# Files that are damaged, or of a newer version.


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    assert call(*words(folder, "rloo", "ste")).exit_code == 0
    return folder


@pytest.fixture
def run_folder(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished run."""
    return shutil.copytree(finished, tmp_path, dirs_exist_ok=True)


@pytest.mark.parametrize("length", [0, -100])
def test_a_truncated_table_is_derived_from_the_cells_again(run_folder: Path, length: int) -> None:
    table = run_folder / results.TABLE
    whole, _ = results.read(run_folder)
    table.write_bytes(table.read_bytes()[:length])
    for path in (run_folder, table):
        frame, manifest = results.read(path)
        assert frame.equals(whole)
        assert manifest["seed"] == 0
    alone = run_folder / "alone"
    alone.mkdir()
    (alone / results.TABLE).write_bytes(table.read_bytes())
    expected = f"error: {alone / results.TABLE} is no Parquet file, or damaged; expected the results.parquet of a run\n"
    assert refused("report", alone) == refused("export", alone) == expected


@pytest.mark.parametrize("content", [b"SQLite format 3\x00", b"x" * 9000])
def test_damaged_cells_are_one_sentence_and_measured_again_where_that_is_asked_for(run_folder: Path, content: bytes) -> None:
    path = run_folder / store.FILE
    path.write_bytes(content)
    said = "cannot be read" if content else "has the schema version 0"
    assert f"{path} {said}" in refused("status", run_folder)
    assert call(*words(run_folder, "rloo", "ste"), "--fresh").exit_code == 0
    assert len(kept(run_folder)) == 2


NEWER = SCHEMA_VERSION + 1


def test_files_of_a_newer_version_are_one_sentence_and_left_alone(run_folder: Path) -> None:
    again = words(run_folder, "rloo", "ste")
    with sqlite3.connect(run_folder / store.FILE) as base:
        base.execute(f"PRAGMA user_version={NEWER}")
    table, before = (run_folder / results.TABLE).read_bytes(), (run_folder / store.FILE).read_bytes()
    (run_folder / results.TABLE).unlink()
    for verb in (["report", run_folder], ["status", run_folder], ["export", run_folder], again):
        assert f"has the schema version {NEWER}, this structgrad reads {SCHEMA_VERSION}" in refused(*verb)
    (run_folder / results.TABLE).write_bytes(table)
    (run_folder / results.MANIFEST).write_text(json.dumps({**results.manifest_of(run_folder), "schema_version": NEWER}))
    for verb in (again, [*again, "--fresh"]):
        assert f"run.json has the schema version {NEWER}" in refused(*verb)
    assert (run_folder / store.FILE).read_bytes() == before
