"""Streaming moments against numpy, and as an algebra: any order, any partition."""

from __future__ import annotations

import pytest
import torch

from structgrad.oracles import kernels
from structgrad.suites.statistics.exact_moments import ExactMoments, single
from structgrad.suites.statistics.kernels import symmetric
from structgrad.suites.statistics.metrics import summarise
from structgrad.suites.statistics.moments import BATCHES, FULL_COVARIANCE, Moments

ARRAYS = ("count", "mean", "square", "along", "zero", "nonzero", "signs", "descents", "cosines", "quartics", "informed", "total_mean")
INFORMATION = torch.diag(torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64))


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
        for field in ARRAYS:
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


def test_merging_three_parts_in_any_order_is_the_same_to_1e_12():
    gradient = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    parts = [Moments.empty(gradient, INFORMATION) for _ in range(3)]
    for i, block in enumerate(drawn(960, 3).split(16)):
        parts[i % 3].add(1e3 + block, i % BATCHES)
    a, b, c = parts
    for one, other in ((a.merged(b).merged(c), c.merged(a.merged(b))), (b.merged(c).merged(a), a.merged(c).merged(b))):
        for field in (*ARRAYS, "comoment"):
            torch.testing.assert_close(getattr(one, field), getattr(other, field), rtol=1e-12, atol=1e-12)


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


def test_a_state_is_not_used_for_another_gradient_or_version(monkeypatch):
    state = streamed(torch.ones(3), [drawn(10, 3)]).state()
    with pytest.raises(ValueError, match="against another gradient; expected the same exact gradient"):
        Moments.from_state(state, torch.zeros(3))
    monkeypatch.setattr("structgrad.suites.statistics.moments.STATE_VERSION", 99)
    with pytest.raises(ValueError, match="got a state of version 1; expected 99, measure anew"):
        Moments.from_state(state, torch.ones(3))


@pytest.mark.parametrize("information", [None, INFORMATION], ids=["plain", "informed"])
@pytest.mark.parametrize(("number", "first"), [(1, 0), (BATCHES, 0), (7, BATCHES - 3)])
def test_a_round_is_the_same_as_its_blocks(number, first, information, device):
    gradient = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64, device=device)
    information = None if information is None else information.to(device)
    blocks = [drawn(number * 16, 3, seed).reshape(number, 16, 3).to(device) for seed in range(2)]
    one, many = Moments.empty(gradient, information), Moments.empty(gradient, information)
    for start, pieces in zip((first, first + number), blocks, strict=True):
        many.add_round(pieces, start)
        for offset, piece in enumerate(pieces):
            one.add(piece, (start + offset) % BATCHES)
    for name in (*ARRAYS, "comoment"):
        torch.testing.assert_close(getattr(many, name), getattr(one, name), rtol=1e-12, atol=1e-12, msg=name)
    assert many.total == one.total == 2 * number * 16


def rare(rows: int, size: int) -> torch.Tensor:
    """Estimates that are mostly 0, one part of them always."""
    estimates = drawn(rows, size)
    estimates *= torch.rand(rows, size, generator=torch.Generator().manual_seed(1)) < 0.02
    estimates[:, 0] = 0
    return estimates


def positive(size: int) -> torch.Tensor:
    root = drawn(size, size, 2)
    return root.mT @ root


@pytest.mark.parametrize("size", [1, 7, FULL_COVARIANCE + 1])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e6])
def test_compiled_steps_give_what_plain_ones_do(size: int, scale: float) -> None:
    """Of parts that move in some blocks alone, too, and of gradients that no estimate comes near."""
    gradient = scale * torch.linspace(0, 1, size, dtype=torch.float64)
    information = positive(size)
    compiled, plain = Moments.empty(gradient, information), Moments.empty(gradient, information)
    for i, block in enumerate(rare(70 * 16, size).split(16)):
        compiled.add(block, i % BATCHES)
        with kernels.disabled():
            plain.add(block, i % BATCHES)
    close = {"rtol": 1e-11, "atol": 1e-12} if scale <= 1 else {"rtol": 1e-8, "atol": 1e-8}
    for field in ARRAYS:
        torch.testing.assert_close(getattr(compiled, field), getattr(plain, field), **close)
    assert compiled.total == plain.total
    if plain.comoment is not None:
        torch.testing.assert_close(compiled.comoment, plain.comoment, **close)


