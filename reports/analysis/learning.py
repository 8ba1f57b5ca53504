"""The answer of a run of learning: the best estimator, its lead, its cost, and whether the gradient's numbers predict accuracy.

Every claim has a 95 % interval. Estimators that are not significantly different from the best are named. A correlation whose interval holds
0 is reported as not shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...suites.learning.arrays import Study
from ...suites.learning.correlation import Association
from ...suites.learning.finding import Foretelling, association, chosen, foretelling, measured
from ...suites.learning.summaries import Survival, interquartile_mean, mean, paired_difference, survival
from ...suites.metrics import signed_label
from ...suites.statistics.interval import Interval
from ...suites.statistics.selection import best
from ...suites.text import change, coefficient_interval, estimate, listed, number, plural

SCORE = "normalised_accuracy"
"""What estimators are compared by over tasks: 0 is the floor, 1 the ceiling."""

RECOMMENDING = ("rho_16", "early")
"""The predictor by which reports of gradients recommend, and its entropy level."""


@dataclass(frozen=True)
class Winner:
    """The best of the estimators that have a number at every seed of some tasks.

    Attributes:
        name: of it. ``score``: its accuracy on one task, or its share of the way over several; with a 95 % interval.
        tied: those not significantly different from it. ``rivals``: how many others there are. ``seeds``: of how many runs of each task.
        next: the best of the others that is not tied; of tied ones where all are. ``lead``: over it, paired by seed.
    """

    name: str
    score: Interval
    tied: tuple[str, ...]
    rivals: int
    seeds: int
    next: str = ""
    lead: Interval = Interval(None)


def winner(study: Study, tasks: Sequence[str]) -> Winner | None:
    """The best estimator on some tasks; None if none was trained on all of them. Supervised ones compete among themselves."""
    here = study.of(tasks=lambda task: task in tasks)
    learns = {name for name, values in zip(here.names, here.outcome("accuracy").swapaxes(0, 1), strict=True) if np.isfinite(values).any()}
    competing = any(one.competes for one in here.contenders if one.name in learns)
    some = here.of(contenders=lambda one: one.competes or not competing)
    scores = some.outcome("accuracy" if len(tasks) == 1 else SCORE)
    complete = np.isfinite(scores).all((0, 2))
    if not complete.any() or not scores.shape[2]:
        return None
    names = [name for name, keep in zip(some.names, complete, strict=True) if keep]
    by_seed = scores[:, complete].mean(0)
    found = best(by_seed)
    position = found.winner
    middle = mean(by_seed[position]) if len(tasks) == 1 else interquartile_mean(scores[:, complete][:, position])
    tied = tuple(names[rival] for rival in found.tied)
    others = sorted(
        (place for place in range(len(names)) if place != position), key=lambda place: (place in found.tied, -by_seed[place].mean())
    )
    if not others:
        return Winner(names[position], middle, tied, 0, by_seed.shape[1])
    lead = paired_difference(by_seed[position], by_seed[others[0]])
    return Winner(names[position], middle, tied, len(others), by_seed.shape[1], names[others[0]], lead)


def sentences(study: Study) -> list[str]:
    """The answer; the first entry is the whole of it, others say it task by task where there are several."""
    tasks = study.common
    first = winner(study, tasks)
    each = [_of_task(study, task) for task in study.tasks] if len(study.tasks) > 1 else []
    if first is None:
        return [_nobody(study), *each]
    share = "accuracy" if len(tasks) == 1 else "of the way from floor to ceiling in the interquartile mean"
    score = f"{estimate(first.score)} {share}{_exact(study, tasks)}"
    cost = _cost(study.of(tasks=lambda task: task in tasks), first.name)
    where = f"On {_called(study, tasks)} ({plural(first.seeds, 'seed')}), "
    return [f"{_best(first, where, score)} {cost} {foretold(study)}", *each]


def _called(study: Study, tasks: Sequence[str]) -> str:
    """Tasks in a sentence."""
    if len(tasks) == 1:
        return tasks[0]
    return (
        f"{len(tasks)} tasks"
        if len(tasks) == len(study.tasks)
        else f"the {len(tasks)} of {len(study.tasks)} tasks that most estimators learn"
    )


def _nobody(study: Study) -> str:
    if not study.tasks:
        return "The run holds no result of training."
    return f"No estimator has a result at every seed of {_called(study, study.common)}, so none is the best. {foretold(study)}"


def _of_task(study: Study, task: str) -> str:
    found = winner(study, (task,))
    if found is None:
        return f"{task}: no estimator has a result at every seed."
    one = study.of(tasks=lambda name: name == task)
    score = f"{estimate(found.score)} accuracy{_exact(study, (task,))}"
    where = f"{task} ({plural(found.seeds, 'seed')}): "
    return f"{_best(found, where, score)} {_cost(one, found.name)}"


def _best(found: Winner, where: str, score: str) -> str:
    """The best estimator with its lead, as far as intervals carry it."""
    if not found.rivals:
        return f"{where}{found.name} is the only trained estimator: {score}."
    lead = "" if found.lead.low is None else f" Its lead over {found.next} is {change(found.lead, 'difference')}."
    if len(found.tied) == found.rivals:
        return f"{where}no estimator is clearly best of {found.rivals + 1}. {found.name} is first: {score}.{lead}"
    if found.tied:
        return f"{where}{found.name} is first: {score}. Not significantly different: {listed(found.tied)}.{lead}"
    others = "the only other one" if found.rivals == 1 else f"all {found.rivals} others"
    return f"{where}{found.name} learns best, ahead of {others}: {score}.{lead}"


def _exact(study: Study, tasks: Sequence[str]) -> str:
    """The score of the exact gradient on these tasks; empty where it was not trained on all of them."""
    name = study.of_family("exact")
    if name is None:
        return ""
    some = study.of(tasks=lambda task: task in tasks)
    scores = some.outcome("accuracy" if len(tasks) == 1 else SCORE)[:, some.names.index(name)]
    if not np.isfinite(scores).any(1).all():
        return ""
    return f" (the exact gradient: {estimate(mean(scores[0]) if len(tasks) == 1 else interquartile_mean(scores))})"


def _cost(study: Study, name: str) -> str:
    """The time of an estimator to the target."""
    found = times(study, name, "seconds_to_target") or times(study, name, "steps_to_target")
    unit = "s" if times(study, name, "seconds_to_target") else "steps"
    if found is None:
        return "Its time to the target was not measured."
    if found.median is None:
        return f"It reached the target in {found.reached} of {found.runs} runs."
    return f"Half of its runs reach the target within {number(found.median)} {unit} ({found.reached} of {found.runs} reach it)."


def times(study: Study, name: str, metric: str) -> Survival | None:
    """The times to the target of an estimator, over all tasks and seeds; None where there are none."""
    position = study.names.index(name)
    values = study.outcome(metric)[:, position].ravel()
    stopped = study.censored.get(metric)
    censored = np.zeros(values.shape, bool) if stopped is None else stopped[:, position].ravel()
    return survival(values, censored) if np.isfinite(values).any() else None


def foretold(study: Study, outcome: str = "accuracy") -> str:
    """Whether the gradient's numbers predict an outcome, as a sentence."""
    named = signed_label(outcome)
    candidates = list(measured(study))
    if not candidates:
        return "Gradients were not measured (--gradients measures them)."
    found = chosen([foretelling(study, *candidate, outcome, "all") for candidate in candidates], outcome)
    if found is not None and found.confirmed:
        halves = f"Spearman {told(found.choice)} on the half that chose it, {told(found.confirmation)} on the other"
        return f"{_capital(called(found))} predicts {named}: {halves}."
    if RECOMMENDING not in candidates:
        return f"No number of the gradients is shown to predict {named}."
    whole = association(study, *RECOMMENDING, outcome)
    asked = f"{signed_label(RECOMMENDING[0])} at {RECOMMENDING[1]}, by which reports rank estimators,"
    if whole.carried:
        return f"{_capital(asked)} goes with {named}: Spearman {told(whole)}."
    return f"No number of the gradients is shown to predict {named}. {_capital(asked)} is not: {told(whole)}."


def _capital(text: str) -> str:
    return text if text.startswith("ρ") else text[:1].upper() + text[1:]


def called(found: Foretelling) -> str:
    """The name of a predictor at its entropy level."""
    return f"{signed_label(found.predictor)} at {found.stage}"


def told(found: Association) -> str:
    """A correlation with its interval, or why there is none."""
    if found.pooled.value is None:
        return found.note
    text = coefficient_interval(found.pooled)
    return f"{text}, {found.note}" if found.note else text
