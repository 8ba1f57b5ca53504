"""Progress of a run: its text, and a line that is redrawn in place in a notebook."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..text import COMPILING, duration


@dataclass(frozen=True)
class Busy:
    """A worker with its cell, and whether it compiles kernels or waits for them."""

    worker: str
    label: str
    seconds: float
    compiling: bool = False


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment.

    Attributes:
        finished, total: cells. ``failed``: those of the finished ones.
        label: the last finished cell; empty between two cells.
        left: seconds, estimated.
        busy: the state of every worker.
    """

    finished: int
    total: int
    failed: int = 0
    label: str = ""
    left: float | None = None
    busy: tuple[Busy, ...] = ()


def progress_text(snapshot: Snapshot, seconds: float | None = None) -> str:
    """A text for finished cells and the time left, or the time that the run took.

    Example:
        >>> progress_text(Snapshot(3, 8, left=75.0)), progress_text(Snapshot(8, 8), 12.0)
        ('3/8 cells, about 1 min 15 s left', '8/8 cells, 12 s')
    """
    done = snapshot.finished == snapshot.total
    parts = [
        f"{snapshot.finished}/{snapshot.total} cells",
        *([f"{snapshot.failed} failed"] if snapshot.failed else []),
        *([f"about {duration(snapshot.left)} left"] if snapshot.left and not done else []),
        *([duration(seconds)] if seconds is not None and done else []),
        *([COMPILING] if any(busy.compiling for busy in snapshot.busy) else []),
    ]
    return ", ".join(parts)


Progress = Callable[[Snapshot], None]
"""Called about once a second, and when a cell is finished."""

REDRAW_SECONDS = 0.25
"""Seconds between two drawings: a message for every cell of a long run would make the notebook slow."""


@dataclass(frozen=True)
class ProgressLine:
    """A snapshot for a notebook, with its text."""

    snapshot: Snapshot
    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        share = 100 * self.snapshot.finished / max(self.snapshot.total, 1)
        bar = f'<span style="display:block;height:100%;width:{share:.0f}%;background:currentColor"></span>'
        frame = "display:inline-block;width:180px;height:.6em;margin-right:.8em;border:1px solid;box-sizing:border-box;opacity:.7"
        return f'<div style="font-size:13px"><span style="{frame}">{bar}</span>{self.text}</div>'


def notebook_progress() -> Progress | None:
    """A function that shows the progress of a run in the notebook of this process; None without a notebook."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is None:
        return None
    display: Any = importlib.import_module("IPython.display").display
    began, last, handle = time.monotonic(), 0.0, None

    def report(snapshot: Snapshot) -> None:
        nonlocal last, handle
        now = time.monotonic()
        if handle is not None and snapshot.finished < snapshot.total and now - last < REDRAW_SECONDS:
            return
        line, last = ProgressLine(snapshot, progress_text(snapshot, now - began)), now
        if handle is None:
            handle = display(line, display_id=True)
        else:
            handle.update(line)

    return report
