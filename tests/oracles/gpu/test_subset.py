from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from structgrad.oracles import Subset, kernels
from structgrad.oracles.kernels import gpu
from structgrad.oracles.subset import gpu as subset


def found_by(operation: str, k: int, rows: Tensor, results: tuple[Tensor, ...], *inputs: Tensor) -> tuple[Tensor, ...]:
    """What a kernel writes over NaN."""
    kernel = kernels.find("subset", operation, rows, (k,))
    assert isinstance(kernel, gpu.DeviceKernel)
    for result in results:
        result.fill_(math.nan)
    kernel(rows, *inputs, *results)
    return results


def all_found(k: int, rows: Tensor, direction: Tensor, uniforms: Tensor) -> tuple[Tensor, ...]:
    marginals, log_partition = found_by("marginals", k, rows, (torch.empty_like(rows), rows.new_empty(len(rows), dtype=torch.float64)))
    (alone,) = found_by("log_partition", k, rows, (torch.empty_like(log_partition),))
    torch.testing.assert_close(alone, log_partition, rtol=0, atol=0)
    (product,) = found_by("covariance_product", k, rows, (torch.empty_like(rows),), direction)
    (drawn,) = found_by("sample", k, rows, (torch.empty_like(uniforms, dtype=rows.dtype),), uniforms)
    return log_partition, marginals, product, drawn


def all_expected(k: int, rows: Tensor, direction: Tensor, uniforms: Tensor) -> tuple[Tensor, ...]:
    oracle, double = Subset(k), rows.double()
    with kernels.disabled():
        marginals, log_partition = oracle._compute_marginals(double)
        product = oracle._compute_covariance_product(double, direction)
        return log_partition, marginals, product, oracle._draw(double, uniforms)


@pytest.mark.parametrize(
    ("n", "k", "dtype", "scale"),
    [
        (1, 1, torch.float64, 1.0),
        (5, 2, torch.float32, 0.05),
        (4, 4, torch.float64, 50.0),
        (5, 3, torch.float64, 50.0),
        pytest.param(9, 4, torch.float64, 50.0, marks=pytest.mark.sweep),
    ],
    ids=str,
)
def test_sums_equal_those_of_the_reference(n: int, k: int, dtype: torch.dtype, scale: float, gpu_kernels: torch.device) -> None:
    rows = scale * torch.randn(3, n, dtype=dtype)
    rows[0] += 1e4
    rows[1, : n - k] = -math.inf
    rows[2, : n - k + 1] = -math.inf
    direction = torch.randn(rows.shape, dtype=dtype)
    uniforms = torch.rand(3, 4, n, dtype=torch.float64)
    uniforms[:, 2], uniforms[:, 3] = 0.0, 1 - 2**-53
    inputs = [value.to(gpu_kernels) for value in (rows, direction, uniforms)]
    found, expected = all_found(k, *inputs), all_expected(k, *inputs)
    accuracy = {"rtol": 1e-11, "atol": 1e-11} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    for first, second in zip(found[:3], expected[:3], strict=True):
        torch.testing.assert_close(first.double(), second, **accuracy)
    assert torch.equal(found[3].double(), expected[3].double())
    assert found[0][2] == -math.inf
    assert not any(result[2].any() for result in found[1:])


def test_parts_and_counts_and_samples_beyond_one_program(gpu_kernels: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PARTS", 2), ("COUNTS", 2), ("DRAWS", 2)):
        monkeypatch.setattr(subset, name, value)
    rows = torch.randn(2, 7, dtype=torch.float64, device=gpu_kernels)
    uniforms = torch.rand(2, 3, 7, dtype=torch.float64, device=gpu_kernels)
    found, expected = all_found(3, rows, rows.sin(), uniforms), all_expected(3, rows, rows.sin(), uniforms)
    for first, second in zip(found, expected, strict=True):
        torch.testing.assert_close(first, second.to(first), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_one_uniform_for_each_part_that_is_taken(scale: float, gpu_kernels: torch.device) -> None:
    rows = scale * torch.randn(4, 6, dtype=torch.float64)
    rows[1, 2], rows[2, :3], rows[3, :4] = -math.inf, -math.inf, -math.inf
    uniforms = torch.rand(4, 4, 3, dtype=torch.float64)
    uniforms[:, 1], uniforms[:, 2] = 0.0, 1 - 2**-53
    rows, uniforms = rows.to(gpu_kernels), uniforms.to(gpu_kernels)
    (found,) = found_by("sample", 3, rows, (torch.empty(4, 4, 6, dtype=torch.float64, device=gpu_kernels),), uniforms)
    with kernels.disabled():
        assert torch.equal(found, Subset(3)._draw(rows, uniforms))


def test_an_offset_of_a_direction_costs_few_digits(gpu_kernels: torch.device) -> None:
    rows = torch.randn(1, 5, dtype=torch.float64, device=gpu_kernels)
    direction = torch.randn(1, 5, dtype=torch.float64, device=gpu_kernels).round()
    found, shifted = (Subset(2)._compute_covariance_product(rows, along) for along in (direction, direction + 1e6))
    torch.testing.assert_close(shifted, found, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("n", "k", "dtype"), [(1, 1, torch.float64), (9, 4, torch.float32), (8, 8, torch.float64)], ids=str)
def test_argmax_equals_that_of_the_reference(n: int, k: int, dtype: torch.dtype, gpu_kernels: torch.device) -> None:
    rows = torch.randn(4, n, dtype=dtype)
    rows[1] = rows[1].round()
    rows[2] = 0.0
    rows[2, ::2] = -0.0
    rows[3, : n - k + 1] = -math.inf
    rows = rows.to(gpu_kernels)
    (found,) = found_by("argmax", k, rows, (torch.empty_like(rows),))
    with kernels.disabled():
        expected = Subset(k).argmax(rows)
    assert torch.equal(found[:3], expected[:3])
    assert torch.equal(Subset(k).argmax(rows), expected)


def test_half_precision(gpu_kernels: torch.device) -> None:
    scores = torch.randn(4).half().to(gpu_kernels)
    with kernels.disabled():
        expected = Subset(2).marginals(scores)
    torch.testing.assert_close(Subset(2).marginals(scores), expected)


def test_what_is_served() -> None:
    assert subset.serves("marginals", (subset.MOST,), torch.float32, (3,))
    assert not subset.serves("marginals", (subset.MOST + 1,), torch.float32, (3,))


def test_gradients_of_the_gradient(gpu_kernels: torch.device) -> None:
    def second(scores: Tensor) -> Tensor:
        leaf = scores.clone().requires_grad_()
        (first,) = torch.autograd.grad(Subset(2).log_partition(leaf), leaf, create_graph=True)
        (found,) = torch.autograd.grad(first.square().sum(), leaf)
        return found

    scores = torch.randn(4, dtype=torch.float64, device=gpu_kernels)
    found = second(scores)
    with kernels.disabled():
        torch.testing.assert_close(found, second(scores), rtol=1e-11, atol=1e-13)
