"""Streaming moments against numpy, intervals and metrics: formulas, coverage, and references with noise of their own."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from structgrad.suites.statistics.intervals import UNRESOLVED, Interval, clustered_wilson, jackknives, median_interval, wilson
from structgrad.suites.statistics.metrics import (
    Geometry,
    NoisyGradient,
    Summary,
    estimated_metrics,
    exact_metrics,
    metrics_against,
    single,
    summarise,
)
from structgrad.suites.statistics.moments import BATCHES, FULL_COVARIANCE, Moments
from structgrad.suites.statistics.selection import student_mean

ARRAYS = ("count", "mean", "square", "along", "zero", "nonzero", "signs", "descents", "cosines", "quartics", "informed", "total_mean")


def drawn(rows: int, size: int, seed: int = 0) -> torch.Tensor:
    estimates = torch.randn(rows, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    estimates[::7] = 0
    return estimates


def streamed(gradient: torch.Tensor, blocks: list[torch.Tensor], first: int = 0) -> Moments:
    moments = Moments.empty(gradient)
    for i, block in enumerate(blocks):
        moments.add(block, (first + i) % BATCHES)
    return moments


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_equals_the_plain_formulas(offset):
    gradient = torch.linspace(-1, 1, 5, dtype=torch.float64) + offset
    estimates = drawn(5000, 5) + offset
    moments = streamed(gradient, list(estimates.split(64)))
    summary = summarise(moments)
    errors = estimates - gradient
    torch.testing.assert_close(summary.error, errors.mean(0), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(summary.trace, errors.var(0).sum(), rtol=1e-9, atol=0)
    torch.testing.assert_close(moments.comoment / 4999, torch.cov(errors.T), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("size", [3, FULL_COVARIANCE + 1])
def test_merging_in_any_order_is_the_same_as_streaming(size):
    gradient, information = torch.linspace(-1, 1, size, dtype=torch.float64), torch.eye(size, dtype=torch.float64)
    whole, *parts = (Moments.empty(gradient, information) for _ in range(4))
    for i, block in enumerate((10 + drawn(70 * 16, size).float()).split(16)):
        whole.add(block, i % BATCHES)
        parts[i % 3].add(block, i % BATCHES)
    a, b, c = parts
    for other in (a.merged(b).merged(c), c.merged(b.merged(a)), whole.merged(Moments.empty(gradient, information))):
        assert other.total == whole.total == 70 * 16
        for field in ARRAYS:
            torch.testing.assert_close(getattr(whole, field), getattr(other, field), rtol=1e-11, atol=1e-11)
        assert (whole.comoment is None) == (other.comoment is None) == (size > FULL_COVARIANCE)
        if whole.comoment is not None:
            torch.testing.assert_close(whole.comoment, other.comoment, rtol=1e-11, atol=1e-9)


@pytest.mark.parametrize("size", [3, FULL_COVARIANCE + 1])
def test_a_state_goes_on_as_if_nothing_had_happened(size):
    gradient, blocks = torch.ones(size, dtype=torch.float64), list(drawn(320, size).split(16))
    whole = streamed(gradient, blocks)
    restored = Moments(**streamed(gradient, blocks[:7]).state(), information=None)
    for i, block in enumerate(blocks[7:], start=7):
        restored.add(block, i % BATCHES)
    for field in ARRAYS:
        assert torch.equal(getattr(whole, field), getattr(restored, field)), field
    assert restored.total == 320
    assert (whole.comoment is None) == (restored.comoment is None)


@pytest.mark.parametrize("size", [1, 7, FULL_COVARIANCE + 1])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_blocks_at_once_are_blocks_one_by_one(size: int, offset: float, device: torch.device) -> None:
    """Blocks of several sizes, with gaps, twice in a batch, more than the cache holds, and estimates that are mostly 0."""
    gradient = (torch.linspace(0, 1, size, dtype=torch.float64) + offset).to(device)
    root = drawn(size, size, 2).to(device)
    rows = 40_000 if size < 100 else 8_000
    estimates = drawn(rows, size).to(device) * (drawn(rows, size, 1).to(device) > 1) + offset
    blocks = [(start, start + 128, start // 128 % BATCHES) for start in range(0, rows - 1000, 128)]
    blocks += [(rows - 800, rows - 796, 3), (rows - 796, rows - 600, 3)]
    together, apart = (Moments.empty(gradient, root.mT @ root) for _ in range(2))
    rows = torch.cat([estimates[first:end] for first, end, _ in blocks])
    together.add(rows, [batch for first, end, batch in blocks for _ in range(first, end)])
    for first, end, batch in blocks:
        apart.add(estimates[first:end], batch)
    for name in (*ARRAYS, *(() if apart.comoment is None else ("comoment",))):
        torch.testing.assert_close(getattr(together, name), getattr(apart, name), rtol=1e-9, atol=1e-9, msg=name)
    assert together.total == apart.total == sum(end - first for first, end, _ in blocks)


@pytest.mark.parametrize("estimate", [1e80, math.inf, math.nan], ids=str)
def test_an_estimate_without_bounds_stays_in_its_batch(estimate: float) -> None:
    estimates = torch.randn(8, 3, dtype=torch.float64)
    moments = Moments.empty(torch.zeros(3), batches=4)
    moments.add(estimates.index_fill(0, torch.tensor([1]), estimate), [0, 0, 1, 1, 2, 2, 3, 3])
    assert all(bool(values[1:].isfinite().all()) for values in (moments.mean, moments.square, moments.along, moments.quartics))
    moments.add(estimates[:0], [])


@pytest.mark.parametrize("size", [1, 13, FULL_COVARIANCE + 1])
def test_exact_moments_are_weighted_sums(size: int) -> None:
    gradient, information = torch.linspace(0, 1, size, dtype=torch.float64) - 0.3 * (size > 1), drawn(size, size, 2)
    information = information.mT @ information
    weights, outcomes = torch.rand(900, generator=torch.Generator().manual_seed(3), dtype=torch.float64), drawn(900, size)
    found = Moments.empty(gradient, information, batches=1)
    for block, shares in zip(outcomes.split(300), weights.split(300), strict=True):
        found.add(block, weights=shares)
    found.add(drawn(300, size), weights=torch.zeros(300, dtype=torch.float64))
    summary, shares = summarise(found, exact=True), weights / weights.sum()
    errors = outcomes - gradient
    torch.testing.assert_close(summary.error, shares @ errors)
    centred = errors - shares @ errors
    torch.testing.assert_close(summary.trace, shares @ centred.square().sum(1))
    if found.comoment is not None:
        torch.testing.assert_close(found.comoment / found.count, (centred * shares.unsqueeze(1)).mT @ centred)
    torch.testing.assert_close(summary.informed, shares @ ((outcomes @ information) * outcomes).sum(1))
    torch.testing.assert_close(summary.zero, shares @ (outcomes == 0).all(1).double())
    outcomes, active = torch.where(outcomes.abs() < 1e-13 * outcomes.abs().amax(1, keepdim=True), 0, outcomes), gradient.abs() > 1e-12
    length, along = outcomes.norm(dim=1), outcomes @ gradient
    singles = {
        "nonzero": (outcomes != 0).sum(1),
        "descent": along > 0,
        "cosine": torch.where(length > 0, along / (length * gradient.norm()).clamp(min=1e-300), 0),
        "quartic": length**4,
        "agreeing": ((outcomes * gradient > 0) & active).sum(1),
        "signed": ((outcomes != 0) & active).sum(1),
    }
    for name, values in singles.items():
        torch.testing.assert_close(getattr(summary, name), shares @ values.double(), msg=name)
    assert float(single(outcomes[1], gradient).trace) < 1e-9
    rho, mean = exact_metrics(summary, Geometry(information, 2.0, information[:, :0])), shares @ outcomes
    spread = summary.informed - mean @ information @ mean
    for name, count in {"fisher_rho": 1, "fisher_rho_16": 16}.items() if size > 1 else ():
        expected = mean @ gradient / (2.0 * (summary.informed - spread + spread / count)).sqrt()
        assert rho[name].value == pytest.approx(float(expected))


RUNS = 120


def noisy_moments(size: int, seed: int, mean: Tensor, rows: int = 2048) -> Moments:
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


@pytest.mark.parametrize("count", [2, 5, 6, 30, 161])
def test_means_and_medians_have_the_intervals_of_scipy(count: int) -> None:
    values = np.random.default_rng(count).lognormal(size=count)
    mean, median = student_mean(np.append(values, np.nan)), median_interval(values)
    assert (mean.low, mean.high) == pytest.approx(tuple(stats.ttest_1samp(values, 0).confidence_interval()))
    expected = stats.quantile_test(values, p=0.5).confidence_interval()
    assert (mean.value, median.value) == pytest.approx((values.mean(), np.median(values)))
    assert (median.low, median.high) == ((None, None) if count < 6 else tuple(expected))


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
        found = estimated_metrics(noisy_moments(size, seed, mean), metric)["null_bias"]
        assert found.method == "profile"
        hits += found.low <= 0.4 <= found.high
    assert least <= hits / runs <= 0.99
    assert estimated_metrics(noisy_moments(size, 0, torch.eye(size, dtype=torch.float64)[0]), metric)["null_bias"].low == 0


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
        moments = noisy_moments(size, seed, mean, rows)
        found = metrics_against(moments, NoisyGradient(objective + error, size * scale**2))
        for name, value in true.items():
            hits[name] += found[name].low <= value <= found[name].high
        assert max(found["relative_bias_squared"].value, 0) == pytest.approx(found["relative_bias"].value ** 2)
        deaf = metrics_against(moments, NoisyGradient(objective + error, 0.0))["relative_bias"]
        blind += deaf.low <= true["relative_bias"] <= deaf.high
    assert all(count >= 0.93 * runs for count in hits.values()), hits
    assert blind < 0.93 * runs or bias > 0


def test_a_reference_that_is_all_noise_compares_with_nothing():
    moments = noisy_moments(3, 0, torch.ones(3, dtype=torch.float64))
    found = metrics_against(moments, NoisyGradient(torch.full((3,), 1e-3, dtype=torch.float64), 1.0))
    assert all(interval.value is None for interval in found.values())


def summary(error: list[float], trace: float, replicates: float = math.inf) -> Summary:
    gradient = torch.tensor([3.0, 4.0], dtype=torch.float64)
    scalars = [torch.tensor(value, dtype=torch.float64) for value in (trace, replicates, 0.25, 1.5, 0.9, 0.5, 450.0, 3.0, 4.0)]
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
        "mean_cosine": 0.5,
        "descent_probability": 0.9,
        "sign_agreement": 0.75,
        "kurtosis": 450 / (100 + 50) ** 2,
        "zero_gradient_rate": 0.25,
        "gradient_nonzeros": 1.5,
    }
    assert {name: interval.value for name, interval in metrics.items()} == pytest.approx(expected)
    assert all(interval.low is None and interval.high is None for interval in metrics.values())


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
