"""What is measured: one suite per question."""

from __future__ import annotations

from ..suite import Suite
from .bias import Bias
from .descent import Descent
from .learning import Learning
from .memory import Memory
from .scaling import Scaling
from .sparsity import Sparsity
from .unbiasedness import Unbiasedness
from .wall_clock import WallClock

SUITES: dict[str, type[Suite]] = {
    "bias": Bias,
    "unbiasedness": Unbiasedness,
    "sparsity": Sparsity,
    "memory": Memory,
    "wall_clock": WallClock,
    "scaling": Scaling,
    "descent": Descent,
    "learning": Learning,
}
"""By name."""
