"""The section on training: its answer, its tables, and the rows of its charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import scipy

from ...suites.base import LEARNT, TASK
from ...suites.learning.arrays import Study, study
from ...suites.learning.correlation import Association
from ...suites.learning.finding import KINDS, OUTCOMES, measured, predictor_results
from ...suites.learning.summaries import interquartile_mean, mean, performance_profile, probability_of_improvement, survival
from ...suites.metrics import label_of, signed_label
from ...suites.statistics.interval import Interval
from ...suites.text import coefficient, estimate, number, plural, significant, whole
from ..analysis import tables
from ..analysis.learning import SCORE, sentences, times
from ..analysis.loading import rows_of
from .cells import Table, TableCell, best_in_bold, plain

BASE = "rloo"
"""The estimator that the others are compared with."""

_OBJECTIVE = ("objective", "the objective whose gradient it estimates")


@dataclass(frozen=True, eq=False)
class LearningSection:
    """The results of training; false if there are none.

    Attributes:
        study: the numbers. ``sentences``: the answer, the first of which is enough alone. ``tables``: over all tasks, by task, predictors.
        curves: accuracy during training; see `charts`.
    """

    study: Study
    sentences: list[str]
    tables: list[Table]
    curves: pd.DataFrame = field(repr=False)

    @property
    def headline(self) -> str:
        """The numbers of estimators, tasks and seeds, in one sentence; empty without training."""
        counts = ((len(self.study.names), "estimator"), (len(self.study.tasks), "task"), (len(self.study.seeds), "seed"))
        estimators, tasks, seeds = (plural(count, word) for count, word in counts)
        return f"{estimators} trained on {tasks}, with {seeds} each." if self else ""

    @property
    def overviews(self) -> list[dict[str, Any]]:
        """A table per task, for a terminal; see `reports.terminal.Overview`."""
        return [_overview(task, task_table(self.study, task)) for task in self.study.tasks]

    def charts(self) -> dict[str, pd.DataFrame]:
        """The rows of each chart that has any, by its name."""
        makers = {
            "curves": lambda _: self.curves,
            "points": _points,
            "survival": _survival,
            "profile": _profile,
            "improvement": _improvement,
        }
        found = {f"learning-{name}": make(self.study) for name, make in makers.items()} if self else {}
        return {name: rows for name, rows in found.items() if len(rows)}

    def __bool__(self) -> bool:
        return bool(self.study.tasks)


@tables.remembered
def learning_of(frame: pd.DataFrame) -> LearningSection:
    """The section of a run."""
    rows = frame[_starting(frame, (TASK, LEARNT))]
    found = study(rows_of(rows))
    made = [overall_table(found)] if len(found.tasks) > 1 else []
    made += [task_table(found, task) for task in found.tasks]
    made += [predictor_table(found)] if found.predictors and found.tasks else []
    return LearningSection(found, sentences(found), made, _curves(found, rows))


@tables.remembered
def of_gradients(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of a run that measure gradients, also at the models of tasks: all except training itself."""
    trained = _starting(frame, (TASK,))
    return frame[~trained] if trained.any() else frame


def _starting(frame: pd.DataFrame, beginnings: tuple[str, ...]) -> pd.Series[bool]:
    return frame["problem"].isin([name for name in tables.order(frame, "problem") if name.startswith(beginnings)])


