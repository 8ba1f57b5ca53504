"""Intervals as functions: Wilson, the profile of projections, references with noise of their own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from scipy import stats
from torch import Tensor

from structgrad.suites.statistics.geometry import Geometry
from structgrad.suites.statistics.intervals import Errors, Interval, clustered_wilson, jackknives, profile, wilson
from structgrad.suites.statistics.metrics import Summary, estimated_against, estimated_metrics, exact_against
from structgrad.suites.statistics.moments import BATCHES, FULL_COVARIANCE, Moments

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


@pytest.mark.parametrize("size", [6, FULL_COVARIANCE + 4])
def test_a_projection_is_the_same_by_basis_and_by_exclusion(size):
    errors = Errors.of(drawn(size, 0, torch.zeros(size, dtype=torch.float64)))
    basis = torch.eye(size, dtype=torch.float64)
    by_basis, by_exclusion = errors.within(basis[:, 1:]), errors.without(basis[0])
    assert torch.equal(by_basis.mean, by_exclusion.mean[1:])
    # Within a basis the noise comes from 32 batches, else from the whole covariance, or the squares.
    assert by_basis.trace == pytest.approx(by_exclusion.trace, rel=0.5)
    assert 0.3 < by_basis.trace_of_square / by_exclusion.trace_of_square < 3
    assert by_exclusion.trace == pytest.approx(float(torch.linspace(0.5, 2, size)[1:].square().sum()), rel=0.1)


def test_what_is_not_there_has_no_null_bias():
    """Not even by rounding: its square is below 1e-30, not 1e-16."""
    moments = drawn(4, 0, torch.ones(4, dtype=torch.float64))
    tilted = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    tilted = tilted / tilted.norm()
    inside = Moments.empty(moments.gradient)
    for batch in range(BATCHES):
        noise = torch.randn(64, 4, generator=torch.Generator().manual_seed(batch), dtype=torch.float64)
        inside.add(moments.gradient + noise - torch.outer(noise @ tilted, tilted), batch)
    low, high = profile(Errors.of(inside).within(tilted.unsqueeze(-1)))
    assert low <= abs(Errors.of(inside).within(tilted.unsqueeze(-1)).square_norm()) <= high < 1e-28


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


def test_every_interval_says_how_it_was_made():
    metric = Geometry(torch.eye(4, dtype=torch.float64), 1.0, torch.eye(4, dtype=torch.float64)[:, 3:])
    found = estimated_metrics(drawn(4, 0, torch.ones(4, dtype=torch.float64)), metric)
    made = {name: interval.method for name, interval in found.items()}
    assert {name for name, method in made.items() if method == "wilson"} == {"zero_gradient_rate", "descent_probability", "sign_agreement"}
    assert {name for name, method in made.items() if method == "t"} == {"gain", "mean_cosine", "gradient_nonzeros"}
    profiled = {name for name, method in made.items() if method == "profile"}
    assert profiled == {"relative_bias", "relative_bias_squared", "orthogonal_bias", "null_bias"}
    assert all(made.values())
    assert "fisher_rho" not in found, "these moments hold no Fisher information"


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


def test_an_exact_mean_against_an_exact_reference_has_no_interval():
    gradient = torch.tensor([1.0, 0.0], dtype=torch.float64)
    scalars = [torch.tensor(value, dtype=torch.float64) for value in (1.0, math.inf, 0.0, 2.0)]
    summary = Summary(gradient, torch.tensor([0.0, 1.0], dtype=torch.float64), *scalars)
    own = torch.tensor([1.0, 1.0], dtype=torch.float64)
    found = exact_against(summary, NoisyReference(own, 0.0))
    assert found["relative_bias"] == Interval(0.0)
    assert found["gain"].value == pytest.approx(1)
    other = exact_against(summary, NoisyReference(gradient, 0.0))
    assert other["relative_bias"].value == other["orthogonal_bias"].value == 1
    noisy = exact_against(summary, NoisyReference(gradient, 0.01))["relative_bias"]
    assert noisy.low < 1 < noisy.high


def test_a_reference_that_is_all_noise_compares_with_nothing():
    moments = drawn(3, 0, torch.ones(3, dtype=torch.float64))
    found = estimated_against(moments, NoisyReference(torch.full((3,), 1e-3, dtype=torch.float64), 1.0))
    assert all(interval.value is None for interval in found.values())
