"""Giving cells to workers: time limits, deaths, retries. The same for every engine."""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

from .cells import Failure, failed, healthy
from .engines.base import Dead, Done, Engine, Ready, Worker
from .planning.plan import Plan
from .progress import Busy
from .work import Cell

TICK = 1.0
"""Seconds between two signs of life."""

_NO_WORKERS = Failure("crash", "no worker could be started: several died before they were ready")

LARGEST = 256
"""Cells of a bundle at most: a call of Ray carries the names of so many itself, and does not store them first."""

HOPELESS = 3
"""So many workers in a row that died before they were ready: no further one is hired."""


IDLE = 0.05
"""A worker that uses less of a processor than this share waits for something: its limit counts the time that goes by."""


@dataclass
class _Hired:
    """A worker, its cells, the first of which it measures, and since when it has been at that, by the clock and in CPU time."""

    worker: Worker
    place: int = 0
    ready: bool = False
    cells: deque[Cell] = field(default_factory=deque)
    last: tuple[str, str] | None = None
    since: float = 0.0
    cpu_since: float | None = None
    limit: float = math.inf

    @property
    def cell(self) -> Cell | None:
        """The one that it measures; the others of its bundle wait for that."""
        return self.cells[0] if self.cells else None

    def age(self) -> float:
        return time.monotonic() - self.since

    def overdue(self, threads: int) -> str:
        """How its cell exceeded its limit; empty if it did not.

        The limit counts CPU seconds per thread, so that a busy machine ends no cell, or seconds if the worker idles.
        """
        age, now = self.age(), self.worker.cpu_seconds()
        if age <= self.limit:
            return ""
        used = None if now is None or self.cpu_since is None else now - self.cpu_since
        if used is None or used < IDLE * age:
            return f"took longer than {self.limit:g} s"
        return f"took longer than {self.limit:g} s of CPU time" if used > threads * self.limit else ""


class Waiting:
    """Cells that wait for a worker, in their order, those of the same scores together: any of hundred thousand is found at once."""

    def __init__(self, cells: Iterable[Cell] = ()) -> None:
        self.by_scores: OrderedDict[tuple[str, str], deque[Cell]] = OrderedDict()
        self.count = 0
        for cell in cells:
            self.by_scores.setdefault(cell.scores, deque()).append(cell)
            self.count += 1

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Cell]:
        for cells in self.by_scores.values():
            yield from cells

    def pop(self, wanted: tuple[str, str] | None, taken: Set[tuple[str, str]]) -> Cell:
        """The first cell of the wanted scores, else of scores that are not taken, else of any; there is one."""
        free = (scores for scores in self.by_scores if scores not in taken)
        scores = wanted if wanted in self.by_scores else next(free, None)
        scores = next(iter(self.by_scores)) if scores is None else scores
        cell = self.by_scores[scores].popleft()
        if not self.by_scores[scores]:
            del self.by_scores[scores]
        self.count -= 1
        return cell

    def put_back(self, cell: Cell) -> None:
        """To be the next."""
        self.by_scores.setdefault(cell.scores, deque()).appendleft(cell)
        self.by_scores.move_to_end(cell.scores, last=False)
        self.count += 1

    def clear(self) -> None:
        """None of them is measured."""
        self.by_scores.clear()
        self.count = 0


def _unknown(cell: Cell) -> float:
    return math.inf