def task_table(study: Study, task: str) -> Table:
    """Accuracy, time and settings of every estimator on one task, best first."""
    one = study.of(tasks=lambda name: name == task)
    outcomes = {
        "accuracy": (
            "accuracy",
            "on the test split, at the best structures: mean over seeds with a 95 % interval; 0 to 1, higher is better",
        ),
        "structure": ("structure_accuracy", "quality of the best structures by the measure of the task; higher is better"),
        "relaxed": ("relaxed_accuracy", "accuracy at the marginals"),
        "curve": ("curve_mean", "mean of the learning curve"),
    }
    outcomes = {title: pair for title, pair in outcomes.items() if title == "accuracy" or np.isfinite(one.outcome(pair[0])).any()}
    columns = (
        ("estimator", ""),
        _OBJECTIVE,
        *((title, hint) for title, (_, hint) in outcomes.items()),
        (
            "to the target",
            "steps and seconds to .95 of the ceiling, median over seeds, and the number of seeds that reach it; lower is better",
        ),
        ("ms per step", "median milliseconds of a training step, interleaved with the other estimators; lower is better"),
        ("rate", "the learning rate chosen on the validation split"),
        ("option", "the option chosen on the validation split, used in training and for the gradients"),
    )
    rows = [
        [
            plain(contender.name),
            plain(contender.objective),
            *(estimate_cell(mean(one.outcome(metric)[0, place])) for metric, _ in outcomes.values()),
            _target(one, contender.name),
            _median(one.outcome("step_time")[0, place], lambda seconds: number(1e3 * seconds)),
            _median(one.outcome("learning_rate")[0, place], significant),
            plain(one.chosen.get((task, contender.name), "")),
        ]
        for place, contender in enumerate(one.contenders)
        if np.isfinite(one.outcome("accuracy")[0, place]).any()
    ]
    rows.sort(key=lambda row: -float(row[2].key))
    rows = best_in_bold(rows, [None if row[0].text == "exact" else task for row in rows], {2: lambda accuracy: -accuracy})
    limits = [one.outcome(f"{name}_accuracy") for name in ("floor", "ceiling")]
    note = "Floor and ceiling were not measured."
    if all(np.isfinite(values).any(1).all() for values in limits):
        floor, ceiling = (estimate(mean(np.nanmean(values[0], axis=0))) for values in limits)
        note = (
            f"Means over seeds with 95 % intervals; the best accuracy is in bold. Floor, without structure: {floor}. "
            f"Ceiling, with the true structures or the exact gradient: {ceiling}."
        )
    return Table(f"Training on {task}", columns, rows, note, f"learning-{task}", pinned=True)


def estimate_cell(found: Interval) -> TableCell:
    """A value with its interval; empty without a value."""
    return TableCell("", math.nan) if found.value is None else TableCell(estimate(found), found.value)


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
    known = values[np.isfinite(values)]
    return TableCell(written(middle := float(np.median(known))), middle) if len(known) else TableCell("", math.nan)


def overall_table(study: Study) -> Table:
    """Normalised accuracy on every task, without tasks on which only supervised estimators were trained."""
    known = np.isfinite(study.outcome("accuracy")).any(-1)
    latent = known[:, [one.competes for one in study.contenders]].any(1)
    if latent.any():
        tasks = {task for task, keep in zip(study.tasks, latent, strict=True) if keep}
        names = {name for name, keep in zip(study.names, known[latent].any(0), strict=True) if keep}
        study = study.of(tasks=tasks.__contains__, contenders=lambda one: one.name in names)
    scores, against = study.outcome(SCORE), study.of_family(BASE)
    common = [task in study.common for task in study.tasks]
    hint = "interquartile mean over the tasks of most estimators, with a stratified bootstrap interval; higher is better"
    better = "probability that a run ends with a higher accuracy, over the tasks that both were trained on"
    columns = (
        *(("estimator", ""), _OBJECTIVE, ("all tasks", hint)),
        *([(f"better than {BASE}", better)] if against else []),
        *((task, "mean over seeds with a 95 % interval") for task in study.tasks),
    )
    rows = []
    for place, contender in enumerate(study.contenders):
        own = scores[:, place]
        complete = np.isfinite(own[common]).any(1)
        over = estimate_cell(interquartile_mean(own[common]) if complete.all() else Interval(None))
        over = over if over.text else TableCell(plural(int(complete.sum()), "task"), math.nan)
        row = [plain(contender.name), plain(contender.objective), over]
        if against:
            wins = probability_of_improvement(own, scores[:, study.names.index(against)]) if contender.name != against else Interval(None)
            row.append(estimate_cell(wins))
        rows.append([*row, *(estimate_cell(mean(values)) for values in own)])
    rows.sort(key=lambda row: -np.nan_to_num(float(row[2].key), nan=-1.0))
    note = "Normalised accuracy: (accuracy − floor) / (ceiling − floor), higher is better."
    return Table("Training on all tasks", columns, rows, note, "learning-all", pinned=True)


