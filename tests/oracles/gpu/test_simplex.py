from __future__ import annotations

import math

import pytest
import torch

from structgrad.oracles import Subset, kernels
from structgrad.oracles.simplex.projection import project

SIZES, SCALES = ((1, 1), (7, 3), (30, 1), (30, 29), (30, 30), (65, 40)), (0.0, 0.05, 1.0, 50.0)
CASES = [
    pytest.param(*size, scale, marks=() if (x - y) % len(SCALES) == 0 or size == (7, 3) else pytest.mark.sweep)
    for x, size in enumerate(SIZES)
    for y, scale in enumerate(SCALES)
]
"""One size at every scale and the others at one, in the sweep all at all of them."""


@pytest.mark.parametrize(("n", "k", "scale"), CASES)
def test_equals_the_reference(n: int, k: int, scale: float, gpu_kernels: torch.device) -> None:
    rows = scale * torch.randn(6, n, dtype=torch.float64)
    rows[1] = rows[1].round()
    rows[2, : n - k] = -math.inf
    rows[3, : n - k + 1] = -math.inf
    rows = rows.to(gpu_kernels)
    point, free, gap = project(rows, k)
    with kernels.disabled():
        expected, inside, _ = project(rows, k)
    torch.testing.assert_close(point, expected, rtol=0, atol=1e-13)
    assert torch.equal(free, (point > 0) & (point < 1))
    assert bool(((free == inside) | (expected * (1 - expected) < 1e-12)).all())
    assert torch.equal(gap == math.inf, torch.arange(6, device=gpu_kernels) == 3)
    assert bool((gap[gap < math.inf] <= 1e-12).all())


def test_the_oracle_takes_it(gpu_kernels: torch.device) -> None:
    assert isinstance(
        kernels.find("simplex", "project", torch.zeros(2, 5, dtype=torch.float64, device=gpu_kernels), (2,)), kernels.gpu.DeviceKernel
    )
    solution = Subset(2).project(torch.tensor([1.0, 0.6, 0.2, -3.0], device=gpu_kernels))
    torch.testing.assert_close(solution.mean.cpu(), torch.tensor([1.0, 0.7, 0.3, 0.0]))
