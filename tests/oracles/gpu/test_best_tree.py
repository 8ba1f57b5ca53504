from __future__ import annotations

import math
from types import ModuleType

import pytest
import torch
from torch import Tensor

from structgrad.oracles import SpanningTree
from structgrad.oracles.spanning_tree.best_tree import best_heads


@pytest.fixture
def kernel(gpu_kernels: torch.device) -> ModuleType:
    from structgrad.oracles.spanning_tree.gpu import best_tree as kernel

    return kernel


def hard_rows(n: int) -> Tensor:
    """Ties, a large scale, small differences of large scores, forbidden arcs, zeros of both signs, and no tree or none with one root."""
    rows = torch.randn(9, n + 1, n + 1, dtype=torch.float64)
    forbidden = torch.rand(2, n + 1, n + 1) < 0.4
    rows[:2] = torch.randint(0, 3, (2, n + 1, n + 1)).double()
    rows[2] *= 50
    rows[3] = 0.001 * rows[3] + 1e4
    rows[4] = rows[4].sign() * 0.0
    rows[5] = 2 * rows[5].sign()
    rows[5, 0] -= 9
    rows[[1, 6]] = rows[[1, 6]].masked_fill(forbidden, -math.inf)
    rows[7, :, 1] = -math.inf
    rows[8, 1:, 1 : min(n, 2) + 1] = -math.inf
    return rows


def reference(rows: Tensor, single_root: bool) -> Tensor:
    return SpanningTree.structure(best_heads(rows, single_root=single_root), rows.dtype)


@pytest.mark.parametrize("single_root", [True, False])
@pytest.mark.parametrize(
    ("n", "dtype"), [(1, torch.float32), (2, torch.float64), (3, torch.float32), (4, torch.float64), (7, torch.float32)]
)
def test_equals_the_reference(n: int, dtype: torch.dtype, single_root: bool, kernel: ModuleType, gpu_kernels: torch.device) -> None:
    rows = hard_rows(n).to(gpu_kernels, dtype)
    expected = reference(rows, single_root)
    rows[:, :, 0] = math.nan
    rows.diagonal(dim1=1, dim2=2).fill_(math.nan)
    structures = torch.full_like(rows, math.nan)
    kernel.argmax(rows, structures, single_root)
    assert torch.equal(structures, expected)


def test_a_large_problem_and_other_types(kernel: ModuleType, gpu_kernels: torch.device) -> None:
    rows = torch.randn(1, 14, 14).half().to(gpu_kernels)
    structures = torch.full((1, 14, 14), 7, dtype=torch.uint8, device=gpu_kernels)
    kernel.argmax(rows, structures, True)
    assert torch.equal(structures, reference(rows, True).to(torch.uint8))


def test_serves_what_registers_hold(kernel: ModuleType) -> None:
    assert kernel.serves("argmax", (129, 129), torch.float32, (True,))
    assert not kernel.serves("argmax", (600, 600), torch.float32, (True,))
