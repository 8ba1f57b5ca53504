from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.oracles import SpanningTree, kernels
from tests.helpers import OracleCase, enumerate_truth, seeded, spanning_trees

roots = pytest.mark.parametrize("single_root", [True, False], ids=["single", "multiple"])


def random_scores(words: int, scale: float, mask: float = 0.0, rows: int = 20) -> Tensor:
    """Float64 scores [rows, n + 1, n + 1] with NaN in what is not read."""
    scores = scale * torch.randn(rows, words + 1, words + 1, generator=seeded(words), dtype=torch.float64)
    forbidden = torch.rand(scores.shape, generator=seeded(1)) < mask
    unread = ~SpanningTree().read_mask((words + 1, words + 1))
    return scores.masked_fill(forbidden, -math.inf).masked_fill(unread, math.nan)


def totals(structures: Tensor, scores: Tensor) -> Tensor:
    return torch.where(structures != 0, scores.double(), 0).sum((-2, -1))


def reference(compute: Callable[[], Tensor]) -> Tensor:
    with kernels.disabled():
        return compute()


def is_tree(heads: list[int], *, single_root: bool) -> bool:
    reached = {0}
    for _ in heads:
        reached |= {word for word, head in enumerate(heads, 1) if head in reached}
    return len(reached) == len(heads) + 1 and (heads.count(0) == 1 or not single_root)


def test_heads_and_structure_are_inverse() -> None:
    heads = torch.tensor([[2, 0, 2], [0, 1, 1]])
    structure = SpanningTree.structure(heads)
    assert structure.shape == (2, 4, 4)
    assert structure.dtype == torch.get_default_dtype()
    assert torch.equal(SpanningTree.heads(structure), heads)
    assert structure[0].nonzero().tolist() == [[0, 2], [2, 1], [2, 3]]


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


# A second algorithm for the MAP: Chu-Liu-Edmonds by recursion over dictionaries, and every root word in turn.


def chu_liu_edmonds(arcs: dict[tuple[Any, Any], float], nodes: set[Any], root: Any) -> dict[Any, Any] | None:
    """The best head of each node but the root, by weights of arcs (head, node); None where there is no tree."""
    best: dict[Any, Any] = {}
    for node in nodes - {root}:
        heads = [(weight, head) for (head, child), weight in arcs.items() if child == node]
        if not heads:
            return None
        best[node] = max(heads, key=lambda pair: pair[0])[1]
    cycle = next(find_cycles(best, root), None)
    if cycle is None:
        return best
    joined = ("cycle", len(nodes), min(map(str, cycle)))
    reduced, origin = contract(arcs, best, cycle, joined)
    inner = chu_liu_edmonds(reduced, (nodes - cycle) | {joined}, root)
    if inner is None:
        return None
    result = {node: best[node] for node in cycle}
    for node, head in inner.items():
        outer, entered = origin[head, node]
        result[entered] = outer
    return result


def contract(
    arcs: dict[tuple[Any, Any], float], best: dict[Any, Any], cycle: set[Any], joined: Any
) -> tuple[dict[Any, float], dict[Any, Any]]:
    """Arcs with one node for the cycle, and where each of them comes from."""
    reduced: dict[Any, float] = {}
    origin: dict[Any, Any] = {}
    for (head, child), weight in arcs.items():
        key = (joined if head in cycle else head, joined if child in cycle else child)
        gain = weight - arcs[best[child], child] if child in cycle else weight
        if key != (joined, joined) and (key not in reduced or gain > reduced[key]):
            reduced[key], origin[key] = gain, (head, child)
    return reduced, origin


def find_cycles(best: dict[Any, Any], root: Any) -> Iterator[set[Any]]:
    for node in best:
        seen, walk = [], node
        while walk != root and walk not in seen:
            seen.append(walk)
            walk = best[walk]
        if walk != root:
            yield set(seen[seen.index(walk) :])


def best_total(row: Tensor, single_root: bool) -> float:
    words = len(row) - 1
    arcs = {(h, m): float(row[h, m]) for h in range(words + 1) for m in range(1, words + 1) if h != m and row[h, m] > -math.inf}
    found = []
    for first in range(1, words + 1) if single_root else (0,):
        allowed = {arc: weight for arc, weight in arcs.items() if not single_root or arc[0] > 0 or arc[1] == first}
        heads = chu_liu_edmonds(allowed, set(range(words + 1)), 0)
        found.append(-math.inf if heads is None else sum(allowed[head, node] for node, head in heads.items()))
    return max(found)