class Dispatcher:
    """Cells on the workers of an engine.

    Args:
        plan: that the cells are of. ``directory``: where logs and scratch folders go.
        engine: hires workers.
        limit: CPU seconds that a cell may take. ``seconds``: that it is expected to take.
    """

    def __init__(
        self, plan: Plan, directory: Path, engine: Engine, limit: Callable[[Cell], float], seconds: Callable[[Cell], float] = _unknown
    ) -> None:
        self.plan, self.directory, self.engine, self.limit = plan, directory, engine, limit
        self.seconds = seconds
        self.hired: list[_Hired] = []
        self.waiting = Waiting()
        self.lost: Counter[str] = Counter()
        self.stillborn = 0

    def measured(self, cells: Sequence[Cell], places: int) -> Iterator[tuple[Cell, str] | None]:
        """Cells with the content of their files, as they are finished; None once a second, as a sign of life.

        Workers are kept for the next call; `close` ends them.
        """
        self.waiting = Waiting(cells)
        due = time.monotonic() + TICK
        while self.waiting or any(hired.cell for hired in self.hired):
            self._staff(min(places, len(cells)))
            self.engine.wait([hired.worker for hired in self.hired], max(due - time.monotonic(), 0.0))
            for hired in list(self.hired):
                yield from self._listened(hired)
            if not self.hired and self.stillborn >= HOPELESS:
                yield from [(cell, failed(self.plan, cell, _NO_WORKERS, 0.0)) for cell in self._rest()]
            if time.monotonic() >= due:
                due = time.monotonic() + TICK
                yield None

    def stop(self) -> None:
        """What is being measured may end; nothing else is heard of."""
        self.waiting.clear()
        for hired in self.hired:
            hired.cells = deque(list(hired.cells)[:1])

    def busy(self) -> tuple[Busy, ...]:
        """What every worker does."""
        return tuple(Busy(hired.worker.name, _doing(hired), hired.age(), hired.worker.compiling) for hired in self.hired)

    def close(self) -> None:
        """End all workers."""
        for hired in self.hired:
            hired.worker.kill()
        self.hired = []
        self.engine.close()

    def _rest(self) -> list[Cell]:
        rest = list(self.waiting)
        self.waiting.clear()
        return rest

    def _staff(self, places: int) -> None:
        """Hire and dismiss up to the number of places, and give every free worker a cell."""
        for hired in [hired for hired in self.hired if hired.cell is None and hired.place >= places]:
            self._dismiss(hired)
        occupied = sum(hired.cell is not None for hired in self.hired)
        while len(self.hired) < min(places, occupied + len(self.waiting)) and self.stillborn < HOPELESS:
            place = min(set(range(places)) - {hired.place for hired in self.hired})
            self.hired.append(_Hired(self.engine.hire(self.directory, place), place, since=time.monotonic()))
        for hired in self.hired:
            if hired.ready and hired.cell is None and self.waiting:
                self._give(hired)

    def _give(self, hired: _Hired) -> None:
        hired.cells = deque(self._bundle(hired))
        hired.worker.give(tuple(hired.cells))
        self._begin(hired)

    def _begin(self, hired: _Hired) -> None:
        """The clock of the first of its cells."""
        hired.since, hired.limit = time.monotonic(), self.limit(hired.cells[0])
        hired.cpu_since = hired.worker.cpu_seconds()

    def _bundle(self, hired: _Hired) -> list[Cell]:
        """The next cells of the scores that the worker had last, whose exact gradients it knows; else of scores that nobody is at.

        As many as take the seconds of a bundle, but no more than half of an equal share of what waits, so that all workers end at about
        the same time. What has lost a worker goes alone: only so is it known to be the reason, should that happen again.
        """
        taken = {cell.scores for other in self.hired if other is not hired for cell in other.cells}
        most = min(len(self.waiting) // (2 * len(self.hired)), LARGEST)
        cells: list[Cell] = []
        seconds = 0.0
        while not cells or (len(cells) < most and seconds < self.engine.bundle):
            cell = self.waiting.pop(hired.last, taken)
            if cells and self.lost[cell.identity]:
                self.waiting.put_back(cell)
                break
            cells.append(cell)
            hired.last = cell.scores
            seconds += math.inf if self.lost[cell.identity] else self.seconds(cell)
        return cells

    def _listened(self, hired: _Hired) -> Iterator[tuple[Cell, str]]:
        message = hired.worker.heard()
        if isinstance(message, Ready):
            hired.ready, self.stillborn = True, 0
        elif isinstance(message, Done):
            yield from self._finished(hired, message)
        elif isinstance(message, Dead):
            yield from self._died(hired, message)
        elif hired.cell is not None and (excess := hired.overdue(self.plan.threads)):
            yield from self._overdue(hired, hired.cell, excess)
        elif not hired.ready and self.engine.start_limit is not None and hired.age() > self.engine.start_limit:
            hired.worker.kill()
            yield from self._died(hired, Dead(Failure("crash", f"the worker was not ready after {self.engine.start_limit:g} s")))

    def _finished(self, hired: _Hired, message: Done) -> Iterator[tuple[Cell, str]]:
        cell = hired.cells.popleft() if hired.cells else None
        if not healthy(message.text):
            self._dismiss(hired)
        elif hired.cells:
            self._begin(hired)
        elif self.waiting:
            self._give(hired)  # before the result is written, so that nobody waits for the disk
        if cell is not None:
            yield cell, message.text

    def _died(self, hired: _Hired, message: Dead) -> Iterator[tuple[Cell, str]]:
        """The cell that it measured, or one that was waiting for it, pays; a cell of a lost worker gets another chance."""
        cell = hired.cells.popleft() if hired.cells else None
        self._remove(hired)
        if not hired.ready:
            self.stillborn += 1
            cell = self.waiting.pop(None, set()) if self.waiting else None
        if cell is None:
            return
        self.lost[cell.identity] += 1
        if message.lost and self.lost[cell.identity] <= self.engine.retries:
            self.waiting.put_back(cell)
        else:
            yield cell, failed(self.plan, cell, message.failure, hired.age())

    def _overdue(self, hired: _Hired, cell: Cell, excess: str) -> Iterator[tuple[Cell, str]]:
        words = hired.worker.kill(traceback=True)
        hired.cells.popleft()
        self._remove(hired)
        failure = Failure("timeout", f"{excess}; raise --timeout", traceback=words)
        yield cell, failed(self.plan, cell, failure, hired.age())

    def _dismiss(self, hired: _Hired) -> None:
        self._remove(hired)
        hired.worker.kill()

    def _remove(self, hired: _Hired) -> None:
        """Cells that it has not come to are the next of others."""
        self.hired.remove(hired)
        for cell in reversed(hired.cells):
            self.waiting.put_back(cell)


def _doing(hired: _Hired) -> str:
    if hired.cell is not None:
        return hired.cell.label
    return "idle" if hired.ready else "starting"
