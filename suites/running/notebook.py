"""Progress in a notebook: one line that is redrawn in place, and stays when the run is over."""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

from .progress import Progress, Snapshot, progress_text

REDRAW_SECONDS = 0.25
"""Seconds between two drawings: a message for every cell of a long run would make the notebook slow."""


class ProgressLine:
    """A snapshot for a notebook, as HTML and as text."""

    def __init__(self, snapshot: Snapshot, seconds: float) -> None:
        self.snapshot, self.text = snapshot, progress_text(snapshot, seconds)

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
        line = ProgressLine(snapshot, now - began)
        if handle is None:
            handle = display(line, display_id=True)
        elif snapshot.finished == snapshot.total or now - last >= REDRAW_SECONDS:
            handle.update(line)
        else:
            return
        last = now

    return report
