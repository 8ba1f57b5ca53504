"""Problems, exact truth, measurement and the runner."""

from __future__ import annotations

from .base import METRICS, Instance, Problem, ProblemLoss, Row, Skip
from .measures.bias import Measurement, Sampling, measure
from .truth import Truth, exact_truth

__all__ = ["METRICS", "Instance", "Measurement", "Problem", "ProblemLoss", "Row", "Sampling", "Skip", "Truth", "exact_truth", "measure"]
