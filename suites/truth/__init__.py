"""What the right answer is: the exact gradient, and the exact moments of an estimator."""

from __future__ import annotations

from .enumeration import CAP, CHUNK, Target, Truth, exact_truth

__all__ = ["CAP", "CHUNK", "Target", "Truth", "exact_truth"]