def predictor_table(study: Study) -> Table:
    """Rank correlations of every predictor and level with every outcome, for each kind of estimators, and for both halves."""
    found = predictor_results(study)
    by_place = {(one.predictor, one.stage, one.outcome, one.kind): one for one in found}
    outcomes = [name for name in OUTCOMES if any(one.outcome == name for one in found)]
    columns = [("predictor", ""), ("entropy level", "of the run with the exact gradient, at which gradients were measured")]
    for outcome in outcomes:
        called = signed_label(outcome)
        columns += [(f"{called}: {kind}", "mean over tasks of Spearman's rank correlation over estimators") for kind in KINDS]
        columns += [(f"{called}: halves", "over all estimators of the half that chooses → of the half that confirms")]
    rows = []
    for predictor, stage in dict.fromkeys((one.predictor, one.stage) for one in found):
        cells = [plain(signed_label(predictor)), plain(stage)]
        for outcome in outcomes:
            cells += [correlation_cell(by_place[predictor, stage, outcome, kind].whole) for kind in KINDS]
            both = by_place[predictor, stage, outcome, "all"]
            text = f"{coefficient(both.choice.pooled)} → {coefficient(both.confirmation.pooled)}"
            cells.append(TableCell(text, both.confirmation.pooled.value or 0.0, notes=("confirmed",) if both.confirmed else ()))
        rows.append(cells)
    note = (
        "Spearman’s rank correlations, −1 to 1. A positive one means that better gradients came with better training. Intervals resample "
        "ideas of estimators and seeds, not tasks. Small print: numbers of estimators and ideas. The exact gradient does not compete. "
        "Among so many correlations, some are far from 0 by chance. “Confirmed”: the intervals on two halves without common "
        "tasks, estimators or seeds agree."
    )
    return Table("Predictors of final accuracy", tuple(columns), rows, note, "learning-predictors", pinned=True)


def correlation_cell(found: Association) -> TableCell:
    """A correlation, with the number of its estimators."""
    if found.pooled.value is None:
        return TableCell("–", math.nan, notes=(found.note,))
    return TableCell(coefficient(found.pooled), found.pooled.value, notes=(found.note or f"{found.estimators} of {found.ideas} ideas",))


def _overview(task: str, table: Table) -> dict[str, Any]:
    wanted = [place for place, (title, _) in enumerate(table.columns) if title not in ("estimator", "objective", "relaxed", "curve")]
    rows = [[row[0].text, *((row[place].text, "") for place in wanted)] for row in table.rows]
    return {"title": f"{task}: {table.note}", "stages": [table.columns[place][0] for place in wanted], "rows": rows}


def _frame(rows: Iterator[tuple[Any, ...]], *names: str) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=list(names))


