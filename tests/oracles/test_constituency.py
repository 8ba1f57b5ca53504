from __future__ import annotations

import functools
import math
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.oracles import Constituency, kernels
from tests.helpers import seeded

ORACLE = Constituency()
SCALES = (0.05, 1.0, 10.0, 50.0, 300.0, 1000.0)


def gaussian(n: int, scale: float, rows: int = 3, seed: int = 0) -> Tensor:
    """Scores [rows, n, n] with NaN where nothing is read."""
    scores = scale * torch.randn(rows, n, n, generator=seeded(seed), dtype=torch.float64)
    return scores.masked_fill(torch.ones(n, n, dtype=torch.bool).tril(-1), math.nan)


def masked(n: int, scale: float, rows: int = 3, seed: int = 0, share: float = 0.3) -> Tensor:
    """The same with spans forbidden at random; those that every tree holds, in the first row alone."""
    forbidden = torch.rand(rows, n, n, generator=seeded(seed + 1)) < share
    needed = torch.eye(n, dtype=torch.bool)
    needed[0, -1] = True
    forbidden[1:] &= ~needed
    return gaussian(n, scale, rows, seed).masked_fill(forbidden, -math.inf)


def branching(n: int, left: bool) -> Tensor:
    """The tree whose spans all begin at the first token, or all end at the last."""
    structure = torch.eye(n, dtype=torch.float64)
    structure[0 if left else slice(None), slice(None) if left else -1] = 1
    return structure


# A second algorithm: memoised recursions over the cuts, in arithmetic of 40 digits and any exponent.


def precise_weights(row: np.ndarray) -> dict[tuple[int, int], Any]:
    """The weight of all trees over each span (i, j)."""
    weights: dict[tuple[int, int], Any] = {}
    for width in range(len(row)):
        for i in range(len(row) - width):
            j = i + width
            cuts = [weights[i, k] * weights[k + 1, j] for k in range(i, j)] or [mpmath.mpf(1)]
            weights[i, j] = mpmath.exp(row[i, j]) * mpmath.fsum(cuts) if row[i, j] > -math.inf else mpmath.mpf(0)
    return weights


def precise_marginals(row: np.ndarray, weights: dict[tuple[int, int], Any]) -> dict[tuple[int, int], Any]:
    """Span by span: its marginal is shared among its cuts, and goes to their parts."""
    n = len(row)
    marginals = dict.fromkeys(weights, mpmath.mpf(0))
    marginals[0, n - 1] = mpmath.mpf(1)
    for i, j in sorted(weights, key=lambda span: span[0] - span[1]):
        if i < j and weights[i, j] > 0:
            share = marginals[i, j] * mpmath.exp(row[i, j]) / weights[i, j]
            for k in range(i, j):
                part = share * weights[i, k] * weights[k + 1, j]
                marginals[i, k] += part
                marginals[k + 1, j] += part
    return marginals


def as_matrix(values: dict[tuple[int, int], Any], n: int) -> Tensor:
    matrix = torch.zeros(n, n, dtype=torch.float64)
    for (i, j), value in values.items():
        matrix[i, j] = float(value)
    return matrix


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize(("n", "make"), [(9, gaussian), (9, masked), (20, gaussian), (40, gaussian), (40, masked)])
def test_log_partition_and_marginals_in_precise_arithmetic(n: int, make: Any, scale: float) -> None:
    with mpmath.workdps(40):
        row = make(n, scale)[1]
        weights = precise_weights(row.numpy())
        expected = as_matrix(precise_marginals(row.numpy(), weights), n)
        log_partition = float(mpmath.log(weights[0, n - 1]))
    assert ORACLE.log_partition(row).item() == pytest.approx(log_partition, rel=1e-13, abs=1e-12)
    torch.testing.assert_close(ORACLE.marginals(row), expected, rtol=1e-10, atol=1e-12)
    with kernels.disabled():
        assert ORACLE.log_partition(row).item() == pytest.approx(log_partition, rel=1e-13, abs=1e-12)
        torch.testing.assert_close(ORACLE.marginals(row), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize(("n", "make"), [(9, masked), (40, gaussian), (40, masked)])
def test_argmax_against_a_memoised_recursion(n: int, make: Any, scale: float) -> None:
    row = make(n, scale)[1]
    values = row.tolist()

    @functools.cache
    def best(i: int, j: int) -> float:
        return values[i][j] + max((best(i, k) + best(k + 1, j) for k in range(i, j)), default=0.0)

    for found in (ORACLE.argmax(row), reference(lambda: ORACLE.argmax(row))):
        assert found.sum() == 2 * n - 1
        assert row[found > 0].sum().item() == pytest.approx(best(0, n - 1), rel=1e-13)


# The compiled kernels and their references.


def reference(compute: Any) -> Any:
    with kernels.disabled():
        return compute()


@pytest.mark.parametrize("far", [-500.0, -365.0, -330.0, 330.0, 365.0, 500.0])
def test_no_sum_on_the_way_may_leave_the_range(far: float) -> None:
    """Each weight fits, and so does the sentence; the product of the first two does not, or with few digits."""
    scores = torch.full((1, 9, 9), -math.inf, dtype=torch.float64)
    scores[0, branching(9, left=True) > 0] = 0.0
    scores[0, 0, 1:5] = torch.tensor([far, far, -far, -far + 1 / 3], dtype=torch.float64)
    assert ORACLE.log_partition(scores).item() == pytest.approx(1 / 3, abs=1e-11)
    torch.testing.assert_close(ORACLE.marginals(scores)[0], branching(9, left=True), rtol=0, atol=1e-14)


@pytest.mark.parametrize("compute", [lambda f: f(), reference], ids=["kernel", "reference"])
def test_ties_go_to_the_lowest_cut(compute: Any) -> None:
    assert torch.equal(compute(lambda: ORACLE.argmax(torch.zeros(7, 7, dtype=torch.float64))), branching(7, left=False))
    scores = torch.zeros(5, 5, dtype=torch.float64)
    scores[0, 3] = scores[1, 4] = 1.0
    expected = torch.eye(5, dtype=torch.float64)
    for i, j in ((0, 4), (1, 4), (2, 4), (3, 4)):
        expected[i, j] = 1
    assert torch.equal(compute(lambda: ORACLE.argmax(scores)), expected)


@pytest.mark.parametrize("far", [-700.0, -1500.0, -1e5, 700.0, 1500.0, 1e5])
@pytest.mark.parametrize("span", [(0, 1), (1, 2), (0, 2), (1, 3), (0, 3)])
def test_one_span_far_from_all_others(span: tuple[int, int], far: float) -> None:
    """A product of weights underflows where each is in range: 0 must not pass for a span that no tree covers."""
    scores = torch.zeros(1, 5, 5, dtype=torch.float64)
    scores[0, span[0], span[1]] = far
    scores[0, 0, 4] = -far
    for forbidden in (None, (1, 1 + 1), (2, 4)):
        if forbidden is not None and forbidden != span:
            scores[0][forbidden] = -math.inf
        torch.testing.assert_close(ORACLE.log_partition(scores), reference(lambda: ORACLE.log_partition(scores)), rtol=1e-13, atol=1e-10)
        torch.testing.assert_close(ORACLE.marginals(scores), reference(lambda: ORACLE.marginals(scores)), rtol=1e-10, atol=1e-12)
