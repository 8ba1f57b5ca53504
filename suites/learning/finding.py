"""Predictors of learning: rank correlations between numbers of a gradient and the result of training with it."""

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
"""Metrics that may predict. Those with the prefix ``parameter_`` are of the gradient of a batch."""

OUTCOMES = ("accuracy", "curve_mean", "steps_to_target")
"""Metrics that are predicted. A run that misses the target counts with its number of steps."""

KINDS: dict[str, Callable[[Learner], bool]] = {
    "all": lambda one: True,
    "stochastic": lambda one: not one.deterministic,
    "deterministic": lambda one: one.deterministic,
}
"""Kinds are correlated separately: deterministic estimators have no variance, and together with others they turn its sign."""


@dataclass(frozen=True)
class PredictorResult:
    """Correlations of a predictor at a stage with an outcome, over estimators of a kind.

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
        """Whether the other half has a significant correlation of the same sign."""
        first, second = self.choice.pooled.value, self.confirmation.pooled.value
        return first is not None and second is not None and first * second > 0 and self.choice.significant and self.confirmation.significant


def association(study: Study, predictor: str, stage: str, outcome: str, *, resamples: int | None = None) -> Association:
    """One correlation over the estimators of a study, with the signs of both metrics; without resamples no interval."""
    competing = study.of(contenders=lambda one: one.competes)
    before = METRICS[predictor].sign * competing.predictor(predictor, stage)
    after = METRICS[outcome].sign * competing.outcome(outcome)
    return associate(competing.tasks, before, after, [one.idea for one in competing.contenders], resamples=resamples)


def predictor_results(study: Study) -> list[PredictorResult]:
    """Every predictor that was measured, at every stage, with every outcome, for every kind of estimators."""
    return [
        predictor_result(study, predictor, stage, outcome, kind)
        for predictor, stage in measured(study)
        for outcome in OUTCOMES
        if outcome in study.outcomes
        for kind in KINDS
    ]


def predictor_result(study: Study, predictor: str, stage: str, outcome: str, kind: str) -> PredictorResult:
    """One predictor and outcome, over the whole study and both halves."""
    some = of_kind(study, kind)
    parts = (some, half(some, "choice"), half(some, "confirmation"))
    return PredictorResult(predictor, stage, outcome, kind, *(association(part, predictor, stage, outcome) for part in parts))


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
    """Kinds of estimators, and the objectives of a study if asked."""
    objectives = dict.fromkeys(one.objective for one in study.contenders if one.objective) if by_objective else ()
    return [*KINDS, *objectives]


def of_kind(study: Study, kind: str) -> Study:
    """The estimators of a kind, or of an objective."""
    return study.of(contenders=KINDS.get(kind, lambda one: one.objective == kind))


def chosen(found: list[PredictorResult], outcome: str, kind: str = "all") -> PredictorResult | None:
    """The predictor with the largest correlation, of either sign, on the choosing half, if its interval excludes 0."""
    candidates = [one for one in found if one.outcome == outcome and one.kind == kind and one.choice.significant]
    return max(candidates, key=lambda one: abs(one.choice.pooled.value or 0.0), default=None)
