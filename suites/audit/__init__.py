"""Is an estimator what it says? Laws on small structures, with a verdict at a controlled error rate."""

from __future__ import annotations

from .examination import audit
from .places import STRUCTURES
from .result import Audit, Check, Comparison

__all__ = ["STRUCTURES", "Audit", "Check", "Comparison", "audit"]
