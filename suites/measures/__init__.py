"""Measures: one suite per question."""

from .bias import Bias
from .cost.scaling import ScalingSuite
from .cost.steps import Memory, StepTime, WallClock
from .descent import Descent
from .learning import LearningSuite, ParameterBias, TaskReferences
from .sparsity import Sparsity
from .suite import Suite

SUITES: dict[str, type[Suite]] = {
    kind.name: kind
    for kind in (Bias, Sparsity, Memory, WallClock, ScalingSuite, Descent, TaskReferences, LearningSuite, StepTime, ParameterBias)
}
