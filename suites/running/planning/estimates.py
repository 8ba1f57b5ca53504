"""Estimates of the seconds of cells and runs, from sizes first, then from finished cells."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from ....estimators import make_estimator
from ....estimators.enumeration import TYPICAL_RATE
from ....oracles.capabilities.enumeration import MAX_RANK
from ...base import LEARNT
from ...measures import SUITES
from ...measures.learning import LearningAmount
from ...problems import TaskProblem, is_task
from ...truth.enumeration import TYPICAL_RATE as TRUTH_RATE
from ..scores import sample
from ..work import Cell
from .plan import Plan

SECONDS = {
    "bias": 0.025,
    "wall_clock": 0.1,
    "memory": 0.03,
    "sparsity": 0.004,
    "scaling": 0.2,
    "descent": 0.1,
    "parameter_bias": 0.5,
}
"""CPU seconds per random estimator and instance of `PARTS` parts with 4096 replicates, measured roughly."""

DETERMINISTIC = 0.2
"""Share of these for a deterministic estimator, which needs no replicates."""

PARTS = 100
"""Scores up to which an answer takes the same time; beyond, the time grows in proportion."""

STEP = 0.004
"""Seconds of a training step, measured roughly; half of it if seeds are trained side by side."""

BATCH_RATE = 1e7
"""Structures times rows per second of an estimator that goes through all structures for many rows at once."""

FIRST = 0.3
"""Seconds of the first cell on a problem at a stage, which loads kernels and tables, and finds the exact gradients."""

MAIN, WORKER, PAGE, ANSWER = 3.5, 2.7, 1.5, 0.004
"""Seconds to import and plan, to start workers side by side, to write a page, and for each answer on it."""

MIN_SECONDS = 0.05
"""The least share of a budget for one answer."""


def guess(plan: Plan, cell: Cell) -> float:
    """Seconds of a cell by its size."""
    problem = sample(plan, *cell.scores)
    items, count = problem.instances, len(cell.estimators)
    kind = SUITES[cell.suite]
    if kind.measures == "references":
        assert isinstance(problem, TaskProblem), "references are those of tasks"
        return cell.instances * problem.task.steps * STEP * (0.5 if is_task(problem.name) else 1.0)
    if kind.measures == "tasks" and cell.suite != "learning":
        return count * plan.effort.seconds / 10
    shape = tuple(items[0].scores.shape)
    if kind.measures == "tasks":
        assert isinstance(problem, TaskProblem), "the suite trains tasks"
        task, amount, seconds = problem.task, LearningAmount.of(plan.context()), 0.0
        for name in cell.estimators:
            listed, _ = _listed(name, plan.plugins, problem.oracle, shape)
            step = STEP * (0.5 if task.stackable else 1.0) + listed * task.batch_size / BATCH_RATE
            seconds += amount.runs(task, name, cell.instances) * amount.steps(task) * step
        return seconds
    parts = sum(item.scores.numel() for item in items) / len(items)
    seconds = SECONDS.get(cell.suite, 1.0) * max(parts / PARTS, 1.0) * cell.instances
    if kind.exclusive:
        return seconds * count + enumeration_seconds(plan, cell)
    random = sum(DETERMINISTIC if _listed(name, plan.plugins, problem.oracle, shape)[1] else 1.0 for name in cell.estimators)
    # A part of an answer is fixed, and few answers take the most replicates.
    growth = min((1 + plan.effort.most_replicates / 4096) / 2, 4.0)
    return seconds * growth * random + enumeration_seconds(plan, cell)


def enumeration_seconds(plan: Plan, cell: Cell) -> float:
    """Seconds in which the estimators of a cell go through all structures."""
    problem, seconds = sample(plan, *cell.scores), 0.0
    for name in cell.estimators:
        for item in problem.instances:
            listed, deterministic = _listed(name, plan.plugins, problem.oracle, tuple(item.scores.shape))
            seconds += listed * (1 / TYPICAL_RATE + (1 if deterministic else plan.effort.replicates) / BATCH_RATE)
    return seconds * cell.instances / len(problem.instances)


@functools.lru_cache(maxsize=8192)
def _listed(name: str, files: tuple[str, ...], oracle: Any, event: tuple[int, ...]) -> tuple[float, bool]:
    """The structures that an estimator goes through, and whether it is deterministic."""
    estimator = make_estimator(name)
    took = estimator.evaluations()
    passes = took.enumerations + (took.listings if took.listings and estimator.lists(oracle, event) else 0)
    return passes * min(_count(oracle, event), MAX_RANK) if passes else 0.0, estimator.deterministic


@functools.lru_cache(maxsize=4096)
def _count(oracle: Any, event: tuple[int, ...]) -> int:
    return int(oracle.count(event))


def time_limit(plan: Plan, cell: Cell) -> float:
    """CPU seconds after which a cell counts as hanging: far above those of its budget."""
    if SUITES[cell.suite].measures in ("tasks", "references") or cell.problem.startswith(LEARNT):
        return 600.0 + 10.0 * guess(plan, cell)
    return 120.0 + 3.0 * (plan.effort.seconds * _answers(cell) + enumeration_seconds(plan, cell))


def _answers(cell: Cell) -> int:
    return cell.instances * len(cell.estimators)


class CostModel:
    """Seconds of cells: means of finished cells of the same suite, problem and estimators, else of fewer of these, else guesses.

    Args:
        plan: the plan of the cells.
        slowdown: factor of all guesses, compared with an idle machine.
    """

    def __init__(self, plan: Plan, slowdown: float = 1.0) -> None:
        self.plan, self.slowdown, self.touched = plan, slowdown, set[object]()
        self.known: dict[tuple[object, ...], tuple[float, int]] = defaultdict(lambda: (0.0, 0))
        self._guess = functools.lru_cache(maxsize=None)(functools.partial(guess, plan))
        self._first = functools.lru_cache(maxsize=None)(self._first_seconds)

    def add(self, cell: Cell, seconds: float) -> None:
        """Add a finished cell."""
        self.touched.add(cell.scores)
        for key in _keys(cell):
            total, count = self.known[key]
            self.known[key] = total + seconds / _answers(cell), count + 1

    def seconds(self, cell: Cell) -> float:
        """The estimate for an unfinished cell."""
        for key in _keys(cell):
            if key in self.known:
                total, count = self.known[key]
                return total / count * _answers(cell)
        return self.slowdown * self._guess(cell)

    def _first_seconds(self, problem: str, stage: str, instances: int) -> float:
        """Seconds that the first cell of a problem at a stage takes more than others, with enumerated exact gradients."""
        found = sample(self.plan, problem, stage)
        if isinstance(found, TaskProblem):  # its exact gradients have cells of their own
            return FIRST
        counts = [_count(found.oracle, tuple(item.scores.shape)) for item in found.instances]
        return FIRST + 2 * sum(n for n in counts if n <= self.plan.effort.cap) / len(counts) * instances / TRUTH_RATE

    def left(self, cells: Iterable[Cell], jobs: int) -> float:
        """Seconds for unfinished cells with some workers; exclusive cells run one by one."""
        shared = alone = longest = 0.0
        new = dict[object, float]()
        for cell in cells:
            seconds = self.seconds(cell)
            if cell.exclusive:
                alone += seconds
            else:
                shared, longest = shared + seconds, max(longest, seconds)
                if cell.scores not in self.touched and cell.scores not in new:
                    new[cell.scores] = self._first(*cell.scores, cell.instances)
        return max((shared + sum(new.values())) / max(jobs, 1), longest) + alone

    def whole(self, cells: Sequence[Cell], jobs: int) -> float:
        """Seconds of a run from the command to its end, without the compilation of kernels."""
        return MAIN + WORKER * (jobs > 0) + self.left(cells, jobs) + PAGE + ANSWER * sum(map(_answers, cells))


def _keys(cell: Cell) -> list[tuple[object, ...]]:
    return [(cell.suite, cell.problem, cell.estimators), (cell.suite, cell.problem), (cell.suite, cell.estimators), (cell.suite,)]


def seconds_within(plan: Plan, cells: Sequence[Cell], jobs: int, budget: float) -> float:
    """The most seconds for one answer, so that a run of the cells takes about a budget.

    It is that of the plan if the plan is cheap enough, else an equal share of the budget.
    """
    if CostModel(plan).left(cells, jobs) <= budget:
        return plan.effort.seconds
    share = budget * max(jobs, 1) / max(sum(map(_answers, cells)), 1)
    return min(plan.effort.seconds, float(f"{max(share, MIN_SECONDS):.2g}"))
