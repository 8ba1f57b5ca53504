"""Progress of a run, and its text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    """A run at one moment: numbers of cells, the last finished one (empty between two), and the estimated seconds that are left."""

    finished: int
    total: int
    failed: int = 0
    label: str = ""
    left: float | None = None
    busy: tuple[Busy, ...] = ()


Progress = Callable[[Snapshot], None]
"""Called about once a second, and when a cell is finished."""


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
