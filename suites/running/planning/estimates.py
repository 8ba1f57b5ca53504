"""Estimates of the seconds of cells and runs, within a factor of about two: from sizes first, then from finished cells."""

import functools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from ....estimators import make_estimator
from ....estimators.base import TYPICAL_RATE
from ....oracles.capabilities.enumeration import MAX_RANK
from ...base import LEARNT
from ...measures import SUITES
from ...measures.learning import training_amount
from ...problems import TaskProblem, is_task
from ...tasks.references import OPTIONS
from ..work import Cell
from .grid import sample
from .plan import Plan

SECONDS = {"bias": 0.025, "wall_clock": 0.1, "memory": 0.03, "sparsity": 0.004, "scaling": 0.2, "descent": 0.1, "parameter_bias": 0.5}
"""CPU seconds per random estimator and instance of up to 100 parts with 4096 replicates; a deterministic one takes a fifth."""

STEP = 0.004  # seconds of a training step; half of it if seeds are trained side by side
BATCH_RATE = 1e7  # structures times rows per second of an estimator that goes through all structures for many rows at once
FIRST, START = 0.3, 7.5  # seconds of the first cell of a problem at a stage, and of the imports, workers and page of a run
MIN_SECONDS = 0.05  # the least share of a budget for one answer


def guess(plan: Plan, cell: Cell) -> float:
    """Seconds of a cell by its size."""
    problem, kind = sample(plan, *cell.scores), SUITES[cell.suite]
    items, shape = problem.instances, tuple(problem.instances[0].scores.shape)
    listed = [_listed(name, problem.oracle, shape) for name in cell.estimators]
    if kind.measures in ("references", "tasks"):
        assert isinstance(problem, TaskProblem), "the suite trains tasks"
        task, (steps, seeds) = problem.task, training_amount(problem.task, plan.effort)
        if cell.suite == "references":
            return cell.instances * task.steps * STEP * (0.5 if is_task(problem.name) else 1.0)
        if cell.suite != "learning":
            return len(cell.estimators) * plan.effort.seconds / 10
        step, total = STEP * (0.5 if task.stackable else 1.0), 0.0
        for name, (count, _) in zip(cell.estimators, listed, strict=True):
            values = len(OPTIONS.get(name, ("", ()))[1])
            choices = len(task.rates) * (len(task.rates) > 1 or values > 0) + max(values - 1, 0)
            # Runs that choose take half of the steps.
            total += (cell.instances + 0.5 * seeds * choices) * steps * (step + count * task.batch_size / BATCH_RATE)
        return total
    seconds = SECONDS.get(cell.suite, 1.0) * cell.instances * max(sum(item.scores.numel() for item in items) / len(items) / 100, 1.0)
    if kind.exclusive:
        seconds *= len(cell.estimators)
    else:
        growth = min((1 + plan.effort.most_replicates / 4096) / 2, 4.0)
        seconds *= growth * sum(0.2 if deterministic else 1.0 for _, deterministic in listed)
    return seconds + enumeration_seconds(plan, cell)


def enumeration_seconds(plan: Plan, cell: Cell) -> float:
    """Seconds in which the estimators of a cell go through all structures."""
    problem, seconds = sample(plan, *cell.scores), 0.0
    for name in cell.estimators:
        for item in problem.instances:
            listed, deterministic = _listed(name, problem.oracle, tuple(item.scores.shape))
            seconds += listed * (1 / TYPICAL_RATE + (1 if deterministic else plan.effort.replicates) / BATCH_RATE)
    return seconds * cell.instances / len(problem.instances)


@functools.lru_cache(maxsize=8192)
def _listed(name: str, oracle: Any, event: tuple[int, ...]) -> tuple[float, bool]:
    """The structures that an estimator goes through, and whether it is deterministic."""
    estimator = make_estimator(name)
    took = estimator.evaluations()
    passes = took.enumerations + (took.listings if took.listings and estimator.lists(oracle, event) else 0)
    return passes * min(int(oracle.count(event)), MAX_RANK) if passes else 0.0, estimator.deterministic


def time_limit(plan: Plan, cell: Cell) -> float:
    """CPU seconds after which a cell counts as hanging: far above those of its budget."""
    if SUITES[cell.suite].measures in ("tasks", "references") or cell.problem.startswith(LEARNT):
        return 600.0 + 10.0 * guess(plan, cell)
    return 120.0 + 3.0 * (plan.effort.seconds * _answers(cell) + enumeration_seconds(plan, cell))


def _answers(cell: Cell) -> int:
    return cell.instances * len(cell.estimators)


class CostModel:
    """Seconds of cells: means of finished cells of the same suite, problem and estimators, else of fewer of these, else guesses."""

    def __init__(self, plan: Plan) -> None:
        self.known: dict[tuple[object, ...], tuple[float, int]] = defaultdict(lambda: (0.0, 0))
        self.guess = functools.lru_cache(maxsize=None)(functools.partial(guess, plan))

    def add(self, cell: Cell, seconds: float) -> None:
        """Add a finished cell."""
        for key in self._keys(cell):
            total, count = self.known[key]
            self.known[key] = total + seconds / _answers(cell), count + 1

    def seconds(self, cell: Cell) -> float:
        """The estimate for an unfinished cell."""
        for key in self._keys(cell):
            if key in self.known:
                total, count = self.known[key]
                return total / count * _answers(cell)
        return self.guess(cell)

    @staticmethod
    def _keys(cell: Cell) -> list[tuple[object, ...]]:
        return [(cell.suite, cell.problem, cell.estimators), (cell.suite, cell.problem), (cell.suite, cell.estimators), (cell.suite,)]

    def left(self, cells: Iterable[Cell], jobs: int) -> float:
        """Seconds for unfinished cells with some workers; exclusive cells run one by one."""
        shared = alone = longest = 0.0
        scores = set[tuple[str, str]]()
        for cell in cells:
            seconds = self.seconds(cell)
            if cell.kind.exclusive:
                alone += seconds
            else:
                shared, longest = shared + seconds, max(longest, seconds)
                scores.add(cell.scores)
        return max((shared + FIRST * len(scores)) / max(jobs, 1), longest) + alone


def seconds_within(plan: Plan, cells: Sequence[Cell], jobs: int, budget: float) -> float:
    """The most seconds for one answer within a budget of a run: those of the plan if it is cheap enough, else an equal share."""
    if CostModel(plan).left(cells, jobs) <= budget:
        return plan.effort.seconds
    share = budget * max(jobs, 1) / max(sum(map(_answers, cells)), 1)
    return min(plan.effort.seconds, float(f"{max(share, MIN_SECONDS):.2g}"))
