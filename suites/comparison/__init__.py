"""Two runs side by side: which numbers changed, whether for the worse, and whether that is proven.

Pure functions of rows; what people see of them is in `structgrad.reports.comparison`.
"""

from __future__ import annotations

from .gating import GateResult, gate
from .matching import Key, Pair, match
from .settings import Settings, read_settings
from .verdicts import Comparison, compare

__all__ = ["Comparison", "GateResult", "Key", "Pair", "Settings", "compare", "gate", "match", "read_settings"]
