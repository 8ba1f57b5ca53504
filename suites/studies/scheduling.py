"""Scheduling of a million cells on a thousand workers that fail: makespan against its bound, by the order in which cells are given out.

``python -m structgrad.suites.studies.scheduling RUN`` takes the seconds of the cells of a finished run, and simulates runs of cells with
such costs, event by event. A worker fails at random, loses its cell, which is given out again at once, and is back after a while.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow.parquet as pq

from .markdown import Entry, table

Order = Literal["first in", "longest by the model", "longest"]
ORDERS: tuple[Order, ...] = ("first in", "longest by the model", "longest")
"""As the plan has them; by what the cost model knows of cells of their suite, problem and estimator; by what they will take."""

HOUR = 3600.0
BACK = 60.0
"""Seconds until a worker that failed takes cells again."""

_LEVELS = (("suite", "problem", "estimator"), ("suite", "problem"), ("suite", "estimator"), ("suite",))
"""What the cost model takes means over: the first of which it knows another cell."""


@dataclass(frozen=True)
class CellCosts:
    """Seconds of cells, and what a cost model that knows the others says of each."""

    seconds: np.ndarray
    estimates: np.ndarray

    @classmethod
    def of(cls, cells: Sequence[Mapping[str, object]]) -> CellCosts:
        """Of the cells of a run: ``suite``, ``problem``, ``estimator`` and ``seconds`` of each.

        Example:
            >>> found = (("a", 1.0), ("a", 3.0), ("b", 5.0))
            >>> cells = [{"suite": "bias", "problem": name, "estimator": "ste", "seconds": size} for name, size in found]
            >>> CellCosts.of(cells).estimates.tolist()
            [3.0, 1.0, 2.0]
        """
        known: dict[tuple[object, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
        seconds = [float(str(cell["seconds"])) for cell in cells]
        keys = [[(level, *(cell[name] for name in level)) for level in _LEVELS] for cell in cells]
        for own, size in zip(keys, seconds, strict=True):
            for key in own:
                known[key][0] += size
                known[key][1] += 1
        estimates = []
        for own, size in zip(keys, seconds, strict=True):
            others = [known[key] for key in own if known[key][1] > 1]
            estimates.append((others[0][0] - size) / (others[0][1] - 1) if others else size)
        return cls(np.array(seconds), np.array(estimates))

    def drawn(self, count: int, scale: float, seed: int) -> CellCosts:
        """So many cells, drawn with replacement, so many times as long."""
        chosen = np.random.default_rng(seed).integers(len(self.seconds), size=count)
        return CellCosts(scale * self.seconds[chosen], scale * self.estimates[chosen])


@dataclass(frozen=True)
class Simulated:
    """What became of a run.

    Attributes:
        makespan: seconds until the last cell is finished. ``finished``: when each was [cell].
        failures: of workers, by which cells were lost or not. ``lost``: seconds of work that were lost with cells.
    """

    makespan: float
    finished: np.ndarray
    failures: int
    lost: float


def simulated(costs: CellCosts, workers: int, order: Order, mean_life: float, seed: int = 0) -> Simulated:
    """A run, event by event.

    Args:
        costs: of its cells.
        workers: how many.
        order: in which cells are given out; what was lost comes first.
        mean_life: seconds between the failures of one worker, on average; infinite where none fails.
        seed: of the failures.

    Example:
        >>> found = simulated(CellCosts(np.array([1.0, 1.0, 4.0]), np.ones(3)), 2, "longest", np.inf)
        >>> found.makespan, found.finished.tolist()
        (4.0, [1.0, 2.0, 4.0])
    """
    ranks = {"first in": -np.arange(len(costs.seconds)), "longest by the model": costs.estimates, "longest": costs.seconds}[order]
    return _Run(costs.seconds.tolist(), np.argsort(-ranks, kind="stable")[::-1].tolist(), mean_life, seed).simulated(workers)


FREE, DONE, LOST = range(3)


class _Run:
    """A run at one moment.

    Args:
        seconds: of the cells. ``waiting``: cells, of which the last is given out next.
        mean_life: of a worker. ``seed``: of its failures.
    """

    def __init__(self, seconds: list[float], waiting: list[int], mean_life: float, seed: int) -> None:
        self.seconds, self.waiting, self.mean_life = seconds, waiting, mean_life
        self.generator = np.random.default_rng(seed)
        self.events: list[tuple[float, int, int, int]] = []
        self.deaths: list[float] = []
        self.failures, self.lost = 0, 0.0

    def simulated(self, workers: int) -> Simulated:
        self.deaths = [self._life() for _ in range(workers)]
        self.events = [(0.0, worker, FREE, -1) for worker in range(workers)]
        finished, left, idle = np.zeros(len(self.seconds)), len(self.seconds), list[int]()
        while left:
            now, worker, what, cell = heapq.heappop(self.events)
            if what == DONE:
                finished[cell], left = now, left - 1
            elif what == LOST:
                self.waiting.append(cell)
                self.deaths[worker] = now + BACK + self._life()
                heapq.heappush(self.events, (now + BACK, worker, FREE, -1))
                if not idle:
                    continue
                worker = idle.pop()
            if self.waiting:
                self._start(worker, now)
            else:
                idle.append(worker)
        return Simulated(float(finished.max()), finished, self.failures, self.lost)

    def _start(self, worker: int, now: float) -> None:
        """Give out a cell; where the worker fails before it is finished, it is lost."""
        while self.deaths[worker] <= now:  # while it had nothing to do
            self.failures += 1
            self.deaths[worker] += self._life()
        cell = self.waiting.pop()
        end = now + self.seconds[cell]
        if end <= self.deaths[worker]:
            heapq.heappush(self.events, (end, worker, DONE, cell))
            return
        self.failures, self.lost = self.failures + 1, self.lost + self.deaths[worker] - now
        heapq.heappush(self.events, (self.deaths[worker], worker, LOST, cell))

    def _life(self) -> float:
        return float(self.generator.exponential(self.mean_life)) if np.isfinite(self.mean_life) else np.inf


def line(costs: CellCosts, workers: int, order: Order, mean_life: float, size: float) -> dict[str, Entry]:
    """One line of the table.

    Args:
        costs: of the cells.
        workers: how many.
        order: in which cells are given out.
        mean_life: seconds between two failures of a worker.
        size: of what is stored of a cell, in bytes.
    """
    found = simulated(costs, workers, order, mean_life)
    bound = max(float(costs.seconds.sum()) / workers, float(costs.seconds.max()))
    each_second = np.bincount(found.finished.astype(np.int64))
    return {
        "mean cell [s]": float(costs.seconds.mean()),
        "longest [s]": float(costs.seconds.max()),
        "order": order,
        "failures": found.failures,
        "bound [s]": round(bound),
        "makespan [s]": round(found.makespan),
        "makespan / bound": found.makespan / bound,
        "lost work [%]": 100 * found.lost / float(costs.seconds.sum()),
        "cells stored a second, mean": round(len(costs.seconds) / found.makespan),
        "in the busiest second": int(each_second.max()),
        "MB a second in it": float(each_second.max()) * size / 1e6,
    }


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="the folder of a finished run")
    parser.add_argument("--cells", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument(
        "--scales", type=float, nargs="+", default=[1.0, 30.0], help="how many times as long cells take as those of the run"
    )
    parser.add_argument("--bytes", type=float, default=24_000, help="that are stored of a cell")
    given = parser.parse_args()
    rows = pq.read_table(given.run / "results.parquet", columns=["cell", "suite", "problem", "estimator", "seconds"]).to_pylist()
    cells = {row["cell"]: row for row in rows if row["cell"] and row["seconds"] is not None}
    costs = CellCosts.of(list(cells.values()))
    lines = []
    for scale in given.scales:
        some = costs.drawn(given.cells, scale, seed=0)
        for mean_life in (np.inf, HOUR):
            lines += [line(some, given.workers, order, mean_life, given.bytes) for order in ORDERS]
    sys.stdout.write(table(lines) + "\n")


if __name__ == "__main__":
    main()
