from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.oracles import Constituency, kernels
from tests.helpers import refused_rows, seeded

ORACLE = Constituency()
SIZES = (1, 2, 3, 9, 20, 40)
SCALES = (0.05, 1.0, 10.0, 50.0, 300.0, 1000.0)
FILE = Path(__file__).parents[3] / "shared/data/scores/binary_trees_listops.npz"


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


@pytest.mark.parametrize("scale", [0.05, 1.0, 10.0, 50.0, 300.0], ids=str)
@pytest.mark.parametrize(("n", "make"), [(9, gaussian), (9, masked), (20, gaussian)])
def test_the_jacobian_of_marginals_in_precise_arithmetic(n: int, make: Any, scale: float) -> None:
    """Central differences with steps of 1e-20."""
    row, direction = make(n, scale)[1], torch.randn(n, n, generator=seeded(2), dtype=torch.float64)
    with mpmath.workdps(60):
        step = mpmath.mpf("1e-20")
        moved = []
        for sign in (1, -1):
            theta = np.array(
                [
                    [mpmath.mpf(s) + sign * step * v for s, v in zip(*pair, strict=True)]
                    for pair in zip(row.tolist(), direction.tolist(), strict=True)
                ]
            )
            moved.append(precise_marginals(theta, precise_weights(theta)))
        expected = as_matrix({span: (moved[0][span] - moved[1][span]) / (2 * step) for span in moved[0]}, n)
    leaf = row.clone().requires_grad_()
    (product,) = torch.autograd.grad(ORACLE.marginals(leaf), leaf, direction)
    torch.testing.assert_close(product, expected, rtol=1e-9, atol=1e-11)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("make", [gaussian, masked])
@pytest.mark.parametrize("n", SIZES)
def test_kernels_equal_their_references(n: int, make: Any, scale: float, dtype: torch.dtype) -> None:
    scores = make(n, scale).to(dtype)
    exact = scores.double()  # of the very numbers that the kernel reads
    tolerance = {"rtol": 1e-11, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 2e-6, "atol": 1e-6}
    torch.testing.assert_close(ORACLE.log_partition(scores).double(), reference(lambda: ORACLE.log_partition(exact)), **tolerance)
    torch.testing.assert_close(ORACLE.marginals(scores).double(), reference(lambda: ORACLE.marginals(exact)), **tolerance)

    def product(theta: Tensor) -> Tensor:
        leaf = theta.clone().requires_grad_()
        (result,) = torch.autograd.grad(ORACLE.marginals(leaf), leaf, make(n, 1.0, seed=5).nan_to_num(neginf=3.0).to(theta.dtype))
        return result.double()

    torch.testing.assert_close(product(scores), reference(lambda: product(exact)), rtol=20 * tolerance["rtol"], atol=20 * tolerance["atol"])
    allowed = exact.masked_fill(~ORACLE.feasible(exact).reshape(-1, 1, 1), 0).nan_to_num(neginf=-1e9)
    totals = [
        (structure.double() * allowed).sum((-2, -1)) for structure in (ORACLE.argmax(scores), reference(lambda: ORACLE.argmax(exact)))
    ]
    torch.testing.assert_close(*totals, rtol=1e-12, atol=1e-12)
    drawn = [compute(lambda: ORACLE.sample(scores, 64, generator=seeded(7))) for compute in (lambda f: f(), reference)]
    assert torch.equal(*drawn)


def certificates(scores: Tensor) -> tuple[Tensor, Tensor]:
    log_partition, certified = torch.zeros(len(scores), dtype=torch.float64), torch.ones(len(scores), dtype=torch.bool)
    kernel = ORACLE._kernel("log_partition", scores)
    assert isinstance(kernel, kernels.Kernel)
    failed = refused_rows(kernel, (scores,), (log_partition,))
    if failed is not None:
        certified[failed] = False
    return log_partition, certified


@pytest.mark.parametrize("scale", [0.0, 0.05, 1.0, 10.0, 30.0], ids=str)
@pytest.mark.parametrize("n", [1, 2, 10, 40, 80])
def test_moderate_scores_are_certified(n: int, scale: float) -> None:
    for make in (gaussian, masked):
        assert bool(certificates(make(n, scale, rows=8))[1].all())


@pytest.mark.parametrize("n", [3, 9, 40])
def test_no_wrong_value_is_certified(n: int) -> None:
    for exponent in range(18):
        for make in (gaussian, masked):
            scores = make(n, 10.0 * 2**exponent, rows=6, seed=exponent)
            log_partition, certified = certificates(scores)
            expected = reference(lambda scores=scores: ORACLE.log_partition(scores))
            torch.testing.assert_close(log_partition[certified], expected[certified], rtol=1e-12, atol=1e-10)
    assert not bool(certified[1:].all())


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


