from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.oracles import Alignment

ORACLE = Alignment()
SCALES = (0.05, 1.0, 10.0, 50.0, 300.0, 1000.0)


def random_scores(shape: tuple[int, ...], scale: float = 1.0, mask: float = 0.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    return scores.masked_fill(torch.rand(shape, generator=generator) < mask, -math.inf)


def cells_of(structure: Tensor) -> list[tuple[int, int]]:
    return [(i, j) for i, j in structure.nonzero().tolist()]


# Larger sizes against an independent algorithm: plain loops over rows and columns.


def loop_tables(theta: Any, number: Callable[[float], Any], log_add: Callable[[list[Any]], Any]) -> tuple[list[list[Any]], list[list[Any]]]:
    """By cell: log-weight of the paths to it, the cell included, and of those from it on, without it."""
    n, m = theta.shape
    before: list[list[Any]] = [[None] * m for _ in range(n)]
    after: list[list[Any]] = [[None] * m for _ in range(n)]
    for i in range(n):
        for j in range(m):
            came = [before[p][q] for p, q in ((i - 1, j), (i, j - 1), (i - 1, j - 1)) if p >= 0 and q >= 0]
            before[i][j] = number(theta[i, j]) + (log_add(came) if came else number(0.0))
    for i in reversed(range(n)):
        for j in reversed(range(m)):
            goes = [number(theta[p, q]) + after[p][q] for p, q in ((i + 1, j), (i, j + 1), (i + 1, j + 1)) if p < n and q < m]
            after[i][j] = log_add(goes) if goes else number(0.0)
    return before, after


def precise_marginals(theta: Any) -> tuple[Any, Any]:
    def log_add(values: list[Any]) -> Any:
        return mpmath.log(mpmath.fsum(mpmath.exp(value) for value in values))

    before, after = loop_tables(theta, mpmath.mpf, log_add)
    total = before[-1][-1]
    cells = np.vectorize(lambda a, b: mpmath.exp(a + b - total), otypes=[object])
    return total, cells(np.array(before, dtype=object), np.array(after, dtype=object))


@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_is_exact(scale: float) -> None:
    scores = random_scores((12, 9), scale).requires_grad_()
    direction = random_scores((12, 9), seed=1)
    marginals = ORACLE.marginals(scores)
    (product,) = torch.autograd.grad(marginals, scores, direction)
    theta, along = (np.array(x.detach().numpy(), dtype=object) for x in (scores, direction))
    with mpmath.workdps(80):
        total, expected = precise_marginals(theta)
        # The step is so small, and the precision so high, that the quotient is exact to some 40 digits.
        step = mpmath.mpf(10) ** -25
        upper, lower = (precise_marginals(theta + sign * step * along)[1] for sign in (1, -1))
        slope = (upper - lower) / (2 * step)
    assert ORACLE.log_partition(scores).item() == pytest.approx(float(total), rel=1e-14)
    np.testing.assert_allclose(marginals.detach().numpy(), expected.astype(float), rtol=1e-11, atol=1e-250)
    np.testing.assert_allclose(product.numpy(), slope.astype(float), rtol=1e-9, atol=2e-14)


def test_the_paths_of_a_large_grid_are_counted() -> None:
    """Equal scores, where sums grow fastest; every path jumps over each sixteenth antidiagonal."""
    size = 256
    counts = [[0] * (size + 1) for _ in range(size + 1)]
    counts[1][1] = 1
    scores = torch.zeros(size, size, dtype=torch.float64)
    for i, j in itertools.product(range(size), repeat=2):
        if i + j > 0 and (i + j) % 16 == 0:
            scores[i, j] = -math.inf
        elif i + j > 0:
            counts[i + 1][j + 1] = counts[i][j + 1] + counts[i + 1][j] + counts[i][j]
    marginals = ORACLE.marginals(scores)
    assert ORACLE.log_partition(scores).item() == pytest.approx(math.log(counts[-1][-1]), rel=1e-14)
    assert marginals[0, 0].item() == pytest.approx(1.0, abs=1e-12)
    torch.testing.assert_close(marginals, marginals.mT, rtol=1e-10, atol=1e-14)


# Ties, forbidden cells and costs.


def test_ties_go_to_the_predecessor_of_lowest_index() -> None:
    assert cells_of(ORACLE.argmax(torch.zeros(3, 3))) == [(0, 0), (1, 1), (2, 2)]
    assert cells_of(ORACLE.argmax(torch.zeros(2, 4))) == [(0, 0), (0, 1), (0, 2), (1, 3)]
    # Straight steps alone are worth it; coming from above is preferred to coming from the left.
    assert cells_of(ORACLE.argmax(torch.ones(3, 3))) == [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2)]


def test_scores_of_costs() -> None:
    costs = torch.tensor([[0.0, 2.0], [math.inf, 1.0]], dtype=torch.float64, requires_grad=True)
    scores = Alignment.from_costs(costs, 0.5)
    assert scores.tolist() == [[0.0, -4.0], [-math.inf, -2.0]]
    value = -0.5 * ORACLE.log_partition(scores)
    assert value.item() == pytest.approx(-0.5 * math.log(math.exp(-2.0) + math.exp(-6.0)))
    (expected,) = torch.autograd.grad(value, costs)
    torch.testing.assert_close(expected, ORACLE.marginals(scores.detach()), rtol=1e-12, atol=1e-12)


# Real costs.
