from __future__ import annotations

import importlib
import math
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import Alignment, kernels

ORACLE = Alignment()
FLOAT32, FLOAT64 = torch.float32, torch.float64


@pytest.fixture
def module(gpu_kernels: torch.device, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Kernels that get small tiles, parts of a batch, few walks at once, and memory full of NaN."""
    package = "structgrad.oracles.kernels.gpu"
    monkeypatch.setattr(importlib.import_module(f"{package}.antidiagonals"), "TILE", 2)
    for name, value in (("SCRATCH", 400), ("FILLING", 1)):
        monkeypatch.setattr(importlib.import_module(f"{package}.launching"), name, value)
    monkeypatch.setattr(importlib.import_module("structgrad.oracles.alignment.gpu_paths"), "WALKS", 4)
    empty = torch.empty

    def poisoned(*args: Any, **kwargs: Any) -> Tensor:
        memory = empty(*args, **kwargs)
        return memory.fill_(math.nan) if memory.is_floating_point() else memory

    monkeypatch.setattr(torch, "empty", poisoned)
    return importlib.import_module("structgrad.oracles.alignment.gpu")


def hard_rows(shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Rows at three scales, one with forbidden cells, and one without a path."""
    rows = torch.randn(5, *shape, dtype=FLOAT64)
    rows[1] *= 50
    rows[2, 0, 1:] = rows[2, -1, :-1] = -math.inf
    rows[2, -1, -1] = rows[2, 0, 0] = 0.5
    rows[3, :, -1] = -math.inf
    rows[4] = 0.05 * rows[4] + 1e4
    return rows.to(dtype)


@pytest.mark.parametrize(
    ("shape", "dtype", "which"),
    [((3, 4), FLOAT64, [0, 1, 2, 3, 4]), ((4, 2), FLOAT64, [1, 2]), ((2, 3), FLOAT32, [1, 3, 4]), ((3, 2), FLOAT32, [0, 2]),
     ((1, 1), FLOAT64, [0]), ((1, 3), FLOAT32, [1]), ((3, 1), FLOAT64, [1])],
)  # fmt: skip
def test_equals_the_reference(
    shape: tuple[int, int], dtype: torch.dtype, which: list[int], gpu_kernels: torch.device, module: ModuleType
) -> None:
    count, rows = len(which), hard_rows(shape, dtype)[which].to(gpu_kernels)
    direction = torch.randn(rows.shape, dtype=dtype).to(gpu_kernels) * 10
    uniforms = torch.rand(count, 5, sum(shape) - 1, dtype=FLOAT64).to(gpu_kernels)

    def everything(rows: Tensor, direction: Tensor) -> tuple[Tensor, ...]:
        computed = (*ORACLE._compute_marginals(rows), ORACLE._compute_covariance_product(rows, direction))
        return (ORACLE.log_partition(rows), *computed, ORACLE.argmax(rows), ORACLE._draw(rows, uniforms))

    found = everything(rows, direction)
    with kernels.disabled():
        # The reference adds up long paths in the dtype of the rows; the kernel's values are float64.
        expected = everything(rows.double(), direction.double())
    # Its log-weights of the hardest rows are numbers up to some thousands, with an error of 1e-12.
    rtol, atol = (1e-12, 1e-10) if dtype == FLOAT64 else (1e-5, 2e-5)
    for result, reference in zip(found[:4], expected[:4], strict=True):
        assert result.dtype in (dtype, FLOAT64)  # differences of log-partitions are taken in float64
        torch.testing.assert_close(result.double(), reference, rtol=rtol, atol=atol)
    for result, reference in zip(found[4:], expected[4:], strict=True):
        assert torch.equal(result.double(), reference.double())


@pytest.mark.parametrize("shape", [(3, 3), (3, 2)])
def test_ties_go_to_the_diagonal_then_above_then_left(shape: tuple[int, int], gpu_kernels: torch.device, module: ModuleType) -> None:
    rows = torch.randint(0, 2, (4, *shape), dtype=FLOAT64).to(gpu_kernels)
    rows[0] = 0
    rows[1, 1] = -math.inf
    found = ORACLE.argmax(rows)
    with kernels.disabled():
        assert torch.equal(found, ORACLE.argmax(rows))


def test_half_precision_is_computed_in_float32(gpu_kernels: torch.device, module: ModuleType) -> None:
    rows = torch.randn(2, 2, dtype=torch.bfloat16).to(gpu_kernels)
    marginals = ORACLE.marginals(rows)
    assert marginals.dtype == torch.bfloat16
    assert torch.equal(marginals, ORACLE.marginals(rows.float()).bfloat16())


def test_second_derivatives_and_random_streams(gpu_kernels: torch.device, module: ModuleType) -> None:
    rows = torch.randn(2, 2, 3, dtype=FLOAT64).to(gpu_kernels).requires_grad_()
    direction = torch.randn(rows.shape, dtype=FLOAT64).to(gpu_kernels)

    def derivatives() -> tuple[Tensor, ...]:
        (first,) = torch.autograd.grad(ORACLE.log_partition(rows).sum(), rows, create_graph=True)
        (second,) = torch.autograd.grad(first, rows, direction)
        return first.detach(), second, ORACLE.sample(rows.detach(), 2, generator=torch.Generator(gpu_kernels).manual_seed(1))

    found = derivatives()
    with kernels.disabled():
        expected = derivatives()
    torch.testing.assert_close(found[:2], expected[:2], rtol=0, atol=1e-14)
    assert torch.equal(found[2], expected[2])


def test_an_item_does_not_depend_on_its_batch(gpu_kernels: torch.device, module: ModuleType) -> None:
    rows = torch.randn(2, 2, 3).to(gpu_kernels)
    assert torch.equal(ORACLE.marginals(rows)[1], ORACLE.marginals(rows[1]))


def test_what_is_too_wide_goes_to_the_reference(module: ModuleType) -> None:
    assert module.serves("marginals", (512, 512), FLOAT32, ())
    assert module.serves("argmax", (60000, 2048), FLOAT32, ())
    assert not module.serves("marginals", (2049, 2049), FLOAT32, ())
    assert not module.serves("marginals", (2048, 100_000), FLOAT32, ())
