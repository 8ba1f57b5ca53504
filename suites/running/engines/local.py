"""Workers on this machine: spawned processes, each with a pipe."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import math
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from ....oracles.kernels import notices
from ... import device_memory
from ...problems.padding import PaddingWarning
from ..cells import Failure, execute, healthy, load
from ..planning.plan import Machine, Plan
from ..store import Scratch, log_path
from ..work import Cell
from .base import Dead, Done, Engine, Message, Ready, Worker, limit_memory

BUNDLE = 0.25
"""Seconds of the cells that a worker is given at once, so that it need not wait for each until the driver has kept the one before."""

_LAST_WORDS = 8000
"""Characters of the log of a dead worker that are kept, from its end."""


class LocalEngine(Engine):
    """Spawned workers, never forked: a fork after CUDA has started is broken, and inherits the parent's memory."""

    bundle = BUNDLE
    start_limit = 300.0

    def __init__(self, plan: Plan, machine: Machine) -> None:
        self.plan, self.machine, self.hired = plan, machine, 0
        self._shares: dict[str, float] = {}

    def places(self) -> int:
        return self.machine.jobs

    def hire(self, directory: Path, place: int) -> Worker:
        self.hired += 1
        plan = self.plan.at(place)
        name = f"worker {self.hired}" if plan == self.plan else f"worker {self.hired} on {plan.device}"
        return LocalWorker(name, _Duty(plan, directory, self.machine.memory, self._share(plan.device)))

    def _share(self, device: str) -> float:
        """Bytes for each worker of a device: of what was free before any of them came."""
        if self.plan.device_kind != "cuda":
            return math.inf
        if device not in self._shares:
            neighbours = [self.plan.at(place).device for place in range(self.places())].count(device)
            self._shares[device] = device_memory.free(device) / neighbours
        return self._shares[device]

    def wait(self, workers: Sequence[Worker], seconds: float) -> None:
        mine = [worker for worker in workers if isinstance(worker, LocalWorker)]
        multiprocessing.connection.wait([end for worker in mine for end in (worker.pipe, worker.process.sentinel)], timeout=seconds)


@dataclass(frozen=True)
class _Duty:
    """What a worker is told once: its plan, which names one device, and what it may take of this machine's memory and of that device's."""

    plan: Plan
    directory: Path
    memory: float | None
    share: float = math.inf


class LocalWorker(Worker):
    """A spawned process, seen from outside."""

    def __init__(self, name: str, duty: _Duty) -> None:
        context = multiprocessing.get_context("spawn")
        self.name, self.directory = name, duty.directory
        self.cells: deque[Cell] = deque()
        self.cell: Cell | None = None
        self.pipe, theirs = context.Pipe()
        self._compiling = context.RawValue("b", 0)
        self.process = context.Process(target=_work, args=(theirs, duty, self._compiling), name=name, daemon=True)
        with _main_module_kept_out(), _interrupts_held():
            self.process.start()
        theirs.close()

    @property
    def compiling(self) -> bool:
        return bool(self._compiling.value)

    def cpu_seconds(self) -> float | None:
        with contextlib.suppress(OSError, ValueError, IndexError):
            # After the name, which stands in brackets and may hold anything; see proc(5).
            fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return None

    def give(self, cells: Sequence[Cell]) -> None:
        self.cells = deque(cells)
        self.cell = cells[0]
        with contextlib.suppress(OSError):  # of a worker that died meanwhile, which `heard` will tell
            self.pipe.send(tuple(cells))

    def heard(self) -> Message | None:
        message = self._received()
        if message is None and self.process.exitcode is not None:
            # What it said before it ended may have come meanwhile.
            message = self._received() or Dead(_death(self.process.exitcode, self._last_words()), lost=False)
        return message

    def _received(self) -> Message | None:
        try:
            if self.pipe.poll():
                message: Message = self.pipe.recv()
                self._told(message)
                return message
        except (EOFError, OSError):
            self.process.join(10.0)
        return None

    def _told(self, message: Message) -> None:
        """Know of a message which cell it measures now; where it has none, the last one."""
        if isinstance(message, Done) and self.cells:
            self.cells.popleft()
            self.cell = self.cells[0] if self.cells else self.cell

    def kill(self, *, traceback: bool = False) -> str:
        if traceback and hasattr(signal, "SIGUSR1") and self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, signal.SIGUSR1)
            time.sleep(0.2)
        self.process.kill()
        self.process.join()
        words = self._last_words() if traceback else ""
        self.pipe.close()
        if self.cell is not None:
            _drop_empty(log_path(self.directory, self.cell))
        return words

    def _last_words(self) -> str:
        if self.cell is None:
            return ""
        with contextlib.suppress(OSError):
            lines = log_path(self.directory, self.cell).read_text(encoding="utf-8", errors="replace").splitlines()
            return "\n".join(line for line in lines if not line.startswith("Extension modules:"))[-_LAST_WORDS:]
        return ""


