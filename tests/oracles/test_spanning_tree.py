from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.oracles import SpanningTree, kernels
from tests.helpers import OracleCase, chi_square_p_value, enumerate_truth, seeded, spanning_trees

FILE = Path(__file__).parents[3] / "shared/data/scores/dependency_en_ewt.npz"
SCALES = (0.05, 1.0, 10.0, 50.0, 300.0, 1000.0)
MASKS = (0.0, 0.3, 0.7)

roots = pytest.mark.parametrize("single_root", [True, False], ids=["single", "multiple"])
scales = pytest.mark.parametrize("scale", SCALES)
masks = pytest.mark.parametrize("mask", MASKS)


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


# Counting.


@roots
@pytest.mark.parametrize("words", [1, 2, 3, 4, 5])
def test_the_count_is_cayleys(single_root: bool, words: int) -> None:
    oracle, event = SpanningTree(single_root), (words + 1, words + 1)
    assert oracle.count(event) == (words if single_root else words + 1) ** (words - 1)
    listed = {tuple(heads) for heads in oracle.heads(oracle.enumerate(event)).tolist()}
    assert len(listed) == oracle.count(event)
    assert all(is_tree(list(heads), single_root=single_root) for heads in listed)


@roots
@pytest.mark.parametrize("words", [6, 12, 15])
def test_ranks_of_a_large_space(single_root: bool, words: int) -> None:
    oracle, event = SpanningTree(single_root), (words + 1, words + 1)
    count = oracle.count(event)
    ranks = torch.cat([torch.tensor([0, 1, count - 2, count - 1]), torch.randint(count, (200,), generator=seeded())]).sort().values
    structures = torch.cat([oracle.enumerate(event, rank, rank + 1) for rank in ranks.tolist()])
    assert torch.equal(oracle.rank(structures), ranks)
    heads = oracle.heads(structures).tolist()
    assert all(is_tree(row, single_root=single_root) for row in heads)
    assert heads == sorted(heads)


def test_heads_and_structure_are_inverse() -> None:
    heads = torch.tensor([[2, 0, 2], [0, 1, 1]])
    structure = SpanningTree.structure(heads)
    assert structure.shape == (2, 4, 4)
    assert structure.dtype == torch.get_default_dtype()
    assert torch.equal(SpanningTree.heads(structure), heads)
    assert structure[0].nonzero().tolist() == [[0, 2], [2, 1], [2, 3]]


def test_the_event_shape_by_name() -> None:
    assert SpanningTree.event_shape(length=5) == (6, 6)


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


@pytest.mark.sweep
def test_agrees_with_determinants_at_40_peaked_words() -> None:
    scores = random_scores(40, 50.0, rows=1)
    log_partition, marginals = determinant_truth(scores[0], True, 600)
    assert float(SpanningTree().log_partition(scores)[0]) == pytest.approx(log_partition, rel=1e-13)
    torch.testing.assert_close(SpanningTree().marginals(scores)[0], torch.from_numpy(marginals), rtol=1e-9, atol=1e-290)


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
@masks
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


# Kernels and references.


@roots
@scales
@masks
@pytest.mark.parametrize("words", [1, 2, 3, 4, 7, 20])
def test_kernels_equal_their_references(single_root: bool, scale: float, mask: float, words: int) -> None:
    oracle, scores = SpanningTree(single_root), random_scores(words, scale, mask)
    torch.testing.assert_close(
        totals(oracle.argmax(scores), scores), totals(reference(lambda: oracle.argmax(scores)), scores), rtol=1e-13, atol=0
    )
    torch.testing.assert_close(oracle.log_partition(scores), reference(lambda: oracle.log_partition(scores)), rtol=1e-12, atol=1e-12)
    marginals = oracle.marginals(scores)
    torch.testing.assert_close(marginals, reference(lambda: oracle.marginals(scores)), rtol=1e-9, atol=1e-13)
    assert bool((marginals >= 0).all())
    feasible = oracle.feasible(scores)
    torch.testing.assert_close(marginals.sum(1)[:, 1:], feasible.double().unsqueeze(1).expand(-1, words), rtol=1e-12, atol=0)
    if single_root:
        torch.testing.assert_close(marginals[:, 0].sum(-1), feasible.double(), rtol=1e-11, atol=0)


