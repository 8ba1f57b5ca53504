"""The section on training: its answer, its tables, and the rows of its charts."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import scipy

from ...suites.base import LEARNT, TASK
from ...suites.learning import KINDS, OUTCOMES, Study, association, measured, probability_of_improvement, study
from ...suites.metrics import label_of, signed_label
from ...suites.statistics.interval import Interval
from ...suites.statistics.selection import student_mean as mean
from ...suites.text import coefficient, estimate, number, plural, significant, whole
from ..analysis import tables
from ..analysis.answers import RIVAL
from ..analysis.learning import SCORE, independent, sentences, times
from ..analysis.loading import rows_of
from .cells import EMPTY, LEVEL, Table, TableCell, estimate_cell, tabulate

_OUTCOMES = {"accuracy": "accuracy", "structure": "structure_accuracy", "relaxed": "relaxed_accuracy", "curve": "curve_mean"}
_HINTS = {
    "objective": "the objective whose gradient it estimates",
    "accuracy": "on the test split, at the best structures: mean over seeds with a 95 % interval; 0 to 1, higher is better",
    "structure": "quality of the best structures by the measure of the task; higher is better",
    "relaxed": "accuracy at the marginals",
    "curve": "mean of the learning curve",
    "to the target": "steps and seconds to .95 of the ceiling, median over seeds, and the number of seeds that reach it; lower is better",
    "ms per step": "median milliseconds of a training step, interleaved with the other estimators; lower is better",
    "rate": "the learning rate chosen on the validation split",
    "option": "the option chosen on the validation split, used in training and for the gradients",
}


@dataclass(frozen=True, eq=False)
class LearningSection:
    """The results of training; false if there are none."""

    study: Study
    sentences: list[str]  # the answer, the first of which is enough alone
    tables: list[Table]  # over all tasks, by task, predictors
    charts: dict[str, pd.DataFrame] = field(repr=False)  # the rows of each chart that has any

    @property
    def headline(self) -> str:
        """The numbers of estimators, tasks and seeds, in one sentence; empty without training."""
        counts = ((len(self.study.names), "estimator"), (len(self.study.tasks), "task"), (len(self.study.seeds), "seed"))
        estimators, tasks, seeds = (plural(count, word) for count, word in counts)
        return f"{estimators} trained on {tasks}, with {seeds} each." if self else ""

    @property
    def overviews(self) -> list[dict[str, Any]]:
        """A table per task, for a terminal; see `reports.terminal.Overview`."""
        found = []
        for task in self.study.tasks:
            table = task_table(self.study, task)
            wanted = [at for at, (title, _) in enumerate(table.columns) if title not in ("estimator", "objective", "relaxed", "curve")]
            rows = [[row[0].text, *((row[at].text, "") for at in wanted)] for row in table.rows]
            found.append({"title": f"{task}: {table.note}", "stages": [table.columns[at][0] for at in wanted], "rows": rows})
        return found

    def __bool__(self) -> bool:
        return bool(self.study.tasks)


@tables.remembered
def learning_of(frame: pd.DataFrame) -> LearningSection:
    """The section of a run."""
    rows = frame[frame["problem"].str.startswith((TASK, LEARNT))]
    found = study(rows_of(rows))
    made = [overall_table(found)] if len(found.tasks) > 1 else []
    made += [task_table(found, task) for task in found.tasks]
    made += [predictor_table(found)] if found.predictors and found.tasks else []
    charts = {"learning-curves": _curves(found, rows), "learning-points": _points(found)} if found.tasks else {}
    return LearningSection(found, sentences(found), made, {name: points for name, points in charts.items() if len(points)})


@tables.remembered
def of_gradients(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of a run that measure gradients, also at the models of tasks: all except training itself."""
    trained = frame["problem"].str.startswith(TASK)
    return frame[~trained] if trained.any() else frame


