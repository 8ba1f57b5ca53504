"""Giving cells to workers: time limits, deaths, retries. The same for every engine."""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from .cells import Failure, failed, healthy
from .engines.base import Dead, Done, Engine, Ready, Worker
from .planning.plan import Plan
from .progress import Busy
from .work import Cell

TICK = 1.0
"""Seconds between two signs of life."""

_NO_WORKERS = Failure("crash", "no worker could be started: several died before they were ready")

HOPELESS = 3
"""So many workers in a row that died before they were ready: no further one is hired."""


@dataclass
class _Hired:
    """A worker, its cell, and since when it has been at it."""

    worker: Worker
    place: int = 0
    ready: bool = False
    cell: Cell | None = None
    last: tuple[str, str] | None = None
    since: float = 0.0
    limit: float = math.inf

    def age(self) -> float:
        return time.monotonic() - self.since


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


class Dispatcher:
    """Cells on the workers of an engine.

    Args:
        plan: that the cells are of. ``directory``: where logs and scratch folders go.
        engine: hires workers.
        limit: seconds that a cell may take.
    """

    def __init__(self, plan: Plan, directory: Path, engine: Engine, limit: Callable[[Cell], float]) -> None:
        self.plan, self.directory, self.engine, self.limit = plan, directory, engine, limit
        self.hired: list[_Hired] = []
        self.waiting = Waiting()
        self.lost: Counter[str] = Counter()
        self.stillborn = 0

    def measured(self, cells: Sequence[Cell], places: int) -> Iterator[tuple[Cell, str] | None]:
        """Cells with the content of their files, as they are finished; None about once a second, as a sign of life.

        Workers are kept for the next call; `close` ends them.
        """
        self.waiting = Waiting(cells)
        while self.waiting or any(hired.cell for hired in self.hired):
            self._staff(min(places, len(cells)))
            self.engine.wait([hired.worker for hired in self.hired], TICK)
            for hired in list(self.hired):
                yield from self._listened(hired)
            if not self.hired and self.stillborn >= HOPELESS:
                yield from [(cell, failed(self.plan, cell, _NO_WORKERS, 0.0)) for cell in self._rest()]
            yield None

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
        hired.cell, hired.since = self._next(hired), time.monotonic()
        hired.last = hired.cell.scores
        hired.worker.give(hired.cell)
        hired.limit = self.limit(hired.cell)

    def _next(self, hired: _Hired) -> Cell:
        """The next cell of the scores that the worker had last, whose exact gradients it knows; else of scores that nobody is at."""
        return self.waiting.pop(hired.last, {other.cell.scores for other in self.hired if other.cell is not None and other is not hired})

    def _listened(self, hired: _Hired) -> Iterator[tuple[Cell, str]]:
        message = hired.worker.heard()
        if isinstance(message, Ready):
            hired.ready, self.stillborn = True, 0
        elif isinstance(message, Done):
            yield from self._finished(hired, message)
        elif isinstance(message, Dead):
            yield from self._died(hired, message)
        elif hired.cell is not None and hired.age() > hired.limit:
            yield from self._overdue(hired, hired.cell)
        elif not hired.ready and self.engine.start_limit is not None and hired.age() > self.engine.start_limit:
            hired.worker.kill()
            yield from self._died(hired, Dead(Failure("crash", f"the worker was not ready after {self.engine.start_limit:g} s")))

    def _finished(self, hired: _Hired, message: Done) -> Iterator[tuple[Cell, str]]:
        cell, hired.cell = hired.cell, None
        if not healthy(message.text):
            self._dismiss(hired)
        elif self.waiting:
            self._give(hired)  # before the result is written, so that nobody waits for the disk
        if cell is not None:
            yield cell, message.text

    def _died(self, hired: _Hired, message: Dead) -> Iterator[tuple[Cell, str]]:
        """Its cell, or one that was waiting for it, pays; a cell of a lost worker gets another chance."""
        self.hired.remove(hired)
        cell = hired.cell
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

    def _overdue(self, hired: _Hired, cell: Cell) -> Iterator[tuple[Cell, str]]:
        words = hired.worker.kill(traceback=True)
        self.hired.remove(hired)
        failure = Failure("timeout", f"took longer than {hired.limit:g} s; raise --timeout", traceback=words)
        yield cell, failed(self.plan, cell, failure, hired.age())

    def _dismiss(self, hired: _Hired) -> None:
        self.hired.remove(hired)
        hired.worker.kill()


def _doing(hired: _Hired) -> str:
    if hired.cell is not None:
        return hired.cell.label
    return "idle" if hired.ready else "starting"
