"""Kernels that are not compiled yet are counted before a run, and compilation is shown while it lasts."""

from __future__ import annotations

import importlib.util
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from structgrad.oracles.kernels import compilation, notices
from structgrad.suites.running.planning.plan import Machine, Plan
from structgrad.suites.running.progress import Snapshot
from structgrad.suites.running.runner import run
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


def test_waiting_for_another_process_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if compilation.fcntl is None:
        pytest.skip("no locks here")
    path, heard, asked = tmp_path / "tiny.py", list[bool](), list[int]()
    path.write_text(TINY)

    def busy_once(file: int, how: int, byte: int) -> bool:
        asked.append(how)
        return not how & compilation.fcntl.LOCK_NB

    monkeypatch.setattr(compilation, "_lock", busy_once)
    module = imported(path, "tiny_waiting")
    with notices.listening(heard.append), compilation._turn(tmp_path, "tiny"):
        assert heard == [True, False]
    assert [bool(how & compilation.fcntl.LOCK_NB) for how in asked] == [True, False, False]
    assert module.double(1) == 2


def test_a_listener_hears_of_nested_compilation_once_and_may_compile() -> None:
    heard: list[bool] = []

    def listener(compiles: bool) -> None:
        heard.append(compiles)
        if compiles:
            notices.begin()
            notices.end()

    def compiled() -> None:
        with notices.listening(listener):
            notices.begin()
            notices.begin()
            notices.end()
            assert heard == [True]
            notices.end()

    thread = threading.Thread(target=compiled, daemon=True)
    thread.start()
    thread.join(10)
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
