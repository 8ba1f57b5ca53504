"""Rules of stopping compared: how often they cry wolf, and after how many estimates they find an error of scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from ....estimators import ConditionalMeanBaseline
from ...measures.testing.e_process import BettingProcess, BiasBets, mixture_half_width
from ...measures.testing.group_sequential import look_sizes
from ...measures.testing.ranges import ranges_of
from ...statistics.seeds import seed_sequence
from .errors import with_error
from .instances import instance, law
from .lines import Part, SimulationLine

ALPHA = 0.01
"""Of every rule here, so that false alarms can be counted."""

HORIZON, STEP = 65_536, 512
"""Most estimates, and how many come in between two peeks."""


@dataclass(frozen=True)
class SequenceCell:
    """An error of scale in an estimator on trees; 0 for a right one."""

    error: float

    def __str__(self) -> str:
        return f"trees5 sd 0.5, scale error of {self.error:.0%}"


def simulate(cell: SequenceCell, repetitions: int) -> dict[str, list[int]]:
    """By rule, after how many estimates it rejects; 0 where it never does."""
    right = law(ConditionalMeanBaseline(), "trees5", 0.5)
    wrong = with_error(right, "scale", cell.error)
    random = np.random.default_rng(seed_sequence(0, "sequences", str(cell)))
    values, mean = wrong.estimates @ wrong.direction, float(right.gradient.norm())
    stops: dict[str, list[int]] = {name: [] for name in RULES}
    for _ in range(repetitions):
        path = values[torch.from_numpy(wrong.draw(HORIZON, random))]
        for name, rule in RULES.items():
            stops[name].append(rule(path, mean, values))
    return stops


def _peeks(path: Tensor, mean: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Estimates so far, their mean error and their standard deviation, at every peek."""
    n = np.arange(STEP, len(path) + 1, STEP)
    errors = (path - mean).numpy()
    sums, squares = errors.cumsum()[n - 1], np.square(errors).cumsum()[n - 1]
    return n, sums / n, np.sqrt((squares - sums**2 / n) / (n - 1))


def _first(n: np.ndarray, rejects: np.ndarray) -> int:
    return int(n[rejects.argmax()]) if rejects.any() else 0


def _uncorrected(path: Tensor, mean: float, values: Tensor) -> int:
    n, error, deviation = _peeks(path, mean)
    return _first(n, np.abs(error) > stats.norm.isf(ALPHA / 2) * deviation / np.sqrt(n))


def _fixed(path: Tensor, mean: float, values: Tensor) -> int:
    n, error, deviation = _peeks(path, mean)
    return _first(n[-1:], np.abs(error[-1:]) > stats.norm.isf(ALPHA / 2) * deviation[-1:] / np.sqrt(n[-1:]))


def _doubling(path: Tensor, mean: float, values: Tensor) -> int:
    n, error, deviation = _peeks(path, mean)
    sizes = look_sizes(STEP, HORIZON)
    looks = np.isin(n, sizes)
    critical = stats.norm.isf(ALPHA / 2 / len(sizes))
    return _first(n[looks], (np.abs(error) > critical * deviation / np.sqrt(n))[looks])


def _mixture(path: Tensor, mean: float, values: Tensor) -> int:
    n, error, deviation = _peeks(path, mean)
    bounds = np.array([mixture_half_width(s, float(k), alpha=ALPHA, tuned_for=2048) for k, s in zip(n, deviation, strict=True)])
    # The sequence is asymptotic: from 2048 estimates on.
    return _first(n, (np.abs(error) > bounds) & (n >= 2048))


def _betting(path: Tensor, mean: float, values: Tensor) -> int:
    process = BettingProcess(path.new_tensor([mean]), values.min().reshape(1), values.max().reshape(1))
    for peek, block in enumerate(path.unsqueeze(-1).split(STEP), start=1):
        process.update(block)
        if process.e_value >= 1 / ALPHA:
            return peek * STEP
    return 0


RULES: dict[str, Callable[[Tensor, float, Tensor], int]] = {
    "a peek every 512, uncorrected": _uncorrected,
    "fixed N": _fixed,
    "8 doubling looks, Bonferroni": _doubling,
    "normal-mixture confidence sequence": _mixture,
    "betting e-process": _betting,
}


def _lines(results: Mapping[Any, dict[str, list[int]]]) -> list[SimulationLine]:
    found = []
    for cell, stops in results.items():
        for rule, ends in stops.items():
            rejected, where = sum(end > 0 for end in ends) / len(ends), str(cell)
            if cell.error == 0:
                most = None if "uncorrected" in rule else ALPHA
                found.append(SimulationLine(f"{rule}: false alarms", where, rejected, len(ends), most=most, noisy=True))
            else:
                found.append(SimulationLine(f"{rule}: rejected", where, rejected, len(ends)))
                found.append(SimulationLine(f"{rule}: mean N", where, float(np.mean([end or HORIZON for end in ends]))))
    return found


@dataclass(frozen=True)
class Rare:
    """A right estimator on an instance where most structures that carry its variance do not occur."""

    space: str
    deviation: float
    replicates: int = 20_000

    def __str__(self) -> str:
        return f"{self.space} sd {self.deviation:g}, {self.replicates} estimates"


def simulate_rare(cell: Rare, repetitions: int) -> tuple[int, int]:
    """Paths on which the bets ever reach 1/α, and repetitions."""
    sample, truth = law(ConditionalMeanBaseline(), cell.space, cell.deviation), instance(cell.space, cell.deviation).truth
    random = np.random.default_rng(seed_sequence(0, "rare", str(cell)))
    ranges = ranges_of(sample.estimates, truth.gradient)
    alarms = 0
    for _ in range(repetitions):
        bets, capital = BiasBets(truth.gradient, ranges), 0.0
        for block in sample.estimates[torch.from_numpy(sample.draw(cell.replicates, random))].split(4096):
            bets.update(block)
            capital = max(capital, bets.e_value)
        alarms += capital >= 1 / ALPHA
    return alarms, repetitions


def _rare_lines(results: Mapping[Any, tuple[int, int]]) -> list[SimulationLine]:
    return [SimulationLine("false alarms", str(cell), hits / trials, trials, most=ALPHA) for cell, (hits, trials) in results.items()]


RULES_PART = Part(
    "Rules of stopping",
    f"One-dimensional tests along g at level {ALPHA:g}, of up to {HORIZON} estimates.",
    tuple(SequenceCell(error) for error in (0.0, 0.05, 0.1, 0.2)),
    simulate,
    _lines,
    300,
)

RARE = Part(
    "The e-process where structures are rare",
    f"Bets on all parts and along g, at level {ALPHA:g}, looked at after every 4096 estimates, on instances where T² fails.",
    (Rare("categorical10", 5.0), Rare("subset10", 3.0)),
    simulate_rare,
    _rare_lines,
    300,
)