@roots
@pytest.mark.parametrize("mask", [0.0, 0.3, 0.7])
@pytest.mark.parametrize("scale", [1.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("compiled", [True, False], ids=["kernel", "reference"])
def test_argmax_agrees_with_the_recursion(single_root: bool, mask: float, scale: float, dtype: torch.dtype, compiled: bool) -> None:
    oracle = SpanningTree(single_root)
    for words in (2, 5, 8, 12):
        scores = random_scores(words, scale, mask, rows=6).to(dtype)
        best = oracle.argmax(scores) if compiled else reference(lambda scores=scores: oracle.argmax(scores))  # type: ignore[misc]
        expected = torch.tensor([best_total(row, single_root) for row in scores], dtype=torch.float64)
        feasible = expected > -math.inf
        assert torch.equal(best.flatten(1).any(-1), feasible)
        torch.testing.assert_close(totals(best, scores)[feasible], expected[feasible], rtol=1e-14, atol=1e-12)
        assert all(is_tree(heads, single_root=single_root) for heads in oracle.heads(best[feasible]).tolist())


def test_one_tiny_score_beside_huge_ones_decides() -> None:
    """A penalty for root words of the size of the scores would swallow it, in float32 at once."""
    for dtype in (torch.float32, torch.float64):
        scores = torch.full((3, 3), -1e6, dtype=dtype)
        scores[0, 1], scores[0, 2] = 1e6, 1e6
        scores[2, 1], scores[1, 2] = 0.0, 1e-3
        for best in (SpanningTree().argmax(scores), reference(lambda scores=scores: SpanningTree().argmax(scores))):  # type: ignore[misc]
            assert SpanningTree.heads(best).tolist() == [0, 1]


@roots
def test_equal_heads_go_to_the_lowest(single_root: bool) -> None:
    scores = torch.zeros(4, 4)
    best = SpanningTree(single_root).argmax(scores)
    assert torch.equal(best, reference(lambda: SpanningTree(single_root).argmax(scores)))
    assert SpanningTree.heads(best).tolist() == ([0, 1, 1] if single_root else [0, 0, 0])


@roots
@pytest.mark.parametrize("rows", [1, 9], ids=["one by one", "side by side"])
def test_a_weight_that_gets_lost_on_the_way_is_not_certified(single_root: bool, rows: int) -> None:
    """Each weight is in range. But words 2 to 4 head each other with ease, and what else leads to them, over 4, is a product of two."""
    scores = torch.full((rows, 5, 5), -math.inf, dtype=torch.float64)
    scores[:, 0, 1] = scores[:, 3, 4] = scores[:, 2, 3] = scores[:, 3, 2] = 0.0
    scores[:, 1, 4] = scores[:, 4, 3] = scores[:, 4, 2] = -500.0
    oracle = SpanningTree(single_root)
    assert float(oracle.log_partition(scores)[0]) == pytest.approx(-1000.0 + math.log(2))
    expected = (SpanningTree.structure(torch.tensor([0, 4, 2, 1])) + SpanningTree.structure(torch.tensor([0, 3, 4, 1]))).double() / 2
    torch.testing.assert_close(oracle.marginals(scores)[0], expected)
    (product,) = torch.autograd.grad(oracle.marginals(leaf := scores.clone().requires_grad_())[0, 4, 2], leaf)
    assert float(product[0, 4, 2]) == pytest.approx(0.25)
    samples = oracle.sample(scores, 500, generator=seeded())[:, 0].mean(0)
    assert float((samples - expected).abs().max()) < 0.1


# Words that few others lead to, where the order of elimination matters.


@roots
@pytest.mark.parametrize("mask", [0.5, 0.65, 0.75])
@pytest.mark.parametrize("compiled", [True, False], ids=["kernel", "reference"])
def test_sparse_graphs_equal_the_enumeration(single_root: bool, mask: float, compiled: bool) -> None:
    case = OracleCase(SpanningTree(single_root), (5, 5), spanning_trees)
    scores = random_scores(4, 2.0, mask, rows=200)
    truth = enumerate_truth(case, scores.nan_to_num(0.0, neginf=-math.inf))
    assert 5 < int(truth.feasible.sum()) < 200
    direction = torch.randn(scores.shape, generator=seeded(5), dtype=torch.float64)
    with torch.enable_grad() if compiled else kernels.disabled():
        leaf = scores.clone().requires_grad_()
        log_partition, marginals = case.oracle.log_partition(leaf), case.oracle.marginals(leaf)
        (product,) = torch.autograd.grad(marginals, leaf, direction)
    torch.testing.assert_close(log_partition, truth.log_partition, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(marginals, truth.marginals, rtol=1e-10, atol=1e-13)
    expected = torch.einsum("bij,bj->bi", truth.covariance, direction.nan_to_num().flatten(1))
    torch.testing.assert_close(product.flatten(1), expected, rtol=1e-8, atol=1e-12)


@roots
@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53], ids=["lowest", "highest"])
def test_extreme_uniforms_give_feasible_trees(single_root: bool, uniform: float) -> None:
    oracle, scores = SpanningTree(single_root), random_scores(9, 5.0, 0.6, rows=300)
    structures = oracle._draw(scores, torch.full((300, 1, 9), uniform, dtype=torch.float64))[:, 0]
    feasible = oracle.feasible(scores)
    assert 50 < int(feasible.sum()) < 300
    assert bool((totals(structures, scores)[feasible] > -math.inf).all())
    assert all(is_tree(heads, single_root=single_root) for heads in oracle.heads(structures[feasible]).tolist())


# k best.


@roots
@pytest.mark.parametrize("mask", [0.0, 0.4])
@pytest.mark.parametrize(("words", "k", "step"), [(5, 50, None), (5, 50, 1.0), *((4, None, step) for step in (0.0, 0.1, 50.0))])
def test_the_best_are_those_of_all_trees(single_root: bool, mask: float, words: int, k: int | None, step: float | None) -> None:
    """Sums of tenths differ by rounding: the contraction of a part may then find another tree than was listed before."""
    oracle, scores = SpanningTree(single_root), random_scores(words, 1.5, mask)
    if step is not None:
        scores = torch.where(scores > -math.inf, step * scores.round(), -math.inf)
    every = oracle.enumerate((words + 1, words + 1), dtype=torch.float64)
    expected = totals(every.unsqueeze(1), scores).sort(0, descending=True).values[:k]
    best = oracle.kbest(scores, len(expected))
    exists = best.flatten(2).any(-1)
    assert torch.equal(exists, expected > -math.inf)
    torch.testing.assert_close(totals(best, scores)[exists], expected[exists], rtol=1e-12, atol=1e-12)
    for row in range(len(scores)):
        assert len(oracle.rank(best[exists[:, row], row]).unique()) == int(exists[:, row].sum())
    listed = reference(lambda: oracle.kbest(scores[:4], 50))
    torch.testing.assert_close(totals(listed, scores[:4]), totals(best[:50, :4], scores[:4]), rtol=1e-12, atol=1e-12)
