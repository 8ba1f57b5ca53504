"""Problems, exact truth, measurement and the runner.

Names are imported on first use, so that code that only reads results does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .base import Instance, Problem, ProblemLoss, Row
    from .measures.bias import Measurement, Sampling, measure
    from .metrics import METRICS
    from .running.runner import Machine, Plan, Results, learn, run
    from .truth import Truth, exact_truth

__all__ = [
    "METRICS", "Instance", "Machine", "Measurement", "Plan", "Problem", "ProblemLoss", "Results", "Row", "Sampling", "Truth", "exact_truth",
    "learn", "measure", "run",
]  # fmt: skip

_HOMES = {
    "METRICS": ".metrics",
    **dict.fromkeys(("Measurement", "Sampling", "measure"), ".measures.bias"),
    **dict.fromkeys(("Machine", "Plan", "Results", "learn", "run"), ".running.runner"),
    **dict.fromkeys(("Truth", "exact_truth"), ".truth"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, ".base"), __name__), name)
