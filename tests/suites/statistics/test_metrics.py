"""Metrics: formulas on exact moments, and the coverage of intervals in simulations."""

from __future__ import annotations

import math

import pytest
import torch

from structgrad.suites.statistics.intervals import UNRESOLVED
from structgrad.suites.statistics.metrics import (
    Summary,
    estimated_metrics,
    exact_metrics,
    metric_values,
)
from structgrad.suites.statistics.moments import BATCHES, Moments


def summary(error: list[float], trace: float, replicates: float = math.inf) -> Summary:
    gradient = torch.tensor([3.0, 4.0], dtype=torch.float64)
    scalars = [torch.tensor(value, dtype=torch.float64) for value in (trace, replicates, 0.25, 1.5)]
    return Summary(gradient, torch.tensor(error, dtype=torch.float64), *scalars)


def test_an_exact_mean_twice_as_long():
    metrics = exact_metrics(summary([3.0, 4.0], 50.0))
    expected = {
        "relative_bias": 1.0,
        "relative_bias_squared": 1.0,
        "relative_variance": 2.0,
        "relative_mse": 3.0,
        "gain": 2.0,
        "cosine": 1.0,
        "snr": 2.0,
        "rho": 50 / (5 * math.sqrt(100 + 50)),
        "rho_16": 50 / (5 * math.sqrt(100 + 50 / 16)),
        "orthogonal_bias": 0.0,
        "zero_gradient_rate": 0.25,
        "gradient_nonzeros": 1.5,
    }
    assert {name: interval.value for name, interval in metrics.items()} == pytest.approx(expected)
    assert all(interval.low is None and interval.high is None for interval in metrics.values())


def test_norms_are_corrected_for_noise():
    """The mean of N estimates has an expected squared error of b² + tr S/N: the second term is not bias."""
    values = metric_values(summary([0.3, 0.4], 25.0, replicates=100.0))
    assert float(values["relative_bias_squared"]) == pytest.approx((0.25 - 0.25) / 25)
    assert float(values["relative_mse"]) == pytest.approx(25 / 25)


def test_a_gradient_of_norm_zero_has_no_relative_metrics():
    zero = summary([1.0, 0.0], 1.0)
    metrics = exact_metrics(Summary(torch.zeros(2, dtype=torch.float64), *list(zero.__dict__.values())[1:]))
    assert metrics["relative_bias"].value is None
    assert metrics["cosine"].value is None
    assert metrics["zero_gradient_rate"].value == 0.25
    assert exact_metrics(summary([1.0, 0.0], 0.0))["snr"].value is None


def test_constant_estimates_have_intervals_of_width_zero():
    moments = Moments.empty(torch.tensor([1.0, 0.0]))
    for batch in range(BATCHES):
        moments.add(torch.tensor([[2.0, 0.0]], dtype=torch.float64).expand(4, 2), batch)
    metrics = estimated_metrics(moments, resolved=True)
    assert metrics["gain"].value == metrics["gain"].low == metrics["gain"].high == 2
    assert metrics["relative_bias"].low == metrics["relative_bias"].high == 1
    # Where it is not known that they are constant, what varies may be rare.
    rare = estimated_metrics(moments)
    assert {name for name, interval in rare.items() if interval is not UNRESOLVED} == {"zero_gradient_rate", "descent_probability"}
