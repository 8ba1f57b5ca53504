"""The study of learning: which estimators learn best, and whether the numbers of their gradients foretold it."""

from __future__ import annotations

from .arrays import Learner, Study, study
from .correlation import Association, associate
from .families import idea_of
from .finding import KINDS, OUTCOMES, PREDICTORS, Foretelling, association, chosen, foretelling, foretellings
from .halves import HALVES, half_of_estimator, half_of_seed, half_of_task

__all__ = [
    "HALVES",
    "KINDS",
    "OUTCOMES",
    "PREDICTORS",
    "Association",
    "Foretelling",
    "Learner",
    "Study",
    "associate",
    "association",
    "chosen",
    "foretelling",
    "foretellings",
    "half_of_estimator",
    "half_of_seed",
    "half_of_task",
    "idea_of",
    "study",
]