def test_what_is_shared_by_all_rows_is_counted_row_by_row() -> None:
    moments = streamed(torch.zeros(2), [torch.tensor([1.0, 0.0]).expand(8, 2)])
    assert moments.signs[0].tolist() == [8, 0]


@pytest.mark.parametrize("size", [7, 13])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e6])
def test_compiled_outcomes_give_what_plain_ones_do(scale: float, size: int) -> None:
    gradient, information = scale * torch.linspace(0, 1, size, dtype=torch.float64), positive(size)
    weights = torch.rand(900, generator=torch.Generator().manual_seed(3), dtype=torch.float64) / 450
    compiled, plain = ExactMoments(gradient, information), ExactMoments(gradient, information)
    for block, shares in zip(rare(900, size).split(300), weights.split(300), strict=True):
        compiled.add(block, shares)
        with kernels.disabled():
            plain.add(block, shares)
    for field in ("error", "products", "sums"):
        torch.testing.assert_close(getattr(compiled, field), getattr(plain, field), rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("size", [8, 9, 13, 17])
def test_half_of_a_product_gives_all_of_it(size: int) -> None:
    rows, weights = drawn(50, size), torch.rand(50, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    out = torch.empty(size, size, dtype=torch.float64)
    symmetric.product(rows.flatten().numpy(), (weights * rows).flatten().numpy(), 50, size, out.view(-1).numpy())
    torch.testing.assert_close(out, rows.mT @ (weights * rows), rtol=1e-12, atol=1e-12)
    assert torch.equal(out, out.mT)


@pytest.mark.parametrize("still", [(), (1, 4)])
def test_one_outcome_has_the_moments_of_plain_sums(still: tuple[int, ...]) -> None:
    gradient, estimate = drawn(2, 6, seed=1)[1], drawn(2, 6, seed=2)[1]
    gradient[list(still)] = estimate[list(still)] = 0.0
    found = single(estimate, gradient, positive(6))
    with kernels.disabled():
        plain = single(estimate, gradient, positive(6))
    assert found.covariance is None
    for name in ("error", "trace", "zero", "nonzero"):
        torch.testing.assert_close(getattr(found, name), getattr(plain, name), rtol=1e-12, atol=1e-14)
    assert found.estimates is not None
    assert plain.estimates is not None
    for value, expected in zip(vars(found.estimates).values(), vars(plain.estimates).values(), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_blocks_of_a_launch_give_the_bits_of_blocks_that_are_added_alone(dtype: torch.dtype) -> None:
    stream = torch.Generator().manual_seed(0)
    gradient, estimates = torch.randn(5, generator=stream), torch.randn(12, 5, generator=stream, dtype=torch.float64).to(dtype)
    together, alone = (Moments.empty(gradient, torch.eye(5, dtype=torch.float64)) for _ in range(2))
    blocks = [(0, 4, 3), (4, 8, 0), (8, 11, 3)]
    together.add_blocks(estimates, blocks)
    for first, end, batch in blocks:
        alone.add(estimates[first:end].clone(), batch)
    assert together.state() == alone.state()
    assert together.count.tolist()[:4] == [4, 0, 0, 7]


@pytest.mark.parametrize("parts", [5, 20, FULL_COVARIANCE + 4])
def test_blocks_of_a_launch_are_those_of_calls_of_their_own(parts: int) -> None:
    stream = torch.Generator().manual_seed(parts)
    estimates = torch.randn(300, parts, generator=stream, dtype=torch.float64)
    estimates[:128, 4:] = 0  # too few parts that move for the product of symmetric matrices
    factor = torch.randn(parts, parts, generator=stream, dtype=torch.float64)
    together, apart = (Moments.empty(torch.eye(parts, dtype=torch.float64)[0], factor @ factor.mT) for _ in range(2))
    together.add_blocks(estimates, [(0, 128, 3), (128, 256, 4), (256, 300, 3)])
    for first, end, batch in ((0, 128, 3), (128, 256, 4), (256, 300, 3)):
        apart.add(estimates[first:end], batch)
    assert together.state() == apart.state()
