"""Dispatch of cells to workers: bundles by expected seconds, cells of the same scores on the same worker."""

from __future__ import annotations

import abc
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import groupby
from pathlib import Path

from ..planning.plan import Machine, Plan
from ..work import Busy, Cell

TICK = 1.0  # seconds between two reports of progress
MAX_BUNDLE = 256  # most cells of a bundle: Ray sends the names of so many with a call, and stores more of them first
Limit = Callable[[Cell], float]  # CPU seconds that a cell may take
Step = tuple[tuple[Busy, ...], Cell | None, str]  # the state of the workers, with a finished cell and its rows, or without one


class Worker(abc.ABC):
    """A process that measures one bundle of cells at a time, and starts again if it dies."""

    @abc.abstractmethod
    def submit(self, cells: Sequence[Cell]) -> Future[dict[str, str]]:
        """Start to measure a bundle."""

    @abc.abstractmethod
    def collect(self, future: Future[dict[str, str]], cells: Sequence[Cell]) -> dict[str, str]:
        """The texts of the finished cells of a bundle by identity; the others must be submitted again."""

    @abc.abstractmethod
    def busy(self, cells: Sequence[Cell]) -> Busy:
        """The progress of a bundle, or of an idle worker without one."""

    @abc.abstractmethod
    def close(self) -> None:
        """Kill the process at once."""


class Engine(abc.ABC):
    """Workers, and the cells that they measure within `limit` CPU seconds; logs and checkpoints lie in `folder`."""

    bundle: float
    """Seconds of the cells that a worker gets at once."""

    def __init__(self, plan: Plan, machine: Machine, folder: Path, limit: Limit) -> None:
        self.plan, self.machine, self.folder, self.limit = plan, machine, folder, limit
        self.workers: list[Worker] = []

    @abc.abstractmethod
    def places(self) -> int:
        """The number of workers that can run at the same time."""

    @abc.abstractmethod
    def start_worker(self, place: int) -> Worker:
        """A new worker at a place, counted from 0."""

    def measured(
        self, cells: Sequence[Cell], seconds: Callable[[Cell], float] = lambda cell: math.inf, stops: Callable[[], bool] = lambda: False
    ) -> Iterator[Step]:
        """Cells as they are finished, phase by phase; exclusive cells come last, one at a time.

        ``seconds`` is the expected time of a cell, and ``stops`` says whether no further cell may be started.
        """
        for (exclusive, _), group in groupby(sorted(cells, key=lambda cell: cell.phase), lambda cell: cell.phase):
            phase = list(group)
            places = min(1 if exclusive else self.places(), len(phase))
            self._keep(places)
            self.workers += [self.start_worker(place) for place in range(len(self.workers), places)]
            yield from self._measured(_Queue(phase), seconds, stops)

    def _measured(self, queue: _Queue, seconds: Callable[[Cell], float], stops: Callable[[], bool]) -> Iterator[Step]:
        running: dict[Future[dict[str, str]], tuple[Worker, list[Cell]]] = {}
        given: dict[Worker, list[Cell]] = {}
        last = dict.fromkeys(self.workers, ("", ""))
        finished: list[tuple[Cell, str]] = []
        due = time.monotonic() + TICK
        while queue.count or running or finished:
            if stops():
                queue = _Queue(())
            for worker in self.workers:
                if queue.count and worker not in given:
                    taken = {scores for other, scores in last.items() if other in given}
                    # No more than half of an equal share of the queue, so that all workers end at about the same time.
                    cells = queue.bundle(last[worker], taken, seconds, self.bundle, queue.count // (2 * len(self.workers)))
                    given[worker], last[worker] = cells, cells[-1].scores
                    running[worker.submit(cells)] = worker, cells
            # Workers measure while the results of the bundles before are written.
            for cell, text in finished:
                yield self._busy(given), cell, text
            finished = []
            for future in wait(running, timeout=max(due - time.monotonic(), 0.0), return_when=FIRST_COMPLETED).done:
                worker, cells = running.pop(future)
                del given[worker]
                texts = worker.collect(future, cells)
                finished += [(cell, texts[cell.identity]) for cell in cells if cell.identity in texts]
                for cell in reversed(cells):
                    if cell.identity not in texts:
                        queue.put_back(cell)
            if time.monotonic() >= due:
                due = time.monotonic() + TICK
                yield self._busy(given), None, ""

    def _busy(self, given: dict[Worker, list[Cell]]) -> tuple[Busy, ...]:
        return tuple(worker.busy(given.get(worker, ())) for worker in self.workers)

    def close(self) -> None:
        """Kill all workers."""
        self._keep(0)

    def _keep(self, places: int) -> None:
        with ThreadPoolExecutor(max_workers=32) as threads:
            list(threads.map(lambda worker: worker.close(), self.workers[places:]))
        del self.workers[places:]


class _Queue:
    """Cells in their order, grouped by their scores."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.groups: dict[tuple[str, str], deque[Cell]] = {}
        self.count = len(cells)
        for cell in cells:
            self.groups.setdefault(cell.scores, deque()).append(cell)

    def bundle(
        self, last: tuple[str, str], taken: set[tuple[str, str]], seconds: Callable[[Cell], float], bundle: float, most: int
    ) -> list[Cell]:
        """The next cells of the scores that a worker had last, whose exact gradients it has cached; else of scores that no other has."""
        cells: list[Cell] = []
        while not cells or (len(cells) < min(most, MAX_BUNDLE) and bundle > 0):
            if last not in self.groups:
                last = next((scores for scores in self.groups if scores not in taken), next(iter(self.groups)))
            cells.append(self.groups[last].popleft())
            bundle -= seconds(cells[-1])
            if not self.groups[last]:
                del self.groups[last]
        self.count -= len(cells)
        return cells

    def put_back(self, cell: Cell) -> None:
        """Make a cell the next one."""
        self.groups = {cell.scores: self.groups.pop(cell.scores, deque()), **self.groups}
        self.groups[cell.scores].appendleft(cell)
        self.count += 1
