"""Tests of one's own estimator or oracle: laws on small structures, with a verdict at a controlled error rate."""

from .cases import STRUCTURES
from .examination import audit
from .result import Audit, Check, FlatComparison

__all__ = ["STRUCTURES", "Audit", "Check", "FlatComparison", "audit"]
