"""Two runs side by side: which numbers changed, whether for the worse, and whether that is proven.

Pure functions of rows; what people see of them is in `structgrad.reports.comparison`.
"""

from __future__ import annotations

from .gating import GateResult, gate, gate_tables
from .large import LargeComparison, compare_large
from .matching import Key, Pair, match
from .settings import Settings, read_settings
from .verdicts import Comparison, compare

__all__ = [
    "Comparison",
    "GateResult",
    "Key",
    "LargeComparison",
    "Pair",
    "Settings",
    "compare",
    "compare_large",
    "gate",
    "gate_tables",
    "match",
    "read_settings",
]
