"""The rows of a run of learning as arrays over tasks, estimators and seeds."""

from __future__ import annotations

import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..base import LEARNT, TASK, Row

Array = np.ndarray
K = TypeVar("K")

STAGES = ("init", "early", "final")
REFERENCES = ("exact", "frozen")  # families that others are compared with: the exact gradient, and no gradient at all

STEPS, SECONDS, STEP_TIME = "steps_to_target", "seconds_to_target", "step_time"
"""Seconds are steps × the time of a step. Steps of all estimators are timed in turn, not during training."""

_SEED = re.compile(r"seed[-=](\d+)")
OWN = "own"  # prefix of the idea of a user's own estimator; its name follows


@dataclass(frozen=True)
class Learner:
    """An estimator with its declarations, and the idea that it shares with others."""

    name: str
    family: str
    idea: str
    objective: str
    deterministic: bool
    unbiased: bool

    @property
    def competes(self) -> bool:
        """Whether it estimates a gradient from losses alone. The exact gradient, supervised losses and frozen encoders do not."""
        return self.family not in REFERENCES and self.objective != "supervised"


@dataclass(frozen=True, eq=False)
class Study:
    """Numbers of a run, each an array ``[task, estimator, seed]`` with NaN where there is none."""

    tasks: tuple[str, ...]
    contenders: tuple[Learner, ...]
    seeds: tuple[int, ...]
    outcomes: dict[str, Array]  # by metric of the suite ``learning``
    censored: dict[str, Array]  # by metric of time, True if the run ended before the target was reached
    predictors: dict[tuple[str, str], Array]  # by metric and stage, the median over the instances of a seed
    chosen: dict[tuple[str, str], str] = field(default_factory=dict)  # by task and estimator the validated option, such as ``lambda=10``

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the estimators."""
        return tuple(one.name for one in self.contenders)

    @property
    def families(self) -> tuple[str, ...]:
        """The families of the tasks."""
        return tuple(declared(task).family for task in self.tasks)

    @property
    def common(self) -> tuple[str, ...]:
        """The tasks that more than half of the competing estimators were trained on; all tasks if there are none."""
        trained = np.isfinite(self.of(contenders=lambda one: one.competes).outcome("accuracy")).any(-1)
        most = [task for task, row in zip(self.tasks, trained, strict=True) if row.mean() > 0.5] if trained.size else []
        return tuple(most) or self.tasks

    def of_family(self, family: str) -> str | None:
        """The name of the first estimator of a family, with any options; None if there is none."""
        return next((one.name for one in self.contenders if one.family == family), None)

    def outcome(self, metric: str) -> Array:
        """An outcome; all NaN if it was not measured."""
        return self.outcomes.get(metric, self._empty())

    def predictor(self, metric: str, stage: str) -> Array:
        """A predictor; all NaN if it was not measured."""
        return self.predictors.get((metric, stage), self._empty())

    def _empty(self) -> Array:
        return np.full((len(self.tasks), len(self.contenders), len(self.seeds)), np.nan)

    def of(
        self,
        *,
        tasks: Callable[[str], bool] = lambda task: True,
        contenders: Callable[[Learner], bool] = lambda one: True,
        seeds: Callable[[int], bool] = lambda seed: True,
    ) -> Study:
        """Some of the tasks, estimators and seeds."""
        wanted: dict[str, Callable[[Any], bool]] = {"tasks": tasks, "contenders": contenders, "seeds": seeds}
        kept = {axis: [i for i, one in enumerate(getattr(self, axis)) if keep(one)] for axis, keep in wanted.items()}
        axes: dict[str, Any] = {axis: tuple(getattr(self, axis)[i] for i in places) for axis, places in kept.items()}
        for name in ("outcomes", "censored", "predictors"):
            axes[name] = {key: values[np.ix_(*kept.values())] for key, values in getattr(self, name).items()}
        return replace(self, **axes)


def study(rows: Iterable[Row]) -> Study:
    """The study of a run; rows of other problems, of curves and of failed cells are left out."""
    found = [row for row in rows if row.status == "ok" and row.metric and row.problem.startswith((TASK, LEARNT))]
    of_tasks = [row for row in found if row.problem.startswith(TASK) and row.suite != "references"]
    learning = [row for row in of_tasks if not row.setting]
    chosen = {(_task(row), row.estimator): row.setting for row in of_tasks if row.metric == "chosen_option"}
    before = [row for row in found if row.problem.startswith(LEARNT) and row.stage in STAGES and not row.setting]
    tasks = tuple(dict.fromkeys(_task(row) for row in learning))
    contenders = {
        row.estimator: Learner(row.estimator, row.family, idea_of(row.family), row.objective, row.deterministic, row.unbiased)
        for row in learning
    }
    seeds = tuple(sorted({seed for row in learning if (seed := seed_of(row)) is not None}))
    empty = Study(tasks, tuple(contenders.values()), seeds, {}, {}, {}, chosen)
    outcomes = _arrays(empty, [(row.metric, row, row.low if _is_censored(row) else row.value) for row in learning])
    stopped = _arrays(empty, [(True, row, float(_is_censored(row))) for row in learning if row.metric == STEPS])
    censored = {STEPS: stopped[True] == 1} if stopped else {}
    if STEPS in outcomes and STEP_TIME in outcomes:
        outcomes[SECONDS], censored[SECONDS] = outcomes[STEPS] * outcomes[STEP_TIME], censored[STEPS]
    predictors = _arrays(empty, [((row.metric, row.stage), row, row.value) for row in before])
    return replace(empty, outcomes=outcomes, censored=censored, predictors=predictors)


def seed_of(row: Row) -> int | None:
    """The seed of an instance; None if it belongs to no single seed."""
    found = _SEED.search(row.instance)
    return int(found.group(1)) if found else None


def _is_censored(row: Row) -> bool:
    """Whether the row is a time to a target that the run did not reach; its lower bound is the length of the run."""
    return row.value is None and row.low is not None


def _task(row: Row) -> str:
    return row.problem.partition(":")[2]


def _arrays(found: Study, numbers: Iterable[tuple[K, Row, float | None]]) -> dict[K, Array]:
    """Medians over the numbers of each entry ``[task, estimator, seed]``, by key; a row without a seed counts for all seeds."""
    entries: dict[K, dict[tuple[str, str, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    for key, row, value in numbers:
        seed, several = seed_of(row), entries[key]
        for one in found.seeds if seed is None else (seed,):
            several[_task(row), row.estimator, one] += [] if value is None else [value]
    places, shape = [*itertools.product(found.tasks, found.names, found.seeds)], found._empty().shape
    medians = {key: [np.median(several[at]) if several[at] else np.nan for at in places] for key, several in entries.items()}
    return {key: np.array(values).reshape(shape) for key, values in medians.items()}


@functools.cache
def idea_of(family: str) -> str:
    """The module of a registry family. Jackknives leave out modules, because numbers of one idea are dependent."""
    from ...estimators import ESTIMATORS  # a page without learning does not import torch

    return ESTIMATORS[family].__module__.rpartition(".")[2] if family in ESTIMATORS else f"{OWN}: {family}"


class Declared(NamedTuple):
    """Declarations of a task; empty for an unregistered one, whose family is its name."""

    family: str
    kind: str = ""  # of its loss
    decoding: str = ""
    structure: str = ""


@functools.cache
def declared(task: str) -> Declared:
    """The declarations of a task by name."""
    from ..tasks import TASKS, make_task

    if task.partition("[")[0] not in TASKS:
        return Declared(task)
    made = make_task(task)
    return Declared(made.family or made.name, made.kind, made.decoding, made.oracle.name)
