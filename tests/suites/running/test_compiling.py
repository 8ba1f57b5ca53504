"""Kernels that are not compiled yet are counted before a run, and compilation is shown while it lasts."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from structgrad.oracles.kernels import notices
from structgrad.suites.running.planning.plan import Machine, Plan
from structgrad.suites.running.runner import run
from structgrad.suites.running.work import Snapshot
from tests.suites.broken_estimators import NOTICED
from tests.suites.running_cases import FEW, broken

TINY = """
from structgrad.oracles.kernels.compilation import compiled

@compiled
def double(x):
    return 2 * x
"""


def imported(path: Path, name: str) -> Any:
    spec: Any = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_compiling_is_told_of_and_loading_is_not(tmp_path: Path) -> None:
    path, heard = tmp_path / "tiny.py", list[bool]()
    path.write_text(TINY)
    with notices.listening(heard.append):
        assert imported(path, "tiny").double(3) == 6
        assert heard == [True, False]
        assert imported(path, "tiny").double(4) == 8
        assert heard == [True, False]
    imported(path, "tiny").double(2.5)
    assert heard == [True, False]


def test_a_worker_that_compiles_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noticed = tmp_path / "noticed"
    monkeypatch.setenv(NOTICED, str(noticed))
    seen: list[bool] = []

    def progress(snapshot: Snapshot) -> None:
        seen.extend(busy.compiling for busy in snapshot.busy)
        if any(seen):
            noticed.touch()

    plan = Plan(("sparsity",), ("categorical_regimes",), ("init",), broken("Compiling"), instances=1, effort=FEW)
    rows = run(plan, tmp_path / "out", machine=Machine(jobs=1), progress=progress)
    assert {row.status for row in rows} == {"ok"}
    assert any(seen)
