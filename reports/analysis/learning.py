"""The answer of a run of training: the best estimator, its lead and cost, and whether metrics of the gradient predict accuracy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from ...suites import learning as finding
from ...suites.learning import Study
from ...suites.metrics import signed_label
from ...suites.statistics.interval import Interval
from ...suites.statistics.selection import best, student_mean as mean
from ...suites.text import change, coefficient, estimate, listed, number, plural

SCORE = "normalised_accuracy"  # the score of estimators over several tasks: 0 is the floor, 1 the ceiling
RECOMMENDING = ("rho_16", "early")  # the predictor by which reports of gradients rank estimators, and its entropy level


@dataclass(frozen=True)
class Winner:
    """The best of the estimators that have a number at every seed of some tasks, with its accuracy, normalised over several tasks."""

    name: str
    score: Interval
    tied: tuple[str, ...]  # not significantly different from it
    worse: tuple[str, ...]
    rivals: int
    seeds: int
    next: str = ""  # the best that is not tied, or the best tie if all are
    lead: Interval = Interval(None)  # over the next, paired
    means: Mapping[str, float] = field(default_factory=dict)  # of all of them


def winner(study: Study, tasks: Sequence[str]) -> Winner | None:
    """The best estimator on some tasks; None if none was trained on all of them. Supervised ones compete among themselves."""
    here = study.of(tasks=lambda task: task in tasks)
    trained = np.isfinite(here.outcome("accuracy")).any((0, 2))
    competing = any(one.competes for one, known in zip(here.contenders, trained, strict=True) if known)
    some = here.of(contenders=lambda one: one.competes or not competing)
    scores = some.outcome("accuracy" if len(tasks) == 1 else SCORE)
    complete = np.isfinite(scores).all((0, 2))
    if not complete.any() or not scores.size:
        return None
    names = [name for name, keep in zip(some.names, complete, strict=True) if keep]
    parts = independent(scores[:, complete], some.families)
    found, means = best(parts), parts.mean(1)
    position = found.winner
    others = sorted(set(range(len(names))) - {position}, key=lambda place: (place in found.tied, -means[place]))
    lead = (names[others[0]], mean(parts[position] - parts[others[0]])) if others else ("", Interval(None))
    tied = tuple(names[rival] for rival in found.tied)
    worse = tuple(names[rival] for rival in others if rival not in found.tied)
    known = dict(zip(names, means.tolist(), strict=True))
    return Winner(names[position], found.score, tied, worse, len(others), scores.shape[2], *lead, known)


def independent(scores: np.ndarray, families: Sequence[str]) -> np.ndarray:
    """Independent scores ``[E, n]`` of numbers ``[T, E, S]``: means over each family of tasks, or by seed with fewer than four families.

    Seeds are few, and speak of these tasks alone. Families of tasks speak of others like them.
    """
    if len(set(families)) < finding.FEWEST:
        return np.asarray(scores.mean(0))
    return pd.DataFrame(finding.over_seeds(scores)).groupby(list(families)).mean().to_numpy().T


def sentences(study: Study) -> list[str]:
    """The answer: first over all tasks, then task by task if there are several."""
    if not study.tasks:
        return ["The run holds no result of training."]
    tasks, every = study.common, len(study.tasks)
    where = f"{every} tasks" if len(tasks) == every else f"the {len(tasks)} of {every} tasks that most estimators learn"
    where = tasks[0] if len(tasks) == 1 else where
    first = _best(study, tasks, f"On {where} ({{}}), ") or f"No estimator has a result at every seed of {where}, so none is the best."
    each = (_best(study, (task,), f"{task} ({{}}): ") or f"{task}: no estimator has a result at every seed." for task in study.tasks)
    return [f"{first} {prediction(study)}", *(each if every > 1 else ())]


def _best(study: Study, tasks: Sequence[str], where: str) -> str:
    """The best estimator with its score, its lead, the score of the exact gradient, and its time to the target; empty without one."""
    found, some, exact = winner(study, tasks), study.of(tasks=lambda task: task in tasks), study.of_family("exact")
    if found is None:
        return ""
    score = f"{estimate(found.score)} {'accuracy' if len(tasks) == 1 else 'of the way from floor to ceiling on average'}"
    if exact is not None:
        values = some.outcome("accuracy" if len(tasks) == 1 else SCORE)[:, some.names.index(exact)]
        if np.isfinite(values).any(1).all():
            score += f" (the exact gradient: {estimate(mean(independent(values[:, None], some.families)[0]))})"
    lead = "" if found.lead.low is None else f" Its lead over {found.next} is {change(found.lead, 'difference')}."
    if not found.rivals:
        text = f"{found.name} is the only trained estimator: {score}."
    elif len(found.tied) == found.rivals:
        text = f"no estimator is clearly best of {found.rivals + 1}. {found.name} is first: {score}.{lead}"
    elif found.tied:
        text = f"{found.name} is first: {score}. Not significantly different: {listed(found.tied)}.{lead}"
    else:
        others = "the only other one" if found.rivals == 1 else f"all {found.rivals} others"
        text = f"{found.name} learns best, ahead of {others}: {score}.{lead}"
    seconds = times(some, found.name, "seconds_to_target")
    reached, time = seconds or times(some, found.name, "steps_to_target"), "Its time to the target was not measured."
    if reached is not None:
        count = f"{reached.reached} of {reached.runs}"
        half = "" if reached.median is None else f"{number(reached.median)} {'s' if seconds else 'steps'}"
        time = f"Half of its runs reach the target within {half} ({count} reach it)." if half else f"It reached the target in {count} runs."
    return f"{where.replace('{}', plural(found.seeds, 'seed'))}{text} {time}"


def times(study: Study, name: str, metric: str) -> finding.Survival | None:
    """The times to the target of an estimator, over all tasks and seeds; None where there are none."""
    position = study.names.index(name)
    values, stopped = study.outcome(metric)[:, position].ravel(), study.censored.get(metric)
    censored = np.zeros(values.shape, bool) if stopped is None else stopped[:, position].ravel()
    return finding.survival(values, censored) if np.isfinite(values).any() else None


def prediction(study: Study, outcome: str = "accuracy") -> str:
    """Whether metrics of the gradient predict an outcome, as a sentence."""
    named, candidates = signed_label(outcome), list(finding.measured(study))
    if not candidates:
        return "Gradients were not measured (--gradients measures them)."
    confirmed = [one for one in finding.verdicts(study, outcome) if one.verdict == "confirmed"]
    if confirmed:
        found = max(confirmed, key=lambda one: one.whole.pooled.value or 0.0)
        corrected = f"p = {number(found.adjusted, 2)} after correction for {plural(len(finding.DECLARED), 'predictor')}"
        return f"{_capital(predictor_name(found))} predicts {named}: Spearman {correlation(found.whole)}, {corrected}."
    none = f"No number of the gradients is shown to predict {named}."
    if RECOMMENDING not in candidates:
        return none
    asked = _capital(f"{signed_label(RECOMMENDING[0])} at {RECOMMENDING[1]}, by which reports rank estimators,")
    whole = finding.association(study, *RECOMMENDING, outcome)
    if whole.significant:
        return f"{asked} goes with {named}: Spearman {correlation(whole)}."
    return f"{none} {asked} is not: {correlation(whole)}."


def _capital(text: str) -> str:
    return text if text.startswith("ρ") else text[:1].upper() + text[1:]


def predictor_name(found: finding.Verdict) -> str:
    """The name of a predictor with its entropy level."""
    return f"{signed_label(found.predictor)} at {found.stage}"


def correlation(found: finding.Association) -> str:
    """A correlation with its interval, or why there is none."""
    shown = "" if found.pooled.value is None else coefficient(found.pooled)
    return ", ".join(filter(None, (shown, found.note)))
