"""Exact truths beyond enumeration, for losses that say what they are on structures."""

from __future__ import annotations

from .forms import CountForm, FormedLoss, LinearForm, LossForm, PointForm, QuadraticForm, form_of
from .truths import analytic_truth, known_truth

__all__ = [
    "CountForm",
    "FormedLoss",
    "LinearForm",
    "LossForm",
    "PointForm",
    "QuadraticForm",
    "analytic_truth",
    "form_of",
    "known_truth",
]
