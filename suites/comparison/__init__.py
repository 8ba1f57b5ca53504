"""Compare two runs: which numbers changed, whether for the worse, and whether that is proven.

`compare` and `gate` are functions of result tables; `structgrad.reports.comparison` shows their results.
"""

from .gating import GateResult, gate
from .pairs import KEY
from .settings import Settings, read_settings
from .verdicts import MEANING, compare

__all__ = ["KEY", "MEANING", "GateResult", "Settings", "compare", "gate", "read_settings"]
