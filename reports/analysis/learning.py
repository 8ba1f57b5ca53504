"""The answer of a run of learning: what learns best here, at what cost, and whether the gradient's numbers foretold it.

Nothing is said that its interval does not carry: who cannot be told from the best is named beside it, and a correlation whose interval
holds 0 is told as none that was shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...suites.learning.arrays import Study
from ...suites.learning.correlation import Association
from ...suites.learning.finding import Foretelling, association, chosen, foretelling, measured
from ...suites.learning.summaries import Survival, interquartile_mean, mean, survival
from ...suites.metrics import signed_label
from ...suites.statistics.interval import Interval
from ...suites.statistics.selection import best
from ...suites.text import coefficient_interval, estimate, listed, number

SCORE = "normalised_accuracy"
"""What estimators are compared by over tasks: 0 is the floor, 1 the ceiling."""

RECOMMENDING = ("rho_16", "early")
"""The predictor by which reports of gradients recommend, and the stage nearest to where it is asked for."""


@dataclass(frozen=True)
class Winner:
    """The best of the estimators that have a number at every seed of some tasks.

    Attributes:
        name: of it. ``score``: its accuracy on one task, or its share of the way over several; with a 95 % interval.
        tied: who cannot be told from it. ``rivals``: how many others there are. ``seeds``: of how many runs of each task.
    """

    name: str
    score: Interval
    tied: tuple[str, ...]
    rivals: int
    seeds: int


def winner(study: Study, tasks: Sequence[str]) -> Winner | None:
    """Who learns best on some tasks; None where nobody has learnt all of them. Who is told true structures competes among such alone."""
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
    return Winner(names[position], middle, tuple(names[rival] for rival in found.tied), len(names) - 1, by_seed.shape[1])


def sentences(study: Study) -> list[str]:
    """The answer; the first sentence is the whole of it, others say it task by task where there are several."""
    tasks = study.common
    first = winner(study, tasks)
    each = [_of_task(study, task) for task in study.tasks] if len(study.tasks) > 1 else []
    if first is None:
        return [_nobody(study), *each]
    one = len(tasks) == 1
    share = "accuracy" if one else "of the way from floor to ceiling in the interquartile mean"
    score = f"{estimate(first.score)} {share}{_exact(study, tasks)}"
    cost = _cost(study.of(tasks=lambda task: task in tasks), first.name)
    return [f"{_best(first, f'On {_called(study, tasks)}, ', score)}; {cost}; {foretold(study)}.", *each]


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
        return "Nothing was learnt: the run holds no result of training."
    return f"No estimator has a result at every seed of {_called(study, study.common)}, so that none is the best; {foretold(study)}."


def _of_task(study: Study, task: str) -> str:
    found = winner(study, (task,))
    if found is None:
        return f"{task}: no estimator has a result at every seed."
    one = study.of(tasks=lambda name: name == task)
    score = f"{estimate(found.score)} accuracy{_exact(study, (task,))}"
    return f"{_best(found, f'{task}: ', score)}; {_cost(one, found.name)}."


def _best(found: Winner, where: str, score: str) -> str:
    """Who is best, as far as that can be said."""
    if not found.rivals:
        return f"{where}{found.name} is the only estimator that was trained, with {score}"
    if len(found.tied) == found.rivals:
        return f"{where}no estimator is surely the best of {found.rivals + 1}; {found.name} is first with {score}"
    if found.tied:
        return f"{where}{found.name} is first with {score}, and cannot be told from {listed(found.tied)}"
    others = "the only other one" if found.rivals == 1 else f"all {found.rivals} others"
    return f"{where}{found.name} learns best, ahead of {others}, with {score}"


def _exact(study: Study, tasks: Sequence[str]) -> str:
    """What the exact gradient reaches on these tasks; nothing where it was not followed on all of them."""
    name = study.of_family("exact")
    if name is None:
        return ""
    some = study.of(tasks=lambda task: task in tasks)
    scores = some.outcome("accuracy" if len(tasks) == 1 else SCORE)[:, some.names.index(name)]
    if not np.isfinite(scores).any(1).all():
        return ""
    return f" (the exact gradient: {estimate(mean(scores[0]) if len(tasks) == 1 else interquartile_mean(scores))})"


def _cost(study: Study, name: str) -> str:
    """How long the first takes to the target."""
    found = times(study, name, "seconds_to_target") or times(study, name, "steps_to_target")
    unit = "s" if times(study, name, "seconds_to_target") else "steps"
    if found is None:
        return "its time to the target was not measured"
    if found.median is None:
        return f"it came to the target in {found.reached} of {found.runs} runs"
    return f"half of its runs come to the target within {number(found.median)} {unit} ({found.reached} of {found.runs} do at all)"


def times(study: Study, name: str, metric: str) -> Survival | None:
    """The times to the target of an estimator, over all tasks and seeds; None where there are none."""
    position = study.names.index(name)
    values = study.outcome(metric)[:, position].ravel()
    stopped = study.censored.get(metric)
    censored = np.zeros(values.shape, bool) if stopped is None else stopped[:, position].ravel()
    return survival(values, censored) if np.isfinite(values).any() else None


def foretold(study: Study, outcome: str = "accuracy") -> str:
    """Whether the gradient's numbers foretold an outcome, as a clause."""
    named = signed_label(outcome)
    candidates = list(measured(study))
    if not candidates:
        return "its gradients were not measured, so that nothing can be said of what foretold it"
    found = chosen([foretelling(study, *candidate, outcome, "all") for candidate in candidates], outcome)
    if found is not None and found.confirmed:
        name = called(found)
        return f"{name} foretold {named}, chosen on one half ({told(found.choice)}) and confirmed on the other ({told(found.confirmation)})"
    if RECOMMENDING not in candidates:
        return f"no number of the gradients is shown to have foretold {named}"
    whole = association(study, *RECOMMENDING, outcome)
    asked = f"{signed_label(RECOMMENDING[0])} at {RECOMMENDING[1]}"
    if whole.carried:
        return f"{asked}, by which gradients are recommended, went with {named}: Spearman {told(whole)}"
    return f"no number of the gradients is shown to have foretold {named} ({asked}: {told(whole)})"


def called(found: Foretelling) -> str:
    """The name of a predictor at its stage."""
    return f"{signed_label(found.predictor)} at {found.stage}"


def told(found: Association) -> str:
    """A correlation with its interval, or why there is none."""
    if found.pooled.value is None:
        return found.note
    text = coefficient_interval(found.pooled)
    return f"{text}, {found.note}" if found.note else text
