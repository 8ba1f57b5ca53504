"""Prediction of learning: do numbers of a gradient, taken before or while a model is trained, foretell what it learns?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ..metrics import METRICS
from .arrays import STAGES, Learner, Study
from .correlation import Association, associate
from .halves import half_of_estimator, half_of_seed, half_of_task

PREDICTORS = (
    "relative_bias",
    "relative_variance",
    "relative_mse",
    "cosine",
    "gain",
    "rho",
    "rho_16",
    "parameter_bias",
    "parameter_variance",
    "parameter_mse",
    "parameter_cosine",
    "parameter_gain",
    "parameter_rho",
)
"""Metrics, each with the sign with which more should be better. Those of parameters are of the gradient of a batch."""

OUTCOMES = ("accuracy", "curve_mean", "steps_to_target")
"""What is foretold, likewise. Of runs that do not come to the target the steps are those that they had."""

KINDS: dict[str, Callable[[Learner], bool]] = {
    "all": lambda one: True,
    "stochastic": lambda one: not one.deterministic,
    "deterministic": lambda one: one.deterministic,
}
"""Always side by side: deterministic estimators have no variance, and mixed with others they turn the sign of what it foretells."""


@dataclass(frozen=True)
class Foretelling:
    """A predictor at a stage and an outcome, over estimators of a kind.

    Attributes:
        whole: over all tasks, estimators and seeds. ``choice, confirmation``: over either half of them.
    """

    predictor: str
    stage: str
    outcome: str
    kind: str
    whole: Association
    choice: Association
    confirmation: Association

    @property
    def confirmed(self) -> bool:
        """Whether the half that had no part in the choice says the same, and surely."""
        first, second = self.choice.pooled.value, self.confirmation.pooled.value
        return first is not None and second is not None and first * second > 0 and self.choice.carried and self.confirmation.carried


def association(study: Study, predictor: str, stage: str, outcome: str, *, resamples: int | None = None) -> Association:
    """One correlation over the estimators of a study, with the signs of both metrics; without resamples no interval."""
    competing = study.of(contenders=lambda one: one.competes)
    before = METRICS[predictor].sign * competing.predictor(predictor, stage)
    after = METRICS[outcome].sign * competing.outcome(outcome)
    return associate(competing.tasks, before, after, [one.idea for one in competing.contenders], resamples=resamples)


def foretellings(study: Study, *, by_objective: bool = False) -> list[Foretelling]:
    """Every predictor that was measured, at every stage, with every outcome, for every kind of estimators."""
    return [
        foretelling(study, predictor, stage, outcome, kind)
        for predictor, stage in measured(study)
        for outcome in OUTCOMES
        if outcome in study.outcomes
        for kind in kinds(study, by_objective=by_objective)
    ]


def foretelling(study: Study, predictor: str, stage: str, outcome: str, kind: str) -> Foretelling:
    """One of them, over the whole and both halves."""
    some = of_kind(study, kind)
    parts = (some, half(some, "choice"), half(some, "confirmation"))
    return Foretelling(predictor, stage, outcome, kind, *(association(part, predictor, stage, outcome) for part in parts))


def half(study: Study, which: str) -> Study:
    """Tasks, estimators and seeds of one half."""
    return study.of(
        tasks=lambda task: half_of_task(task) == which,
        contenders=lambda one: half_of_estimator(one.family) == which,
        seeds=lambda seed: half_of_seed(seed) == which,
    )


def measured(study: Study) -> Iterator[tuple[str, str]]:
    """Predictors and stages that there are numbers of."""
    for predictor in PREDICTORS:
        for stage in STAGES:
            if np.isfinite(study.predictor(predictor, stage)).any():
                yield predictor, stage


def kinds(study: Study, *, by_objective: bool = False) -> list[str]:
    """Of estimators; with the objectives that a study holds."""
    objectives = dict.fromkeys(one.objective for one in study.contenders if one.objective) if by_objective else ()
    return [*KINDS, *objectives]


def of_kind(study: Study, kind: str) -> Study:
    """The estimators of a kind, or of an objective."""
    return study.of(contenders=KINDS.get(kind, lambda one: one.objective == kind))


def chosen(found: list[Foretelling], outcome: str, kind: str = "all") -> Foretelling | None:
    """The predictor with the largest correlation, of either sign, on the half that chooses, where its interval holds no 0."""
    candidates = [one for one in found if one.outcome == outcome and one.kind == kind and one.choice.carried]
    return max(candidates, key=lambda one: abs(one.choice.pooled.value or 0.0), default=None)
