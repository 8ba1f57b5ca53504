from __future__ import annotations

import importlib
import math

import pytest
import torch
from torch import Tensor

from structgrad.oracles import SpanningTree, kernels


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results and workspaces hold NaN before they are written."""
    empty = torch.empty

    def poisoned(*args: object, **kwargs: object) -> Tensor:
        made: Tensor = empty(*args, **kwargs)  # type: ignore[call-overload]
        return made.fill_(math.nan) if made.is_floating_point() else made

    monkeypatch.setattr(torch, "empty", poisoned)


def rows_of(n: int, device: torch.device, dtype: torch.dtype = torch.float64) -> Tensor:
    """Far from 0; with forbidden arcs, all those to word n from other words among them; too far apart for plain numbers; infeasible."""
    rows = torch.randn(4, n + 1, n + 1, dtype=torch.float64)
    rows[0] += 1e4
    if n > 1:
        rows[1, 1:, n] = -math.inf
        rows[1, 2:, 1] = -math.inf
    rows[2] *= 500
    rows[3, :, n] = -math.inf
    ignored = ~SpanningTree().read_mask((n + 1, n + 1))
    rows[:2, ignored] = math.nan
    return rows.to(device, dtype)


def test_marginals_equal_the_reference(gpu_kernels: torch.device) -> None:
    for single_root, dtype in ((True, torch.float64), (False, torch.float32)):
        rows, oracle = rows_of(3, gpu_kernels, dtype), SpanningTree(single_root)
        total, found = oracle.log_partition(rows), oracle.marginals(rows)
        with kernels.disabled():
            exact = torch.where(oracle.read_mask((4, 4), gpu_kernels), rows, 0).double()
            expected, expected_total = oracle.marginals(exact), oracle.log_partition(exact)
        # The reference has logarithms near 1e4, and their rounding.
        close = {"rtol": 1e-11, "atol": 1e-15} if dtype == torch.float64 else {"rtol": 1e-6, "atol": 1e-30}
        torch.testing.assert_close(total, expected_total.to(dtype), **close)
        torch.testing.assert_close(found, expected.to(dtype), **close)
        assert total[3] == -math.inf
        assert not found[3].any()
        if single_root:
            assert torch.equal(oracle.marginals(rows[0]), found[0])


def test_logarithms_are_for_items_that_lost_a_weight(gpu_kernels: torch.device) -> None:
    """Those of scores too far apart; the second launch leaves the others alone."""
    kernel = importlib.import_module("structgrad.oracles.spanning_tree.gpu")._log_partition
    rows = rows_of(3, gpu_kernels)[:3].nan_to_num(nan=0.0, neginf=-math.inf)
    found = torch.empty(3, dtype=torch.float64, device=gpu_kernels)
    certain = torch.empty(3, dtype=torch.int32, device=gpu_kernels)
    kernel[(3,)](rows, found, certain, 3, True, 4, False, num_warps=1)
    with kernels.disabled():
        expected = SpanningTree().log_partition(rows)
    assert certain.tolist() == [1, 1, 0]
    torch.testing.assert_close(found[:2], expected[:2], rtol=1e-12, atol=0)
    found.fill_(7.0)
    kernel[(3,)](rows, found, certain, 3, True, 4, True, num_warps=1)
    assert found[:2].tolist() == [7.0, 7.0]
    torch.testing.assert_close(found[2], expected[2], rtol=1e-12, atol=0)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_every_size(n: int, gpu_kernels: torch.device) -> None:
    for single_root in (True, False):
        rows, oracle = 0.05 * torch.randn(1, n + 1, n + 1, dtype=torch.float64, device=gpu_kernels), SpanningTree(single_root)
        kernel = kernels.find("spanning_tree", "marginals", rows, (single_root,))
        assert isinstance(kernel, kernels.gpu.DeviceKernel)
        found, total = oracle.marginals(rows), oracle.log_partition(rows.half())
        with kernels.disabled():
            torch.testing.assert_close(found, oracle.marginals(rows), rtol=1e-12, atol=0)
            torch.testing.assert_close(total, oracle.log_partition(rows.half()), rtol=1e-3, atol=1e-3)


def test_second_derivatives_equal_the_reference(gpu_kernels: torch.device) -> None:
    for single_root in (True, False):
        oracle = SpanningTree(single_root)
        rows = rows_of(3, gpu_kernels)[slice(4) if single_root else slice(1, 3)].nan_to_num(nan=0.0, neginf=-math.inf)
        weight, direction = torch.randn(len(rows), dtype=torch.float64), torch.randn(rows.shape, dtype=torch.float64)
        weight, direction = weight.to(gpu_kernels), direction.to(gpu_kernels)

        def second(scores: Tensor, oracle: SpanningTree, weight: Tensor, direction: Tensor) -> Tensor:
            leaf = scores.clone().requires_grad_()
            (first,) = torch.autograd.grad((weight * oracle.log_partition(leaf)).nan_to_num(neginf=0.0).sum(), leaf, create_graph=True)
            return torch.autograd.grad(first, leaf, direction)[0]

        found = second(rows, oracle, weight, direction)
        with kernels.disabled():
            torch.testing.assert_close(found, second(rows, oracle, weight, direction), rtol=1e-11, atol=1e-14)


def test_samples_equal_those_of_the_reference(gpu_kernels: torch.device) -> None:
    for single_root in (True, False):
        rows, oracle = rows_of(3, gpu_kernels), SpanningTree(single_root)
        rows[2] /= 50 if single_root else 1
        uniforms = torch.rand(4, 4, 3, dtype=torch.float64).to(gpu_kernels)
        uniforms[:, 0], uniforms[:, 1] = 0.0, 1 - 2**-53
        drawn = oracle._draw(rows, uniforms)
        with kernels.disabled():
            assert torch.equal(drawn, oracle._draw(rows, uniforms))
        assert not drawn[3].any()


@pytest.mark.gpu
@pytest.mark.parametrize("single_root", [True, False])
@pytest.mark.parametrize(("n", "scale"), [(20, 50.0), (40, 0.05), (40, 1.0), (40, 50.0), (64, 1.0), (64, 500.0)])
def test_long_sentences(n: int, scale: float, single_root: bool, gpu_kernels: torch.device) -> None:
    if gpu_kernels.type == "cpu":
        pytest.skip("takes minutes in the interpreter")
    oracle, rows = SpanningTree(single_root), scale * torch.randn(64, n + 1, n + 1, dtype=torch.float64)
    rows[::3][torch.rand(rows[::3].shape) < 0.5] = -math.inf
    rows, direction = rows.to(gpu_kernels), torch.randn(rows.shape, dtype=torch.float64).to(gpu_kernels)
    uniforms = torch.rand(64, 50, n, dtype=torch.float64).to(gpu_kernels)
    found = oracle.log_partition(rows), oracle.marginals(rows), oracle._compute_covariance_product(rows, direction)
    drawn = oracle._draw(rows, uniforms)
    with kernels.disabled():
        expected = oracle.log_partition(rows), oracle.marginals(rows), oracle._compute_covariance_product(rows, direction)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)
        assert torch.equal(drawn, oracle._draw(rows, uniforms))
    torch.testing.assert_close(oracle.marginals(rows.float()).double(), oracle.marginals(rows.float().double()), rtol=1e-5, atol=1e-30)
