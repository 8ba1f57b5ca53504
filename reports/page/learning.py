"""The section on training: an answer, tables, and the data of figures."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from ...suites.base import LEARNT, TASK
from ...suites.learning.arrays import study
from ...suites.text import plural
from ..analysis import learning as answer
from ..analysis.loading import rows_of
from ..analysis.tables import order, remembered
from ..terminal import Overview
from . import learning_tables as tables
from .cells import Table
from .drawing.learning import LearningMaterial


@dataclass(frozen=True, eq=False)
class LearningSection:
    """The results of training; false if there are none.

    Attributes:
        sentences: the answer; the first one is enough on its own. ``tables``: over all tasks, by task, and of predictors.
        material: of the figures.
    """

    sentences: list[str]
    tables: list[Table]
    material: LearningMaterial = field(repr=False)

    @property
    def headline(self) -> str:
        """The numbers of estimators, tasks and seeds, in one sentence; empty without training."""
        found = self.material.study
        if not found.tasks:
            return ""
        counts = ((len(found.names), "estimator"), (len(found.tasks), "task"), (len(found.seeds), "seed"))
        estimators, tasks_, seeds = (plural(count, word) for count, word in counts)
        return f"{estimators} trained on {tasks_}, with {seeds} each."

    @property
    def overviews(self) -> list[Overview]:
        """A table per task, for a terminal."""
        return [tables.overview(self.material.study, task) for task in self.material.study.tasks]

    def __bool__(self) -> bool:
        return bool(self.material.study.tasks)


@remembered
def learning_of(frame: pd.DataFrame) -> LearningSection:
    """The section of a run."""
    rows = frame[_starting(frame, (TASK, LEARNT))]
    found = study(rows_of(rows))
    made = [tables.overall_table(found)] if len(found.tasks) > 1 else []
    made += [tables.task_table(found, task) for task in found.tasks]
    made += [tables.predictor_table(found)] if found.predictors and found.tasks else []
    return LearningSection(answer.sentences(found), made, LearningMaterial.of(found, rows))


@remembered
def of_gradients(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of a run that measure gradients, also at the models of tasks: all except training itself."""
    trained = _starting(frame, (TASK,))
    return frame[~trained] if trained.any() else frame


def _starting(frame: pd.DataFrame, beginnings: tuple[str, ...]) -> pd.Series[bool]:
    """Where the name of the problem begins with one of these."""
    return frame["problem"].isin([name for name in order(frame, "problem") if name.startswith(beginnings)])
