"""Coverage of intervals, at a fixed number of replicates and after stopping at a wanted width."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....estimators import ConditionalMeanBaseline, LeaveOneOut, Reinforce, SampledStraightThrough, Simple
from ....estimators.base import Estimator
from ...statistics.adaptive import Budget, sample_until
from ...statistics.geometry import Geometry
from ...statistics.metrics import estimated_metrics, exact_metrics
from ...statistics.moments import Moments
from ...statistics.seeds import seed_sequence
from ...truth import Target
from ...truth.geometry import geometry
from ...truth.replay import replay
from ...truth.replay_oracle import slots_of
from .instances import instance, law
from .laws import EstimateLaw
from .lines import Part, SimulationLine

LEAST, MOST = 0.90, 0.99
"""Coverage that is asked of intervals of nominal 0.95."""

BOUNDARY = ", at the boundary"
"""An interval that ends at the greatest or least possible value may hold it always: where it is exact, only `LEAST` is asked."""

UNTRUSTED = "kurtosis, where few estimates carry it"
"""Its jackknife needs eighth moments, which no sample of a peaked instance shows, nor a small one: listed, but nothing is asked."""

NOTHING = 1e-6
"""An interval that lies this near the exact value is of a number that does not vary."""

FIRST, MOST_REPLICATES = 1024, 32_768
"""Adaptive sampling looks at 1024 replicates and at five doublings, if it must."""

Hits = dict[str, tuple[int, int]]
"""Covered and trials, by interval."""


@dataclass(frozen=True)
class CoverageCell:
    """An estimator on an instance with a number of replicates, or with an adaptive one."""

    space: str
    deviation: float
    estimator: Estimator[Any]
    replicates: int | None

    def __str__(self) -> str:
        count = "adaptive" if self.replicates is None else f"N={self.replicates}"
        return f"{self.space} sd {self.deviation:g}, {self.estimator.name}, {count}"


def _cells(counts: tuple[int | None, ...]) -> Iterator[CoverageCell]:
    for space in ("trees5", "categorical10", "subset10"):
        for deviation in (0.5, 2.0):
            pairs: list[Estimator[Any]] = [Reinforce(), ConditionalMeanBaseline(), Simple(), SampledStraightThrough()]
            pairs += [LeaveOneOut(2)] * (space == "categorical10")
            yield from (CoverageCell(space, deviation, estimator, count) for estimator in pairs for count in counts)


def simulate(cell: CoverageCell, repetitions: int) -> Hits:
    """How often every interval holds the exact value."""
    target = instance(cell.space, cell.deviation)
    measure_in = geometry(target.oracle, target.scores, target.truth)
    exact = _exact(cell, target, measure_in)
    random = np.random.default_rng(seed_sequence(0, "coverage", str(cell)))
    sample = law(cell.estimator, cell.space, cell.deviation)
    hits: dict[str, list[bool]] = defaultdict(list)
    for _ in range(repetitions):
        moments = _adaptive(sample, measure_in, random) if cell.replicates is None else sample.moments(cell.replicates, random)
        found = estimated_metrics(moments, measure_in)
        for name, interval in found.items():
            low, high, value = interval.low, interval.high, exact.get(name)
            if low is not None and high is not None and value is not None and max(abs(low - value), abs(high - value)) > NOTHING:
                hits[_kind(name, exact, cell)].append(low - NOTHING <= value <= high + NOTHING)
    return {name: (sum(values), len(values)) for name, values in hits.items()}


def _exact(cell: CoverageCell, target: Target, measure_in: Geometry | None) -> dict[str, Any]:
    slots = slots_of(cell.estimator, target.oracle, target.loss, target.scores)
    assert slots is not None, "every estimator here draws samples alone"
    summary = replay(cell.estimator, target, slots, None if measure_in is None else measure_in.information)
    return {name: interval.value for name, interval in exact_metrics(summary, measure_in).items()}


def _adaptive(sample: EstimateLaw, measure_in: Geometry | None, random: np.random.Generator) -> Moments:
    """The moments at which sampling stops."""

    def extend(moments: Moments, stop: int) -> None:
        vars(moments).update(vars(moments.merged(sample.moments(stop - moments.total, random))))

    return sample_until(
        Moments.empty(sample.gradient, sample.information),
        extend,
        lambda moments: estimated_metrics(moments, measure_in),
        budget=Budget(FIRST, MOST_REPLICATES),
    ).moments


def _kind(name: str, exact: Mapping[str, Any], cell: CoverageCell) -> str:
    """The name of an interval, with the side of the boundary on which its method is decided."""
    value = exact[name]
    if name in ("relative_bias", "relative_bias_squared", "orthogonal_bias", "null_bias"):
        return f"{name}, {'no bias' if value < NOTHING else 'biased'}"
    if name == "kurtosis":
        return UNTRUSTED if cell.deviation > 1 or cell.replicates == FIRST else name
    at_boundary = name in ("cosine", "descent_probability", "sign_agreement", "zero_gradient_rate") and min(value, 1 - value) < 1e-9
    return name + BOUNDARY * at_boundary


def lines(results: Mapping[Any, Hits]) -> list[SimulationLine]:
    """Of every interval the rate over all cells, and the lowest cell; rates that are degenerate (nothing varies) are left out."""
    kinds = sorted({kind for hits in results.values() for kind in hits})
    return [line for kind in kinds for line in _of_kind(kind, {cell: hits[kind] for cell, hits in results.items() if kind in hits})]


def _of_kind(kind: str, hits: Mapping[Any, tuple[int, int]]) -> list[SimulationLine]:
    covered, trials = (sum(pair[side] for pair in hits.values()) for side in (0, 1))
    worst = min(hits, key=lambda cell: hits[cell][0] / hits[cell][1])
    rate = hits[worst][0] / hits[worst][1]
    least = None if kind == UNTRUSTED else LEAST
    most = None if kind == UNTRUSTED or kind.endswith(BOUNDARY) else MOST
    return [
        SimulationLine(kind, f"{len(hits)} cells", covered / trials, trials, least, most),
        SimulationLine(f"{kind}: lowest cell", str(worst), rate, hits[worst][1], least, noisy=True),
    ]


FIXED = Part(
    "Coverage at a fixed number of replicates",
    "Intervals of nominal 0.95 over flat (sd 0.5) and peaked (sd 2) instances. The jackknife of the kurtosis fails where few estimates "
    "carry it (peaked, or 1024 replicates): nothing is asked of it there.",
    tuple(_cells((FIRST, 16_384))),
    simulate,
    lines,
    100,
)

ADAPTIVE = Part(
    "Coverage after adaptive stopping",
    "Sampling stops at the first of six doubling looks, from 1024 replicates on, at which the intervals are narrow enough.",
    tuple(_cells((None,))),
    simulate,
    lines,
    40,
)
