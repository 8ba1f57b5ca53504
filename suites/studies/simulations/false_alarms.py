"""False alarms of the test for bias, on estimators that are right."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....estimators import ConditionalMeanBaseline, Reinforce
from ....estimators.base import Estimator
from ...measures.suite import Effort
from ...measures.testing.bias_tests import ALPHA, bias_test
from ...measures.testing.group_sequential import sequential_test
from ...statistics.moments import Moments
from ...statistics.seeds import seed_sequence
from .instances import instance, law
from .laws import EstimateLaw
from .lines import Part, SimulationLine

MOST_FALSE_ALARMS = 3e-3
"""Of a test of level 0.001."""


@dataclass(frozen=True)
class FalseAlarmCell:
    """A right estimator with a number of replicates; without one, doubling looks from 4096 to 65 536."""

    space: str
    deviation: float
    estimator: Estimator[Any]
    replicates: int | None

    def __str__(self) -> str:
        count = "looks at 4096 to 65536" if self.replicates is None else f"N={self.replicates}"
        return f"{self.space} sd {self.deviation:g}, {self.estimator.name}, {count}"

    def random(self, purpose: str) -> np.random.Generator:
        """The cell's own stream."""
        return np.random.default_rng(seed_sequence(0, purpose, str(self)))

    def law(self) -> EstimateLaw:
        """Of the estimator."""
        return law(self.estimator, self.space, self.deviation)


def _false_alarm_cells() -> Iterator[FalseAlarmCell]:
    exact = ConditionalMeanBaseline()
    for space, deviation, replicates in (
        ("trees5", 0.5, 100_000),
        ("trees5", 1.0, 20_000),
        ("trees5", 3.0, 100_000),
        ("categorical10", 0.5, 20_000),
        ("categorical10", 5.0, 100_000),
        ("subset10", 0.5, 20_000),
        ("subset10", 3.0, 100_000),
        ("assignment5", 1.0, 20_000),
    ):
        yield FalseAlarmCell(space, deviation, exact, replicates)
    yield FalseAlarmCell("trees5", 0.5, Reinforce(), 100_000)
    yield FalseAlarmCell("categorical10", 5.0, Reinforce(), 100_000)


def simulate_false_alarms(cell: FalseAlarmCell, repetitions: int) -> tuple[int, int]:
    """Rejections of one test of a right estimator, and tests that could be made."""
    truth, sample, random = instance(cell.space, cell.deviation).truth, cell.law(), cell.random("false alarms")
    assert cell.replicates is not None
    found = [bias_test(sample.moments(cell.replicates, random, batches=1), truth) for _ in range(repetitions)]
    tested = [p for p in found if p is not None]
    return sum(p < ALPHA for p in tested), len(tested)


def _false_alarm_lines(results: Mapping[Any, tuple[int, int]]) -> list[SimulationLine]:
    return [
        SimulationLine("rejected by one test", str(cell), hits / trials, trials, most=MOST_FALSE_ALARMS)
        for cell, (hits, trials) in results.items()
        if trials
    ]


def simulate_looks(cell: FalseAlarmCell, repetitions: int) -> tuple[int, int, int]:
    """Screening hits and verdicts ``biased`` of the whole sequential test of a right estimator, and repetitions."""
    truth, sample, random = instance(cell.space, cell.deviation).truth, cell.law(), cell.random("looks")
    effort = Effort(equivalence=0.0, seconds=math.inf)
    screened = biased = 0

    def draw(slot: str, replicates: int) -> Moments:
        nonlocal screened
        screened += slot == "confirmation"
        return sample.moments(replicates, random, batches=1)

    for _ in range(repetitions):
        biased += sequential_test(draw, truth, effort).verdict == "biased"
    return screened, biased, repetitions


def _look_lines(results: Mapping[Any, tuple[int, int, int]]) -> list[SimulationLine]:
    found = []
    for cell, (screened, biased, trials) in results.items():
        found.append(SimulationLine("rejected at some look", str(cell), screened / trials, trials, most=MOST_FALSE_ALARMS))
        found.append(SimulationLine("called biased", str(cell), biased / trials, trials, most=0.0))
    return found


FALSE_ALARMS = Part(
    "False alarms of the test for bias",
    "Right estimators at level 0.001, on flat and peaked instances; at most 0.003 of the tests may reject.",
    tuple(_false_alarm_cells()),
    simulate_false_alarms,
    _false_alarm_lines,
    4000,
)

SEQUENTIAL = Part(
    "False alarms of the sequential test",
    "Five looks share the level 0.001; what is rejected is confirmed on four times the replicates.",
    tuple(
        FalseAlarmCell(space, deviation, ConditionalMeanBaseline(), None)
        for space, deviation in (("subset10", 0.5), ("categorical10", 5.0))
    ),
    simulate_looks,
    _look_lines,
    2000,
)
