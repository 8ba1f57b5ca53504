"""Truth: the exact gradient, and the exact moments of an estimator."""

from .enumeration import CAP, UNKNOWN, Target, Truth, exact_truth

__all__ = ["CAP", "UNKNOWN", "Target", "Truth", "exact_truth"]