def _curves(study: Study, frame: pd.DataFrame) -> pd.DataFrame:
    """Accuracy by step and by seconds, mean over seeds with 95 % intervals, with floor and ceiling of the task."""
    rows = tables.swept(frame)
    rows = rows[(rows["metric"] == "curve_accuracy") & rows["problem"].str.startswith(TASK)]
    points = rows.assign(task=rows["problem"].str.removeprefix(TASK)).groupby(["task", "estimator", "size"], sort=False)["value"]
    half = points.std() / np.sqrt(points.size()) * scipy.special.stdtrit(np.maximum(points.size() - 1, 1), 0.975)
    found = pd.DataFrame(
        {"mean": points.mean(), "low": points.mean() - half.fillna(0), "high": points.mean() + half.fillna(0)}
    ).reset_index()
    places = [(study.tasks.index(task), study.names.index(name)) for task, name in found[["task", "estimator"]].itertuples(index=False)]
    step = [np.nanmedian(one) if np.isfinite(one := study.outcome("step_time")[place]).any() else math.nan for place in places]
    limits = {name: [np.nanmean(study.outcome(f"{name}_accuracy")[task]) for task, _ in places] for name in ("floor", "ceiling")}
    return found.assign(step=found["size"], seconds=found["size"] * np.array(step, dtype=float), **limits).drop(columns="size")


def _points(study: Study) -> pd.DataFrame:
    """Every estimator by a number of its gradient, or the quality of its structures, and by its final accuracy: means over seeds."""

    def rows() -> Iterator[tuple[Any, ...]]:
        numbers = {f"{label_of(name)} at {stage}": study.predictor(name, stage) for name, stage in measured(study)}
        for label, values in {**numbers, "quality of structures": study.outcome("structure_accuracy")}.items():
            for at, task in enumerate(study.tasks):
                for place, one in enumerate(study.contenders):
                    x, y = mean(values[at, place]), mean(study.outcome("accuracy")[at, place])
                    if one.competes and x.value is not None and y.value is not None:
                        bounds = (y.value, y.value) if y.low is None else (y.low, y.high)
                        yield (
                            label,
                            task,
                            one.name,
                            one.objective,
                            "deterministic" if one.deterministic else "stochastic",
                            x.value,
                            y.value,
                            *bounds,
                        )

    return _frame(rows(), "metric", "task", "estimator", "objective", "kind", "x", "accuracy", "low", "high")


def _survival(study: Study) -> pd.DataFrame:
    """The share of seeds below the target, by steps (Kaplan–Meier)."""

    def rows() -> Iterator[tuple[Any, ...]]:
        steps = study.outcome("steps_to_target")
        stopped = study.censored.get("steps_to_target", np.zeros(steps.shape, bool))
        for at, task in enumerate(study.tasks):
            for place, name in enumerate(study.names):
                if np.isfinite(steps[at, place]).any():
                    found = survival(steps[at, place], stopped[at, place])
                    end = (float(np.nanmax(steps[at])), float(found.share[-1]) if len(found.share) else 1.0)
                    yield from ((task, name, step, share) for step, share in [(0.0, 1.0), *zip(found.times, found.share, strict=True), end])

    return _frame(rows(), "task", "estimator", "step", "share")


def _profile(study: Study) -> pd.DataFrame:
    """The share of runs whose normalised accuracy is at least x, of the estimators trained on all common tasks."""
    scores = study.of(tasks=lambda task: task in study.common).outcome(SCORE)
    complete = [place for place in range(len(study.names)) if scores.size and np.isfinite(scores[:, place]).any(-1).all()]
    across = np.linspace(min(0.0, float(np.nanmin(scores))) if complete else 0.0, 1.05, 61)
    found = (
        (study.names[place], *point)
        for place in complete
        for point in zip(across, *performance_profile(scores[:, place], across), strict=True)
    )
    return _frame(found, "estimator", "accuracy", "share", "low", "high")


def _improvement(study: Study) -> pd.DataFrame:
    """The probability that a run ends with a higher accuracy than one of `BASE`, best first."""
    base, scores = study.of_family(BASE), study.outcome(SCORE)
    others = [name for name in study.names if base and name != base]
    found = [(name, probability_of_improvement(*(scores[:, study.names.index(one)] for one in (name, base)))) for name in others]
    known = sorted((pair for pair in found if pair[1].value is not None), key=lambda pair: -(pair[1].value or 0.0))
    return _frame(((name, one.value, one.low, one.high) for name, one in known), "estimator", "probability", "low", "high")
