"""A killed run: finished cells stay, no process is left, and the numbers are those of an undisturbed run."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from structgrad.suites.running.planning.grid import grid
from structgrad.suites.running.runner import collect, run
from tests.suites.broken_estimators import HOLD
from tests.suites.running_cases import HERE, SMALL, broken, comparable, kept

PLAN = dataclasses.replace(SMALL, estimators=("gst", *broken("Held"), "ste_sample"), instances=1)
COMMAND = """
import sys
from pathlib import Path
from structgrad.suites.running.runner import run
from structgrad.suites.running.planning.plan import Machine
from tests.suites.running.test_runner_kill import PLAN
run(PLAN, Path(sys.argv[1]), machine=Machine(jobs=1))
"""


def held(folder: Path) -> subprocess.Popen[bytes]:
    """A run in a process group of its own, whose worker has finished the first cell, and is in the middle of the second one for ever."""
    path = os.pathsep.join([os.getcwd(), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, HOLD: "1"}
    process = subprocess.Popen([sys.executable, "-c", COMMAND, str(folder)], start_new_session=True, env=environment)
    log, second = folder / "logs" / "worker-1.log", grid(PLAN).cells[1].label

    def is_at_second() -> bool:
        return log.exists() and second in log.read_text() and len(kept(folder)) > 0

    assert comes_true(lambda: process.poll() is not None or is_at_second(), 120)
    assert process.poll() is None, "the run ended too early"
    return process


def comes_true(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether something is so before long."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


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


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_a_killed_run_leaves_no_worker_and_goes_on_with_the_same_numbers(tmp_path):
    folder = tmp_path / "killed"
    process = held(folder)
    process.kill()
    process.wait()
    gone = comes_true(lambda: not alive(process.pid), 20)
    if not gone:
        os.killpg(process.pid, signal.SIGKILL)
    assert gone, "a worker in the middle of a cell outlives its parent"

    there = comparable(collect(folder))
    assert {row.estimator for row in there} == {"gst"}
    undisturbed = comparable(run(PLAN, tmp_path / "undisturbed", machine=HERE))
    assert set(map(repr, there)) <= set(map(repr, undisturbed))
    before = kept(folder)
    assert comparable(run(PLAN, folder, machine=HERE)) == undisturbed
    assert before.items() <= kept(folder).items()
