from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.oracles import ProjectiveTree, kernels

roots = pytest.mark.parametrize("single_root", [True, False])


def random_scores(length: int, scale: float, rows: int = 4, masked: bool = False) -> Tensor:
    scores = scale * torch.randn(rows, length + 1, length + 1, dtype=torch.float64)
    return scores.masked_fill(torch.rand(scores.shape) < 0.3, -math.inf) if masked else scores


def by_spans_with_heads(weights: np.ndarray, plus: np.ufunc, times: np.ufunc, single_root: bool) -> Any:
    """All trees by another recursion, O(n⁴): a subtree is a span with its head, beside which lie rows of subtrees that hang on it."""
    size, one = len(weights), float(times.identity)
    # covered[a, b][h]: words a..b are covered by subtrees that hang on h; hanging[a, b][h]: by one such subtree.
    covered = {(a, a - 1): np.full(size, one, weights.dtype) for a in range(1, size + 1)}
    hanging = {}
    for width in range(1, size):
        for a in range(1, size - width + 1):
            b = a + width - 1
            trees = np.array([times(covered[a, head - 1][head], covered[head + 1, b][head]) for head in range(a, b + 1)], weights.dtype)
            hanging[a, b] = plus.reduce(times(weights[:, a : b + 1], trees), axis=1)
            rows = np.stack([times(hanging[a, c], covered[c + 1, b]) for c in range(a, b + 1)])
            covered[a, b] = plus.reduce(rows, axis=0)
    return (hanging if single_root else covered)[1, size - 1][0]


def exact_log_partition(scores: np.ndarray, single_root: bool) -> float:
    """In extended precision, whose exponents reach beyond ±11 000."""
    shift = scores[:, 1:].max(0)
    weights = np.zeros(scores.shape, np.longdouble)
    weights[:, 1:] = np.exp((scores[:, 1:] - shift).astype(np.longdouble))
    total = by_spans_with_heads(weights, np.add, np.multiply, single_root)
    return float(np.log(total) + shift.sum())


def arcs_only(scores: Tensor) -> np.ndarray:
    """Without the entries that are no arcs."""
    size = scores.shape[-1]
    return scores.masked_fill(torch.eye(size, dtype=torch.bool), -math.inf).numpy()


def score(z: Tensor, scores: Tensor) -> Tensor:
    return torch.where(z != 0, scores, 0).sum((-2, -1))


@roots
@pytest.mark.parametrize("scale", [0.05, 1.0, 10.0, 60.0])
@pytest.mark.parametrize("words", [7, 20, 40])
def test_log_partition_equals_another_recursion(single_root: bool, scale: float, words: int) -> None:
    oracle, scores = ProjectiveTree(single_root), random_scores(words, scale, rows=2)
    expected = [exact_log_partition(row, single_root) for row in arcs_only(scores)]
    np.testing.assert_allclose(oracle.log_partition(scores), expected, rtol=1e-12)
    with kernels.disabled():
        np.testing.assert_allclose(oracle.log_partition(scores), expected, rtol=1e-12)


@roots
@pytest.mark.parametrize("scale", [0.3, 10.0])
def test_marginals_equal_another_recursion(single_root: bool, scale: float) -> None:
    """An arc's marginal is the weight that is lost without it."""
    oracle, scores = ProjectiveTree(single_root), random_scores(30, scale, rows=1)[0]
    marginals, table = oracle.marginals(scores), arcs_only(scores)
    whole = exact_log_partition(table, single_root)
    for head, modifier in [*(marginals > 0.2).nonzero()[:4].tolist(), [0, 3], [30, 1], [1, 30], [7, 8], [12, 3]]:
        without = table.copy()
        without[head, modifier] = -math.inf
        lost = -math.expm1(exact_log_partition(without, single_root) - whole)
        assert marginals[head, modifier].item() == pytest.approx(lost, rel=1e-9, abs=1e-11)


@roots
@pytest.mark.parametrize("scale", [1.0, 1000.0])
@pytest.mark.parametrize("words", [7, 40])
def test_argmax_equals_another_recursion(single_root: bool, scale: float, words: int) -> None:
    oracle, scores = ProjectiveTree(single_root), random_scores(words, scale, rows=2)
    expected = [by_spans_with_heads(row, np.maximum, np.add, single_root) for row in arcs_only(scores)]
    np.testing.assert_allclose(score(oracle.argmax(scores), scores), expected, rtol=1e-12)
    with kernels.disabled():
        np.testing.assert_allclose(score(oracle.argmax(scores), scores), expected, rtol=1e-12)


def test_a_greedy_choice_that_no_tree_can_make_is_not_silently_wrong() -> None:
    """Every word's best head is out of reach by 700 nats: the weights must be taken relative to the best tree."""
    scores = torch.zeros(1, 5, 5, dtype=torch.float64)
    scores[0, 1, 3] = scores[0, 2, 4] = scores[0, 3, 1] = scores[0, 4, 2] = 700.0
    expected = [exact_log_partition(row, True) for row in arcs_only(scores)]
    np.testing.assert_allclose(ProjectiveTree().log_partition(scores), expected, rtol=1e-13)


def test_an_arc_beyond_all_exponents_that_others_make_up_for() -> None:
    """Two trees of almost the same score; the second has an arc of +900, whose weight relative to the first does not fit."""
    scores = torch.full((1, 4, 4), -100.0, dtype=torch.float64)
    scores[0, 0, 1] = scores[0, 1, 2] = scores[0, 1, 3] = 0.0
    scores[0, 0, 2], scores[0, 2, 1], scores[0, 2, 3] = 900.0, -450.0, -450.1
    assert ProjectiveTree().log_partition(scores).item() == pytest.approx(math.log1p(math.exp(-0.1)), rel=1e-12)
    assert ProjectiveTree().marginals(scores)[0, 0, 2].item() == pytest.approx(1 / (1 + math.exp(0.1)), rel=1e-12)
