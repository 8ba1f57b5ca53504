"""Relative bias and variance of every estimator on every oracle, as numbers that asv can follow: finite, above 0, lower is better.

asv knows no intervals: it shows drift here, and the verdicts stay with `structgrad.suites.measures.bias`.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from structgrad.estimators import ESTIMATORS, make_estimator
from structgrad.oracles import Categorical, LinearChain, Subset
from structgrad.suites.measures.bias import Measurement, Sampling, measure

FLOOR = 1e-12
"""Rounding below it would look like a regression from 0."""

CASES: dict[str, tuple[Categorical | Subset | LinearChain, tuple[int, ...]]] = {
    "categorical n=10": (Categorical(), (10,)),
    "subset n=8 k=3": (Subset(3), (8,)),
    "linear_chain n=4 t=3": (LinearChain(), (4, 3, 3)),
}


def tracked(value: float | None) -> float:
    """A measured value as asv can compare it.

    Raises:
        ValueError: for a value that is missing or not finite: asv would count it as no regression.
    """
    if value is None or not math.isfinite(value):
        raise ValueError(f"`tracked` got {value}; expected a finite value")
    return max(value, FLOOR)


class EstimatorBias:
    """One measurement per pair, from 1,024 replicates where it is not exact."""

    version: ClassVar[str] = "1"
    unit = "1"
    params: ClassVar[tuple[list[str], ...]] = (list(ESTIMATORS), list(CASES))
    param_names: ClassVar[tuple[str, ...]] = ("estimator", "oracle")

    def setup(self, name: str, case: str) -> None:
        self.estimator, (self.oracle, event) = make_estimator(name), CASES[case]
        reason = self.estimator.incompatibility(self.oracle, event)
        if reason is not None:
            raise NotImplementedError(reason)
        torch.set_num_threads(1)
        drawn = torch.randn(2, *event, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        self.scores, self.weights = drawn[0], drawn[1]

    def loss(self, structure: Tensor) -> Tensor:
        """A quadratic form, so that no estimator is unbiased by the loss being linear."""
        return (structure * self.weights).flatten(-self.oracle.event_ndim).sum(-1).square()

    def measured(self) -> Measurement:
        """The measurement that both tracked values read."""
        return measure(self.estimator, self.oracle, self.loss, self.scores, sampling=Sampling(replicates=1024))

    def track_relative_bias(self, name: str, case: str) -> float:
        return tracked(self.measured().metrics["relative_bias"].value)

    def track_relative_variance(self, name: str, case: str) -> float:
        return tracked(self.measured().metrics["relative_variance"].value)
