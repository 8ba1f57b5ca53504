"""Intervals as functions: Wilson, the profile of projections, references with noise of their own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from scipy import stats
from torch import Tensor

from structgrad.suites.statistics.intervals import Interval, clustered_wilson, jackknives, wilson
from structgrad.suites.statistics.metrics import Geometry, estimated_against, estimated_metrics
from structgrad.suites.statistics.moments import BATCHES, Moments

RUNS = 120


def drawn(size: int, seed: int, mean: Tensor, rows: int = 2048) -> Moments:
    """Moments of skewed noise of different sizes around a mean, against the gradient (1, 0, 0, ...)."""
    noise = torch.empty(rows, size, dtype=torch.float64).exponential_(generator=torch.Generator().manual_seed(seed)) - 1
    moments = Moments.empty(torch.eye(size, dtype=torch.float64)[0])
    for i, block in enumerate((mean + noise * torch.linspace(0.5, 2, size, dtype=torch.float64)).split(64)):
        moments.add(block, i % BATCHES)
    return moments


@pytest.mark.parametrize(("hits", "n"), [(0, 50), (3, 50), (25, 50), (50, 50), (1, 4096)])
def test_wilson_equals_scipy(hits, n):
    expected = stats.binomtest(hits, n).proportion_ci(method="wilson")
    found = wilson(hits / n, n)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.method == "wilson"


def test_a_share_of_dependent_trials_counts_its_clusters():
    """Ten trials that always agree are worth one, and a share of 1 is as uncertain as that of its replicates."""
    generator = torch.Generator().manual_seed(0)
    hits = 0
    for _ in range(RUNS):
        batches = (torch.rand(BATCHES, 16, generator=generator, dtype=torch.float64) < 0.9).double().mean(-1)
        share = float(batches.mean())
        found = clustered_wilson(jackknife(share, (share * BATCHES - batches) / (BATCHES - 1)), 512)
        hits += found.low <= 0.9 <= found.high
    assert 0.90 <= hits / RUNS <= 0.99
    certain = clustered_wilson(jackknife(1.0, torch.ones(BATCHES, dtype=torch.float64)), 512)
    assert certain.high == 1
    assert 0.98 < certain.low < 1


def jackknife(value: float, without: Tensor) -> Interval:
    return jackknives({"": value}, {"": without})[""]


def test_there_is_no_interval_without_values():
    undefined = torch.full((BATCHES,), math.nan)
    assert jackknife(math.nan, undefined) == Interval(None)
    assert jackknife(1.0, undefined) == Interval(1.0)
    assert clustered_wilson(jackknife(math.nan, undefined), 64) == Interval(None)
    assert wilson(math.nan, 10) == Interval(None)


@pytest.mark.parametrize(("runs", "least"), [(40, 0.85), pytest.param(RUNS, 0.90, marks=pytest.mark.sweep)])
def test_a_null_bias_is_covered(runs, least):
    """A bias of 0.4 in two of six directions; without it the interval begins at 0."""
    size = 6
    null = torch.eye(size, dtype=torch.float64)[:, 4:]
    metric = Geometry(torch.eye(size, dtype=torch.float64), 1.0, null)
    mean = torch.tensor([1.0, 0.3, 0, 0, 0.4, 0], dtype=torch.float64)
    hits = 0
    for seed in range(runs):
        found = estimated_metrics(drawn(size, seed, mean), metric)["null_bias"]
        assert found.method == "profile"
        hits += found.low <= 0.4 <= found.high
    assert least <= hits / runs <= 0.99
    assert estimated_metrics(drawn(size, 0, torch.eye(size, dtype=torch.float64)[0]), metric)["null_bias"].low == 0


def test_a_gradient_below_the_floor_leaves_absolute_errors():
    moments = drawn(4, 0, torch.full((4,), 0.5, dtype=torch.float64), rows=20_000)
    found = estimated_metrics(moments, floor=2.0)
    assert all(found[name].value is None for name in ("relative_bias", "gain", "rho", "descent_probability", "sign_agreement"))
    assert found["absolute_bias"].low < 1 < found["absolute_bias"].high
    variance = float(torch.linspace(0.5, 2, 4, dtype=torch.float64).square().sum())
    assert found["absolute_variance"].low < variance < found["absolute_variance"].high
    assert found["snr"].value is not None


@dataclass
class NoisyReference:
    gradient: Tensor
    noise: float


@pytest.mark.parametrize("runs", [40, pytest.param(RUNS, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("bias", [0.0, 0.4])
def test_bias_against_a_noisy_reference_is_covered(bias, runs):
    """The reference's own noise is as large as that of the mean; intervals that ignore it miss. Intervals are conservative here."""
    size, rows = 6, 2048
    scale = 1.5 / math.sqrt(rows)
    objective = torch.tensor([0.5, 1.0, 0, 0, -1, 0], dtype=torch.float64)
    mean = objective + bias * torch.eye(size, dtype=torch.float64)[3]
    norm = float(objective.norm())
    true = {"relative_bias": bias / norm, "gain": 1.0, "orthogonal_bias": bias / norm, "relative_bias_squared": (bias / norm) ** 2}
    hits, blind = dict.fromkeys(true, 0), 0
    for seed in range(runs):
        error = scale * torch.randn(size, generator=torch.Generator().manual_seed(10_000 + seed), dtype=torch.float64)
        moments = drawn(size, seed, mean, rows)
        found = estimated_against(moments, NoisyReference(objective + error, size * scale**2))
        for name, value in true.items():
            hits[name] += found[name].low <= value <= found[name].high
        assert max(found["relative_bias_squared"].value, 0) == pytest.approx(found["relative_bias"].value ** 2)
        deaf = estimated_against(moments, NoisyReference(objective + error, 0.0))["relative_bias"]
        blind += deaf.low <= true["relative_bias"] <= deaf.high
    assert all(count >= 0.93 * runs for count in hits.values()), hits
    assert blind < 0.93 * runs or bias > 0


def test_a_reference_that_is_all_noise_compares_with_nothing():
    moments = drawn(3, 0, torch.ones(3, dtype=torch.float64))
    found = estimated_against(moments, NoisyReference(torch.full((3,), 1e-3, dtype=torch.float64), 1.0))
    assert all(interval.value is None for interval in found.values())
