"""Progress of a run, and how long it will still take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..base import LEARNT
from ..text import COMPILING, duration

if TYPE_CHECKING:
    from .planning.plan import Plan
    from .work import Cell

FIRST = 0.3
"""Seconds of the first cell on a problem at a stage: kernels and tables are loaded, and the exact gradients are found."""

MAIN, WORKER, PAGE, ANSWER = 3.5, 2.7, 1.5, 0.004
"""Seconds to import and plan, to start workers, which start side by side, and to write a page, of which some for every answer."""


@dataclass(frozen=True)
class Busy:
    """A worker and its cell, and whether it is compiling kernels for it, or waiting for them."""

    worker: str
    label: str
    seconds: float
    compiling: bool = False


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment.

    Attributes:
        finished, total: cells. ``failed``: of the finished ones.
        label: the cell that was finished last; empty for a mere sign of life.
        left: seconds, estimated.
        busy: what every worker does.
    """

    finished: int
    total: int
    failed: int = 0
    label: str = ""
    left: float | None = None
    busy: tuple[Busy, ...] = ()


def progress_text(snapshot: Snapshot, seconds: float | None = None) -> str:
    """How far a run is, and how long it will still take; at its end how long it took, where that is told.

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


class CostModel:
    """Seconds of a cell: the mean of finished cells of its suite, problem and estimators, else of fewer of these, else a rough guess.

    Args:
        plan: what is measured.
        slowdown: times as long as on an idle machine, by which guesses are multiplied.
    """

    def __init__(self, plan: Plan, slowdown: float = 1.0) -> None:
        self.plan, self.slowdown, self.touched = plan, slowdown, set[object]()
        self._guesses: dict[str, float] = {}
        self._firsts: dict[object, float] = {}
        self.known: dict[tuple[object, ...], tuple[float, int]] = defaultdict(lambda: (0.0, 0))

    def add(self, cell: Cell, seconds: float) -> None:
        """Learn from a finished cell."""
        self.touched.add(cell.scores)
        for key in _keys(cell):
            total, count = self.known[key]
            self.known[key] = total + seconds / _size(cell), count + 1

    def seconds(self, cell: Cell) -> float:
        """The estimate for a cell that is not finished."""
        for key in _keys(cell):
            if key in self.known:
                total, count = self.known[key]
                return total / count * _size(cell)
        if cell.identity not in self._guesses:
            from .planning.estimates import guess

            self._guesses[cell.identity] = self.slowdown * guess(self.plan, cell)
        return self._guesses[cell.identity]

    def _first(self, cell: Cell) -> float:
        """What the first cell of a problem at a stage takes more than others."""
        if cell.scores not in self._firsts:
            from .planning.estimates import truth_seconds

            self._firsts[cell.scores] = FIRST + truth_seconds(self.plan, cell)
        return self._firsts[cell.scores]

    def left(self, cells: Iterable[Cell], jobs: int) -> float:
        """Seconds for cells that are still to be measured, by so many workers, exclusive ones by one."""
        shared = alone = longest = 0.0
        new = dict[object, float]()
        for cell in cells:
            seconds = self.seconds(cell)
            if cell.exclusive:
                alone += seconds
            else:
                shared, longest = shared + seconds, max(longest, seconds)
                if cell.scores not in self.touched:
                    new[cell.scores] = self._first(cell)
        return max((shared + sum(new.values())) / max(jobs, 1), longest) + alone

    def whole(self, cells: Sequence[Cell], jobs: int) -> float:
        """Seconds of a run of these cells from the command to its end; what is still to be compiled is not among them."""
        return MAIN + WORKER * (jobs > 0) + self.left(cells, jobs) + PAGE + ANSWER * sum(map(_size, cells))


LEAST_SECONDS = 0.05
"""The least that an answer gets of a budget."""


def seconds_within(plan: Plan, cells: Sequence[Cell], jobs: int, budget: float) -> float:
    """The most seconds for one estimator on one instance, so that a run of the cells takes about a budget.

    Where the cost model finds the plan cheap enough it is the plan's own number, else every answer's share of what the workers have.
    """
    if CostModel(plan).left(cells, jobs) <= budget:
        return plan.effort.seconds
    share = budget * max(jobs, 1) / max(sum(_size(cell) for cell in cells), 1)
    return min(plan.effort.seconds, float(f"{max(share, LEAST_SECONDS):.2g}"))


def _keys(cell: Cell) -> list[tuple[object, ...]]:
    return [(cell.suite, cell.problem, cell.estimators), (cell.suite, cell.problem), (cell.suite, cell.estimators), (cell.suite,)]


def _size(cell: Cell) -> int:
    return cell.instances * len(cell.estimators)


def time_limit(plan: Plan, cell: Cell) -> float:
    """CPU seconds after which a cell is taken to hang: far above what its budget allows."""
    from ..measures import SUITES
    from .planning.estimates import enumeration_seconds, guess

    if SUITES[cell.suite].measures in ("tasks", "references") or cell.problem.startswith(LEARNT):
        return 600.0 + 10.0 * guess(plan, cell)
    return 120.0 + 3.0 * (plan.effort.seconds * _size(cell) + enumeration_seconds(plan, cell))
