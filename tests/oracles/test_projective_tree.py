from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.oracles import ProjectiveTree, kernels, make_oracle
from structgrad.oracles.active_set import solver
from tests.helpers import refused_rows

REAL_SCORES = Path(__file__).parents[3] / "shared" / "data" / "scores" / "dependency_en_ewt.npz"
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


@pytest.mark.parametrize("words", range(1, 9))
def test_counts(words: int) -> None:
    single, several = (ProjectiveTree(single_root).count((words + 1, words + 1)) for single_root in (True, False))
    assert single == math.comb(3 * words - 2, words - 1) // words == (1, 2, 7, 30, 143, 728, 3876, 21318)[words - 1]
    assert several == math.comb(3 * words, words) // (2 * words + 1) == (1, 3, 12, 55, 273, 1428, 7752, 43263)[words - 1]


@roots
@pytest.mark.parametrize("words", [1, 2, 5, 20, 40])
def test_equal_scores_count_the_trees(single_root: bool, words: int) -> None:
    oracle, scores = ProjectiveTree(single_root), torch.zeros(words + 1, words + 1, dtype=torch.float64)
    expected = math.log(oracle.count((words + 1, words + 1)))
    assert oracle.log_partition(scores).item() == pytest.approx(expected, rel=1e-13, abs=1e-13)
    with kernels.disabled():
        assert oracle.log_partition(scores).item() == pytest.approx(expected, rel=1e-13, abs=1e-13)