@pytest.mark.parametrize("far", [-500.0, -365.0, -330.0, 330.0, 365.0, 500.0])
def test_no_sum_on_the_way_may_leave_the_range(far: float) -> None:
    """Each weight fits, and so does the sentence; the product of the first two does not, or with few digits."""
    scores = torch.full((1, 9, 9), -math.inf, dtype=torch.float64)
    scores[0, branching(9, left=True) > 0] = 0.0
    scores[0, 0, 1:5] = torch.tensor([far, far, -far, -far + 1 / 3], dtype=torch.float64)
    log_partition, certified = certificates(scores)
    assert not certified.item() or log_partition.item() == pytest.approx(1 / 3, abs=1e-11)
    assert ORACLE.log_partition(scores).item() == pytest.approx(1 / 3, abs=1e-11)
    torch.testing.assert_close(ORACLE.marginals(scores)[0], branching(9, left=True), rtol=0, atol=1e-14)


def test_what_surrounds_a_forbidden_span_may_leave_the_range() -> None:
    """All trees weigh e^-460 below the sentence, (3, 4) weighs e^345: what surrounds (0, 2) is beyond float64, and does not matter."""
    scores = torch.full((1, 5, 5), -math.inf, dtype=torch.float64)
    for span, score in {(3, 4): 345.0, (2, 4): -403.0, (1, 4): -402.0, (0, 4): 460.0, (0, 1): -500.0}.items():
        scores[0][span] = score
    scores[0].diagonal().zero_()
    assert certificates(scores)[1].item()
    torch.testing.assert_close(ORACLE.marginals(scores), reference(lambda: ORACLE.marginals(scores)), rtol=0, atol=1e-14)
    scores.requires_grad_()
    product = torch.autograd.grad(ORACLE.marginals(scores), scores, torch.ones_like(scores).triu(2))[0]
    torch.testing.assert_close(product, torch.zeros_like(scores), rtol=0, atol=1e-14)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_the_product_is_linear_in_directions_of_any_size(size: float) -> None:
    scores = masked(9, 1.0).requires_grad_()
    direction = torch.randn(scores.shape, generator=seeded(3), dtype=torch.float64)
    marginals = ORACLE.marginals(scores)
    products = [torch.autograd.grad(marginals, scores, factor * direction, retain_graph=True)[0] / factor for factor in (1.0, size)]
    torch.testing.assert_close(*products, rtol=1e-10, atol=1e-13)


def test_directions_are_not_looked_at_where_spans_are_forbidden_or_ignored() -> None:
    scores = masked(9, 1.0).requires_grad_()
    direction = torch.randn(scores.shape, generator=seeded(3), dtype=torch.float64)
    products = []
    for junk in (0.0, 1e300, -1e300):
        changed = torch.where(scores > -math.inf, direction, junk)
        products.append(torch.autograd.grad(ORACLE.marginals(scores), scores, changed)[0])
    assert products[0].any()
    assert torch.equal(products[0], products[1])
    assert torch.equal(products[0], products[2])


def test_a_direction_of_zeros() -> None:
    scores = gaussian(6, 1.0).requires_grad_()
    (product,) = torch.autograd.grad(ORACLE.marginals(scores), scores, torch.zeros_like(scores))
    assert not product.any()


def test_rows_do_not_depend_on_their_neighbours() -> None:
    """A workspace serves all rows of a call: what a wild or infeasible row leaves behind must not reach the next."""
    tame = masked(20, 1.0, rows=5)[1:]
    wild = torch.cat([gaussian(20, 3000.0, rows=3), torch.full((1, 20, 20), -math.inf, dtype=torch.float64)])
    mixed = torch.stack([row for pair in zip(wild, tame, strict=True) for row in pair])
    for compute in (
        ORACLE.argmax,
        ORACLE.log_partition,
        ORACLE.marginals,
        lambda scores: torch.autograd.grad(ORACLE.marginals(scores.requires_grad_()), scores, torch.ones_like(scores).triu(1))[0],
    ):
        assert torch.equal(compute(mixed.clone())[1::2], compute(tame.clone()))


# Structures.


