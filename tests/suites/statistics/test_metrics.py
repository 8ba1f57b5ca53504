"""Metrics: formulas on exact moments, and the coverage of intervals in simulations."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from structgrad.suites.statistics.intervals import UNRESOLVED, bias_interval
from structgrad.suites.statistics.metrics import (
    COMPARED,
    Summary,
    estimated_metrics,
    exact_metrics,
    metric_values,
    summarise,
    without_each_batch,
)
from structgrad.suites.statistics.moments import BATCHES, FULL_COVARIANCE, Moments


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


def simulated(mean: torch.Tensor, scales: torch.Tensor, seed: int, rows: int = 4096) -> Moments:
    """Moments of skewed, independent noise (centred exponentials) around a mean; the gradient is (1, 0, 0, ...)."""
    gradient = torch.zeros(len(mean), dtype=torch.float64)
    gradient[0] = 1
    generator = torch.Generator().manual_seed(seed)
    noise = torch.empty(rows, len(mean), dtype=torch.float64).exponential_(generator=generator) - 1
    moments = Moments.empty(gradient)
    for i, block in enumerate((mean + noise * scales).split(min(128, rows // BATCHES))):
        moments.add(block, i % BATCHES)
    return moments


SIZES = [8, FULL_COVARIANCE + 4]


@pytest.mark.parametrize(("runs", "least"), [(36, 0.86), pytest.param(120, 0.90, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("error", [0.0, 0.3])
def test_intervals_cover(error, size, runs, least):
    """95 % intervals cover the true value in 90 % to 100 % of 120 simulations: at no bias they are conservative by design."""
    scales = torch.linspace(0.2, 3, size, dtype=torch.float64) * math.sqrt(8 / size)
    mean = torch.zeros(size, dtype=torch.float64)
    mean[0], mean[1] = 1 + error, error
    true = metric_values(
        Summary(torch.eye(size, dtype=torch.float64)[0], mean - torch.eye(size, dtype=torch.float64)[0], scales.square().sum(),
                torch.tensor(math.inf), torch.tensor(0.0), torch.tensor(float(size)))
    )  # fmt: skip
    names = ["relative_bias", "relative_bias_squared", "relative_variance", "relative_mse", "gain", "cosine", "rho"]
    hits = dict.fromkeys(names, 0)
    for seed in range(runs):
        metrics = estimated_metrics(simulated(mean, scales, seed, rows=4096 if size <= FULL_COVARIANCE else 512))
        for name in names:
            interval = metrics[name]
            hits[name] += interval.low - 1e-12 <= float(true[name]) <= interval.high + 1e-12
    assert all(count >= least * runs for count in hits.values()), hits
    widths = [estimated_metrics(simulated(mean, scales, seed))["gain"] for seed in range(3)]
    assert all(0 < w.high - w.low < 0.2 for w in widths)


def along_the_gradient(scale: float, seed: int) -> Moments:
    """Unbiased estimates of 8 parts."""
    return simulated(torch.eye(8, dtype=torch.float64)[0], torch.full((8,), scale, dtype=torch.float64), seed)


def test_the_naive_bias_would_be_far_off():
    """An unbiased estimator: the interval of the bias reaches 0, where the naive norm is 30 %."""
    moments = along_the_gradient(7.0, seed=0)
    assert float(moments.total_mean.norm()) > 0.25
    assert bias_interval(moments)[0] == 0


def test_a_cosine_at_its_boundary_stays_within_it():
    """The jackknife knows no boundary: its interval for an unbiased estimator reaches above 1, or misses 1 altogether."""
    for seed in range(20):
        cosine = estimated_metrics(along_the_gradient(3.0, seed))["cosine"]
        assert 0 < cosine.low < cosine.value <= cosine.high <= 1


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


def of_batches(moments: Moments, chosen: list[int]) -> Moments:
    """Only some of the batches, the others empty."""
    kept = torch.zeros(BATCHES, dtype=torch.float64)
    kept[chosen] = 1
    changed = {name: value * kept.reshape(-1, *[1] * (value.ndim - 1)) for name, value in vars(moments).items() if name in BY_BATCH}
    return replace(moments, **changed)


BY_BATCH = ("count", "mean", "square", "along", "zero", "nonzero", "signs", "descents", "cosines", "quartics", "informed")


def test_values_without_a_batch_are_those_of_the_others():
    moments = simulated(torch.tensor([0.3, 0.0]), torch.tensor([1.0, 2.0]), seed=0)
    values = without_each_batch(moments)
    assert set(values) == set(COMPARED)
    for batch in (0, 17, 31):
        others = metric_values(summarise(of_batches(moments, [index for index in range(BATCHES) if index != batch])))
        assert {name: numbers[batch] for name, numbers in values.items()} == pytest.approx({name: float(others[name]) for name in COMPARED})
