"""Tasks as problems: ``task:NAME`` with seeds as instances, and ``learnt:NAME`` with items along a run of training."""

from __future__ import annotations

import fnmatch
import glob
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from torch import Tensor

from ...estimators import make_estimator
from ...estimators.base import Estimator
from ...oracles.capabilities.ragged import Inside
from ...oracles.registry import unknown
from ..base import LEARNT, TASK, Instance, Problem
from ..tasks import TASKS, make_task
from ..tasks.references import LEARNT_STAGES, learnt_model, reference_estimator
from ..tasks.task import Batch, LatentModel, Split, Task, TaskLoss

TRAINING = "training"  # the only stage of a task
SEEDS = 1000  # seeds of a block: a plan with another seed trains with others

TASK_PROBLEMS: dict[str, str] = {f"{TASK}{name}": f"learning the task {name}, seed by seed" for name in TASKS} | {
    f"{LEARNT}{name}": f"items of the task {name} along a run of the exact gradient; @ESTIMATOR for another run" for name in TASKS
}


@dataclass(frozen=True, eq=False)
class TaskProblem(Problem):
    """A problem that comes from a task."""

    task: Task
    seeds: tuple[int, ...]  # as many as instances; for a task they are its instances


def is_task(name: str) -> bool:
    """Whether a problem is the training of a task, such as ``task:clusters``."""
    return name.startswith(TASK)


def kinds_of(name: str) -> tuple[str, ...]:
    """The kinds of suites that measure a problem, see `Suite.measures`."""
    if is_task(name):
        return ("tasks", "references")
    return ("learnt", "scores", "references") if name.startswith(LEARNT) else ("scores",)


def learner_of(name: str, task: Task) -> Estimator[Any]:
    """The estimator of the run that items come from: the one after ``@`` in a problem's name, or the reference."""
    own = name.partition("@")[2]
    return make_estimator(own) if own else reference_estimator(task, training=True)


def comes_from_task(name: str) -> bool:
    """Whether a problem is a task, or comes from learning one."""
    return name.startswith((TASK, LEARNT))


def task_names(pattern: str) -> list[str]:
    """The problems of a pattern, such as ``task:listops*``: tasks that are available here, or the one that is named."""
    if not glob.has_magic(pattern.partition("[")[0]):
        _task(pattern)
        return [pattern]
    matched = fnmatch.filter(TASK_PROBLEMS, pattern)
    if not matched:
        raise ValueError(unknown(pattern, TASK_PROBLEMS, "problem"))
    return [name for name in matched if make_task(name.partition(":")[2]).unavailable() is None]


def stages_of_task(name: str) -> tuple[str, ...]:
    """The stages of a task; ValueError if it is unknown, or unavailable here."""
    _task(name)
    return (TRAINING,) if is_task(name) else tuple(LEARNT_STAGES)


def load_task(  # noqa: PLR0913 - a problem, and the run that it comes from
    name: str, stage: str, *, instances: int, offset: float = 0.0, seed: int = 0, trained: bool = True
) -> TaskProblem:
    """The problem of a task, see `load`.

    Instances of ``task:NAME`` are seeds; those of ``learnt:NAME`` or ``learnt:NAME@ESTIMATOR`` are items of the test split, spread evenly.
    The seed is the block of the seeds; items come from the run of its first one. If not ``trained``, items are those of the untrained
    model, which have the same shapes and losses.
    """
    task = _task(name)
    if stage not in stages_of_task(name):
        raise ValueError(f"{name} {unknown(stage, stages_of_task(name), 'stage')}")
    if offset != 0:
        raise ValueError(f"{name} got offset={offset:g}; a task has a loss of its own, leave --offset out")
    first = seed * SEEDS
    seeds = tuple(range(first, first + instances))
    if is_task(name):
        found = [_item(f"seed={number}", own, own.model(number), "train", 0) for number in seeds for own in (task.at(number),)]
    else:
        split = task.at(first)
        size = split.size("test")
        if instances > size:
            raise ValueError(f"{name} got instances={instances}; expected 1 to {size}, the number of items in its test split")
        model = learnt_model(split, learner_of(name, split), first, stage) if trained else split.model(first)
        numbers = [(2 * i + 1) * size // (2 * instances) for i in range(instances)]
        found = [_item(f"item-{number}", split, model, "test", number) for number in numbers]
    return TaskProblem(name, stage, task.oracle, tuple(found), f"task {task.name}, version {task.version}", task, seeds)


def _task(name: str) -> Task:
    task = make_task(name.partition(":")[2].partition("@")[0])
    reason = task.unavailable()
    if reason is not None:
        raise ValueError(f"the problem {name} is not available: {reason}")
    empty = [split for split in get_args(Split) if task.size(split) < 1]
    if empty:
        raise ValueError(f"the problem {name} is not available: {', '.join(empty)} would have no items; choose other sizes")
    return task


def _item(name: str, task: Task, model: LatentModel, split: Split, number: int) -> Instance:
    """One item with a model: its scores and loss in double precision."""
    exact = model.double().requires_grad_(False)
    batch = task.batch(split, torch.tensor([number])).double()
    scores = task.scores(exact, batch)
    loss, items = within(task, batch, task.loss(exact, batch), scores), -task.oracle.event_ndim - 1

    def of_one(structure: Tensor) -> Tensor:
        return loss(structure.unsqueeze(items))[..., 0]

    return Instance(name, scores[0], replace(loss, call=of_one, gold=None if loss.gold is None else loss.gold[0]))


def within(task: Task, batch: Batch, loss: TaskLoss, scores: Tensor) -> TaskLoss:
    """The loss of a batch as training sees it, which has no gradient in the padding."""
    if batch.lengths is None:
        return loss
    return replace(loss, call=Inside(loss, task.oracle, batch.lengths, tuple(scores.shape[1:])))
