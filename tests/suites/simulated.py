"""Simulated cells: a suite that computes nothing for a given time, and any number of estimators, to measure the overhead of a run.

It is a plugin of a plan (``plugins=(simulated.__file__,)``), so that workers have the suite too.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from structgrad.estimators import Estimator, Evaluations, Loss
from structgrad.estimators.base import Objective
from structgrad.suites.base import Problem
from structgrad.suites.measures import SUITES
from structgrad.suites.measures.suite import Context, Effort, Finding, Suite
from structgrad.suites.running.planning.plan import Plan

SECONDS = 0.001
"""Processor seconds of a cell."""

STRUCTURES = tuple(f"subset[n={parts},k=2]" for parts in range(6, 16))
LOSSES = ("hamming", "quadratic", "mlp", "black_box", "squared_distance")


@dataclass(frozen=True)
class SimulatedEstimator(Estimator[Any]):
    """One of as many estimators as are wanted; it is never asked for an estimate."""

    number: int = 0
    name: ClassVar[str] = "simulated"
    objective: ClassVar[Objective] = "expected"

    def evaluations(self) -> Evaluations:
        return Evaluations()

    def surrogate(self, loss: Loss, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        raise NotImplementedError("a simulated estimator is measured by the suite `simulated` alone")


class SimulatedSuite(Suite):
    """Takes `SECONDS`, and finds a number for each metric and instance; they follow from names alone."""

    name: ClassVar[str] = "simulated"
    summary: ClassVar[str] = "nothing, in a given time"

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        end = time.perf_counter() + SECONDS
        for name, estimator in estimators.items():
            for place, instance in enumerate(problem.instances):
                for metric, size in METRICS_FOUND:
                    value = size * (1 + (getattr(estimator, "number", 0) * 31 + place * 17) % 101 / 100)
                    yield Finding(name, metric, value, 0.9 * value, 1.1 * value, "jackknife", instance.name, tier="mc", replicates=4096)
        while time.perf_counter() < end:
            pass


METRICS_FOUND = (("relative_bias", 0.1), ("relative_variance", 10.0), ("rho", 0.4), ("cosine", 0.3), ("gain", 0.2))
"""Each with about its size."""

SUITES.setdefault(SimulatedSuite.name, SimulatedSuite)


def simulated_plan(cells: int) -> Plan:
    """A plan of so many cells, a multiple of 4: four estimators on structures with losses."""
    problems = [f"{structure}@{loss}" for loss in LOSSES for structure in STRUCTURES]
    return Plan(
        suites=(SimulatedSuite.name,),
        problems=tuple(problems[: cells // 4]),
        stages=("h=0.9",),
        estimators=tuple(f"simulated[number={number}]" for number in range(4)),
        instances=2,
        effort=Effort(replicates=64, most_replicates=64, seconds=SECONDS),
        plugins=(str(Path(__file__).resolve()),),
    )
