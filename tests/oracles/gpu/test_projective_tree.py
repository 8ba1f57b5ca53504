from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import ProjectiveTree, kernels
from structgrad.oracles.kernels import gpu

roots = pytest.mark.parametrize("single_root", [True, False])


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a kernel gets for its results or as its workspace holds a number before it has written one."""

    def results(shape: tuple[int, ...], rows: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return torch.full(shape, math.nan, dtype=dtype or rows.dtype, device=rows.device)

    new_empty = torch.Tensor.new_empty

    def poisoned(self: Tensor, *size: Any, **options: Any) -> Tensor:
        made = new_empty(self, *size, **options)
        return made.fill_(math.nan) if made.is_floating_point() else made

    monkeypatch.setattr(gpu.DeviceKernel, "results", staticmethod(results))
    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)


@pytest.fixture
def small_tiles(gpu_kernels: torch.device, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Tiles that are too small for most widths, so that few words already need every shape, several times."""
    from structgrad.oracles.projective_tree import gpu as projective_tree
    from structgrad.oracles.projective_tree.gpu_charts import Tiles

    monkeypatch.setattr(projective_tree, "tiles", lambda size: Tiles(8, 2, 3, 8))
    return gpu_kernels


def random_scores(words: int, device: torch.device) -> Tensor:
    """Four sentences: moderate, peaked and far from 0, with forbidden arcs, infeasible; ignored entries are NaN."""
    scores = torch.randn(4, words + 1, words + 1, dtype=torch.float64)
    scores[1] = 50 * scores[1] + 1e4
    scores[2] *= 0.05
    scores[2, 0, 1] = -math.inf
    scores[2, -1, -2] = -math.inf
    scores[3, :, -1] = -math.inf
    ignored = ~ProjectiveTree().read_mask((words + 1, words + 1))
    return scores.masked_fill(ignored, math.nan).to(device)


def found(oracle: ProjectiveTree, operation: str, scores: Tensor) -> bool:
    return isinstance(kernels.find(oracle.kernel, operation, scores, (oracle.single_root,)), gpu.DeviceKernel)


@roots
@pytest.mark.parametrize("words", [1, 3])
def test_marginals_equal_the_reference(words: int, single_root: bool, gpu_kernels: torch.device) -> None:
    oracle, scores = ProjectiveTree(single_root), random_scores(words, gpu_kernels)
    assert found(oracle, "marginals", scores)
    marginals, total = oracle._compute_marginals(scores)
    with kernels.disabled():
        expected, expected_total = oracle._compute_marginals(scores)
    torch.testing.assert_close(total, expected_total, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(marginals, expected, rtol=1e-12, atol=1e-12)
    assert total[3] == -math.inf
    assert bool((marginals[3] == 0).all())
    torch.testing.assert_close(oracle.log_partition(scores[:2]), total[:2], rtol=0, atol=0)


def test_the_product_with_the_covariance_equals_the_reference(gpu_kernels: torch.device) -> None:
    oracle, scores = ProjectiveTree(), random_scores(3, gpu_kernels)[1:]
    scores[0] = scores[0] / 10
    direction = torch.randn(scores.shape, dtype=torch.float64).to(gpu_kernels)
    direction[0] += 1e3
    assert found(oracle, "covariance_product", scores)
    product = oracle._compute_covariance_product(scores, direction.masked_fill(scores.isnan(), math.nan))
    with kernels.disabled():
        expected = oracle._compute_covariance_product(scores, direction)
    torch.testing.assert_close(product[0], expected[0], rtol=0, atol=1e-11)
    torch.testing.assert_close(product[1:], expected[1:], rtol=0, atol=1e-14)


@roots
def test_small_tiles(single_root: bool, small_tiles: torch.device) -> None:
    oracle, scores = ProjectiveTree(single_root), random_scores(5, small_tiles)[[2 if single_root else 0]]
    direction = torch.randn(scores.shape, dtype=torch.float64).to(small_tiles)
    product, best = oracle._compute_covariance_product(scores, direction), oracle.argmax(scores)
    with kernels.disabled():
        torch.testing.assert_close(product, oracle._compute_covariance_product(scores, direction), rtol=0, atol=1e-14)
        assert torch.equal(best, oracle.argmax(scores))


@roots
def test_the_best_tree_equals_the_reference(single_root: bool, gpu_kernels: torch.device) -> None:
    oracle, scores = ProjectiveTree(single_root), random_scores(4, gpu_kernels)
    # Ties: between all trees, and between many.
    scores[0] = torch.where(scores[0].isnan(), math.nan, 0.0)
    scores[1] = torch.randint(2, scores[1].shape).to(scores).masked_fill(scores[1].isnan(), math.nan)
    assert found(oracle, "argmax", scores)
    best = oracle.argmax(scores)
    with kernels.disabled():
        assert torch.equal(best, oracle.argmax(scores))
    assert torch.equal(oracle.argmax(scores[1]), best[1])


@roots
def test_samples_equal_those_of_the_reference(single_root: bool, gpu_kernels: torch.device) -> None:
    oracle, scores = ProjectiveTree(single_root), random_scores(5, gpu_kernels)[[0, 3]].float()
    assert found(oracle, "sample", scores)

    def drawn() -> Tensor:
        return oracle.sample(scores, 3, generator=torch.Generator(gpu_kernels).manual_seed(3))

    samples = drawn()
    with kernels.disabled():
        assert torch.equal(samples, drawn())
    assert bool((samples[:, 0].sum((-2, -1)) == 5).all())


def test_single_and_half_precision(gpu_kernels: torch.device) -> None:
    oracle, scores = ProjectiveTree(), 3 * torch.randn(1, 4, 4).to(gpu_kernels)
    with kernels.disabled():
        expected = oracle.marginals(scores.double()), oracle.marginals(scores.half().double())
    torch.testing.assert_close(oracle.marginals(scores).double(), expected[0], rtol=0, atol=2e-6)
    marginals = oracle.marginals(scores.half())
    assert marginals.dtype == torch.float16
    torch.testing.assert_close(marginals.double(), expected[1], rtol=0, atol=2e-3)


def test_second_derivatives(gpu_kernels: torch.device) -> None:
    oracle, scores = ProjectiveTree(single_root=False), torch.randn(1, 3, 3, dtype=torch.float64).to(gpu_kernels)
    weights = torch.randn(scores.shape, dtype=torch.float64).to(gpu_kernels)

    def gradients() -> tuple[Tensor, Tensor]:
        leaf = scores.clone().requires_grad_()
        (first,) = torch.autograd.grad(oracle.log_partition(leaf).exp().sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad(first, leaf, weights)
        return first.detach(), second

    compiled = gradients()
    with kernels.disabled():
        torch.testing.assert_close(compiled, gradients(), rtol=1e-12, atol=1e-13)
