"""Runs that are killed outright: what is finished stays, nothing is left behind, and the numbers are those of an undisturbed run."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from structgrad.suites.base import FAILED
from structgrad.suites.running.plan import Machine
from structgrad.suites.running.runner import collect, run
from tests.suites.running_cases import HERE, SMALL, comparable

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
SLOW = [f"tests.suites.broken_estimators:Slow[seconds={0.3 + i / 100}]" for i in range(4)]
PLAN = dataclasses.replace(SMALL, estimators=(*SLOW, "gst", "ste_sample"), instances=1)
HANGING = dataclasses.replace(SMALL, estimators=("ste", "tests.suites.broken_estimators:Hanging"), instances=1)
COMMAND = """
import sys
from pathlib import Path
from structgrad.suites.running.runner import run
from structgrad.suites.running.plan import Machine
from tests.suites import test_runner_kill
run(getattr(test_runner_kill, sys.argv[2]), Path(sys.argv[1]), machine=Machine(jobs=2))
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return comparable(run(PLAN, tmp_path_factory.mktemp("undisturbed"), machine=HERE))


def started(folder: Path, plan: str) -> subprocess.Popen[bytes]:
    """A run in a process group of its own, that has finished a cell."""
    path = os.pathsep.join([os.getcwd(), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(folder), plan], start_new_session=True, env={**os.environ, "PYTHONPATH": path}
    )
    deadline = time.monotonic() + 120
    while not any((folder / "cells").glob("*/*.json")):
        assert process.poll() is None, "the run ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process


def alive(session: int) -> list[int]:
    """The processes of a session that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, _, owner = (entry / "stat").read_text().rpartition(") ")[2].split()[:4]
            except (FileNotFoundError, ProcessLookupError):
                continue
            found += [int(entry.name)] if int(owner) == session and state not in "ZX" else []
    return found


def emptied(session: int) -> bool:
    """Whether all processes of a session are gone before long."""
    deadline = time.monotonic() + 20
    while alive(session) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(session)


@needs_proc
def test_a_worker_in_the_middle_of_a_cell_does_not_outlive_its_parent(tmp_path):
    process = started(tmp_path, "HANGING")
    process.kill()
    process.wait()
    gone = emptied(process.pid)
    if not gone:
        os.killpg(process.pid, signal.SIGKILL)
    assert gone


@needs_proc
def test_a_killed_run_goes_on_with_the_same_numbers(tmp_path, undisturbed):
    process = started(tmp_path, "PLAN")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert emptied(process.pid)
    kept = comparable(collect(tmp_path))
    assert 0 < len({row.cell for row in kept}) < len(PLAN.estimators), "the run was not killed in the middle"
    assert set(map(repr, kept)) <= set(map(repr, undisturbed))
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").glob("*/*.json")}
    assert comparable(run(PLAN, tmp_path, machine=HERE)) == undisturbed
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())


def test_a_killed_worker_costs_its_cell_until_the_run_is_resumed(tmp_path, undisturbed):
    killed: list[int] = []

    def disturb(snapshot):
        if snapshot.finished and not killed and any("Slow" in busy.label for busy in snapshot.busy):
            killed.extend(child.pid for child in multiprocessing.active_children())
            os.kill(killed[0], signal.SIGKILL)

    rows = run(PLAN, tmp_path, machine=Machine(jobs=1), progress=disturb)
    failed = [row for row in rows if row.status in FAILED]
    assert [(row.status, row.error_type) for row in failed] == [("oom", "SIGKILL")]
    assert comparable(run(PLAN, tmp_path, machine=HERE)) == undisturbed
