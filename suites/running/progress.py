"""How far a run is, and how long it will still take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..suite import Effort
    from .plan import Plan
    from .work import Cell

SECONDS: dict[str, float] = {
    "bias": 0.15,
    "unbiasedness": 0.3,
    "wall_clock": 0.1,
    "memory": 0.05,
    "sparsity": 0.03,
    "scaling": 5.0,
    "descent": 2.0,
}
"""Per estimator and instance with the effort `quick`, measured roughly: an estimate before anything is finished."""


@dataclass(frozen=True)
class Busy:
    """A worker and its cell."""

    worker: str
    label: str
    seconds: float


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


Progress = Callable[[Snapshot], None]
"""Called about once a second, and when a cell is finished."""


class CostModel:
    """Seconds of a cell: the mean of finished cells of its suite, problem and estimators, else of fewer of these, else a rough guess."""

    def __init__(self, plan: Plan) -> None:
        self.guess = {suite: seconds * _growth(plan.effort) for suite, seconds in SECONDS.items()}
        self.known: dict[tuple[object, ...], tuple[float, int]] = defaultdict(lambda: (0.0, 0))

    def add(self, cell: Cell, seconds: float) -> None:
        """Learn from a finished cell."""
        for key in _keys(cell):
            total, count = self.known[key]
            self.known[key] = total + seconds / _size(cell), count + 1

    def seconds(self, cell: Cell) -> float:
        """The estimate for a cell that is not finished."""
        for key in _keys(cell):
            if key in self.known:
                total, count = self.known[key]
                return total / count * _size(cell)
        return self.guess.get(cell.suite, 1.0) * _size(cell)

    def left(self, cells: Iterable[Cell], jobs: int) -> float:
        """Seconds for cells that are still to be measured, by so many workers, exclusive ones by one."""
        shared = alone = 0.0
        for cell in cells:
            if cell.exclusive:
                alone += self.seconds(cell)
            else:
                shared += self.seconds(cell)
        return shared / max(jobs, 1) + alone


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


def _growth(effort: Effort) -> float:
    """How much longer than `quick` an answer takes: a few doublings where replicates adapt."""
    return min(effort.most_replicates / 4096, 4.0)


def time_limit(plan: Plan, cell: Cell) -> float:
    """Seconds after which a cell is taken to hang: far above what its budget allows."""
    return 120.0 + 3.0 * plan.effort.seconds * cell.instances * len(cell.estimators)