def task_table(study: Study, task: str) -> Table:
    """Accuracy, time and settings of every estimator on one task, best first."""
    one = study.of(tasks=lambda name: name == task)
    outcomes = {title: metric for title, metric in _OUTCOMES.items() if title == "accuracy" or np.isfinite(one.outcome(metric)).any()}
    rows: list[dict[str, Any]] = [
        {
            "estimator": contender.name,
            "objective": contender.objective,
            **{title: estimate_cell(mean(one.outcome(metric)[0, place])) for title, metric in outcomes.items()},
            "to the target": _target(one, contender.name),
            "ms per step": _median(one.outcome("step_time")[0, place], lambda seconds: number(1e3 * seconds)),
            "rate": _median(one.outcome("learning_rate")[0, place], significant),
            "option": one.chosen.get((task, contender.name), ""),
        }
        for place, contender in enumerate(one.contenders)
        if np.isfinite(one.outcome("accuracy")[0, place]).any()
    ]
    rows.sort(key=lambda row: -row["accuracy"].key)
    limits = [one.outcome(f"{name}_accuracy") for name in ("floor", "ceiling")]
    note = "Floor and ceiling were not measured."
    if all(np.isfinite(values).any(1).all() for values in limits):
        floor, ceiling = (estimate(mean(np.nanmean(values[0], axis=0))) for values in limits)
        note = (
            f"Means over seeds with 95 % intervals; the best accuracy is in bold. Floor, without structure: {floor}. "
            f"Ceiling, with the true structures or the exact gradient: {ceiling}."
        )
    bold: dict[str, Any] = {
        "costs": {"accuracy": lambda value: -value},
        "groups": [None if row["estimator"] == "exact" else task for row in rows],
    }
    return tabulate(f"Training on {task}", rows, _HINTS, filters=(), note=note, name=f"learning-{task}", pinned=True, **bold)


def _target(one: Study, name: str) -> TableCell:
    """The time to the target, with the number of seeds that reach it."""
    steps, seconds = (times(one, name, metric) for metric in ("steps_to_target", "seconds_to_target"))
    if steps is None:
        return TableCell("", math.inf)
    count = f"{steps.reached} of {steps.runs} reach it"
    if steps.median is None:
        return TableCell(count if steps.reached else "not reached", math.inf)
    lasting = "" if seconds is None or seconds.median is None else f", {number(seconds.median)} s"
    return TableCell(f"{whole(steps.median)} steps{lasting}" + ("" if steps.reached == steps.runs else f" ({count})"), steps.median)


def _median(values: np.ndarray, written: Callable[[float], str]) -> TableCell:
    middle = float(pd.Series(values).median())
    return EMPTY if math.isnan(middle) else TableCell(written(middle), middle)


def overall_table(study: Study) -> Table:
    """Normalised accuracy on every task, without tasks on which only supervised estimators were trained."""
    known = np.isfinite(study.outcome("accuracy")).any(-1)
    latent = known[:, [one.competes for one in study.contenders]].any(1)
    if latent.any():
        tasks = {task for task, keep in zip(study.tasks, latent, strict=True) if keep}
        names = {name for name, keep in zip(study.names, known[latent].any(0), strict=True) if keep}
        study = study.of(tasks=tasks.__contains__, contenders=lambda one: one.name in names)
    scores, against = study.outcome(SCORE), study.of_family(RIVAL)
    common = np.isin(study.tasks, study.common)
    families = [family for family, kept in zip(study.families, common, strict=True) if kept]
    rows: list[dict[str, Any]] = []
    for place, contender in enumerate(study.contenders):
        own = scores[:, place]
        complete = np.isfinite(own[common]).any(1)
        over = estimate_cell(mean(independent(own[common, None], families)[0])) if complete.all() else EMPTY
        row = {"estimator": contender.name, "objective": contender.objective}
        rows.append({**row, "all tasks": over if over.text else TableCell(plural(int(complete.sum()), "task"), math.nan)})
        if against:
            wins = probability_of_improvement(own, scores[:, study.names.index(against)]) if contender.name != against else Interval(None)
            rows[-1][f"better than {RIVAL}"] = estimate_cell(wins)
        rows[-1] |= {task: estimate_cell(mean(values)) for task, values in zip(study.tasks, own, strict=True)}
    rows.sort(key=lambda row: -np.nan_to_num(row["all tasks"].key, nan=-1.0))
    hints = {
        **{"objective": _HINTS["objective"], **dict.fromkeys(study.tasks, "mean over seeds with a 95 % interval")},
        "all tasks": "mean over families of the tasks of most estimators, by seed with fewer than four families; higher is better",
        f"better than {RIVAL}": "probability that a run ends with a higher accuracy, over the tasks that both were trained on",
    }
    note = "Normalised accuracy: (accuracy − floor) / (ceiling − floor), higher is better."
    return tabulate("Training on all tasks", rows, hints, filters=(), note=note, name="learning-all", pinned=True)


