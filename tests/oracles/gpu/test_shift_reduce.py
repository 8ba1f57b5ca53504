from __future__ import annotations

import importlib
import math
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import ShiftReduce, kernels

ORACLE, POLICY = ShiftReduce(), ShiftReduce("local")
FLOAT32, FLOAT64 = torch.float32, torch.float64


@pytest.fixture
def module(gpu_kernels: torch.device, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Kernels that take a batch in parts, few walks at once, and get memory full of NaN."""
    package = "structgrad.oracles.kernels.gpu"
    kernel = importlib.import_module("structgrad.oracles.shift_reduce.gpu")
    for name, value in (("SCRATCH", 600), ("FILLING", 1)):
        monkeypatch.setattr(importlib.import_module(f"{package}.launching"), name, value)
    monkeypatch.setattr(kernel, "WALKS", 4)
    empty = torch.empty

    def poisoned(*args: Any, **kwargs: Any) -> Tensor:
        memory = empty(*args, **kwargs)
        return memory.fill_(math.nan) if memory.is_floating_point() else memory

    monkeypatch.setattr(torch, "empty", poisoned)
    return kernel


def hard_rows(leaves: int, dtype: torch.dtype) -> Tensor:
    """Rows at three scales, one with a forbidden action, and one without a derivation; NaN in ignored entries."""
    event = (leaves + 1, leaves + 1, 2)
    rows = torch.randn(5, *event, dtype=FLOAT64)
    rows[1] *= 50
    if leaves > 1:
        rows[2, 2, 2, 0] = -math.inf
        rows[3, leaves, 2, 1] = -math.inf
    rows[4] = 0.05 * rows[4] + 1e4
    return rows.masked_fill(~ORACLE.read_mask(event), math.nan).to(dtype)


@pytest.mark.parametrize(
    ("leaves", "dtype", "which"), [(4, FLOAT64, [1, 2, 3]), (3, FLOAT32, [1, 4]), (1, FLOAT64, [0]), (2, FLOAT32, [0])]
)
def test_equals_the_reference(leaves: int, dtype: torch.dtype, which: list[int], gpu_kernels: torch.device, module: ModuleType) -> None:
    rows = hard_rows(leaves, dtype)[which].to(gpu_kernels)
    direction = 10 * torch.randn(rows.shape, dtype=dtype).to(gpu_kernels)
    uniforms = torch.rand(len(which), 5, 2 * leaves - 1, dtype=FLOAT64).to(gpu_kernels)

    def everything(rows: Tensor, direction: Tensor) -> tuple[Tensor, ...]:
        computed = (*ORACLE._compute_marginals(rows), ORACLE._compute_covariance_product(rows, direction))
        return (ORACLE.log_partition(rows), *computed, ORACLE._policy(rows), ORACLE.argmax(rows), ORACLE._draw(rows, uniforms))

    found = everything(rows, direction)
    with kernels.disabled():
        expected = everything(rows.double(), direction.double())
    rtol, atol = (1e-12, 1e-12) if dtype == FLOAT64 else (1e-5, 2e-5)
    for result, reference in zip(found[:5], expected[:5], strict=True):
        assert result.dtype in (dtype, FLOAT64)  # differences of log-partitions are taken in float64
        torch.testing.assert_close(result.double(), reference, rtol=rtol, atol=atol)
    for result, reference in zip(found[5:], expected[5:], strict=True):
        assert torch.equal(result.double(), reference.double())


def test_of_equal_derivations_the_best_shifts_first(gpu_kernels: torch.device, module: ModuleType) -> None:
    rows = torch.randint(0, 2, (3, 5, 5, 2), dtype=FLOAT64).to(gpu_kernels)
    rows[0] = 0
    rows[1, 4, 3] = rows[1, 3, 1] = -math.inf
    found = ORACLE.argmax(rows)
    with kernels.disabled():
        assert torch.equal(found, ORACLE.argmax(rows))


def test_policies_keep_the_digits_of_likely_actions(gpu_kernels: torch.device, module: ModuleType) -> None:
    rows = torch.zeros(4, 4, 2, dtype=FLOAT64, device=gpu_kernels)
    rows[2, 2, 0] = 30.0
    chosen = POLICY.step_log_probs(rows)[2, 2]
    assert chosen.tolist() == pytest.approx([-math.log1p(math.exp(-30.0)), -30.0 - math.log1p(math.exp(-30.0))], rel=1e-13, abs=0)
    assert abs(POLICY.log_partition(rows).item()) < 1e-15


def test_half_precision_and_one_item_alone(gpu_kernels: torch.device, module: ModuleType) -> None:
    rows = torch.randn(2, 4, 4, 2, dtype=torch.bfloat16).to(gpu_kernels)
    marginals = ORACLE.marginals(rows)
    assert marginals.dtype == torch.bfloat16
    assert torch.equal(marginals[1], ORACLE.marginals(rows[1].float()).bfloat16())


def test_second_derivatives_and_random_streams(gpu_kernels: torch.device, module: ModuleType) -> None:
    rows = torch.randn(4, 4, 2, dtype=FLOAT64).to(gpu_kernels).requires_grad_()
    direction = torch.randn(rows.shape, dtype=FLOAT64).to(gpu_kernels)

    def derivatives() -> tuple[Tensor, ...]:
        (first,) = torch.autograd.grad(ORACLE.log_partition(rows), rows, create_graph=True)
        (second,) = torch.autograd.grad(first, rows, direction)
        return first.detach(), second, ORACLE.sample(rows.detach(), 3, generator=torch.Generator(gpu_kernels).manual_seed(1))

    found = derivatives()
    with kernels.disabled():
        expected = derivatives()
    torch.testing.assert_close(found[:2], expected[:2], rtol=0, atol=1e-14)
    assert torch.equal(found[2], expected[2])


def test_what_is_too_wide_goes_to_the_reference(module: ModuleType) -> None:
    assert module.serves("marginals", (2048, 2048, 2), FLOAT32, ())
    assert not module.serves("marginals", (2049, 2049, 2), FLOAT32, ())
