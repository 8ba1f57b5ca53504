"""Aggregates over instances: exact values, and simulated coverage of their intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from structgrad.suites.statistics.aggregates import Aggregate, Measured, aggregate
from structgrad.suites.statistics.metrics import Interval

INSTANCES = 32

simulated = pytest.mark.parametrize(
    ("simulations", "least", "most"), [(60, 0.85, 0.99), pytest.param(200, 0.90, 0.99, marks=pytest.mark.sweep)]
)
"""How many, and which coverage of intervals of 95 % is taken for theirs."""


def exact(values: np.ndarray) -> Measured:
    return Measured(values, np.zeros_like(values))


def noisy(values: np.ndarray, error: float, random: np.random.Generator) -> Measured:
    errors = error * np.abs(values)
    return Measured(values + errors * random.standard_normal(values.shape), errors)


def test_exact_values() -> None:
    found = aggregate(Measured.of([3.0, 1.0, 100.0, 2.0, 4.0]))
    assert (found.instances, found.undefined) == (5, 0)
    assert (found.lower_quartile.value, found.median.value, found.upper_quartile.value) == (2.0, 3.0, 4.0)
    assert found.geometric_mean.value == pytest.approx(2400 ** (1 / 5))


def test_what_is_not_defined_is_left_out_and_counted() -> None:
    found = aggregate(Measured.of([None, 1.0, math.nan, 4.0, math.inf]))
    assert (found.instances, found.undefined, found.median.value, found.geometric_mean.value) == (2, 3, 2.5, pytest.approx(2.0))
    nothing = Interval(None)
    assert aggregate(Measured.of([None])) == Aggregate(0, 1, nothing, nothing, nothing, nothing)


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_geometric_means_need_positive_values(value: float) -> None:
    assert aggregate(Measured.of([1.0, value])).geometric_mean == Interval(None)


def test_standard_errors_come_from_intervals() -> None:
    measured = Measured.of([1.0, 2.0, None], [0.0, None, None], [2.0, None, None])
    assert measured.errors == pytest.approx([1 / 1.959964, 0, 0])
    with pytest.raises(ValueError, match=r"`Measured.of` got 2 values, 1 lows and 2 highs; expected one of each, or none"):
        Measured.of([1.0, 2.0], [1.0], [1.0, 2.0])


def test_the_same_numbers_come_out_every_time() -> None:
    measured = noisy(np.random.default_rng(0).lognormal(size=16), 0.1, np.random.default_rng(1))
    assert aggregate(measured) == aggregate(measured)


def test_the_error_of_an_instance_widens_every_interval() -> None:
    """Instances that hardly differ: all that is left is their own error, of which a mean over 25 has a fifth."""
    values = np.linspace(1, 1.001, 25)
    blurred, other = Measured(values, np.full_like(values, 0.1)), exact(values[::-1].copy())
    whole = 2 * 1.96 * 0.1 / 5
    found = aggregate(blurred)
    for interval, factor in ((found.median, 1.25), (found.lower_quartile, 1.36), (found.geometric_mean, 1.0)):
        assert width(interval) == pytest.approx(factor * whole, rel=0.15)
    assert width(aggregate(other).median) < 0.001


def width(interval: Interval) -> float:
    assert interval.low is not None
    assert interval.high is not None
    return interval.high - interval.low


def coverage(intervals: list[Interval], expected: float) -> float:
    return float(np.mean([one.low <= expected <= one.high for one in intervals]))  # type: ignore[operator]


@simulated
@pytest.mark.parametrize("error", [0.0, 0.1])
def test_coverage_of_aggregates(error: float, simulations: int, least: float, most: float) -> None:
    """Heavy-tailed instances: lognormal with σ = 1, whose median and geometric mean are 1."""
    random = np.random.default_rng(7)
    found = [aggregate(noisy(random.lognormal(size=INSTANCES), error, random)) for _ in range(simulations)]
    assert least <= coverage([one.median for one in found], 1) <= most
    assert least <= coverage([one.geometric_mean for one in found], 1) <= most
    assert least <= coverage([one.lower_quartile for one in found], math.exp(-0.6744898)) <= most
