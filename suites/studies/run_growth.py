"""Growth of what a run costs beside its cells, with their number: planning, the engines, going on with a finished run, a glance at it.

``python -m structgrad.suites.studies.run_growth OUT --most 100000`` measures simulated cells of a millisecond, and prints a table; what it
has measured it keeps in ``OUT/growth.json``, and goes on there.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..running import runner, store
from ..running.planning.grid import grid
from ..running.planning.plan import Machine
from ..running.progress import Snapshot
from .markdown import Entry, table
from .simulated import SECONDS, simulated_plan

SIZES = (100, 1000, 10_000, 100_000)
ROWS = 10

WARM = 0.1
"""Share of the cells, at first, that are not counted: workers start, and load their problems."""


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--most", type=int, default=SIZES[-1], help="cells of the largest run")
    parser.add_argument("--engine", default="local")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    known = given.out / "growth.json"
    found: dict[str, dict[str, Entry]] = json.loads(known.read_text(encoding="utf-8")) if known.is_file() else {}
    grid(simulated_plan(SIZES[0], rows=ROWS))  # kernels are loaded, and every class
    for size in SIZES:
        key = f"{given.engine} {size}"
        if size <= given.most and key not in found:
            found[key] = measured(size, given.out / key.replace(" ", "-"), given.engine)
            store.write_atomically(known, json.dumps(found))
    sys.stdout.write(table(list(found.values())) + "\n")


def measured(size: int, folder: Path, engine: str) -> dict[str, Entry]:
    """One line of the table: CPU seconds, of one run each; a folder that is there is gone on with."""
    plan = simulated_plan(size, rows=ROWS)
    work, planning = _timed(lambda: grid(plan))
    marks: list[tuple[int, float, float]] = []

    def told(snapshot: Snapshot) -> None:
        if snapshot.label and snapshot.finished >= WARM * snapshot.total:
            now = snapshot.finished, time.perf_counter(), time.process_time()
            marks[1 if marks else 0 :] = [now]

    children = _children()
    machine = Machine(jobs=2, engine=engine)
    shutil.rmtree(folder, ignore_errors=True)
    runner.measure(plan, folder, machine=machine, progress=told, work=work)
    workers = (_children() - children) / len(work.cells)
    first, last = marks[0], marks[-1]
    return {
        "engine": engine,
        "cells": len(work.cells),
        "planning [CPU s]": planning,
        "driver, a cell [CPU ms]": 1000 * (last[2] - first[2]) / max(last[0] - first[0], 1),
        "workers, a cell beside its own time, with their start [CPU ms]": 1000 * (workers - SECONDS),
        "wall, a cell [ms]": 1000 * (last[1] - first[1]) / max(last[0] - first[0], 1),
        "going on when finished [CPU s]": _timed(lambda: runner.measure(plan, folder, machine=machine, work=work))[1],
        "status, with its start [CPU s]": _status(folder),
        "files": sum(path.is_file() for path in folder.rglob("*")),
    }


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    result = call()
    return result, time.process_time() - start


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _status(folder: Path) -> float:
    before = _children()
    command = [sys.executable, "-c", "from structgrad.reports.cli import main; main()", "status", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return _children() - before


if __name__ == "__main__":
    main()