def _death(code: int, words: str) -> Failure:
    """Why a process that was not killed by us is gone."""
    if code >= 0:
        return Failure("crash", f"the worker died with exit code {code}", traceback=words)
    name = signal.Signals(-code).name
    if name == "SIGKILL":
        return Failure("oom", "the worker was killed by SIGKILL, as the kernel does when memory runs out", name, words)
    return Failure("crash", f"the worker died of {name}", name, words)


@contextlib.contextmanager
def _main_module_kept_out() -> Iterator[None]:
    """A spawned process imports the program's main module again; workers need nothing of it, and it may start a run of its own."""
    names: dict[str, Any] = vars(sys.modules["__main__"])
    hidden: dict[str, Any] = {name: names.pop(name) for name in ("__file__", "__spec__") if name in names}
    names["__spec__"] = None
    try:
        yield
    finally:
        names.update(hidden)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C reaches the whole group: a process inherits that it waits, and hears nothing of it while it imports; the parent does."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # whose start would let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# In the worker.


def _work(pipe: Connection, duty: _Duty, compiling: Any) -> None:
    """Measure cells until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides; what was held back meanwhile is dropped
    threading.Thread(target=_die_with_parent, daemon=True).start()
    warnings.simplefilter("ignore", PaddingWarning)  # the parent has said it
    load()
    device_memory.allot(duty.share)
    if duty.memory is not None:
        limit_memory(duty.memory)
    pipe.send(Ready())
    with notices.listening(functools.partial(setattr, compiling, "value")):
        _serve(pipe, duty)


def _serve(pipe: Connection, duty: _Duty) -> None:
    scratch = Scratch(duty.directory)
    with contextlib.closing(_Log()) as log:
        while True:
            try:
                cells: tuple[Cell, ...] = pipe.recv()
            except EOFError:
                return
            for cell in cells:
                log.turn_to(log_path(duty.directory, cell))
                folder = scratch.open(cell)
                text = execute(duty.plan, cell, folder)
                scratch.close(folder)
                log.flush()
                pipe.send(Done(text))
                if not healthy(text):
                    return


def _die_with_parent() -> None:
    """A parent that is killed outright cannot end its workers."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class _Log:
    """Standard output and error of cells, those of compiled code too, with a stack where a signal ends the process: a file for each cell.

    A file that a cell has left empty is renamed for the next one, for to make and to remove files is slow.
    """

    def __init__(self) -> None:
        self.kept = [os.dup(stream) for stream in (1, 2)]
        self.path: Path | None = None
        self.file: IO[str] | None = None

    def turn_to(self, path: Path) -> None:
        """What is printed from now on goes there."""
        if self.path is not None and self.file is not None and os.fstat(self.file.fileno()).st_size == 0:
            os.replace(self.path, path)
        else:
            self._open(path)
        self.path = path

    def _open(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        before, self.file = self.file, path.open("w", encoding="utf-8")
        for stream in (1, 2):
            os.dup2(self.file.fileno(), stream)
        faulthandler.enable(self.file)
        if hasattr(faulthandler, "register"):
            faulthandler.register(signal.SIGUSR1, self.file)
        if before is not None:
            before.close()

    def flush(self) -> None:
        """What was printed is in the file."""
        sys.stdout.flush()
        sys.stderr.flush()

    def close(self) -> None:
        """Standard output and error are again what they were."""
        self.flush()
        faulthandler.disable()
        if hasattr(faulthandler, "unregister"):
            faulthandler.unregister(signal.SIGUSR1)
        for stream, copy in zip((1, 2), self.kept, strict=True):
            os.dup2(copy, stream)
            os.close(copy)
        if self.path is not None and self.file is not None:
            self.file.close()
            _drop_empty(self.path)


def _drop_empty(path: Path) -> None:
    """Remove a file that nothing was written to."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size == 0:
            path.unlink()
