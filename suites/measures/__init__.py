"""What is measured: one suite per question."""

from __future__ import annotations

from ..suite import Suite
from .bias import Bias
from .descent import Descent
from .learning import Learning
from .memory import Memory
from .parameter_bias import ParameterBias
from .scaling import Scaling
from .sparsity import Sparsity
from .step_time import StepTime
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
    "step_time": StepTime,
    "parameter_bias": ParameterBias,
}
"""By name."""
