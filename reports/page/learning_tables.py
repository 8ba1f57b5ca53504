"""The tables of a run of learning."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...suites.learning.arrays import Study
from ...suites.learning.correlation import Association
from ...suites.learning.finding import KINDS, OUTCOMES, Foretelling, foretellings
from ...suites.learning.summaries import interquartile_mean, mean, probability_of_improvement
from ...suites.metrics import signed_label
from ...suites.statistics.interval import Interval
from ...suites.text import coefficient_interval, estimate, milliseconds, number, plural, setting, whole
from ..analysis.learning import SCORE, times
from ..terminal import Overview
from .cells import Table, TableCell, best_in_bold, plain

BASE = "rloo"
"""The estimator that the others are compared with."""

_HINTS = {
    "accuracy": "on the test split, at the best structures: mean over seeds with a 95 % interval; 0 to 1, higher is better",
    "structure": "quality of the best structures by the measure of the task; higher is better",
    "relaxed": "accuracy at the marginals",
    "target": "steps and seconds to .95 of the ceiling, median over seeds, and the number of seeds that reach it; lower is better",
    "rate": "the learning rate chosen on the validation split",
    "option": "the option chosen on the validation split, used in training and for the gradients",
    "step": "median milliseconds of a training step, interleaved with the other estimators; lower is better",
}


def task_table(study: Study, task: str) -> Table:
    """Accuracy, time and settings of every estimator on one task, best first."""
    one = study.of(tasks=lambda name: name == task)
    columns = [("estimator", ""), ("objective", "the objective whose gradient it estimates"), ("accuracy", _HINTS["accuracy"])]
    extra = {
        "structure": ("structure_accuracy", _HINTS["structure"]),
        "relaxed": ("relaxed_accuracy", _HINTS["relaxed"]),
        "curve": ("curve_mean", "mean of the learning curve"),
    }
    extra = {title: (metric, hint) for title, (metric, hint) in extra.items() if np.isfinite(one.outcome(metric)).any()}
    columns += [(title, hint) for title, (_, hint) in extra.items()]
    columns += [("to the target", _HINTS["target"]), ("ms per step", _HINTS["step"]), ("rate", _HINTS["rate"])]
    columns += [("option", _HINTS["option"])]
    rows = [
        [
            plain(contender.name),
            plain(contender.objective),
            spread(one.outcome("accuracy")[0, place]),
            *(spread(one.outcome(metric)[0, place]) for metric, _ in extra.values()),
            target(one, contender.name),
            _median(one.outcome("step_time")[0, place], milliseconds),
            _median(one.outcome("learning_rate")[0, place], setting),
            plain(one.chosen.get((task, contender.name), "")),
        ]
        for place, contender in enumerate(one.contenders)
        if np.isfinite(one.outcome("accuracy")[0, place]).any()
    ]
    rows.sort(key=lambda row: -float(row[2].key))
    rows = best_in_bold(rows, [None if row[0].text == "exact" else task for row in rows], {2: lambda accuracy: -accuracy})
    return Table(f"Training on {task}", tuple(columns), rows, _limits(one), f"learning-{task}", pinned=True)


def _limits(one: Study) -> str:
    """Floor and ceiling of a task, if measured."""
    floor, ceiling = (mean(np.nanmean(one.outcome(f"{name}_accuracy")[0], axis=0)) if _any(one, name) else None for name in _LIMITS)
    if floor is None or ceiling is None:
        return "Floor and ceiling were not measured."
    return (
        f"Means over seeds with 95 % intervals; the best accuracy is in bold. Floor, without structure: {estimate(floor)}. "
        f"Ceiling, with the true structures or the exact gradient: {estimate(ceiling)}."
    )


_LIMITS = ("floor", "ceiling")


def _any(one: Study, name: str) -> bool:
    values = one.outcome(f"{name}_accuracy")
    return bool(np.isfinite(values).any(1).all())


def spread(values: np.ndarray) -> TableCell:
    """A mean over seeds with its interval."""
    found = mean(values)
    return TableCell("", math.nan) if found.value is None else TableCell(estimate(found), found.value)


def target(one: Study, name: str) -> TableCell:
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
    if not len(known):
        return TableCell("", math.nan)
    middle = float(np.median(known))
    return TableCell(written(middle), middle)


def overall_table(study: Study) -> Table:
    """Normalised accuracy, (accuracy − floor) / (ceiling − floor), on every task: a mean over tasks alone hides a task that failed.

    Tasks on which only estimators that see the true structures were trained are left out.
    """
    study = _latent(study)
    scores = study.outcome(SCORE)
    against = study.of_family(BASE)
    base = None if against is None else scores[:, study.names.index(against)]
    columns = (
        ("estimator", ""),
        ("objective", "the objective whose gradient it estimates"),
        (
            "all tasks",
            "interquartile mean over the tasks of most estimators, with a stratified bootstrap interval; higher is better",
        ),
        *(
            []
            if base is None
            else [(f"better than {BASE}", "probability that a run ends with a higher accuracy, over the tasks that both were trained on")]
        ),
        *((task, "mean over seeds with a 95 % interval") for task in study.tasks),
    )
    common = [task in study.common for task in study.tasks]
    rows = []
    for place, contender in enumerate(study.contenders):
        own = scores[:, place]
        complete = np.isfinite(own[common]).any(1)
        every = interquartile_mean(own[common]) if complete.all() else Interval(None)
        better = [] if base is None else [_improvement(own, base) if contender.name != against else TableCell("", math.nan)]
        over = (
            TableCell(estimate(every), every.value) if every.value is not None else TableCell(plural(int(complete.sum()), "task"), math.nan)
        )
        rows.append([plain(contender.name), plain(contender.objective), over, *better, *(spread(row) for row in own)])
    rows.sort(key=lambda row: -np.nan_to_num(float(row[2].key), nan=-1.0))
    note = "Normalised accuracy: (accuracy − floor) / (ceiling − floor), higher is better."
    return Table("Training on all tasks", columns, rows, note, "learning-all", pinned=True)


def _latent(study: Study) -> Study:
    """The study without tasks on which no competing estimator was trained; the whole study if that leaves nothing."""
    known = np.isfinite(study.outcome("accuracy")).any(-1)
    competes = np.array([one.competes for one in study.contenders], dtype=bool)
    tasks = {task for task, row in zip(study.tasks, known[:, competes].any(1), strict=True) if row}
    some = study.of(tasks=lambda task: task in tasks)
    learnt = np.isfinite(some.outcome("accuracy")).any((0, 2))
    names = {name for name, keep in zip(some.names, learnt, strict=True) if keep}
    return some.of(contenders=lambda one: one.name in names) if tasks else study


def _improvement(scores: np.ndarray, base: np.ndarray) -> TableCell:
    found = probability_of_improvement(scores, base)
    return TableCell("", math.nan) if found.value is None else TableCell(estimate(found), found.value)


def predictor_table(study: Study, found: list[Foretelling] | None = None) -> Table:
    """Rank correlations of every predictor and stage with every outcome, for each kind of estimators, and for both halves."""
    listed = foretellings(study) if found is None else found
    by_place = {(one.predictor, one.stage, one.outcome, one.kind): one for one in listed}
    outcomes = [name for name in OUTCOMES if any(one.outcome == name for one in listed)]
    columns = [("predictor", ""), ("entropy level", "of the run with the exact gradient, at which gradients were measured")]
    for outcome in outcomes:
        called = signed_label(outcome)
        columns += [(f"{called}: {kind}", "mean over tasks of Spearman's rank correlation over estimators") for kind in KINDS]
        columns += [(f"{called}: halves", "over all estimators of the half that chooses → of the half that confirms")]
    rows = []
    for predictor, stage in dict.fromkeys((one.predictor, one.stage) for one in listed):
        cells = [plain(signed_label(predictor)), plain(stage)]
        for outcome in outcomes:
            cells += [correlation(by_place[predictor, stage, outcome, kind].whole) for kind in KINDS]
            both = by_place[predictor, stage, outcome, "all"]
            text = f"{coefficient_interval(both.choice.pooled)} → {coefficient_interval(both.confirmation.pooled)}"
            cells.append(TableCell(text, both.confirmation.pooled.value or 0.0, notes=("confirmed",) if both.confirmed else ()))
        rows.append(cells)
    note = (
        "Spearman’s rank correlations, −1 to 1. A positive one means that better gradients came with better training. Intervals resample "
        "ideas of estimators and seeds, not tasks. Small print: numbers of estimators and ideas. The exact gradient does not compete. "
        "Among so many correlations, some are far from 0 by chance. “Confirmed”: the intervals on two halves without common "
        "tasks, estimators or seeds agree."
    )
    return Table("Predictors of final accuracy", tuple(columns), rows, note, "learning-predictors", pinned=True)


def correlation(found: Association) -> TableCell:
    """A correlation, with the number of its estimators."""
    if found.pooled.value is None:
        return TableCell("–", math.nan, notes=(found.note,))
    return TableCell(
        coefficient_interval(found.pooled), found.pooled.value, notes=(found.note or f"{found.estimators} of {found.ideas} ideas",)
    )


def overview(study: Study, task: str) -> Overview:
    """The table of a task for a terminal."""
    table = task_table(study, task)
    wanted = [place for place, (title, _) in enumerate(table.columns) if title not in ("estimator", "objective", "relaxed", "curve")]
    rows = [[row[0].text, *((row[place].text, "") for place in wanted)] for row in table.rows]
    return {"title": f"{task}: {table.note}", "stages": [table.columns[place][0] for place in wanted], "rows": rows}
