"""References of a task, computed once on a machine: floors, ceilings, and the exact run."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...estimators import ExactMarginalisation, LeaveOneOut, make_estimator
from ...estimators.base import Estimator
from ...oracles.sources import digest_of, source_of
from .cache import cached
from .task import LatentModel, Task
from .training import Job, Training, event_shape

LEARNT_STAGES: dict[str, float] = {"init": 0.0, "early": 0.1, "final": 1.0}
"""Stages of a run, each with the share of the steps before it."""

LONGEST_LIST = 1000
"""Most structures that an exact gradient sums over; with more, a mean over many samples replaces it."""

LONGEST_TRAINING_LIST = 256
"""Most structures for the exact gradient of every training step: a run over the 429 trees of `listops` takes 500 s."""

MANY_SAMPLES = 16

_T = TypeVar("_T")


def bounds(task: Task, seed: int) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Floor and ceiling of a task with a seed."""
    floor, ceiling = remembered(task, ("bounds", seed), lambda: (dict(task.at(seed).floor(seed)), dict(task.at(seed).ceiling(seed))))
    return floor, ceiling


def reference_name(task: Task, *, training: bool = False) -> str:
    """The name of the exact gradient, or of leave-one-out with many samples if there are too many structures.

    Args:
        task: a task.
        training: whether the estimator trains a model, and not only computes a gradient once.
    """
    exact, event = ExactMarginalisation(), event_shape(task)
    most = LONGEST_TRAINING_LIST if training else LONGEST_LIST
    listed = exact.incompatibility(task.oracle, event) is None and task.oracle.count(event) <= most
    return exact.name if listed else f"{LeaveOneOut.name}[num_samples={MANY_SAMPLES}]"


def reference_estimator(task: Task, *, training: bool = False) -> Estimator[Any]:
    """The estimator of `reference_name`."""
    return make_estimator(reference_name(task, training=training))


def learnt_model(task: Task, estimator: Estimator[Any], seed: int, stage: str) -> LatentModel:
    """The model of a run at a stage, with the middle one of the task's learning rates."""
    model = task.at(seed).model(seed)
    if LEARNT_STAGES[stage] == 0:
        return model
    weights = remembered(task, ("path", repr(estimator), estimator.version, seed), lambda: _path(task, estimator, seed))
    model.load_state_dict(weights[stage])
    return model


def _path(task: Task, estimator: Estimator[Any], seed: int) -> dict[str, dict[str, Tensor]]:
    run = Training(task, estimator, [Job(seed, task.rates[len(task.rates) // 2])], points=1)
    found = {}
    for stage, share in LEARNT_STAGES.items():
        run.run(until=round(share * run.steps))
        found[stage] = copy.deepcopy(run.results()[0].model.state_dict())
    return found


def remembered(task: Task, names: tuple[object, ...], compute: Callable[[], _T]) -> _T:
    """The result of ``compute``, cached on disk by names and by the task: its sizes, a user's own code, and its first items."""
    batch = task.batch("train", torch.arange(min(64, task.size("train"))))
    data = hashlib.blake2b(digest_size=16)
    for part in (*batch.inputs, batch.labels):
        data.update(part.detach().cpu().contiguous().numpy().tobytes())
    return cached((task.name, repr(task), task.version, digest_of(source_of(task)), data.hexdigest(), *names), compute)
