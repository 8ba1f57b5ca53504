from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from structgrad.oracles import Assignment, kernels
from structgrad.oracles.assignment import gpu as assignment
from structgrad.oracles.assignment import gpu_permanent
from structgrad.oracles.kernels import gpu

ORACLE = Assignment()


def total(structure: Tensor, scores: Tensor) -> Tensor:
    return torch.where(structure > 0, scores.double(), 0).sum((-2, -1))


def found_by(operation: str, rows: Tensor, results: tuple[Tensor, ...], *inputs: Tensor) -> tuple[Tensor, ...]:
    """What a kernel writes over NaN."""
    kernel = kernels.find("assignment", operation, rows)
    assert isinstance(kernel, gpu.DeviceKernel)
    for result in results:
        result.fill_(math.nan)
    kernel(rows, *inputs, *results)
    return results


def check_argmax(scores: Tensor) -> Tensor:
    """As good as the reference's permutation, with no more forbidden pairs."""
    (found,) = found_by("argmax", scores, (torch.empty_like(scores),))
    with kernels.disabled():
        expected = ORACLE._argmax(scores)  # of an infeasible item some permutation
    ones = torch.ones(scores.shape[:-1], dtype=scores.dtype, device=scores.device)
    assert torch.equal(found.sum(-1), ones)
    assert torch.equal(found.sum(-2), ones)
    assert bool(((found == 0) | (found == 1)).all())
    forbidden = [(structure * (scores == -math.inf)).sum((-2, -1)) for structure in (found, expected)]
    assert torch.equal(*forbidden)
    feasible = forbidden[0] == 0
    torch.testing.assert_close(total(found, scores)[feasible], total(expected, scores)[feasible], rtol=1e-13, atol=0)
    return found


