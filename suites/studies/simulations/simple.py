"""Replay against sampling error, medians, and the table of a law against the path that ships."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....estimators import LeaveOneOut
from ...measures.cost.wall_clock import median_interval
from ...statistics.metrics import exact_metrics
from ...statistics.seeds import seed_sequence
from ...truth.replay import replay
from .coverage import LEAST, MOST
from .errors import BatchMeanBaseline
from .instances import instance
from .lines import Part, SimulationLine

TRUE_MEDIAN = 1.0
"""Of the standard log-normal law."""


@dataclass(frozen=True)
class Replayed:
    """K samples, with the mean of the others or of all as their baseline."""

    space: str
    samples: int

    def __str__(self) -> str:
        return f"{self.space} sd 1, K={self.samples}"


def simulate_replay(cell: Replayed, repetitions: int) -> tuple[float, float]:
    """The exact relative bias of leave-one-out, and of the mean of all; nothing is repeated."""
    target = instance(cell.space, 1.0)
    pair = (LeaveOneOut(cell.samples), BatchMeanBaseline(cell.samples))
    right, wrong = (exact_metrics(replay(estimator, target, cell.samples))["relative_bias"].value for estimator in pair)
    return right or 0.0, wrong or 0.0


def _replay_lines(results: Mapping[Any, tuple[float, float]]) -> list[SimulationLine]:
    found = []
    for cell, (right, wrong) in results.items():
        found.append(SimulationLine("relative bias, mean of the others", str(cell), right, most=1e-12))
        found.append(
            SimulationLine(
                "relative bias, mean of all: 1/K", str(cell), wrong, least=1 / cell.samples - 1e-12, most=1 / cell.samples + 1e-12
            )
        )
    return found


@dataclass(frozen=True)
class Median:
    """A skewed law and a number of values."""

    values: int

    def __str__(self) -> str:
        return f"log-normal, {self.values} values"


def simulate_median(cell: Median, repetitions: int) -> tuple[int, int]:
    """How often the interval holds the median."""
    random = np.random.default_rng(seed_sequence(0, "medians", str(cell)))
    found = [median_interval(random.lognormal(size=cell.values)) for _ in range(repetitions)]
    return sum(
        interval.low is not None and interval.high is not None and interval.low <= TRUE_MEDIAN <= interval.high for interval in found
    ), repetitions


def _median_lines(results: Mapping[Any, tuple[int, int]]) -> list[SimulationLine]:
    return [SimulationLine("order-statistic", str(cell), hits / trials, trials, LEAST, MOST) for cell, (hits, trials) in results.items()]


REPLAY = Part(
    "A wrong baseline, found by replay",
    "The mean loss of all K samples as the baseline, instead of that of the others, shrinks the gradient by 1/K exactly.",
    (Replayed("categorical10", 2), Replayed("categorical10", 3), Replayed("categorical10", 4), Replayed("subset10", 2)),
    simulate_replay,
    _replay_lines,
    1,
)

MEDIANS = Part(
    "Coverage of medians",
    "The interval of order statistics, of nominal 0.95.",
    tuple(Median(values) for values in (10, 30, 40, 160)),
    simulate_median,
    _median_lines,
    2000,
)
