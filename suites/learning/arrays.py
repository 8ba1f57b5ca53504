"""The rows of a run of learning as arrays over tasks, estimators and seeds."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from ..base import LEARNT, TASK, Row
from .families import idea_of

Array = np.ndarray
K = TypeVar("K")

STAGES = ("init", "early", "final")
CENSORED = "censored"
"""The verdict of a time to target that was not reached: its value is how long was waited, and there is no upper bound."""

REFERENCES = ("exact", "frozen")
"""Families that others are held against: the exact gradient, by which gradients are judged and at whose models, and none at all."""

STEPS, SECONDS, STEP_TIME = "steps_to_target", "seconds_to_target", "step_time"
"""Seconds are steps × the time of a step, which is taken interleaved, and not those of the clock during training."""

_SEED = re.compile(r"seed[-=](\d+)")


@dataclass(frozen=True)
class Learner:
    """An estimator: what it declares, and the idea that it shares with others."""

    name: str
    family: str
    idea: str
    objective: str
    deterministic: bool

    @property
    def competes(self) -> bool:
        """Whether it estimates a gradient from losses alone: not where it is the truth, is told true structures, or learns nothing."""
        return self.family not in REFERENCES and self.objective != "supervised"


@dataclass(frozen=True, eq=False)
class Study:
    """Numbers of a run, each an array ``[task, estimator, seed]`` with NaN where there is none.

    Attributes:
        tasks, contenders, seeds: of the axes.
        outcomes: by metric of the suite ``learning``. ``censored``: by time, True where the target was not reached within it.
        predictors: by metric and stage; of several instances of a seed the median.
        chosen: by task and estimator the option that validation chose, such as ``lambda=10``.
    """

    tasks: tuple[str, ...]
    contenders: tuple[Learner, ...]
    seeds: tuple[int, ...]
    outcomes: dict[str, Array]
    censored: dict[str, Array]
    predictors: dict[tuple[str, str], Array]
    chosen: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the estimators."""
        return tuple(one.name for one in self.contenders)

    @property
    def common(self) -> tuple[str, ...]:
        """The tasks that most of the competing estimators have learnt at all; others are for a few of them. All where there are none."""
        learnt = np.isfinite(self.of(contenders=lambda one: one.competes).outcome("accuracy")).any(-1)
        most = [task for task, row in zip(self.tasks, learnt, strict=True) if row.mean() > 0.5] if learnt.size else []
        return tuple(most) or self.tasks

    def of_family(self, family: str) -> str | None:
        """The name of the first estimator of a family, whatever its options; None where there is none."""
        return next((one.name for one in self.contenders if one.family == family), None)

    def outcome(self, metric: str) -> Array:
        """An outcome; all NaN where it was not measured."""
        return self.outcomes.get(metric, np.full((len(self.tasks), len(self.contenders), len(self.seeds)), np.nan))

    def predictor(self, metric: str, stage: str) -> Array:
        """A predictor; all NaN where it was not measured."""
        return self.predictors.get((metric, stage), np.full((len(self.tasks), len(self.contenders), len(self.seeds)), np.nan))

    def of(
        self,
        *,
        tasks: Callable[[str], bool] = lambda task: True,
        contenders: Callable[[Learner], bool] = lambda one: True,
        seeds: Callable[[int], bool] = lambda seed: True,
    ) -> Study:
        """Some of the tasks, estimators and seeds."""
        kept = [[i for i, item in enumerate(items) if keep(item)] for items, keep in self._axes(tasks, contenders, seeds)]
        index = np.ix_(*kept)
        return replace(
            self,
            tasks=tuple(self.tasks[i] for i in kept[0]),
            contenders=tuple(self.contenders[i] for i in kept[1]),
            seeds=tuple(self.seeds[i] for i in kept[2]),
            outcomes={name: values[index] for name, values in self.outcomes.items()},
            censored={name: values[index] for name, values in self.censored.items()},
            predictors={name: values[index] for name, values in self.predictors.items()},
        )

    def _axes(self, *keeps: Callable[..., bool]) -> list[tuple[Sequence[object], Callable[..., bool]]]:
        return list(zip((self.tasks, self.contenders, self.seeds), keeps, strict=True))


def study(rows: Iterable[Row]) -> Study:
    """The study of a run; rows of other problems, of curves and of what failed are left out.

    Example:
        >>> names = ("c", "learning", "task:toy", "training", "", "categorical", "cross_entropy", "ste", "ste")
        >>> row = Row(*names, instance="seed-0", metric="accuracy", value=0.5)
        >>> study([row]).tasks, study([row]).outcome("accuracy").tolist()
        (('toy',), [[[0.5]]])
    """
    found = [row for row in rows if row.status == "ok" and row.metric and row.problem.startswith((TASK, LEARNT))]
    of_tasks = [row for row in found if row.problem.startswith(TASK) and row.suite != "references"]
    learning = [row for row in of_tasks if not row.setting]
    chosen = {(_task(row), row.estimator): row.setting for row in of_tasks if row.metric == "chosen_option"}
    before = [row for row in found if row.problem.startswith(LEARNT) and row.stage in STAGES and not row.setting]
    tasks = tuple(dict.fromkeys(_task(row) for row in learning))
    contenders = {
        row.estimator: Learner(row.estimator, row.family, idea_of(row.family), row.objective, row.deterministic) for row in learning
    }
    seeds = tuple(sorted({seed for row in learning if (seed := seed_of(row)) is not None}))
    axes = (tasks, tuple(contenders), seeds)
    outcomes = {metric: _array(axes, part) for metric, part in _by(learning, lambda row: row.metric).items()}
    stopped = _array(axes, [replace(row, value=float(_is_censored(row)), low=None) for row in learning if row.metric == STEPS]) == 1
    censored = {STEPS: stopped} if STEPS in outcomes else {}
    if STEPS in outcomes and STEP_TIME in outcomes:
        outcomes[SECONDS], censored[SECONDS] = outcomes[STEPS] * outcomes[STEP_TIME], stopped
    predictors = {key: _array(axes, part) for key, part in _by(before, lambda row: (row.metric, row.stage)).items()}
    return Study(tasks, tuple(contenders.values()), seeds, outcomes, censored, predictors, chosen)


def seed_of(row: Row) -> int | None:
    """The seed that an instance is of; None where it is of none in particular."""
    found = _SEED.search(row.instance)
    return int(found.group(1)) if found else None


def _is_censored(row: Row) -> bool:
    """Whether it is a time that was not over when the run was: how long was waited is its lower bound."""
    return row.value is None and row.low is not None


def _task(row: Row) -> str:
    return row.problem.partition(":")[2]


def _by(rows: Iterable[Row], key: Callable[[Row], K]) -> dict[K, list[Row]]:
    found: dict[K, list[Row]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return found


def _array(axes: tuple[Sequence[str], Sequence[str], Sequence[int]], rows: Iterable[Row]) -> Array:
    """Medians over the rows of a place; a row of no seed in particular is of all."""
    tasks, estimators, seeds = ({item: position for position, item in enumerate(axis)} for axis in axes)
    found: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for row in rows:
        task, estimator, seed = _task(row), row.estimator, seed_of(row)
        value = row.low if _is_censored(row) else row.value
        if task in tasks and estimator in estimators and value is not None:
            for place in range(len(seeds)) if seed is None else (seeds[seed],) if seed in seeds else ():
                found[tasks[task], estimators[estimator], place].append(value)
    values = np.full((len(tasks), len(estimators), len(seeds)), np.nan)
    for where, several in found.items():
        values[where] = np.median(several)
    return values
