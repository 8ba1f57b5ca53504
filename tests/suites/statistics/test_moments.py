"""Streaming moments against numpy, and as an algebra: any order, any partition."""

from __future__ import annotations

import pytest
import torch

from structgrad.suites.statistics.metrics import single, summarise
from structgrad.suites.statistics.moments import BATCHES, FULL_COVARIANCE, Moments

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
def test_single_estimates_are_counted_one_by_one(size):
    gradient = torch.linspace(-1, 2, size, dtype=torch.float64)
    information = torch.diag(torch.linspace(0.5, 2, size, dtype=torch.float64)) + 0.1
    moments, estimates = Moments.empty(gradient, information), drawn(500, size)
    for block in estimates.split(64):
        moments.add(block, 0)
    inner, norms = estimates @ gradient, estimates.norm(dim=-1)
    expected = {
        "signs": estimates.sign().sum(0),
        "nonzero": (estimates != 0).double().sum(0),
        "descents": (inner > 0).double().sum(),
        "cosines": torch.where(norms > 0, inner / (norms * gradient.norm()), 0).sum(),
        "quartics": norms.pow(4).sum(),
        "informed": ((estimates @ information) * estimates).sum(),
    }
    for field, value in expected.items():
        torch.testing.assert_close(getattr(moments, field)[0], value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [3, FULL_COVARIANCE + 1])
def test_a_state_goes_on_as_if_nothing_had_happened(size):
    gradient, blocks = torch.ones(size, dtype=torch.float64), list(drawn(320, size).split(16))
    whole = streamed(gradient, blocks)
    restored = Moments.from_state(streamed(gradient, blocks[:7]).state(), gradient)
    for i, block in enumerate(blocks[7:], start=7):
        restored.add(block, i % BATCHES)
    for field in ARRAYS:
        assert torch.equal(getattr(whole, field), getattr(restored, field)), field
    assert restored.total == 320
    assert (whole.comoment is None) == (restored.comoment is None)


def test_a_state_is_not_used_for_another_gradient():
    with pytest.raises(ValueError, match="against another gradient; expected the same exact gradient"):
        Moments.from_state(streamed(torch.ones(3), [drawn(10, 3)]).state(), torch.zeros(3))


@pytest.mark.parametrize("size", [1, 7, FULL_COVARIANCE + 1])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_blocks_at_once_are_blocks_one_by_one(size: int, offset: float, device: torch.device) -> None:
    """Blocks of several sizes, with gaps, twice in a batch, more than the cache holds, and estimates that are mostly 0."""
    gradient = (torch.linspace(0, 1, size, dtype=torch.float64) + offset).to(device)
    root = drawn(size, size, 2).to(device)
    estimates = drawn(40_000, size).to(device) * (drawn(40_000, size, 1).to(device) > 1) + offset
    blocks = [(start, start + 128, start // 128 % BATCHES) for start in range(0, 39_000, 128)] + [(39_100, 39_104, 3), (39_104, 39_300, 3)]
    together, apart = (Moments.empty(gradient, root.mT @ root) for _ in range(2))
    together.add_blocks(estimates, blocks)
    for first, end, batch in blocks:
        apart.add(estimates[first:end], batch)
    for name in (*ARRAYS, *(() if apart.comoment is None else ("comoment",))):
        torch.testing.assert_close(getattr(together, name), getattr(apart, name), rtol=1e-9, atol=1e-9, msg=name)
    assert together.total == apart.total == sum(end - first for first, end, _ in blocks)


@pytest.mark.parametrize("size", [1, 13, FULL_COVARIANCE + 1])
def test_exact_moments_are_weighted_sums(size: int) -> None:
    gradient, information = torch.linspace(0, 1, size, dtype=torch.float64), drawn(size, size, 2)
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
    assert summary.estimates is not None
    assert summary.estimates.informed is not None
    torch.testing.assert_close(summary.estimates.informed, shares @ ((outcomes @ information) * outcomes).sum(1))
    torch.testing.assert_close(summary.zero, shares @ (outcomes == 0).all(1).double())
    assert float(single(outcomes[1], gradient).trace) < 1e-9