@roots
@scales
@masks
@pytest.mark.parametrize("words", [1, 3, 6, 13])
def test_covariance_products_equal_their_references(single_root: bool, scale: float, mask: float, words: int) -> None:
    oracle, scores = SpanningTree(single_root), random_scores(words, scale, mask).requires_grad_()
    direction = torch.randn(scores.shape, generator=seeded(5), dtype=torch.float64)

    def product() -> Tensor:
        return torch.autograd.grad(oracle.marginals(scores), scores, direction)[0]

    found = product()
    torch.testing.assert_close(found, reference(product), rtol=1e-7, atol=1e-12)
    # Whatever the direction, each word keeps one head.
    torch.testing.assert_close(found.sum(1), torch.zeros_like(found[:, 0]), rtol=0, atol=1e-12)


@roots
@scales
@masks
@pytest.mark.parametrize("words", [1, 2, 5, 16])
def test_kernel_and_twin_draw_the_same_trees(single_root: bool, scale: float, mask: float, words: int) -> None:
    oracle, scores = SpanningTree(single_root), random_scores(words, scale, mask)
    found = oracle.sample(scores, 40, generator=seeded())
    assert torch.equal(found, reference(lambda: oracle.sample(scores, 40, generator=seeded())))
    feasible = oracle.feasible(scores)
    assert not found[:, ~feasible].any()
    assert bool((totals(found, scores)[:, feasible] > -math.inf).all())
    assert all(is_tree(heads, single_root=single_root) for heads in oracle.heads(found[:, feasible]).flatten(0, 1).tolist())