def predictor_table(study: Study) -> Table:
    """Rank correlations of every predictor and level with every outcome, for each kind of estimators."""
    rows = []
    for predictor, stage in measured(study):
        row: dict[str, TableCell | str] = {"predictor": signed_label(predictor), LEVEL: stage}
        for metric in (one for one in OUTCOMES if one in study.outcomes):
            for kind, wanted in KINDS.items():
                found = association(study.of(contenders=wanted), predictor, stage, metric)
                key = math.nan if found.pooled.value is None else found.pooled.value
                small = found.note or f"{found.estimators} of {plural(found.families, 'family', 'families')}"
                row[f"{signed_label(metric)}: {kind}"] = TableCell(coefficient(found.pooled), key, notes=(small,))
        rows.append(row)
    hints = dict.fromkeys([*rows[0]][2:] if rows else (), "mean over tasks of Spearman's rank correlation over estimators")
    hints[LEVEL] = "of the run with the exact gradient, at which gradients were measured"
    note = (
        "Spearman’s rank correlations, −1 to 1. A positive one means that better gradients came with better training. Intervals leave out "
        "families of estimators, and of tasks if there are at least four. Small print: numbers of estimators and families. The exact "
        "gradient does not compete. Among so many correlations, some are far from 0 by chance."
    )
    name = "learning-predictors"
    return tabulate("Predictors of final accuracy", rows, hints, filters=(), note=note, name=name, pinned=True)


def _curves(study: Study, frame: pd.DataFrame) -> pd.DataFrame:
    """Accuracy by step and by seconds, mean over seeds with 95 % intervals, with floor and ceiling of the task."""
    rows = tables.swept(frame)
    rows = rows[(rows["metric"] == "curve_accuracy") & rows["problem"].str.startswith(TASK)]
    points = rows.assign(task=rows["problem"].str.removeprefix(TASK)).groupby(["task", "estimator", "size"], sort=False)["value"]
    half = (points.sem() * scipy.special.stdtrit(np.maximum(points.size() - 1, 1), 0.975)).fillna(0)
    found = pd.DataFrame({"mean": points.mean(), "low": points.mean() - half, "high": points.mean() + half}).reset_index()
    places = list(zip(map(study.tasks.index, found["task"]), map(study.names.index, found["estimator"]), strict=True))
    seconds = [size * pd.Series(study.outcome("step_time")[place]).median() for size, place in zip(found["size"], places, strict=True)]
    ends = {name: [pd.Series(values.ravel()).mean() for values in study.outcome(f"{name}_accuracy")] for name in ("floor", "ceiling")}
    limits = {name: [of_task[task] for task, _ in places] for name, of_task in ends.items()}
    return found.rename(columns={"size": "step"}).assign(seconds=seconds, **limits)


def _points(study: Study) -> pd.DataFrame:
    """Every estimator by a number of its gradient, or the quality of its structures, and by its final accuracy: means over seeds."""
    numbers = {f"{label_of(name)} at {stage}": study.predictor(name, stage) for name, stage in measured(study)}
    accuracies, found = study.outcome("accuracy"), []
    for label, values in {**numbers, "quality of structures": study.outcome("structure_accuracy")}.items():
        for (at, task), (place, one) in itertools.product(enumerate(study.tasks), enumerate(study.contenders)):
            x, y = mean(values[at, place]), mean(accuracies[at, place])
            if one.competes and x.value is not None and y.value is not None:
                kind = "deterministic" if one.deterministic else "stochastic"
                ends = (y.value, y.value) if y.low is None else (y.low, y.high)
                found.append((label, task, one.name, one.objective, kind, x.value, y.value, *ends))
    return pd.DataFrame(found, columns=["metric", "task", "estimator", "objective", "kind", "x", "accuracy", "low", "high"])
