"""Power of the test for bias, and of the bound at the margin of equivalence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....estimators import ConditionalMeanBaseline
from ...measures.testing.bias_tests import ALPHA, bias_test, partial_tests, predicted_replicates
from ...statistics.seeds import seed_sequence
from ...statistics.testing.equivalence import bias_bound, gain_bound
from .errors import NAMES, needed_replicates, with_error
from .instances import instance, law
from .lines import Part, SimulationLine

LEAST_POWER = 0.9


@dataclass(frozen=True)
class Wrong:
    """An error in an estimator on a flat instance, at the number of replicates that is predicted to show it."""

    space: str
    error: str

    def __str__(self) -> str:
        return f"{self.space} sd 0.5, {self.error}"


def simulate_power(cell: Wrong, repetitions: int) -> dict[str, tuple[int, int, int]]:
    """Rejections, repetitions and N of all tests together; of a scale error, of the test along the gradient alone too."""
    truth = instance(cell.space, 0.5).truth
    wrong = with_error(law(ConditionalMeanBaseline(), cell.space, 0.5), cell.error)
    random = np.random.default_rng(seed_sequence(0, "power", str(cell)))
    needed = needed_replicates(wrong, truth)
    best = "along" if cell.error == "scale" else min(needed, key=lambda name: needed[name])
    hits = 0
    for _ in range(repetitions):
        p_value = bias_test(wrong.moments(needed[best], random, batches=1), truth)
        hits += p_value is not None and p_value < ALPHA
    found = {f"all tests, N for `{best}`": (hits, repetitions, needed[best])}
    if cell.error == "scale":
        deviation = float((wrong.direction @ wrong.covariance @ wrong.direction).sqrt())
        count = predicted_replicates(deviation, float(wrong.bias @ wrong.direction))
        single = [partial_tests(wrong.moments(count, random, batches=1), truth)["along"] < ALPHA for _ in range(repetitions)]
        found["t along g alone, N = 20.9 σ²/δ²"] = (sum(single), repetitions, count)
    return found


def _power_lines(results: Mapping[Any, dict[str, tuple[int, int, int]]]) -> list[SimulationLine]:
    found = []
    for cell, tests in results.items():
        for test, (hits, trials, count) in tests.items():
            # At the N that is computed for a power of 0.9 the single test has exactly that: only noise puts the rate below or above.
            alone, required = "alone" in test, cell.error == "scale"
            found.append(SimulationLine(test, f"{cell}, N={count}", hits / trials, trials, LEAST_POWER if required else None, noisy=alone))
    return found


@dataclass(frozen=True)
class Margin:
    """A bias of exactly ε‖g‖, in a direction, at a number of replicates where none would be called equivalent to none."""

    space: str
    direction: str
    replicates: int

    def __str__(self) -> str:
        return f"{self.space} sd 0.5, bias of 5 % {self.direction}, N={self.replicates}"


def simulate_margin(cell: Margin, repetitions: int) -> dict[str, tuple[int, int]]:
    """How often a bias at the margin is not called equivalent to none."""
    sample, random = law(ConditionalMeanBaseline(), cell.space, 0.5), np.random.default_rng(seed_sequence(0, "margin", str(cell)))
    gradient, epsilon = sample.gradient, 0.05
    unit = {
        "along g": sample.direction,
        "along the most variable direction": np.linalg.eigh(sample.covariance)[1][:, -1],
        "in one part": (gradient.abs() == gradient.abs().max()).double(),
    }[cell.direction]
    shifted = sample.changed(sample.estimates + epsilon * gradient.norm() * unit)
    bounds = [(bias_bound(m), gain_bound(m)) for m in (shifted.moments(cell.replicates, random) for _ in range(repetitions))]
    norm = sum(bound is not None and bound > epsilon for bound, _ in bounds)
    gain = sum(bound is not None and bound > epsilon for _, bound in bounds)
    return {"norm": (norm, repetitions)} | ({"gain": (gain, repetitions)} if cell.direction == "along g" else {})


def _margin_lines(results: Mapping[Any, dict[str, tuple[int, int]]]) -> list[SimulationLine]:
    return [
        SimulationLine(f"{bound}: margin held", str(cell), hits / trials, trials, 0.90)
        for cell, bounds in results.items()
        for bound, (hits, trials) in bounds.items()
    ]


POWER = Part(
    "Power against known errors",
    "At the number of replicates at which the best of three tests that share the level 0.001 (that along g, for errors of scale) is "
    "predicted to have power 0.9.",
    tuple(Wrong(space, error) for space in ("trees5", "categorical10") for error in NAMES),
    simulate_power,
    _power_lines,
    1000,
)

EQUIVALENCE = Part(
    "Equivalence at its margin",
    "A bias of exactly 5 % of ‖g‖ may be called equivalent to none in 5 % of the samples; 0.10 is tolerated.",
    tuple(
        Margin(space, where, 100_000)
        for space in ("trees5", "subset10")
        for where in ("along g", "along the most variable direction", "in one part")
    ),
    simulate_margin,
    _margin_lines,
    300,
)
