"""Figures of training: curves, predictors of final accuracy, times to the target, profiles, structure against accuracy."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from ....suites.base import TASK
from ....suites.learning.arrays import Learner, Study
from ....suites.learning.finding import PREDICTORS, association, measured
from ....suites.learning.summaries import mean, performance_profile, probability_of_improvement, survival
from ....suites.metrics import METRICS, label_of
from ....suites.statistics.interval import Interval
from ...analysis import tables
from .drawing import Drawing, FigureKind
from .facets import Sheet, facets, strips
from .panel import DASHED, DOTTED, Axis, Panel
from .scale import Scale
from .styles import Style, styles

STEPS = FigureKind(
    "learning-steps",
    "Learning curves",
    "Accuracy on the test split, mean over seeds with 95 % bands; higher is better. Dotted: floor and ceiling. Dashed: the target, .95 of "
    "the ceiling. With many estimators, only the exact gradient and the best of every idea have colours.",
)
SECONDS = FigureKind(
    "learning-seconds",
    "Learning curves in seconds",
    "Accuracy against training time: steps × the time of a step, which is measured interleaved with the other estimators.",
)
FORETOLD = FigureKind(
    "learning-foretold",
    "Predictors of final accuracy",
    "Each mark is an estimator: a metric of its gradient at the models of the exact run, and its final accuracy; means over seeds. Colours "
    "and shapes are objectives, filled marks are stochastic. Above each panel: Spearman’s rank correlation over all (a), stochastic (s) "
    "and deterministic (d) estimators. The exact gradient does not compete.",
)
SURVIVAL = FigureKind(
    "learning-survival",
    "Time to the target",
    "Share of seeds below .95 of the ceiling (Kaplan–Meier); lower is better. A line that stays above 0 has seeds that never reach it.",
)
PROFILE = FigureKind(
    "learning-profile",
    "Performance profile",
    "Share of runs whose normalised accuracy is at least x, with equal weights of tasks; higher is better. Estimators that lack a "
    "common task are left out. Bands are 95 % intervals of the stratified bootstrap.",
)
IMPROVEMENT = FigureKind(
    "learning-improvement",
    "Probability of improvement over rloo",
    "P(a run ends with a higher accuracy than one of rloo), mean over the tasks that both were trained on, with a 95 % interval. "
    "Above .5 is better than rloo.",
)
STRUCTURE = FigureKind(
    "learning-structure",
    "Structure against accuracy",
    "Quality of the best structures against accuracy, means over seeds with 95 % intervals. High accuracy with poor structures is "
    "coadaptation: the decoder uses the structures of the encoder in another sense than that of the task.",
)

_LINES = 12
"""Beyond so many estimators lines have the colours of the best of every idea alone; the others are grey."""

_POINTS = 121
_BANDS = 8
"""Beyond so many estimators bands in one panel hide each other."""

_OBJECTIVES = {
    "expected": Style("#0173b2", "o"),
    "argmax": Style("#b28600", "s"),
    "perturbed": Style("#028e66", "^"),
    "relaxed": Style("#dc4413", "D"),
    "sparse": Style("#c05fd0", "v"),
}
_OTHER = Style("#808080", "X")
_GREY = Style("#b4b4b4", "o")


@dataclass(frozen=True, eq=False)
class LearningMaterial:
    """A study with the points of its curves, and how its estimators look."""

    study: Study
    curves: pd.DataFrame = field(repr=False)
    styles: dict[str, Style] = field(repr=False)

    @classmethod
    def of(cls, found: Study, frame: pd.DataFrame) -> LearningMaterial:
        """From the table of a run."""
        rows = tables.swept(frame)
        return cls(found, rows[(rows["metric"] == "curve_accuracy") & rows["problem"].str.startswith(TASK)], styles(frame))

    @functools.cached_property
    def coloured(self) -> dict[str, Style]:
        """Whose lines have a colour: everybody's, or of many the reference's and that of the best of every idea."""
        contenders = self.study.contenders
        if len(contenders) <= _LINES:
            return self.styles
        scores = self.study.outcome("normalised_accuracy")
        best: dict[str, tuple[float, str]] = {}
        for place, one in enumerate(contenders):
            worth = _average(scores[[task in self.study.common for task in self.study.tasks], place])
            if one.family == "exact":
                best[one.name] = (worth, one.name)
            elif one.competes and worth > best.get(one.idea, (-math.inf, ""))[0]:
                best[one.idea] = (worth, one.name)
        names = {name for _, name in best.values()}
        return {one.name: self.styles[one.name] for one in contenders if one.name in names}

    def lines(self, names: Iterable[str]) -> list[tuple[str, Style]]:
        """How the lines of these look, in the order in which they are to be drawn: grey ones lie below."""
        return sorted(((name, self.coloured.get(name, _GREY)) for name in names), key=lambda pair: pair[0] in self.coloured)

    def legend(self, names: Iterable[str]) -> dict[str, Style]:
        """Of the lines of these."""
        shown = {name: style for name, style in self.coloured.items() if name in set(names)}
        return shown if len(shown) == len(set(names)) else {**shown, "others": _GREY}

    def task(self, name: str) -> Study:
        """One task."""
        return self.study.of(tasks=lambda task: task == name)


def draw_learning(material: LearningMaterial) -> list[Drawing]:
    """All figures of a run of learning, where there is something to draw."""
    makers: tuple[Callable[[LearningMaterial], Iterable[Drawing | None]], ...] = (
        lambda all_: [learning_curves(all_, seconds=False), learning_curves(all_, seconds=True)],
        lambda all_: [foretold(all_, task, stage) for task, stage in _told(all_)],
        lambda all_: [times_to_target(all_), profile(all_), improvement(all_), structure(all_)],
    )
    return [drawing for make in makers for drawing in make(material) if drawing is not None]


def learning_curves(material: LearningMaterial, *, seconds: bool) -> Drawing | None:
    """A panel per task, a line per estimator."""
    tasks = [task for task in material.study.tasks if (material.curves["problem"] == TASK + task).any()]
    if seconds:
        tasks = [task for task in tasks if np.isfinite(material.task(task).outcome("step_time")).any()]
    if not tasks:
        return None
    sheet = facets(tasks, material.legend(material.study.names), shared=False, lines=True)
    for panel, task in zip(sheet.panels, tasks, strict=True):
        _curves(panel, material, task, seconds=seconds)
    _labelled(sheet, "seconds" if seconds else "steps", "accuracy")
    return (SECONDS if seconds else STEPS).drawn(sheet, "")


def _curves(panel: Panel, material: LearningMaterial, task: str, *, seconds: bool) -> None:
    one = material.task(task)
    points = material.curves[material.curves["problem"] == TASK + task]
    heights: list[float] = []
    longest = 0.0
    for name, style in material.lines(one.names):
        place = one.names.index(name)
        part = points[points["estimator"] == name]
        if part.empty:
            continue
        cost = float(np.nanmedian(one.outcome("step_time")[0, place])) if seconds else 1.0
        wide = part.pivot_table(index="size", columns="instance", values="value", aggfunc="first").sort_index()
        found = [mean(row) for row in wide.to_numpy(dtype=float)]
        across = [float(step) * cost for step in wide.index]
        values, lows, highs = (np.array([_or(one, side) for one in found]) for side in ("value", "low", "high"))
        if name in material.coloured:
            panel.band(across, lows, highs, style.colour)
            panel.mark(across[-1], values[-1], style.small)
        panel.line(across, values, style.colour, 1.2, 0.9 if name in material.coloured else 0.5, dashes=style.dashes)
        heights += values.tolist()
        longest = max(longest, across[-1])
    heights += [height for height in _levels(panel, one) if np.isfinite(height)]
    _even(panel.y, heights)
    panel.x.even(0, longest * 1.02 or 1.0)


def _or(found: Interval, side: str) -> float:
    """A side of an interval; the value where it has none."""
    bound = getattr(found, side)
    return float(found.value or 0.0) if bound is None else float(bound)


def _levels(panel: Panel, one: Study) -> Iterator[float]:
    """Floor and ceiling as dotted lines, the target as a dashed one."""
    floor, ceiling = (_average(one.outcome(f"{name}_accuracy")) for name in ("floor", "ceiling"))
    for height, dashes in ((floor, DOTTED), (ceiling, DOTTED), (0.95 * ceiling, DASHED)):
        if np.isfinite(height):
            panel.line([-np.inf, np.inf], [height, height], opacity=0.6, dashes=dashes)
        yield height


def _average(values: np.ndarray) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else math.nan


def foretold(material: LearningMaterial, task: str, stage: str) -> Drawing | None:
    """A panel per number of the gradient, a mark per estimator."""
    one = material.task(task).of(contenders=lambda other: other.competes)
    names = [name for name in PREDICTORS if np.isfinite(one.predictor(name, stage)).any()]
    marks = {objective: _OBJECTIVES.get(objective, _OTHER) for objective in dict.fromkeys(other.objective for other in one.contenders)}
    sheet = facets([""] * len(names), {objective or "no objective": style for objective, style in marks.items()}, shared=False)
    for panel, name in zip(sheet.panels, names, strict=True):
        panel.title = _spearmans(one, name, stage)
        panel.x.label = label_of(name)
        sides = (one.predictor(name, stage)[0], one.outcome("accuracy")[0])
        _marks(panel, one, sides, lambda other: _by_objective(other, marks), Scale.of(_middles(sides[0])) if _is_error(name) else None)
    for panel in sheet.panels[:: sheet.columns]:
        panel.y.label = "final accuracy"
    kind = replace(FORETOLD, title=f"{FORETOLD.title}: {task}, {stage}")
    return kind.drawn(sheet, f"{task} {stage}") if names else None


def _told(material: LearningMaterial) -> list[tuple[str, str]]:
    """Every task at the stage nearest to its beginning at which most numbers are known."""
    stages = [stage for _, stage in measured(material.study)]
    if not stages:
        return []
    known = ("early", "init", "final")
    return [
        (task, max(known, key=lambda stage: sum(np.isfinite(material.task(task).predictor(name, stage)).any() for name in PREDICTORS)))
        for task in material.study.tasks
        if any(np.isfinite(material.task(task).predictor(name, stage)).any() for name in PREDICTORS for stage in known)
    ]


def _spearmans(one: Study, name: str, stage: str) -> str:
    kinds: tuple[tuple[str, Callable[[Learner], bool]], ...] = (
        ("a", lambda other: True),
        ("s", lambda other: not other.deterministic),
        ("d", lambda other: other.deterministic),
    )
    found = {short: association(one.of(contenders=keep), name, stage, "accuracy", resamples=0).pooled.value for short, keep in kinds}
    sign = METRICS[name].sign
    return "  ".join(f"{short} {'–' if value is None else f'{sign * value:+.2f}'.replace('-', '−')}" for short, value in found.items())


def _by_objective(one: Learner, marks: dict[str, Style]) -> Style:
    return replace(marks[one.objective], fill="none" if one.deterministic else "full")


def _is_error(predictor: str) -> bool:
    """Whether a predictor has a heavy tail to the right, and 0 for the best."""
    return predictor.endswith(("bias", "variance", "mse"))


def _middles(values: np.ndarray) -> list[float]:
    return [found.value for found in map(mean, values) if found.value is not None]


def _marks(
    panel: Panel, one: Study, sides: tuple[np.ndarray, np.ndarray], look: Callable[[Learner], Style], scale: Scale | None = None
) -> None:
    """Estimators at means over seeds, with bars of 95 % intervals; the axis across is logarithmic where it has a scale."""
    ends: tuple[list[float], list[float]] = ([], [])
    for place, contender in enumerate(one.contenders):
        x, y = (mean(side[place]) for side in sides)
        if x.value is None or y.value is None:
            continue
        style, across = look(contender), x.value if scale is None else scale.place(x.value)
        if y.low is not None and y.high is not None:
            panel.line([across] * 2, [y.low, y.high], style.colour, opacity=0.5)
            ends[1].extend((y.low, y.high))
        panel.mark(across, y.value, style, 0.9)
        for found, end in zip((x, y), ends, strict=True):
            end.append(found.value or 0.0)
    _even(panel.y, ends[1])
    if scale is None:
        _even(panel.x, ends[0])
    else:
        scale.dress(panel, "x")


def times_to_target(material: LearningMaterial) -> Drawing | None:
    """A panel per task: who has not come to the target yet."""
    tasks = [task for task in material.study.tasks if np.isfinite(material.task(task).outcome("steps_to_target")).any()]
    if not tasks:
        return None
    sheet = facets(tasks, material.legend(material.study.names), shared=False, lines=True)
    for panel, task in zip(sheet.panels, tasks, strict=True):
        one = material.task(task)
        steps = one.outcome("steps_to_target")[0]
        stopped = one.censored.get("steps_to_target", np.zeros((1, *steps.shape), bool))[0]
        end = float(np.nanmax(steps))
        for name, style in material.lines(one.names):
            values, censored = (side[one.names.index(name)] for side in (steps, stopped))
            if np.isfinite(values).any():
                found = survival(values, censored)
                across, along = _stairs(found.times, found.share, end)
                panel.line(across, along, style.colour, 1.4, 0.85 if name in material.coloured else 0.5, dashes=style.dashes)
        panel.x.even(0, end * 1.02)
        panel.y.even(-0.02, 1.02)
    _labelled(sheet, "steps", "share below the target")
    return SURVIVAL.drawn(sheet, "")


def _stairs(times: np.ndarray, share: np.ndarray, end: float) -> tuple[list[float], list[float]]:
    across, along, height = [0.0], [1.0], 1.0
    for time, lower in zip(times, share, strict=True):
        across += [float(time)] * 2
        along += [height, float(lower)]
        height = float(lower)
    return [*across, end], [*along, height]


def profile(material: LearningMaterial) -> Drawing | None:
    """One panel over all tasks."""
    scores = material.study.of(tasks=lambda task: task in material.study.common).outcome("normalised_accuracy")
    complete = [place for place in range(len(material.study.names)) if np.isfinite(scores[:, place]).any(-1).all()]
    if not complete or not len(scores):
        return None
    names = [material.study.names[place] for place in complete]
    sheet = facets([""], material.legend(names), lines=True)
    sheet = replace(sheet, frame=replace(sheet.frame, across=5.6, along=4.0))
    thresholds = np.linspace(min(0.0, float(np.nanmin(scores))), 1.05, _POINTS)
    for name, style in material.lines(names):
        share, low, high = performance_profile(scores[:, material.study.names.index(name)], thresholds)
        if len(names) <= _BANDS:
            sheet.panels[0].band(thresholds, low, high, style.colour)
        sheet.panels[0].line(thresholds, share, style.colour, 1.3, 0.9 if name in material.coloured else 0.5, dashes=style.dashes)
    sheet.panels[0].x.even(thresholds[0], 1.05)
    sheet.panels[0].y.even(-0.02, 1.02)
    _labelled(sheet, "normalised accuracy", "share of runs with at least that")
    return PROFILE.drawn(sheet, "")


def improvement(material: LearningMaterial) -> Drawing | None:
    """A row per estimator."""
    study = material.study
    base = study.of_family("rloo")
    if base is None:
        return None
    scores = study.outcome("normalised_accuracy")
    found = {
        name: probability_of_improvement(scores[:, place], scores[:, study.names.index(base)])
        for place, name in enumerate(study.names)
        if name != base
    }
    found = {name: one for name, one in sorted(found.items(), key=lambda pair: -(pair[1].value or 0)) if one.value is not None}
    if not found:
        return None
    sheet = strips([""], list(found))
    (panel,) = sheet.panels
    panel.line([0.5, 0.5], [-np.inf, np.inf], opacity=0.5, dashes=DASHED)
    for height, (name, one) in enumerate(found.items()):
        style = material.styles[name]
        if one.low is not None and one.high is not None:
            panel.line([one.low, one.high], [height] * 2, style.colour, 1.6, 0.6)
        panel.mark(one.value or 0.0, height, style)
    panel.x.even(-0.04, 1.04)
    sheet.label("probability of a higher accuracy", "")
    return IMPROVEMENT.drawn(sheet, "")


def structure(material: LearningMaterial) -> Drawing | None:
    """A panel per task."""
    tasks = [task for task in material.study.tasks if np.isfinite(material.task(task).outcome("structure_accuracy")).any()]
    if not tasks:
        return None
    sheet = facets(tasks, material.styles, shared=False)
    for panel, task in zip(sheet.panels, tasks, strict=True):
        one = material.task(task)
        _marks(panel, one, (one.outcome("structure_accuracy")[0], one.outcome("accuracy")[0]), lambda other: material.styles[other.name])
    _labelled(sheet, "quality of structures", "accuracy")
    return STRUCTURE.drawn(sheet, "")


def _labelled(sheet: Sheet, across: str, along: str) -> None:
    """Axes are each panel's own: the words stand below every panel, and left of the first of a row."""
    for panel in sheet.panels:
        panel.x.label = across
    for panel in sheet.panels[:: sheet.columns]:
        panel.y.label = along


def _even(axis: Axis, values: Iterable[float]) -> None:
    """An axis that holds all values with some room."""
    known = [value for value in values if np.isfinite(value)] or [0.0, 1.0]
    room = 0.06 * (max(known) - min(known)) or 0.05
    axis.even(min(known) - room, max(known) + room)