@roots
@pytest.mark.parametrize("mask", [0.0, 0.3])
def test_items_side_by_side_are_those_one_by_one(single_root: bool, mask: float) -> None:
    oracle, scores = SpanningTree(single_root), random_scores(11, 3.0, mask, rows=19).requires_grad_()
    direction = torch.randn(scores.shape, generator=seeded(5), dtype=torch.float64)
    together = torch.autograd.grad(oracle.marginals(scores), scores, direction)[0]
    for row in range(len(scores)):
        alone = torch.autograd.grad(oracle.marginals(scores[row]), scores, direction[row])[0][row]
        torch.testing.assert_close(together[row], alone, rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(oracle.marginals(scores)[row], oracle.marginals(scores[row]), rtol=1e-12, atol=0)
        torch.testing.assert_close(oracle.log_partition(scores)[row], oracle.log_partition(scores[row]), rtol=1e-13, atol=0)


@roots
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_single_precision_is_that_of_the_result_alone(single_root: bool, dtype: torch.dtype) -> None:
    oracle, scores = SpanningTree(single_root), random_scores(15, 3.0, 0.2).to(dtype)
    tolerance = {"rtol": 2e-7, "atol": 1e-30} if dtype == torch.float32 else {"rtol": 0.0, "atol": 0.0}
    torch.testing.assert_close(oracle.marginals(scores).double(), oracle.marginals(scores.double()), **tolerance)
    torch.testing.assert_close(oracle.log_partition(scores).double(), oracle.log_partition(scores.double()), **tolerance)


@roots
@pytest.mark.parametrize(("scale", "certain"), [(1.0, True), (10.0, True), (1000.0, False)])
def test_kernels_certify_what_is_in_range(single_root: bool, scale: float, certain: bool) -> None:
    scores, oracle = random_scores(40, scale, rows=8), SpanningTree(single_root)
    log_partition, direction = torch.empty(8, dtype=torch.float64), torch.zeros_like(scores)
    uniforms = torch.zeros(8, 1, 40, dtype=torch.float64)
    arguments: dict[str, tuple[Tensor, ...]] = {
        "log_partition": (log_partition,),
        "marginals": (torch.zeros_like(scores), log_partition),
        "covariance_product": (direction, torch.zeros_like(scores)),
        "sample": (uniforms, torch.zeros(8, 1, 41, 41, dtype=torch.float64)),
    }
    for operation, others in arguments.items():
        certified, kernel = torch.full((8,), not certain), oracle._kernel(operation, scores)
        assert kernel is not None
        kernel(scores, *others, certified)
        assert bool((certified == certain).all()), operation


@roots
def test_far_apart_weights_are_certified_only_where_none_is_forbidden(single_root: bool) -> None:
    """Weights that every arc has only grow; others may come about as products of what is left of several."""
    scores, oracle = torch.zeros(3, 9, 9, dtype=torch.float64), SpanningTree(single_root)
    scores[1:, 2, 8] = scores[1:, 8, 1] = -350.0
    scores[2, 2, 1] = -math.inf
    kernel, certified = oracle._kernel("log_partition", scores), torch.zeros(3, dtype=torch.bool)
    assert kernel is not None
    kernel(scores, torch.empty(3, dtype=torch.float64), certified)
    assert certified.tolist() == [True, True, False]


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
@pytest.mark.parametrize(("scale", "mask"), [(1.0, 0.0), (4.0, 0.0), (1.0, 0.5)])
@pytest.mark.parametrize("compiled", [True, False], ids=["kernel", "reference"])
def test_samples_follow_the_law(single_root: bool, scale: float, mask: float, compiled: bool) -> None:
    case = OracleCase(SpanningTree(single_root), (5, 5), spanning_trees)
    scores = random_scores(4, scale, mask, rows=40).nan_to_num(0.0, neginf=-math.inf)
    truth = enumerate_truth(case, scores)
    row = int((truth.feasible & (truth.probabilities > 0).sum(-1).gt(4)).nonzero()[-1])
    with torch.enable_grad() if compiled else kernels.disabled():
        samples = case.oracle.sample(scores[row], 100_000, generator=seeded(3))
    counts = case.oracle.rank(samples).bincount(minlength=truth.probabilities.shape[1])
    assert chi_square_p_value(counts, truth.probabilities[row]) > 1e-4


@roots
@pytest.mark.parametrize("scale", [1.0, 6.0])
@pytest.mark.parametrize("count", [5_000, pytest.param(20_000, marks=pytest.mark.sweep)])
def test_samples_of_many_words_have_the_marginals(single_root: bool, scale: float, count: int) -> None:
    scores, oracle = random_scores(25, scale, 0.2, rows=3), SpanningTree(single_root)
    marginals, samples = oracle.marginals(scores), oracle.sample(scores, count, generator=seeded(2))
    error = (samples.mean(0) - marginals).abs()
    assert bool((error <= 5.5 * (marginals * (1 - marginals) / count).clamp(min=0).sqrt() + 2 / count).all())


@roots
def test_a_sample_takes_one_uniform_per_word(single_root: bool) -> None:
    assert SpanningTree(single_root)._noise_size((13, 13)) == 12


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
@pytest.mark.parametrize("regime", ["real", "ties", "masked"])
def test_the_best_50_of_thousands(single_root: bool, regime: str) -> None:
    oracle, event = SpanningTree(single_root), (6, 6)
    scores = random_scores(5, 1.0, 0.3 if regime == "masked" else 0.0, rows=4)
    scores = scores.round() if regime == "ties" else scores
    every = oracle.enumerate(event, dtype=torch.float64)
    expected = totals(every.unsqueeze(1), scores).sort(0, descending=True).values[:50]
    best = oracle.kbest(scores, 50)
    exists = best.flatten(2).any(-1)
    assert torch.equal(exists, expected > -math.inf)
    torch.testing.assert_close(totals(best, scores)[exists], expected[exists], rtol=1e-12, atol=1e-12)
    for row in range(4):
        ranks = oracle.rank(best[exists[:, row], row])
        assert len(ranks.unique()) == len(ranks)
    torch.testing.assert_close(totals(reference(lambda: oracle.kbest(scores, 50)), scores), totals(best, scores), rtol=1e-12, atol=1e-12)


@roots
@pytest.mark.parametrize("mask", [0.0, 0.4])
@pytest.mark.parametrize("step", [0.0, 0.1, 50.0])
def test_all_trees_where_many_are_equally_good(single_root: bool, mask: float, step: float) -> None:
    """Sums of tenths differ by rounding: the contraction of a part may then find another tree than was listed before."""
    oracle, event = SpanningTree(single_root), (5, 5)
    scores = step * random_scores(4, 1.5, mask).round()
    scores = torch.where(random_scores(4, 1.5, mask) > -math.inf, scores, -math.inf)
    every = oracle.enumerate(event, dtype=torch.float64)
    expected = totals(every.unsqueeze(1), scores).sort(0, descending=True).values
    best = oracle.kbest(scores, len(every))
    exists = best.flatten(2).any(-1)
    assert torch.equal(exists, expected > -math.inf)
    torch.testing.assert_close(totals(best, scores)[exists], expected[exists], rtol=1e-12, atol=1e-12)
    for row in range(len(scores)):
        assert len(oracle.rank(best[exists[:, row], row]).unique()) == int(exists[:, row].sum())


# Lengths.


@roots
@pytest.mark.parametrize("compiled", [True, False], ids=["kernel", "reference"])
def test_lengths_count_words(single_root: bool, compiled: bool) -> None:
    oracle, lengths = SpanningTree(single_root), torch.tensor([1, 2, 5, 8, 11, 12])
    scores = random_scores(12, 3.0, rows=6)
    for row, length in enumerate(lengths.tolist()):
        scores[row, length + 1 :], scores[row, :, length + 1 :] = math.nan, math.nan
    with torch.enable_grad() if compiled else kernels.disabled():
        best, log_partition = oracle.argmax(scores, lengths=lengths), oracle.log_partition(scores, lengths=lengths)
        marginals, samples = oracle.marginals(scores, lengths=lengths), oracle.sample(scores, 30, generator=seeded(), lengths=lengths)
        projected = oracle.project(scores, lengths=lengths).mean
        for row, length in enumerate(lengths.tolist()):
            alone, inside = scores[row, : length + 1, : length + 1], (slice(length + 1), slice(length + 1))
            torch.testing.assert_close(log_partition[row], oracle.log_partition(alone), rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(best[row][inside], oracle.argmax(alone))
            torch.testing.assert_close(marginals[row][inside], oracle.marginals(alone), rtol=1e-10, atol=1e-13)
            torch.testing.assert_close(projected[row][inside], oracle.project(alone).mean, rtol=1e-9, atol=1e-9)
            assert all(is_tree(heads, single_root=single_root) for heads in oracle.heads(samples[:, row][:, *inside]).tolist())
            for result in (best, marginals, projected, *samples):
                assert float(result[row].sum()) == pytest.approx(length)


# Real scores.


@pytest.mark.parametrize("kind", ["small_arc_init", "small_arc_early", "small_arc_final", "large_arc_early", "large_arc_final"])
def test_the_argmax_of_real_scores_is_at_least_the_gold_tree(kind: str) -> None:
    if not FILE.exists():
        pytest.skip("the score files are not here")
    with np.load(FILE) as arrays:
        scores, heads = torch.from_numpy(arrays[kind]).double(), torch.from_numpy(arrays[f"{kind[:5]}_gold_heads"]).long()
        lengths = torch.from_numpy(arrays[f"{kind[:5]}_length"]).long()
    oracle, inside = SpanningTree(), torch.arange(heads.shape[1]) < lengths.unsqueeze(1)
    gold = SpanningTree.structure(heads.clamp(min=0), torch.float64) * torch.nn.functional.pad(inside, (1, 0)).unsqueeze(1)
    best = oracle.argmax(scores, lengths=lengths)
    assert torch.equal(best.sum((1, 2)), lengths.double())
    assert bool((totals(best, scores) >= totals(gold, scores) - 1e-9).all())
    assert bool((totals(gold, scores) > -math.inf).all())
    log_partition = oracle.log_partition(scores, lengths=lengths)
    assert bool((log_partition >= totals(best, scores) - 1e-9).all())
    torch.testing.assert_close(log_partition, reference(lambda: oracle.log_partition(scores, lengths=lengths)), rtol=1e-12, atol=1e-10)
    torch.testing.assert_close(oracle.marginals(scores, lengths=lengths).sum((1, 2)), lengths.double(), rtol=1e-12, atol=0)


# Messages.


@pytest.mark.parametrize("shape", [(3, 4), (2, 4, 3), (1, 1)])
def test_scores_must_be_square_with_a_word(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError,
        match=r"`argmax` got event shape \(.*\); expected \(n \+ 1, n \+ 1\) for n >= 1 words, scores of arcs from head to modifier",
    ):
        SpanningTree().argmax(torch.zeros(shape))
