"""Exact truths beyond enumeration, for losses that say what they are on structures."""

from __future__ import annotations

from ...problems.forms import CountForm, FormedLoss, LinearForm, LossForm, PointForm, QuadraticForm, form_of
from .truths import UnknownTruthError, analytic_truth, known_truth, law_alone, unknown_because

__all__ = [
    "CountForm",
    "FormedLoss",
    "LinearForm",
    "LossForm",
    "PointForm",
    "QuadraticForm",
    "UnknownTruthError",
    "analytic_truth",
    "form_of",
    "known_truth",
    "law_alone",
    "unknown_because",
]
