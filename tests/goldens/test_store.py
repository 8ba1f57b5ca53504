"""Rows, identities, status and exports of a small run, as they were on 26 November 2026; numbers are compared to 1e-9.

``python -m tests.goldens.test_store`` writes them again, after a change on purpose. Seconds and paths are left out.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from structgrad.reports import results
from structgrad.suites.running import runner
from structgrad.suites.running.planning.grid import grid
from tests.goldens.comparing import differences
from tests.reports.calling import call
from tests.suites.running_cases import FEW, HERE, SMALL, broken

STORED = Path(__file__).parent / "store.json"
PLAN = dataclasses.replace(
    SMALL,
    suites=("bias", "sparsity"),
    problems=("categorical_regimes", "subset_regimes@hamming"),
    estimators=("reinforce", "ste", "arm", *broken("Failing")),
    instances=1,
    effort=dataclasses.replace(FEW, replicates=64, most_replicates=64),
)


def plain(rows: list[Any]) -> list[list[Any]]:
    """The values of rows without seconds."""
    return [
        [list(value) if isinstance(value, tuple) else value for name, value in vars(row).items() if name not in SKIPPED] for row in rows
    ]


SKIPPED = ("seconds", "traceback")


def content(folder: Path) -> dict[str, Any]:
    """Everything that is frozen."""
    stopped: list[str] = []
    real = runner.execute

    def interrupted(*given: Any) -> Any:
        if len(stopped) == 3:
            raise KeyboardInterrupt
        stopped.append(given[1].identity)
        return real(*given)

    work = grid(PLAN)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runner, "execute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            runner.run(PLAN, folder, machine=HERE)
    results.write_manifest(folder, {"status": "interrupted", "command": "structgrad run"})
    partial = call("status", folder).stdout.replace(str(folder), "FOLDER").splitlines()
    there = [row.cell for row in runner.collect(folder) if row.cell]
    rows = runner.run(PLAN, folder, machine=HERE)
    results.write(rows, folder, {"status": "finished", "command": "structgrad run"})
    whole = call("status", folder).stdout.replace(str(folder), "FOLDER").splitlines()
    status = json.loads(call("status", folder, "--json").stdout)[0]
    call("export", folder, "--to", "csv", "-o", folder / "all.csv")
    exported = pd.read_csv(folder / "all.csv")
    found = {
        "cells": [[cell.label, cell.identity] for cell in work.cells],
        "skips": len(work.skips),
        "before": [list(dict.fromkeys(there)) == stopped, partial],
        "status": [whole, {name: value for name, value in status.items() if name != "folder"}],
        "columns": list(exported.columns),
        "exported": exported.drop(columns=list(SKIPPED)).shape,
        "rows": plain(rows),
    }
    text = json.dumps(found)
    for cell in work.cells:
        if ":" in cell.label:  # the identity holds the digest of a file of tests
            text = text.replace(cell.identity, cell.label)
    whole_content: dict[str, Any] = json.loads(text)
    return whole_content


def test_a_small_run_is_as_it_was(tmp_path: Path) -> None:
    assert not list(differences(json.loads(STORED.read_text()), content(tmp_path / "run")))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        STORED.write_text(json.dumps(content(Path(name) / "run"), separators=(",", ":")).replace("],[", "],\n[") + "\n")