def rows_of(size: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Plain scores, ties, forbidden pairs, and last no permutation at all."""
    rows = scale * torch.randn(4, size, size, dtype=dtype)
    rows[1] = rows[1].round() if scale == 1 else rows[1]
    rows[2] = rows[2].masked_fill((torch.rand(size, size) < 0.4) & ~torch.eye(size, dtype=torch.bool), -math.inf)
    rows[3, :, size // 2] = -math.inf
    return rows


@pytest.mark.parametrize(("size", "dtype"), [(1, torch.float32), (2, torch.float64), (5, torch.float32), (5, torch.float64)], ids=str)
def test_argmax_is_as_good_as_that_of_the_reference(size: int, dtype: torch.dtype, gpu_kernels: torch.device) -> None:
    rows = rows_of(size, dtype).to(gpu_kernels)
    found = check_argmax(rows)
    # The same for every batch, where permutations tie too.
    assert torch.equal(ORACLE.argmax(rows[1]), found[1])


def test_argmax_where_rows_want_the_same_columns(gpu_kernels: torch.device) -> None:
    # Products of two ascending vectors: every row exchanges the columns of those before it.
    ascending = torch.arange(6.0)
    scores = torch.stack([-ascending.unsqueeze(-1) * ascending, ascending.unsqueeze(-1) * ascending.sqrt()])
    assert torch.equal(check_argmax(scores.to(gpu_kernels))[0].argmax(-1).cpu(), torch.arange(6).flip(0))


def test_argmax_of_products_that_take_the_duals_of_several_paths(gpu_kernels: torch.device) -> None:
    # With duals that rise where they should fall, these two go wrong; few do.
    pairs = [torch.randn(2, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in (96, 288)]
    check_argmax(torch.stack([pair[0].unsqueeze(-1) * pair[1] for pair in pairs]).to(gpu_kernels))


def test_argmax_where_little_is_allowed(gpu_kernels: torch.device) -> None:
    scores = torch.full((2, 5, 5), -math.inf)
    scores[1, :, 1] = 1.0
    scores[1, 2, 4] = 1e4
    check_argmax(scores.to(gpu_kernels))


def test_argmax_of_many_columns_per_thread(gpu_kernels: torch.device) -> None:
    if gpu_kernels.type == "cpu":
        pytest.skip("takes a GPU: the interpreter has no threads")
    for size in (64, 257, 1000):
        check_argmax(torch.randn(2, size, size, device=gpu_kernels))


def test_half_precision(gpu_kernels: torch.device) -> None:
    scores = torch.randn(3, 3, generator=torch.Generator().manual_seed(1)).half().to(gpu_kernels)
    assert ORACLE.argmax(scores).dtype == torch.half
    with kernels.disabled():
        expected = ORACLE.marginals(scores)
    torch.testing.assert_close(ORACLE.marginals(scores), expected)


def test_what_is_served() -> None:
    for operation, most in (("argmax", 2048), ("sample", 16), ("marginals", 16)):
        for size, taken in ((most, True), (most + 1, False)):
            assert assignment.serves(operation, (size, size), torch.float32, ()) == taken


def all_sums(rows: Tensor, direction: Tensor, uniforms: Tensor) -> tuple[Tensor, ...]:
    count, draws, size = uniforms.shape
    marginals, log_partition = found_by("marginals", rows, (torch.empty_like(rows), rows.new_empty(count, dtype=torch.float64)))
    (alone,) = found_by("log_partition", rows, (torch.empty_like(log_partition),))
    torch.testing.assert_close(alone, log_partition, rtol=0, atol=0)
    (product,) = found_by("covariance_product", rows, (torch.empty_like(rows),), direction)
    (drawn,) = found_by("sample", rows, (rows.new_empty(count, draws, size, size),), uniforms)
    return log_partition, marginals, product, drawn


def expected_sums(rows: Tensor, direction: Tensor, uniforms: Tensor) -> tuple[Tensor, ...]:
    double = rows.double()
    with kernels.disabled():
        marginals, log_partition = ORACLE._compute_marginals(double)
        product = ORACLE._compute_covariance_product(double, direction)
        return log_partition, marginals, product, ORACLE._draw(double, uniforms)


@pytest.mark.parametrize(
    ("size", "dtype", "scale"),
    [
        (1, torch.float64, 1.0),
        (2, torch.float32, 0.05),
        (3, torch.float64, 50.0),
        pytest.param(3, torch.float64, 1.0, marks=pytest.mark.sweep),
        pytest.param(4, torch.float64, 50.0, marks=pytest.mark.sweep),
    ],
    ids=str,
)
def test_sums_equal_those_of_the_reference(size: int, dtype: torch.dtype, scale: float, gpu_kernels: torch.device) -> None:
    rows = rows_of(size, dtype, scale)[1:]
    rows[0] += 1e4
    direction = torch.randn(rows.shape, dtype=dtype)
    uniforms = torch.rand(3, 3, size, dtype=torch.float64)
    uniforms[:, 1], uniforms[:, 2] = 0.0, 1 - 2**-53
    inputs = [value.to(gpu_kernels) for value in (rows, direction, uniforms)]
    found, expected = all_sums(*inputs), expected_sums(*inputs)
    accuracy = {"rtol": 1e-11, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    for first, second in zip(found[:3], expected[:3], strict=True):
        torch.testing.assert_close(first.double(), second, **accuracy)
    assert torch.equal(found[3].double(), expected[3].double())
    assert found[0][2] == -math.inf
    assert not any(result[2].any() for result in found[1:])
    # Relative to themselves too, however small.
    if dtype == torch.float64:
        torch.testing.assert_close(found[1], expected[1], rtol=1e-9, atol=1e-250)


def test_sets_and_samples_beyond_one_program(gpu_kernels: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(2, 3, 3, dtype=torch.float64, device=gpu_kernels)
    uniforms = torch.rand(2, 3, 3, dtype=torch.float64, device=gpu_kernels)
    for name, value in (("SETS", 2), ("PAIRS", 2), ("DRAWS", 2)):
        monkeypatch.setattr(gpu_permanent, name, value)
    found, expected = all_sums(rows, rows.sin(), uniforms), expected_sums(rows, rows.sin(), uniforms)
    for first, second in zip(found, expected, strict=True):
        torch.testing.assert_close(first, second.to(first), rtol=1e-11, atol=1e-12)


def test_an_offset_of_a_direction_costs_no_digits(gpu_kernels: torch.device) -> None:
    rows = torch.randn(1, 2, 2, dtype=torch.float64, device=gpu_kernels)
    direction = torch.randn(1, 2, 2, dtype=torch.float64, device=gpu_kernels).round()
    offset = 1e12 * torch.arange(2.0, dtype=torch.float64, device=gpu_kernels).unsqueeze(-1)
    found, shifted = (ORACLE._compute_covariance_product(rows, along) for along in (direction, direction + offset))
    torch.testing.assert_close(shifted, found, rtol=1e-13, atol=1e-13)


def test_gradients_of_the_gradient(gpu_kernels: torch.device) -> None:
    def second(scores: Tensor) -> Tensor:
        leaf = scores.clone().requires_grad_()
        (first,) = torch.autograd.grad(ORACLE.log_partition(leaf), leaf, create_graph=True)
        (found,) = torch.autograd.grad(first.square().sum(), leaf)
        return found

    scores = torch.randn(2, 2, dtype=torch.float64, device=gpu_kernels)
    found = second(scores)
    with kernels.disabled():
        torch.testing.assert_close(found, second(scores), rtol=1e-11, atol=1e-13)
