"""Compare two result tables: which numbers changed, whether for the worse, and whether that is proven."""

from .gating import GateResult, gate
from .pairs import KEY
from .settings import Settings, read_settings
from .verdicts import MEANING, compare

__all__ = ["KEY", "MEANING", "GateResult", "Settings", "compare", "gate", "read_settings"]
