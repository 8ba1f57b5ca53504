"""A run under a URL: where its driver and its readers keep what they have of it, and the drivers of other machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from structgrad.suites.running.remote import lease, objects
from structgrad.suites.running.runner import run
from tests.suites.running_cases import HERE, SMALL, comparable


def on_machine(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work on a machine of this name: with a folder and a cache of its own."""
    place = folder / name
    place.mkdir(exist_ok=True)
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))


def impatient(monkeypatch: pytest.MonkeyPatch, patience: float = 0.2) -> None:
    """Waits that are as short as a test's may be."""
    for module, name, value in (
        (objects, "PATIENCE", patience),
        (objects, "FIRST", 0.01),
        (lease, "RENEWED", 0.05),
        (lease, "DEAD", 0.5),
        (lease, "_LOOK", 0.02),
    ):
        monkeypatch.setattr(module, name, value)


def stopped_after(count: int) -> Callable[[object], None]:
    """Progress that is interrupted."""

    def progress(snapshot: object) -> None:
        if getattr(snapshot, "label", "") and getattr(snapshot, "finished", 0) >= count:
            raise Stopped

    return progress


class Stopped(BaseException):
    """As a kill: nobody is asked."""


__all__ = ["HERE", "SMALL", "Stopped", "comparable", "impatient", "on_machine", "run", "stopped_after"]
