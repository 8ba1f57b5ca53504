"""Streaming moments against numpy, and as an algebra: any order, any partition."""

from __future__ import annotations

import pytest
import torch

from structgrad.suites.statistics.metrics import summarise
from structgrad.suites.statistics.moments import BATCHES, FULL_COVARIANCE, Moments


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


def test_counts_zeros_and_nonzeros():
    estimates = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 2.0], [0.0, 0.0]], dtype=torch.float64)
    moments = streamed(torch.zeros(2), [estimates[:3], estimates[3:]])
    summary = summarise(moments)
    assert float(summary.zero) == 0.5
    assert float(summary.nonzero) == 0.75


def test_along_is_the_square_sum_along_the_gradient():
    gradient = torch.tensor([3.0, 4.0], dtype=torch.float64)
    blocks = [drawn(50, 2, seed) for seed in range(3)]
    moments = Moments.empty(gradient)
    for block in blocks:
        moments.add(block, 0)
    along = (torch.cat(blocks) - gradient) @ torch.tensor([0.6, 0.8], dtype=torch.float64)
    assert float(moments.along[0]) == pytest.approx(float((along - along.mean()).square().sum()))


@pytest.mark.parametrize("size", [3, FULL_COVARIANCE + 1])
def test_merging_is_the_same_as_streaming(size):
    gradient = torch.ones(size, dtype=torch.float64)
    blocks = list(drawn(70 * 16, size).split(16))
    whole = streamed(gradient, blocks)
    parts = streamed(gradient, blocks[:41]).merged(streamed(gradient, blocks[41:], first=41))
    back = streamed(gradient, blocks[41:], first=41).merged(streamed(gradient, blocks[:41]))
    for other in (parts, back):
        for field in ("count", "mean", "square", "along", "zero", "nonzero", "total_mean"):
            torch.testing.assert_close(getattr(whole, field), getattr(other, field), rtol=1e-12, atol=1e-12)
        if whole.comoment is None:
            assert size > FULL_COVARIANCE
            assert other.comoment is None
        else:
            torch.testing.assert_close(whole.comoment, other.comoment, rtol=1e-12, atol=1e-9)


def test_merging_with_nothing_changes_nothing():
    moments = streamed(torch.ones(3), [drawn(10, 3)])
    merged = moments.merged(Moments.empty(torch.ones(3)))
    torch.testing.assert_close(merged.mean, moments.mean)
    assert merged.total == 10


def test_refuses_to_merge_errors_against_different_gradients():
    with pytest.raises(ValueError, match="against different gradients; expected the same exact gradient"):
        Moments.empty(torch.ones(3)).merged(Moments.empty(torch.zeros(3)))


def test_float32_estimates_are_accumulated_in_float64():
    moments = streamed(torch.zeros(2), [drawn(10, 2).float()])
    assert moments.mean.dtype == torch.float64