@roots
def test_ranks_of_a_large_space(single_root: bool) -> None:
    oracle, event = ProjectiveTree(single_root), (19, 19)
    count = oracle.count(event)
    for start in (0, count // 3, count // 2, count - 5):
        trees = oracle.enumerate(event, start, start + 5)
        assert oracle.rank(trees).tolist() == list(range(start, start + 5))
        assert bool((trees.sum(-2)[:, 1:] == 1).all())
        assert not single_root or bool((trees[:, 0].sum(-1) == 1).all())
    with pytest.raises(ValueError, match=r"`enumerate` got a space of [\d.e+]+ structures; expected at most 2\*\*62"):
        oracle.enumerate((41, 41), 0, 1)


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


@roots
def test_kbest_of_a_longer_sentence_are_sorted_and_distinct(single_root: bool) -> None:
    oracle, scores = ProjectiveTree(single_root), random_scores(12, 1.0, rows=2)
    best = oracle.kbest(scores, 20)
    totals = score(best, scores)
    assert bool((totals[:-1] >= totals[1:]).all())
    assert torch.equal(best[0], oracle.argmax(scores))
    for row in range(2):
        assert len(oracle.rank(best[:, row]).unique()) == 20
        # As many trees as there are above the last one: the mass of the best, from samples, is not exceeded.
        drawn = score(oracle.sample(scores[row], 500, generator=torch.Generator().manual_seed(0)), scores[row])
        found = {round(total, 9) for total in totals[:, row].tolist()}
        assert {round(total, 9) for total in drawn.tolist() if total > totals[-1, row] + 1e-9} <= found


@pytest.mark.skipif(not REAL_SCORES.exists(), reason="the score files are not here")
@pytest.mark.parametrize("prefix", ["small", "large"])
@pytest.mark.parametrize("stage", ["early", "final"])
def test_real_scores_and_gold_trees(prefix: str, stage: str) -> None:
    oracle, data = ProjectiveTree(), np.load(REAL_SCORES)
    lengths, heads = data[f"{prefix}_length"], data[f"{prefix}_gold_heads"]
    checked = 0
    for item in data[f"{prefix}_gold_projective"].nonzero()[0][:60]:
        n = int(lengths[item])
        scores = torch.from_numpy(data[f"{prefix}_arc_{stage}"][item, : n + 1, : n + 1]).double()
        gold = ProjectiveTree.structure(torch.from_numpy(heads[item, :n]), torch.float64)
        assert score(oracle.argmax(scores), scores) >= score(gold, scores) - 1e-12
        assert -math.inf < oracle.log_prob(gold, scores) <= 1e-12
        assert bool((gold * oracle.marginals(scores)).sum() > 0)
        if n <= 12:
            rank = int(oracle.rank(gold))
            assert torch.equal(oracle.enumerate((n + 1, n + 1), rank, rank + 1, dtype=torch.float64)[0], gold)
        checked += 1
    assert checked > 20


@roots
def test_equal_scores_take_the_first_tree(single_root: bool) -> None:
    oracle, scores = ProjectiveTree(single_root), torch.zeros(3, 8, 8)
    first = oracle.enumerate((8, 8), 0, 1)
    assert torch.equal(oracle.argmax(scores), first.expand(3, 8, 8))
    with kernels.disabled():
        assert torch.equal(oracle.argmax(scores), first.expand(3, 8, 8))


def test_the_root_has_one_child_or_many() -> None:
    scores = torch.full((6, 6), -1.0)
    scores[0] = 5.0
    assert ProjectiveTree.heads(ProjectiveTree(single_root=False).argmax(scores)).tolist() == [0, 0, 0, 0, 0]
    assert ProjectiveTree.heads(ProjectiveTree().argmax(scores)).tolist().count(0) == 1
    assert ProjectiveTree().marginals(scores)[0].sum().item() == pytest.approx(1)
    assert ProjectiveTree(single_root=False).marginals(scores)[0].sum() > 4.9
    samples = ProjectiveTree().sample(scores, 500, generator=torch.Generator().manual_seed(0))
    assert bool((samples[:, 0].sum(-1) == 1).all())


@roots
def test_no_arc_crosses_another(single_root: bool) -> None:
    oracle = ProjectiveTree(single_root)
    for z in oracle.sample(torch.zeros(11, 11), 50, generator=torch.Generator().manual_seed(0)):
        arcs = [sorted(arc) for arc in z.nonzero().tolist()]
        assert len(arcs) == 10
        assert not any(a < c < b < d for a, b in arcs for c, d in arcs)


@roots
def test_a_forbidden_word_is_infeasible(single_root: bool) -> None:
    oracle, scores = ProjectiveTree(single_root), random_scores(6, 1.0, rows=2)
    scores[0, :, 3] = -math.inf
    scores.requires_grad_()
    assert oracle.feasible(scores).tolist() == [False, True]
    oracle.entropy(scores).sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert not scores.grad[0].any()


def test_a_single_root_may_be_infeasible_where_several_are_not() -> None:
    scores = torch.full((4, 4), -math.inf)
    scores[0] = 0.0
    assert not ProjectiveTree().feasible(scores)
    assert ProjectiveTree(single_root=False).feasible(scores)
    assert ProjectiveTree(single_root=False).marginals(scores)[0].tolist() == [0, 1, 1, 1]


def results(oracle: ProjectiveTree, scores: Tensor) -> tuple[Tensor, ...]:
    leaf = scores.clone().requires_grad_()
    marginals = oracle.marginals(leaf)
    direction = torch.randn(scores.shape, generator=torch.Generator().manual_seed(1)).to(scores.dtype)
    (product,) = torch.autograd.grad(marginals, leaf, direction)
    samples = oracle.sample(scores, 6, generator=torch.Generator().manual_seed(2))
    return oracle.log_partition(scores), marginals.detach(), product, samples, oracle.argmax(scores)


@roots
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scale", [0.05, 1.0, 10.0, 50.0, 300.0, 1000.0])
@pytest.mark.parametrize("words", [1, 2, 9, 21])
def test_kernels_equal_their_references(single_root: bool, masked: bool, scale: float, words: int) -> None:
    oracle, scores = ProjectiveTree(single_root), random_scores(words, scale, rows=18, masked=masked)
    found = results(oracle, scores)
    with kernels.disabled():
        expected = results(oracle, scores)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(found[2], expected[2], rtol=1e-9, atol=1e-10)
    assert torch.equal(found[3], expected[3])
    assert torch.equal(found[4], expected[4])


@roots
def test_kernels_in_single_precision(single_root: bool) -> None:
    oracle, scores = ProjectiveTree(single_root), random_scores(15, 2.0, rows=10).float()
    with kernels.disabled():
        expected = results(oracle, scores.double())
    for found, exact in zip(results(oracle, scores), expected, strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=3e-6)


def certificates(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What the kernel computes, before the reference corrects it: marginals, log-partition, and which rows are certified."""
    marginals, log_partition = torch.zeros_like(scores), torch.zeros(len(scores), dtype=torch.float64)
    kernel, certified = ProjectiveTree()._kernel("marginals", scores), torch.ones(len(scores), dtype=torch.bool)
    assert isinstance(kernel, kernels.Kernel)
    failed = refused_rows(kernel, (scores,), (marginals, log_partition))
    certified[[] if failed is None else failed] = False
    return marginals, log_partition, certified


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scale", [0.05, 3.0, 20.0])
def test_scores_of_moderate_scale_are_certified(masked: bool, scale: float) -> None:
    assert bool(certificates(random_scores(40, scale, rows=10, masked=masked))[2].all())


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scale", [100.0, 300.0, 500.0])
def test_what_is_certified_is_right(masked: bool, scale: float) -> None:
    scores = random_scores(10, scale, rows=150, masked=masked)
    marginals, log_partition, certified = certificates(scores)
    assert int(certified.sum()) > 10
    with kernels.disabled():
        torch.testing.assert_close(log_partition[certified], ProjectiveTree().log_partition(scores)[certified], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(marginals[certified], ProjectiveTree().marginals(scores)[certified], rtol=0, atol=1e-10)


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


def test_a_finite_penalty_far_below_the_rest_changes_nothing() -> None:
    scores = random_scores(12, 1.0, rows=6)
    scores[torch.rand(scores.shape) < 0.3] = -1e9
    marginals = ProjectiveTree().marginals(scores)
    with kernels.disabled():
        torch.testing.assert_close(marginals, ProjectiveTree().marginals(scores), rtol=0, atol=1e-11)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_covariance_products_are_linear_in_the_direction(scale: float) -> None:
    oracle, scores = ProjectiveTree(), random_scores(10, 1.0).requires_grad_()
    direction = torch.randn(scores.shape, dtype=torch.float64)
    (once,) = torch.autograd.grad(oracle.marginals(scores), scores, direction)
    (scaled,) = torch.autograd.grad(oracle.marginals(scores), scores, scale * direction)
    torch.testing.assert_close(scaled / scale, once, rtol=1e-9, atol=1e-12)


@roots
def test_samples_of_a_longer_sentence_follow_the_marginals(single_root: bool) -> None:
    oracle, scores = ProjectiveTree(single_root), random_scores(15, 1.0, rows=1)[0]
    marginals = oracle.marginals(scores)
    samples = oracle.sample(scores, 40_000, generator=torch.Generator().manual_seed(0))
    error = (samples.mean(0) - marginals).abs()
    assert bool((error <= 5 * (marginals * (1 - marginals) / 40_000).sqrt() + 1e-4).all())


def drawn_by_the_documented_stream(scores: Tensor, uniforms: list[float], single_root: bool) -> list[int]:
    """Heads, by plain recursion: of every item the farthest child, then the seam under its arc; then what is lower, upper and beyond."""
    size = len(scores)

    @cache
    def sides(first: int, last: int, leftward: bool) -> list[tuple[int, float]]:
        """Farthest children, and the weight of all items with them."""
        places = range(first, last) if leftward else range(first + 1, last + 1)
        head = last if leftward else first
        bare = single_root and not leftward and first == 0
        ways = []
        for child in places:
            low, high = (child, last) if leftward else (first, child)
            under = 0.0 if bare and last < size - 1 else sum(weight for _, weight in seams(low, high))
            beyond = whole(first, child, True) if leftward else whole(child, last, False)
            ways.append((child, math.exp(scores[head, child]) * under * beyond))
        return ways

    @cache
    def seams(low: int, high: int) -> list[tuple[int, float]]:
        return [(seam, whole(low, seam, False) * whole(seam + 1, high, True)) for seam in range(low, high)]

    def whole(first: int, last: int, leftward: bool) -> float:
        return 1.0 if first == last else sum(weight for _, weight in sides(first, last, leftward))

    def pick(ways: list[tuple[int, float]]) -> int:
        threshold, reached = uniforms.pop(0) * sum(weight for _, weight in ways), 0.0
        for place, weight in ways:
            reached += weight
            if reached > threshold:
                return place
        raise AssertionError

    heads = [0] * size

    def walk(first: int, last: int, leftward: bool) -> None:
        if first == last:
            return
        child = pick(sides(first, last, leftward))
        low, high = (child, last) if leftward else (first, child)
        heads[child] = last if leftward else first
        seam = pick(seams(low, high))
        walk(low, seam, False)
        walk(seam + 1, high, True)
        walk(*((first, child) if leftward else (child, last)), leftward)

    walk(0, size - 1, False)
    assert not uniforms, "two for each word"
    return heads[1:]


@roots
@pytest.mark.parametrize("words", [1, 2, 6])
def test_a_sample_takes_two_uniforms_for_each_word(single_root: bool, words: int) -> None:
    oracle, scores = ProjectiveTree(single_root), random_scores(words, 1.0, rows=1)[0]
    uniforms = torch.rand(1, 40, 2 * words, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = [drawn_by_the_documented_stream(scores, row.tolist(), single_root) for row in uniforms[0]]
    assert oracle._noise_size((words + 1, words + 1)) == 2 * words
    assert ProjectiveTree.heads(oracle._draw(scores.unsqueeze(0), uniforms))[0].tolist() == expected
    with kernels.disabled():
        assert ProjectiveTree.heads(oracle._draw(scores.unsqueeze(0), uniforms))[0].tolist() == expected


@roots
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_the_compiled_projection_equals_its_reference(single_root: bool, scale: float) -> None:
    oracle = ProjectiveTree(single_root)
    scores = random_scores(9, scale, rows=5).masked_fill(~oracle.read_mask((10, 10)), 0.0)
    kernel = oracle._kernel("project", scores)
    assert isinstance(kernel, kernels.Kernel)
    found = solver.solve_compiled(kernel, scores)
    atoms, weights = solver.solve(lambda directions, items: oracle._argmax(directions), scores).decompose()
    assert found.mean is not None
    torch.testing.assert_close(found.mean, (weights[..., None, None] * atoms).sum(1), rtol=0, atol=1e-10)
    assert bool((found.gap < 1e-10 * max(1.0, scale)).all())


def test_a_long_sentence_of_peaked_scores_stays_finite() -> None:
    scores = random_scores(60, 1000.0, rows=1)[0].requires_grad_()
    entropy = ProjectiveTree().entropy(scores)
    (gradient,) = torch.autograd.grad(entropy, scores)
    assert entropy.isfinite()
    assert gradient.isfinite().all()
    torch.testing.assert_close(ProjectiveTree().marginals(scores.detach())[:, 1:].sum(0), torch.ones(60, dtype=torch.float64))


@roots
def test_samples_with_lengths_are_trees_of_the_item(single_root: bool) -> None:
    oracle, scores, lengths = ProjectiveTree(single_root), random_scores(8, 1.0), torch.tensor([8, 1, 5, 3])
    samples = oracle.sample(scores, 30, generator=torch.Generator().manual_seed(0), lengths=lengths)
    for row, n in enumerate(lengths.tolist()):
        item = samples[:, row, : n + 1, : n + 1]
        assert torch.equal(oracle.enumerate((n + 1, n + 1), dtype=torch.float64)[oracle.rank(item)], item)
        assert samples[:, row].sum() == item.sum()


def test_heads_and_structure_are_inverse() -> None:
    every = ProjectiveTree(single_root=False).enumerate((6, 6))
    assert torch.equal(ProjectiveTree.structure(ProjectiveTree.heads(every)), every)
    assert ProjectiveTree.structure(torch.tensor([0, 1]), torch.bool).tolist() == [[False, True, False], [False, False, True], [False] * 3]


def test_names_and_options() -> None:
    assert ProjectiveTree.event_shape(length=7) == (8, 8)
    assert make_oracle("projective_tree") == ProjectiveTree(single_root=True)
    assert ProjectiveTree() != ProjectiveTree(single_root=False)


@pytest.mark.parametrize("shape", [(3, 4), (1, 1), (2, 5, 4)])
def test_scores_must_be_square_with_a_word(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError, match=r"`argmax` got event shape \(\d, \d\); expected \(n \+ 1, n \+ 1\) for n >= 1 words, scores of arcs"
    ):
        ProjectiveTree().argmax(torch.zeros(shape))