def test_counts_are_the_catalan_numbers() -> None:
    catalan = [1]
    for n in range(40):
        catalan.append(catalan[-1] * 2 * (2 * n + 1) // (n + 2))
    assert [ORACLE.count((n, n)) for n in range(1, 41)] == catalan[:40]
    assert len(ORACLE.enumerate((8, 8)).flatten(1).unique(dim=0)) == 429


def test_a_tree_holds_nested_spans() -> None:
    for tree in ORACLE.enumerate((6, 6)):
        spans = tree.nonzero().tolist()
        assert len(spans) == 11
        for i, j in spans:
            assert i == j or sum([i, k] in spans and [k + 1, j] in spans for k in range(i, j)) == 1


def test_ranks_of_a_large_space() -> None:
    count = ORACLE.count((33, 33))
    ends = torch.cat([ORACLE.enumerate((33, 33), 0, 2, dtype=torch.float64), ORACLE.enumerate((33, 33), count - 2, dtype=torch.float64)])
    assert ORACLE.rank(ends).tolist() == [0, 1, count - 2, count - 1]
    assert torch.equal(ends[0], branching(33, left=False))
    assert torch.equal(ends[-1], branching(33, left=True))
    middle = count * 2 // 3
    assert ORACLE.rank(ORACLE.enumerate((33, 33), middle, middle + 5)).tolist() == list(range(middle, middle + 5))


def test_what_is_no_tree_gets_some_rank() -> None:
    assert ORACLE.rank(torch.stack([torch.zeros(6, 6), torch.ones(6, 6)])).shape == (2,)


@pytest.mark.parametrize("compute", [lambda f: f(), reference], ids=["kernel", "reference"])
def test_ties_go_to_the_lowest_cut(compute: Any) -> None:
    assert torch.equal(compute(lambda: ORACLE.argmax(torch.zeros(7, 7, dtype=torch.float64))), branching(7, left=False))
    scores = torch.zeros(5, 5, dtype=torch.float64)
    scores[0, 3] = scores[1, 4] = 1.0
    expected = torch.eye(5, dtype=torch.float64)
    for i, j in ((0, 4), (1, 4), (2, 4), (3, 4)):
        expected[i, j] = 1
    assert torch.equal(compute(lambda: ORACLE.argmax(scores)), expected)


def test_kbest_of_a_long_sentence() -> None:
    """Distinct trees, best first; the first is the argmax, and each differs from it by more than nothing."""
    scores = gaussian(25, 1.0, rows=2)
    best = ORACLE.kbest(scores, 30)
    totals = (best * scores.nan_to_num()).sum((-2, -1))
    assert torch.equal(best[0], ORACLE.argmax(scores))
    assert bool((totals[:-1] >= totals[1:]).all())
    for row in range(2):
        assert len(best[:, row].flatten(1).unique(dim=0)) == 30
        assert torch.equal(
            ORACLE.enumerate((25, 25), int(ORACLE.rank(best[7, row])), int(ORACLE.rank(best[7, row])) + 1)[0].double(), best[7, row]
        )


@pytest.mark.parametrize("right", [False, True])
def test_kbest_where_one_part_takes_all_places(right: bool) -> None:
    scores = gaussian(8, 1.0)
    inner = slice(1, 8) if right else slice(0, 7)
    scores[:, inner.start, inner.stop - 1] += 100.0
    best = ORACLE.kbest(scores, 60)
    assert torch.equal(best[..., inner, inner], ORACLE.kbest(scores[:, inner, inner], 60))


def test_projection_of_a_long_sentence() -> None:
    scores = gaussian(16, 1.0)
    solution = ORACLE.project(scores)
    assert bool((solution.gap < 1e-9).all())
    torch.testing.assert_close(solution.mean.diagonal(dim1=1, dim2=2), torch.ones(3, 16, dtype=torch.float64))
    torch.testing.assert_close(solution.mean.sum((1, 2)), torch.full((3,), 31.0, dtype=torch.float64))


@pytest.mark.parametrize(
    "spans", [[(2, 2)], [(0, 5)], [(0, k) for k in range(1, 5)] + [(k, 5) for k in range(1, 5)]], ids=["token", "sentence", "parts"]
)
def test_masks_that_leave_no_tree(spans: list[tuple[int, int]]) -> None:
    scores = torch.zeros(2, 6, 6, dtype=torch.float64)
    for span in spans:
        scores[0][span] = -math.inf
    for compute in (lambda f: f(), reference):
        assert compute(lambda: ORACLE.feasible(scores)).tolist() == [False, True]
        assert not compute(lambda: ORACLE.marginals(scores))[0].any()
        assert not compute(lambda: ORACLE.sample(scores, 3, generator=seeded()))[:, 0].any()
        assert ORACLE.project(scores).gap.tolist()[0] == math.inf


def test_one_tree_left() -> None:
    tree = ORACLE.enumerate((9, 9), 700, 701, dtype=torch.float64)[0]
    scores = torch.randn(9, 9, dtype=torch.float64).masked_fill(tree == 0, -math.inf)
    for result in (ORACLE.argmax(scores), ORACLE.marginals(scores), ORACLE.sample(scores, generator=seeded()), ORACLE.kbest(scores, 2)[0]):
        torch.testing.assert_close(result, tree, rtol=0, atol=1e-14)
    assert ORACLE.entropy(scores).item() == pytest.approx(0.0, abs=1e-12)
    assert not ORACLE.kbest(scores, 2)[1].any()


@pytest.mark.parametrize("operation", ["argmax", "log_partition", "marginals", "entropy", "project", "kbest"])
def test_lengths_give_the_sentence_alone(operation: str) -> None:
    scores, lengths = gaussian(12, 2.0, rows=5), torch.tensor([12, 1, 7, 2, 11])
    calls = {
        "project": lambda theta, **options: ORACLE.project(theta, **options).mean,
        "kbest": lambda theta, **options: ORACLE.kbest(theta, 1, **options)[0],
    }
    compute = calls.get(operation) or getattr(ORACLE, operation)
    for row, length in enumerate(lengths.tolist()):
        scores[row, length:], scores[row, :, length:] = math.nan, math.nan
    together = compute(scores, lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        alone, found = compute(scores[row, :length, :length]), together[row]
        torch.testing.assert_close(found[:length, :length] if found.ndim else found, alone, rtol=1e-10, atol=1e-10)
        assert not found.ndim or (found != 0).sum() == (found[:length, :length] != 0).sum()


def test_padding_goes_on_in_one_way() -> None:
    padded = ORACLE.pad(torch.zeros(1, 6, 6), torch.tensor([3]))
    possible = [tree for tree in ORACLE.enumerate((6, 6)) if not (tree * (padded[0] == -math.inf)).any()]
    assert len(possible) == ORACLE.count((3, 3))
    for tree in possible:
        assert tree[0, 3:].tolist() == [1, 1, 1]


def test_messages() -> None:
    with pytest.raises(ValueError, match=r"`argmax` got event shape \(3, 4\); expected \(n, n\), the first and last token of each span"):
        ORACLE.argmax(torch.zeros(3, 4))
    with pytest.raises(ValueError, match=r"`enumerate` got event shape \(3,\); expected \(n, n\)"):
        ORACLE.enumerate((3,))
    with pytest.raises(ValueError, match=r"`enumerate` got a space of [\d.e+]+ structures; expected at most 2\*\*62"):
        ORACLE.enumerate((40, 40), 0, 1)
    assert ORACLE.event_shape(length=7) == (7, 7)
    with pytest.raises(ValueError, match=r"`constituency.event_shape` got sizes nothing; expected length"):
        ORACLE.event_shape()


@pytest.mark.parametrize("kind", ["small_span_init", "small_span_early", "small_span_final", "large_span_early", "large_span_final"])
def test_the_argmax_of_real_scores_is_at_least_the_gold_tree(kind: str) -> None:
    if not FILE.exists():
        pytest.skip("the score files are not here")
    with np.load(FILE) as arrays:
        scores, gold = torch.from_numpy(arrays[kind]).double(), torch.from_numpy(arrays[f"{kind[:5]}_gold_binary"]).double()
        lengths = torch.from_numpy(arrays[f"{kind[:5]}_length"])
    rows = torch.arange(scores.shape[1])
    best, gold = (
        ORACLE.argmax(scores, lengths=lengths),
        gold + torch.diag_embed((rows < lengths.unsqueeze(-1)).double() - gold.diagonal(dim1=1, dim2=2)),
    )
    assert torch.equal(best.sum((1, 2)), 2.0 * lengths - 1)
    assert torch.equal(gold.sum((1, 2)), 2.0 * lengths - 1)
    totals = [torch.where(structure > 0, scores, 0).sum((1, 2)) for structure in (best, gold)]
    assert bool((totals[0] >= totals[1] - 1e-9).all())
    assert bool((ORACLE.log_partition(scores, lengths=lengths) >= totals[0] - 1e-9).all())
    log_prob = ORACLE.log_prob(gold, scores, lengths=lengths)
    assert bool((log_prob <= 1e-9).all())
    torch.testing.assert_close(
        log_prob, totals[1] - reference(lambda: ORACLE.log_partition(scores, lengths=lengths)), rtol=1e-10, atol=1e-9
    )
