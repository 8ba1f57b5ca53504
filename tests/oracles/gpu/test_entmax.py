from __future__ import annotations

import math

import pytest
import torch

from structgrad.estimators import entmax
from structgrad.oracles import kernels


def rows_of(scale: float, device: torch.device) -> torch.Tensor:
    """Of any scale; with ties; with forbidden parts; with one part alone; infeasible."""
    rows = scale * torch.randn(5, 7, dtype=torch.float64)
    rows[1] = rows[1].round()
    rows[2, ::2] = -math.inf
    rows[3, 1:] = -math.inf
    rows[4] = -math.inf
    return rows.to(device)


ALPHAS, SCALES = (1.0 + 1e-7, 1.2, 1.5, 1.7, 2.0, 3.0, 30.0), (0.05, 1.0, 50.0)
PAIRS = [
    pytest.param(alpha, scale, marks=() if (x - y) % len(SCALES) == 0 else pytest.mark.sweep)
    for x, alpha in enumerate(ALPHAS)
    for y, scale in enumerate(SCALES)
]
"""Every exponent at one scale, and in the sweep at all of them."""


@pytest.mark.parametrize(("alpha", "scale"), PAIRS)
def test_equals_the_reference(alpha: float, scale: float, gpu_kernels: torch.device) -> None:
    rows = rows_of(scale, gpu_kernels)
    found = entmax(rows, alpha)
    with kernels.disabled():
        torch.testing.assert_close(found, entmax(rows, alpha), rtol=0, atol=1e-12)
    torch.testing.assert_close(found.sum(-1), torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0], dtype=torch.float64, device=gpu_kernels))
    assert float(found[3, 0]) == pytest.approx(1)


def test_every_row_has_its_own_alpha(gpu_kernels: torch.device) -> None:
    rows, alpha = rows_of(1.0, gpu_kernels), torch.tensor([1.0, 1.5, 1.3, 2.5, 1.5], dtype=torch.float64, device=gpu_kernels)
    leaves = [value.clone().requires_grad_() for value in (rows[:4], alpha[:4])]
    found = torch.autograd.grad(entmax(*leaves).square().sum(), leaves)
    with kernels.disabled():
        expected = torch.autograd.grad(entmax(*leaves).square().sum(), leaves)
        torch.testing.assert_close(entmax(rows, alpha), torch.stack([entmax(row, each) for row, each in zip(rows, alpha, strict=True)]))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_one_score_and_many_rows_of_one(gpu_kernels: torch.device) -> None:
    assert entmax(torch.tensor([[3.0]], device=gpu_kernels), 1.5).tolist() == [[1.0]]
    shared = torch.randn(4, device=gpu_kernels).expand(3, 4)
    assert torch.equal(entmax(shared, 1.3)[0], entmax(shared, 1.3)[2])
