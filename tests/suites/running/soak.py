"""Soak test of the store and the runner: runs of simulated cells with random faults must end like undisturbed runs."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from structgrad.suites.base import Row
from structgrad.suites.running import cell_writer, cells, runner, store
from structgrad.suites.running.engines import local
from structgrad.suites.running.engines.local import limit_memory
from structgrad.suites.running.parts import columns, compaction, journal
from structgrad.suites.running.parts.locking import LockedError, locked
from structgrad.suites.running.planning.grid import grid
from structgrad.suites.running.planning.plan import Machine, Plan
from structgrad.suites.running.work import Cell, Grid
from tests.suites.simulated import simulated_plan

BATCH = 32
"""Cells of a part: so few that there is a compaction in every life of a driver."""

TIMEOUT = 2.0
"""Seconds of one cell."""

LIFE = (0.05, 0.8)
"""Seconds of a driver until the fault, from the least to the most."""

LITTLE = 0.03
"""GiB that a worker may still take which will run out of them."""

MOMENT = 0.05
"""Seconds for which a driver is stopped, or listened to."""


@dataclass
class Soak:
    """A run that is disturbed.

    Attributes:
        directory: of the run. ``plan, work``: what is measured. ``expected``: the rows of every cell, without their seconds.
        kept: cells that a driver has said to be kept, and that nobody has damaged since.
        faults: how many of each kind. ``refused``: second drivers that were refused. ``wrong``: sentences on what should not be.
        heard: what the driver has said so far.
    """

    directory: Path
    plan: Plan
    work: Grid
    expected: dict[str, list[str]]
    random: random.Random
    kept: set[str] = field(default_factory=set)
    faults: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    runs: int = 0
    wrong: list[str] = field(default_factory=list)
    heard: str = ""

    def round(self) -> None:
        """A driver, what happens to it, what happens to its files when it is dead, and whether all is there."""
        inside = self.random.choice((*INSIDE, *[""] * len(INSIDE)))
        pid, pipe = self._driver(inside)
        if inside:
            self.faults[INSIDE[inside]] += 1
        ended = self._live(pid)
        while not ended and self.random.random() < 0.7:
            self._outside(pid, pipe, self.random.choice(OUTSIDE))
            ended = self._live(pid)
        if not ended:
            self.faults["driver killed (-9)"] += 1
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # workers whose driver is gone
        self._hear(pipe)
        for _ in range(self.random.randrange(4)):
            self._damage()
        self.check()

    def _driver(self, inside: str) -> tuple[int, int]:
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.close(ours)
            _drive(self.plan, self.directory, self.work, theirs, inside)
        os.close(theirs)
        return pid, ours

    def _live(self, pid: int) -> bool:
        """Let it work for a while; whether it has ended."""
        end = time.monotonic() + self.random.uniform(*LIFE)
        while time.monotonic() < end:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return True
            time.sleep(0.01)
        return False

    def _outside(self, pid: int, pipe: int, kind: str) -> None:
        """Something that happens to a driver that goes on."""
        workers = _children(pid)
        if kind == "second driver on the folder":
            if not workers:
                return
            try:
                with locked(self.directory):
                    # One that is about to end has given its lock back while its workers are still there; but it says no more.
                    self.heard += _there(pipe)
                    time.sleep(MOMENT)
                    later = _there(pipe)
                    self.heard += later
                    self.wrong += ["a second driver was let in"] if later else []
            except LockedError:
                self.refused += 1
        elif not workers:
            return
        elif kind == "driver stopped for a moment":
            os.kill(pid, signal.SIGSTOP)
            time.sleep(MOMENT)
            os.kill(pid, signal.SIGCONT)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(
                    self.random.choice(workers), signal.SIGKILL if kind == "worker killed (-9, as by lack of memory)" else signal.SIGSTOP
                )
        self.faults[kind] += 1

    def _hear(self, pipe: int) -> None:
        os.set_blocking(pipe, True)
        with os.fdopen(pipe) as stream:
            self.kept.update(word for word in (self.heard + stream.read()).split() if len(word) == 32)
        self.heard = ""

    def _damage(self) -> None:
        """Something that happens to the files of a run without a driver."""
        kind = self.random.choice(list(DAMAGES))
        lost = DAMAGES[kind](self.directory, self.random)
        if lost is not None:
            self.faults[kind] += 1
            self.kept -= lost

    def check(self) -> None:
        """Whether what was kept is there, and some of it as it should be."""
        there = store.known(self.directory, self.work.cells)
        for identity in self.kept - there.keys():
            self.wrong.append(f"{identity} was kept, and is lost")
        known = [cell for cell in self.work.cells if cell.identity in there and there[cell.identity].kind == journal.DONE]
        for cell in self.random.sample(known, min(20, len(known))):
            self._compare(cell)

    def _compare(self, cell: Cell) -> None:
        content = store.stored(self.directory, cell)
        if content is not None and plain(content["rows"]) != self.expected[cell.identity]:
            self.wrong.append(f"{cell.label} has other rows")

    def finish(self) -> bool:
        """Measure what is left undisturbed: whether every cell is there once, with the rows that it should have."""
        runner.measure(self.plan, self.directory, machine=Machine(jobs=0), work=self.work)
        self.runs += 1
        rows: dict[str, list[Row]] = {}
        for file in store.index(self.directory).parts:
            for row in columns.to_rows(compaction.read_part(self.directory, file)):
                rows.setdefault(row.cell, []).append(row)
        for cell in self.work.cells:
            if cell.identity in store.loose(self.directory):
                # A compaction that was killed leaves files of cells that lie in its part, until a driver has something to write.
                content = store.stored(self.directory, cell)
                rows[cell.identity] = content["rows"] if content is not None else []
        same = {identity: plain(found) for identity, found in rows.items()} == self.expected
        if not same:
            self.wrong.append("the finished run differs from an undisturbed one")
        self.kept = set()
        shutil.rmtree(self.directory)
        self.directory.mkdir()
        return same


def plain(rows: Sequence[Row]) -> list[str]:
    """Rows without what differs from run to run."""
    return [repr(replace(row, seconds=None)) for row in rows]


def _there(pipe: int) -> str:
    """What lies in a pipe now."""
    os.set_blocking(pipe, False)
    found = b""
    with contextlib.suppress(BlockingIOError):
        while more := os.read(pipe, 65536):
            found += more
    return found.decode()


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]
    except OSError:
        return []


# In the driver, which is forked, as its workers are: what is imported already costs nothing again.


def _drive(plan: Plan, directory: Path, work: Grid, pipe: int, inside: str) -> None:
    code = 1
    try:
        real: Any = multiprocessing.get_context
        multiprocessing.get_context = lambda method=None: real("fork")
        vars(local)["_CONTEXT"] = real("fork")
        keep = cell_writer.CellWriter.keep

        def told(self: Any, cell: Cell, text: str, seconds: float, content: Any = None) -> None:
            keep(self, cell, text, seconds, content)
            if '"status": "crash"' not in text:
                os.write(pipe, f"{cell.identity} ".encode())

        cell_writer.CellWriter.keep = told  # type: ignore[method-assign]
        _disturbed(inside)
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the rest of a process
        runner.measure(plan, directory, machine=Machine(jobs=2, timeout=TIMEOUT), work=work)
        code = 0
    except (OSError, ValueError):
        code = 3
    finally:
        for child in multiprocessing.active_children():
            child.kill()
        os._exit(code)


def _disturbed(inside: str) -> None:
    """What is wrong with the machine of a driver from now on."""
    if inside == "full":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16_000, 16_000))
    elif inside == "readonly":
        _failing(os, "replace")
    elif inside == "slow":
        _slow(os, "replace")
    elif inside == "clock":
        clock = time.time
        time.time = lambda: clock() + random.choice((-86_400.0, 86_400.0))
    elif inside == "memory":
        measured: Any = vars(cells)["_measured"]
        vars(cells)["_measured"] = lambda *given: measured(*given) if random.random() < 0.95 else _greedy()
    elif inside == "garbage":
        real: Any = vars(local)["execute"]
        vars(local)["execute"] = lambda *given: real(*given) if random.random() < 0.95 else "\x00 no JSON"


def _greedy() -> None:
    """Take memory until there is none, as a cell that is too large does, whose worker has a limit."""
    limit_memory(LITTLE)
    held = []
    while True:
        held.append(random.choice((bytearray, torch.empty))(2**20))


def _failing(owner: Any, name: str) -> None:
    real, left = getattr(owner, name), random.randrange(100)

    def operation(*given: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(30, "Read-only file system", str(given[-1]))
        return real(*given)

    setattr(owner, name, operation)


def _slow(owner: Any, name: str) -> None:
    real = getattr(owner, name)

    def operation(*given: Any) -> Any:
        time.sleep(0.02)
        return real(*given)

    setattr(owner, name, operation)


INSIDE = {
    "full": "full disk (a file may have 16 kB)",
    "readonly": "store becomes read-only",
    "slow": "slow store (20 ms a file)",
    "clock": "clock jumps by a day, to and fro",
    "memory": "worker runs out of memory (in 1 of 20 cells)",
    "garbage": "worker returns garbage (1 of 20 cells)",
}
"""What may be wrong for the whole life of a driver."""

OUTSIDE = (
    "worker killed (-9, as by lack of memory)",
    "worker hangs (stopped until its time is over)",
    "second driver on the folder",
    "driver stopped for a moment",
)


# Damage to files: each returns the cells that it took, or None where there was nothing to damage.


def _tail(directory: Path, chance: random.Random) -> set[str] | None:
    """A line of the journal that was begun: nothing is taken, for it never counted."""
    path = journal.path_of(directory)
    if not path.is_file():
        return None
    with path.open("ab") as stream:
        stream.write(chance.choice((b'{"digest": "0123', b"\x00" * 100, b"{}", b'{"digest": "' + b"f" * 16 + b'", "content": {"parts": [')))
    return set()


def _no_journal(directory: Path, chance: random.Random) -> set[str] | None:
    """The whole journal is lost; the next driver makes it anew, and until then its cells are not seen."""
    path = journal.path_of(directory)
    if not path.is_file():
        return None
    taken = set(journal.read(directory).owner)
    path.unlink()
    return taken


def _part(directory: Path, chance: random.Random) -> set[str] | None:
    """A part loses its end."""
    parts = journal.read(directory).parts
    if not parts:
        return None
    file = chance.choice(sorted(parts))
    path = directory / journal.FOLDER / file
    os.truncate(path, chance.randrange(path.stat().st_size))
    return set(parts[file].cells)


def _cell(directory: Path, chance: random.Random) -> set[str] | None:
    """The file of a cell loses its end, or becomes something else."""
    paths = sorted((directory / store.CELLS).glob("*/*.json"))
    if not paths:
        return None
    path = chance.choice(paths)
    path.write_bytes(chance.choice((path.read_bytes()[:-7], b"", b"null", b"\xff\xfe" * 20)))
    return {path.stem}


def _rubbish(directory: Path, chance: random.Random) -> set[str] | None:
    """Files that a killed process has left."""
    folder = directory / journal.FOLDER / "simulated"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{chance.randrange(10**6):06d}.parquet").write_bytes(b"PAR1" + chance.randbytes(50))
    (directory / store.CELLS / "00").mkdir(parents=True, exist_ok=True)
    (directory / store.CELLS / "00" / f".{chance.randrange(10**6)}.json.tmp").write_bytes(b"{")
    return set()


DAMAGES: dict[str, Callable[[Path, random.Random], set[str] | None]] = {
    "half a line at the end of the journal": _tail,
    "journal lost": _no_journal,
    "part cut short": _part,
    "file of a cell cut short or overwritten": _cell,
    "files of a killed process": _rubbish,
}


@contextlib.contextmanager
def small_batches() -> Iterator[None]:
    """Compactions as often as there can be some."""
    before, cell_writer.BATCH = cell_writer.BATCH, BATCH
    try:
        yield
    finally:
        cell_writer.BATCH = before


def soak(directory: Path, *, seconds: float, cells: int = 1000, seed: int = 0, most: int | None = None) -> tuple[Soak, bool]:
    """Disturb runs for a time, or until there were so many faults: what happened, and whether all of them ended as undisturbed ones do."""
    plan = simulated_plan(cells)
    work = grid(plan)
    reference = directory / "reference"
    runner.measure(plan, reference, machine=Machine(jobs=0), work=work)
    expected = {cell.identity: plain((store.stored(reference, cell) or {"rows": []})["rows"]) for cell in work.cells}
    run = directory / "run"
    run.mkdir(parents=True, exist_ok=True)
    found, same, end = Soak(run, plan, work, expected, random.Random(seed)), True, time.monotonic() + seconds
    with small_batches():
        while time.monotonic() < end and (most is None or found.faults.total() < most):
            found.round()
            if len(store.known(run, work.cells)) > 0.95 * len(work.cells):
                same &= found.finish()
        same &= found.finish()
    return found, same
