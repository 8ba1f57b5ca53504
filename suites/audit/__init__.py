"""Is an estimator what it says? Laws on small structures, with a verdict at a controlled error rate."""

from __future__ import annotations

from .cases import STRUCTURES
from .examination import audit
from .result import Audit, Check, FlatComparison

__all__ = ["STRUCTURES", "Audit", "Check", "Comparison", "FlatComparison", "audit"]

Comparison = FlatComparison
"""Its former name."""
