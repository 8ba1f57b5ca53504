"""The study of learning: which estimators learn best, and which numbers of their gradients predict it."""

from __future__ import annotations

from .arrays import Learner, Study, study
from .correlation import Association, associate
from .families import idea_of
from .finding import KINDS, OUTCOMES, PREDICTORS, PredictorResult, association, chosen, predictor_result, predictor_results
from .halves import HALVES, half_of_estimator, half_of_seed, half_of_task

__all__ = [
    "HALVES",
    "KINDS",
    "OUTCOMES",
    "PREDICTORS",
    "Association",
    "Learner",
    "PredictorResult",
    "Study",
    "associate",
    "association",
    "chosen",
    "half_of_estimator",
    "half_of_seed",
    "half_of_task",
    "idea_of",
    "predictor_result",
    "predictor_results",
    "study",
]
