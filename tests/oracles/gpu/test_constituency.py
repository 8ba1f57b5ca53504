from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import Constituency, kernels
from structgrad.oracles.constituency import gpu_charts
from tests.helpers import seeded

ORACLE = Constituency()
OPERATIONS = ("log_partition", "marginals", "covariance_product", "argmax", "sample")


def rows_of(n: int, dtype: torch.dtype) -> Tensor:
    """Small and large scores, ties, a forbidden span, a row without trees; NaN where nothing is read."""
    rows = torch.randn(4, n, n, generator=seeded(n), dtype=torch.float64)
    rows[0] *= 0.05
    rows[1] = (50 * rows[1]).round() if n > 2 else 1e4 + rows[1]
    if n > 2:
        rows[2] = rows[2].round().clamp(-1, 1) + 1e4
        rows[2, 0, 1] = -math.inf
    rows[3, 0, -1] = -math.inf
    return rows.masked_fill(torch.ones(n, n, dtype=torch.bool).tril(-1), math.nan).to(dtype)


def poisoned(kernel: Any, inputs: tuple[Tensor, ...], *shapes: tuple[int, ...]) -> list[Tensor]:
    """The results of a kernel, which are NaN before."""
    results = [torch.full(shape, math.nan, dtype=inputs[0].dtype, device=inputs[0].device) for shape in shapes]
    kernel(*inputs, *results)
    return results


def compare(n: int, dtype: torch.dtype, device: torch.device, count: int) -> None:
    """Every operation against the reference in float64, of the very numbers that the kernel reads."""
    rows = rows_of(n, dtype)[:count].to(device)
    direction = torch.randn(count, n, n, generator=seeded(1), dtype=dtype)
    direction = direction.masked_fill(rows.cpu().isnan() | (rows.cpu() == -math.inf), math.nan).to(device)
    uniforms = torch.rand(count, 3, n - 1, generator=seeded(2), dtype=torch.float64).to(device)
    found = {name: kernels.find("constituency", name, rows) for name in OPERATIONS}
    assert all(isinstance(kernel, kernels.gpu.DeviceKernel) for kernel in found.values())
    total = torch.full((count,), math.nan, dtype=torch.float64, device=device)
    found["log_partition"](rows, total)
    again = torch.full_like(total, math.nan)
    mean = torch.full_like(rows, math.nan)
    found["marginals"](rows, mean, again)
    (product,) = poisoned(found["covariance_product"], (rows, direction), tuple(rows.shape))
    (best,) = poisoned(found["argmax"], (rows,), tuple(rows.shape))
    (drawn,) = poisoned(found["sample"], (rows, uniforms), (count, 3, n, n))
    with kernels.disabled():
        exact = rows.double()
        expected = ORACLE._compute_marginals(exact)
        product_expected = ORACLE._compute_covariance_product(exact, direction.nan_to_num().double())
        best_expected, drawn_expected = ORACLE._best(rows), ORACLE._draw(exact, uniforms)
    tolerance = {"rtol": 1e-11, "atol": 1e-11} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(total, expected[1], rtol=1e-12 if dtype == torch.float64 else 1e-6, atol=tolerance["atol"])
    assert torch.equal(total, again)
    torch.testing.assert_close(mean.double(), expected[0], **tolerance)
    torch.testing.assert_close(product.double(), product_expected, **tolerance)
    feasible = expected[1] > -math.inf
    assert torch.equal(best[feasible], best_expected[feasible].to(dtype))
    # Where every tree is forbidden, some tree.
    assert bool((best.flatten(1).sum(1) == 2 * n - 1).all())
    assert torch.equal(drawn, drawn_expected.to(dtype))


@pytest.mark.parametrize(
    ("n", "dtype", "count"),
    [
        (1, torch.float64, 4),
        (2, torch.float32, 4),
        (4, torch.float64, 4),
        pytest.param(5, torch.float64, 4, marks=pytest.mark.sweep),
        pytest.param(10, torch.float32, 2, marks=pytest.mark.sweep),
    ],
    ids=str,
)
def test_equals_the_reference(n: int, dtype: torch.dtype, count: int, gpu_kernels: torch.device) -> None:
    compare(n, dtype, gpu_kernels, count)


def test_blocks_smaller_than_the_chart(monkeypatch: pytest.MonkeyPatch, gpu_kernels: torch.device) -> None:
    """Several blocks of spans in a width, and several of cuts in a span, as long sentences have them; fewer programs than rows."""
    from structgrad.oracles.constituency import gpu as constituency

    small = gpu_charts.ChartPlan(step=16, wide=8, tall=8, phases=1, tile=32, warps=1)
    monkeypatch.setattr(constituency, "plan", lambda length: small)
    monkeypatch.setattr(constituency, "PROGRAMS", 1)
    compare(9, torch.float64, gpu_kernels, 2)


def test_derivatives_in_half_precision_and_in_a_batch(gpu_kernels: torch.device) -> None:
    scores = torch.randn(2, 4, 4, generator=seeded(3)).to(gpu_kernels)
    leaf = scores.half().requires_grad_()
    (first,) = torch.autograd.grad(ORACLE.log_partition(leaf).sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), leaf)
    with kernels.disabled():
        reference = scores.half().double().requires_grad_()
        (expected,) = torch.autograd.grad(ORACLE.log_partition(reference).sum(), reference, create_graph=True)
        (expected_second,) = torch.autograd.grad(expected.square().sum(), reference)
    torch.testing.assert_close(first.double(), expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(second.double(), expected_second, rtol=1e-2, atol=2e-3)
    assert torch.equal(ORACLE.marginals(scores)[1], ORACLE.marginals(scores[1]))


@pytest.mark.parametrize("length", [1, 8, 33, 48, 64, 65, 100, 128, 129, 512])
def test_plans_hold_their_charts(length: int) -> None:
    """What loads reach beyond a chart lies within the rows of -inf; and a block has a cut for each of its four parts."""
    made = gpu_charts.plan(length)
    assert length <= made.step
    assert made.wide < 2 * made.step
    assert made.wide >> (made.phases - 1) == gpu_charts.LEAST_CELLS
    assert all(made.tile // (made.wide >> phase) >= 4 for phase in range(made.phases))
    assert made.tall <= made.wide
