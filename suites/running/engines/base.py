"""Engines and workers: an engine hires workers, which live on from cell to cell and may die at any time."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ....oracles.magnitudes import GIB
from ..cells import Failure
from ..work import Cell

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Ready:
    """A worker has started."""


@dataclass(frozen=True)
class Done:
    """A worker has finished its cell; ``text`` is the content of the cell's file."""

    text: str


@dataclass(frozen=True)
class Dead:
    """A worker is gone.

    Attributes:
        failure: what its cell shows, if it had one.
        lost: whether the machine or a stranger killed it, so that the cell may be tried again elsewhere.
    """

    failure: Failure
    lost: bool = False


Message = Ready | Done | Dead


class Worker(abc.ABC):
    """A process that measures one cell at a time.

    Attributes:
        name: for people.
    """

    name: str

    @property
    def compiling(self) -> bool:
        """Whether it is compiling kernels, or waiting for another process that does, as far as that is known."""
        return False

    def cpu_seconds(self) -> float | None:
        """CPU time of its process so far; None if the system does not tell."""
        return None

    @abc.abstractmethod
    def give(self, cells: Sequence[Cell]) -> None:
        """A bundle to measure in its order; the worker is ready and has none. Each cell is heard of when it is finished."""

    @abc.abstractmethod
    def heard(self) -> Message | None:
        """The next message, if there is one; never waits."""

    @abc.abstractmethod
    def kill(self, *, traceback: bool = False) -> str:
        """End it at once, whatever it does; returns what it was doing if that is asked for and known."""


class Engine(abc.ABC):
    """Hires workers.

    Attributes:
        retries: how often a cell is tried again after its worker was lost.
        bundle: seconds of the cells that a worker is given at once, as far as they can be foretold; 0 for one cell at a time.
        start_limit: seconds after which a worker that is not ready counts as dead; None where it may wait for a place in a cluster.
    """

    retries: int = 0
    bundle: float = 0.0
    start_limit: float | None = None

    @abc.abstractmethod
    def places(self) -> int:
        """How many workers may run at a time."""

    @abc.abstractmethod
    def hire(self, directory: Path, place: int) -> Worker:
        """A new worker at a place that nobody has, counted from 0; it says `Ready` when it has started."""

    @abc.abstractmethod
    def wait(self, workers: Sequence[Worker], seconds: float) -> None:
        """Return when some worker has a message, or after so many seconds."""

    def close(self) -> None:
        """Give back what the engine holds; its workers are dead."""
        return


def limit_memory(gib: float) -> None:
    """In a worker, after its imports: let the address space grow by so much over what it is now; not on Windows."""
    used = (
        int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
        if Path("/proc/self/statm").exists()
        else 0
    )
    most = used + int(gib * GIB)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
