"""Measures: one suite per question."""

from __future__ import annotations

from .bias import Bias
from .cost.scaling import ScalingSuite
from .cost.wall_clock import StepTime, WallClock
from .descent import Descent
from .learning import LearningSuite, TaskReferences
from .memory import Memory
from .parameter_bias import ParameterBias
from .sparsity import Sparsity
from .suite import Suite

SUITES: dict[str, type[Suite]] = {  # by name
    "bias": Bias,
    "sparsity": Sparsity,
    "memory": Memory,
    "wall_clock": WallClock,
    "scaling": ScalingSuite,
    "descent": Descent,
    "references": TaskReferences,
    "learning": LearningSuite,
    "step_time": StepTime,
    "parameter_bias": ParameterBias,
}
