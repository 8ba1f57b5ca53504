"""Exact truths beyond enumeration, for losses that say what they are on structures."""

from __future__ import annotations

from .forms import CountForm, FormedLoss, LinearForm, LossForm, PointForm, QuadraticForm, form_of

__all__ = ["CountForm", "FormedLoss", "LinearForm", "LossForm", "PointForm", "QuadraticForm", "form_of"]
