import contextlib
import itertools
import math
from functools import cache

import mpmath
import networkx
import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.oracles import SpanningTree, kernels
from tests.helpers import OracleCase, enumerate_truth, seeded

roots = pytest.mark.parametrize("single_root", [True, False], ids=["single", "multiple"])


def random_scores(words: int, scale: float, mask: float = 0.0, rows: int = 20) -> Tensor:
    """Float64 scores [rows, n + 1, n + 1] with NaN in what is not read."""
    scores = scale * torch.randn(rows, words + 1, words + 1, generator=seeded(words), dtype=torch.float64)
    forbidden = torch.rand(scores.shape, generator=seeded(1)) < mask
    unread = ~SpanningTree().read_mask((words + 1, words + 1))
    return scores.masked_fill(forbidden, -math.inf).masked_fill(unread, math.nan)


def totals(structures: Tensor, scores: Tensor) -> Tensor:
    return torch.where(structures != 0, scores.double(), 0).sum((-2, -1))


# A second algorithm: determinants with many digits (Koo et al. 2007, section 3).


def determinant_truth(row: Tensor, single_root: bool, digits: int) -> tuple[float, np.ndarray]:
    """Log-partition and marginals [n + 1, n + 1] from the inverse of the Laplacian."""
    with mpmath.workdps(digits):
        words = len(row) - 1
        arcs = [
            [mpmath.exp(mpmath.mpf(float(row[h, m]))) if h != m else mpmath.mpf(0) for m in range(1, words + 1)] for h in range(words + 1)
        ]
        laplacian = mpmath.matrix(words)
        for m in range(words):
            for h in range(words):
                laplacian[h, m] = -arcs[h + 1][m]
            laplacian[m, m] = mpmath.fsum(arcs[h][m] for h in range(1 if single_root else 0, words + 1))
        if single_root:
            for m in range(words):
                laplacian[0, m] = arcs[0][m]
        inverse, marginals = laplacian**-1, np.zeros((words + 1, words + 1))
        for m in range(words):
            marginals[0, m + 1] = arcs[0][m] * (inverse[m, 0] if single_root else inverse[m, m])
            for h in range(words):
                own = 0 if single_root and m == 0 else inverse[m, m]
                other = 0 if single_root and h == 0 else inverse[m, h]
                marginals[h + 1, m + 1] = arcs[h + 1][m] * (own - other)
        return float(mpmath.log(mpmath.det(laplacian))), marginals


@cache
def known_truth(words: int, scale: float, single_root: bool, digits: int) -> tuple[float, np.ndarray]:
    """Of the only item of random scores: once for the kernel and its reference."""
    return determinant_truth(random_scores(words, scale, rows=1)[0], single_root, digits)


@roots
@pytest.mark.parametrize(
    ("words", "scale", "digits"),
    [
        (10, 1.0, 200),
        (20, 1.0, 200),
        (8, 50.0, 1000),
        (4, 300.0, 2000),
        *(pytest.param(*case, marks=pytest.mark.sweep) for case in ((40, 1.0, 200), (10, 50.0, 1500), (20, 50.0, 1500), (10, 300.0, 4000))),
    ],
)
@pytest.mark.parametrize("compiled", [True, False], ids=["kernel", "reference"])
def test_agrees_with_determinants(single_root: bool, words: int, scale: float, digits: int, compiled: bool) -> None:
    scores, oracle = random_scores(words, scale, rows=1), SpanningTree(single_root)
    log_partition, marginals = known_truth(words, scale, single_root, digits)
    with kernels.disabled() if not compiled else torch.no_grad():
        assert float(oracle.log_partition(scores)[0]) == pytest.approx(log_partition, rel=1e-13)
        found = oracle.marginals(scores)[0]
    # Every marginal is right to its own size.
    torch.testing.assert_close(found, torch.from_numpy(marginals), rtol=1e-10, atol=1e-300)


# A second algorithm for the best tree: Edmonds' of networkx, and every root word in turn.


def best_total(row: Tensor, single_root: bool) -> float:
    words, found = len(row) - 1, [-math.inf]
    for first in range(1, words + 1) if single_root else (0,):
        graph = networkx.DiGraph()
        graph.add_nodes_from(range(words + 1))
        for head, word in itertools.product(range(words + 1), range(1, words + 1)):
            if head != word and row[head, word] > -math.inf and (head > 0 or first in (0, word)):
                graph.add_edge(head, word, weight=float(row[head, word]))
        with contextlib.suppress(networkx.NetworkXException):
            found.append(networkx.maximum_spanning_arborescence(graph).size("weight"))
    return max(found)


@roots
@pytest.mark.parametrize("mask", [0.0, 0.3, 0.7])
def test_the_best_tree_is_that_of_networkx(single_root: bool, mask: float) -> None:
    oracle = SpanningTree(single_root)
    for words, scale, dtype in ((2, 1.0, torch.float64), (5, 1e6, torch.float32), (9, 1.0, torch.float32), (12, 1e6, torch.float64)):
        scores = random_scores(words, scale, mask, rows=5).to(dtype)
        expected = torch.tensor([best_total(row, single_root) for row in scores], dtype=torch.float64)
        feasible = expected > -math.inf
        best = oracle.argmax(scores)
        assert torch.equal(best.flatten(1).any(-1), feasible)
        torch.testing.assert_close(totals(best, scores)[feasible], expected[feasible], rtol=1e-14, atol=1e-12)
        assert bool((best.sum(1)[feasible, 1:] == 1).all())
        assert not single_root or bool((best[feasible, 0].sum(-1) == 1).all())


# Words that few others lead to, where the order of elimination matters.


@roots
@pytest.mark.parametrize("compiled", [True, False], ids=["kernel", "reference"])
def test_sparse_graphs_equal_the_enumeration(single_root: bool, compiled: bool) -> None:
    case = OracleCase(SpanningTree(single_root), (5, 5))
    scores = torch.cat([random_scores(4, 2.0, mask, rows=70) for mask in (0.5, 0.65, 0.75)])
    truth = enumerate_truth(case, scores.nan_to_num(0.0, neginf=-math.inf))
    assert 5 < int(truth.feasible.sum()) < 200
    direction = torch.randn(scores.shape, generator=seeded(5), dtype=torch.float64)
    with contextlib.nullcontext() if compiled else kernels.disabled():
        leaf = scores.clone().requires_grad_()
        log_partition, marginals = case.oracle.log_partition(leaf), case.oracle.marginals(leaf)
        (product,) = torch.autograd.grad(marginals, leaf, direction)
    torch.testing.assert_close(log_partition, truth.log_partition, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(marginals, truth.marginals, rtol=1e-10, atol=1e-13)
    expected = torch.einsum("bij,bj->bi", truth.covariance, direction.nan_to_num().flatten(1))
    torch.testing.assert_close(product.flatten(1), expected, rtol=1e-8, atol=1e-12)
