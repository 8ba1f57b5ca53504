"""How often the test for bias rejects: estimators that are right, estimators that are wrong, equivalence at its margin."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....estimators import ConditionalMeanBaseline, Reinforce
from ....estimators.base import Estimator
from ...suite import Effort
from ..bias_tests import ALPHA, bias_test, partial_tests, predicted_replicates
from ..equivalence import bias_bound, gain_bound
from ..looks import sequential_test
from ..moments import Moments
from ..seeds import seed_sequence
from .errors import NAMES, needed_replicates, with_error
from .instances import instance, law
from .laws import Law
from .lines import Line, Part

MOST_FALSE_ALARMS = 3e-3
"""Of a test of level 0.001."""

LEAST_POWER = 0.9


@dataclass(frozen=True)
class Cell:
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

    def law(self) -> Law:
        """Of the estimator."""
        return law(self.estimator, self.space, self.deviation)


def _false_alarm_cells() -> Iterator[Cell]:
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
        yield Cell(space, deviation, exact, replicates)
    yield Cell("trees5", 0.5, Reinforce(), 100_000)
    yield Cell("categorical10", 5.0, Reinforce(), 100_000)


def simulate_false_alarms(cell: Cell, repetitions: int) -> tuple[int, int]:
    """Rejections of one test of a right estimator, and tests that could be made."""
    truth, sample, random = instance(cell.space, cell.deviation).truth, cell.law(), cell.random("false alarms")
    assert cell.replicates is not None
    found = [bias_test(sample.moments(cell.replicates, random, batches=1), truth) for _ in range(repetitions)]
    tested = [p for p in found if p is not None]
    return sum(p < ALPHA for p in tested), len(tested)


def _false_alarm_lines(results: Mapping[Any, tuple[int, int]]) -> list[Line]:
    return [
        Line("rejected by one test", str(cell), hits / trials, trials, most=MOST_FALSE_ALARMS)
        for cell, (hits, trials) in results.items()
        if trials
    ]


def simulate_looks(cell: Cell, repetitions: int) -> tuple[int, int, int]:
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


def _look_lines(results: Mapping[Any, tuple[int, int, int]]) -> list[Line]:
    found = []
    for cell, (screened, biased, trials) in results.items():
        found.append(Line("rejected at some look", str(cell), screened / trials, trials, most=MOST_FALSE_ALARMS))
        found.append(Line("called biased", str(cell), biased / trials, trials, most=0.0))
    return found


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


def _power_lines(results: Mapping[Any, dict[str, tuple[int, int, int]]]) -> list[Line]:
    found = []
    for cell, tests in results.items():
        for test, (hits, trials, count) in tests.items():
            # At the N that is computed for a power of 0.9 the single test has exactly that: only noise puts the rate below or above.
            alone, required = "alone" in test, cell.error == "scale"
            found.append(Line(test, f"{cell}, N={count}", hits / trials, trials, LEAST_POWER if required else None, noisy=alone))
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


def _margin_lines(results: Mapping[Any, dict[str, tuple[int, int]]]) -> list[Line]:
    return [
        Line(f"{bound}: margin held", str(cell), hits / trials, trials, 0.90)
        for cell, bounds in results.items()
        for bound, (hits, trials) in bounds.items()
    ]


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
    tuple(Cell(space, deviation, ConditionalMeanBaseline(), None) for space, deviation in (("subset10", 0.5), ("categorical10", 5.0))),
    simulate_looks,
    _look_lines,
    2000,
)

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
