"""Estimates of what cells take, from their sizes, before anything is measured."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ....estimators import make_estimator
from ....estimators.base import Estimator
from ....estimators.enumeration import TYPICAL_RATE
from ....oracles.capabilities.enumeration import MAX_RANK
from ...base import Instance
from ...measures import SUITES
from ...measures.learning import LearningAmount
from ...measures.suite import Effort
from ...problems import TaskProblem, is_task
from ...truth.enumeration import TYPICAL_RATE as TRUTH_RATE
from ..scores import sample
from ..work import Cell
from .plan import Plan

SECONDS: dict[str, float] = {
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
"""Share of it that a deterministic estimator takes, which needs no replicates."""

PARTS = 100
"""Scores up to which an answer takes the same; the time grows with the rest."""

STEP = 0.004
"""Seconds of a step of training, measured roughly; half of it where seeds are trained side by side."""

BATCH_RATE = 1e7
"""Structures times rows a second of an estimator that goes through all structures for many rows at once."""


def guess(plan: Plan, cell: Cell) -> float:
    """Seconds of a cell of which nothing is known but its size; passes over all structures are as long as the space is large."""
    if SUITES[cell.suite].measures == "references":
        return reference_seconds(plan, cell)
    if SUITES[cell.suite].measures == "tasks":
        return (training_seconds if cell.suite == "learning" else timing_seconds)(plan, cell)
    parts = sum(item.scores.numel() for item in _items(plan, cell)) / len(_items(plan, cell))
    seconds = SECONDS.get(cell.suite, 1.0) * max(parts / PARTS, 1.0) * cell.instances
    if SUITES[cell.suite].exclusive:
        return seconds * len(cell.estimators) + enumeration_seconds(plan, cell)
    oracle, event = sample(plan, *cell.scores).oracle, tuple(_items(plan, cell)[0].scores.shape)
    random = sum(DETERMINISTIC if _listed(name, plan.plugins, oracle, event)[1] else 1.0 for name in cell.estimators)
    return seconds * _growth(plan.effort) * random + enumeration_seconds(plan, cell)


def training_seconds(plan: Plan, cell: Cell) -> float:
    """Of a cell that trains: steps of all its runs, and passes over all structures in each of them."""
    problem = sample(plan, *cell.scores)
    assert isinstance(problem, TaskProblem)
    task, amount, seconds = problem.task, LearningAmount.of(plan.context()), 0.0
    event = tuple(problem.instances[0].scores.shape)
    for name in cell.estimators:
        listed, _ = _listed(name, plan.plugins, problem.oracle, event)
        step = STEP * (0.5 if task.stackable else 1.0) + listed * task.batch_size / BATCH_RATE
        seconds += amount.runs(task, name, cell.instances) * amount.steps(task) * step
    return seconds


def reference_seconds(plan: Plan, cell: Cell) -> float:
    """Seconds of a cell with the references of a task: floor and ceiling train no latent structure, a model along a run does."""
    problem = sample(plan, *cell.scores)
    assert isinstance(problem, TaskProblem)
    return cell.instances * problem.task.steps * STEP * (0.5 if is_task(problem.name) else 1.0)


def timing_seconds(plan: Plan, cell: Cell) -> float:
    """Of a cell that times steps of training."""
    return len(cell.estimators) * plan.effort.seconds / 10


def enumeration_seconds(plan: Plan, cell: Cell) -> float:
    """Of a cell, the seconds in which its estimators go through all structures."""
    oracle, items, seconds = sample(plan, *cell.scores).oracle, _items(plan, cell), 0.0
    for name in cell.estimators:
        for item in items:
            listed, deterministic = _listed(name, plan.plugins, oracle, tuple(item.scores.shape))
            seconds += listed * (1 / TYPICAL_RATE + (1 if deterministic else plan.effort.replicates) / BATCH_RATE)
    return seconds * cell.instances / len(items)


@functools.lru_cache(maxsize=8192)
def _listed(name: str, files: tuple[str, ...], oracle: Any, event: tuple[int, ...]) -> tuple[float, bool]:
    """Number of structures that an estimator goes through, and whether its estimates are all the same."""
    estimator: Estimator[Any] = make_estimator(name)
    took = estimator.evaluations()
    passes = took.enumerations + (took.listings if took.listings and estimator.lists(oracle, event) else 0)
    return passes * min(counted_structures(oracle, event), MAX_RANK) if passes else 0.0, estimator.deterministic


def truth_seconds(plan: Plan, cell: Cell) -> float:
    """Seconds for the exact gradients of a cell's problem, if they are enumerated; those of tasks have cells of their own."""
    if isinstance(sample(plan, *cell.scores), TaskProblem):
        return 0.0
    counts = [count for count in map(_count(plan, cell), _items(plan, cell)) if count <= plan.effort.cap]
    return 2 * sum(counts) / len(_items(plan, cell)) * cell.instances / TRUTH_RATE


def _items(plan: Plan, cell: Cell) -> Sequence[Instance]:
    return sample(plan, *cell.scores).instances


def _count(plan: Plan, cell: Cell) -> Callable[[Instance], int]:
    oracle = sample(plan, *cell.scores).oracle
    return lambda item: counted_structures(oracle, tuple(item.scores.shape))


@functools.lru_cache(maxsize=4096)
def counted_structures(oracle: Any, event: tuple[int, ...]) -> int:
    """How many structures an oracle has of a shape; counted once."""
    return int(oracle.count(event))


def _growth(effort: Effort) -> float:
    """The time of an answer as a multiple of that with 4096 replicates: a part is fixed, and few answers take the most replicates."""
    return min((1 + effort.most_replicates / 4096) / 2, 4.0)
