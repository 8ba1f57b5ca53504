from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from structgrad.oracles import Assignment, kernels
from structgrad.oracles.active_set import solver
from structgrad.oracles.assignment import cpu_birkhoff
from structgrad.oracles.assignment.birkhoff import TOLERANCE
from structgrad.oracles.assignment.matching import best_columns

ORACLE = Assignment()
SCALES = (0.05, 1.0, 10.0, 50.0, 300.0, 1000.0)
FILE = Path("shared/data/scores/assignment_alibi_fr_en.npz")
FOLDERS = (Path(__file__).parents[2], Path(__file__).parents[3])


def scores_of(size: int, scale: float = 1.0, *, batch: int = 6, masked: bool = False, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = scale * torch.randn(batch, size, size, generator=generator, dtype=torch.float64)
    return scores.masked_fill(torch.rand(scores.shape, generator=generator) < 0.3, -math.inf) if masked else scores


def total(structure: Tensor, scores: Tensor) -> Tensor:
    return torch.where(structure > 0, scores, 0).sum((-2, -1))


def is_permutation(structure: Tensor) -> bool:
    ones = torch.ones(structure.shape[:-1], dtype=structure.dtype)
    return bool((structure.sum(-1) == ones).all() and (structure.sum(-2) == ones).all() and ((structure == 0) | (structure == 1)).all())


def best_total(scores: np.ndarray) -> float:
    return float(scores[linear_sum_assignment(scores, maximize=True)].sum())


def by_kernel_and_reference(compute: Callable[[], Any]) -> tuple[Any, Any]:
    compiled = compute()
    with kernels.disabled():
        return compiled, compute()


# Counts and ranks.


@pytest.mark.parametrize("size", range(1, 7))
def test_there_are_n_factorial(size: int) -> None:
    everything = ORACLE.enumerate((size, size))
    assert len(everything) == ORACLE.count((size, size)) == math.factorial(size)
    assert torch.equal(everything.argmax(-1), torch.tensor(list(itertools.permutations(range(size)))))
    assert torch.equal(ORACLE.rank(everything), torch.arange(len(everything)))


def test_ranks_reach_the_largest_size_that_has_them() -> None:
    last = math.factorial(20) - 1
    structure = ORACLE.enumerate((20, 20), start=last, stop=last + 1)
    assert torch.equal(structure[0], torch.eye(20).flip(0))
    assert ORACLE.rank(structure).tolist() == [last]
    with pytest.raises(ValueError, match=r"`enumerate` got a space of [\d.e+]+ structures; expected at most 2\*\*62"):
        ORACLE.enumerate((21, 21), start=0, stop=1)


# The best permutation.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("size", [1, 2, 3, 8, 16, 33, 64])
def test_argmax_is_as_good_as_another_solver(size: int, scale: float, dtype: torch.dtype) -> None:
    scores = scores_of(size, scale, batch=4).to(dtype)
    expected = torch.tensor([best_total(row) for row in scores.double().numpy()], dtype=torch.float64)
    for structure in by_kernel_and_reference(lambda: ORACLE.argmax(scores)):
        assert is_permutation(structure)
        torch.testing.assert_close(total(structure.double(), scores.double()), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("size", [5, 12, 20])
def test_argmax_of_many_rows(size: int) -> None:
    scores = scores_of(size, batch=1000)
    expected = torch.tensor([best_total(row) for row in scores.numpy()], dtype=torch.float64)
    torch.testing.assert_close(total(ORACLE.argmax(scores), scores), expected, rtol=1e-12, atol=0)


def contested_scores(size: int) -> Tensor:
    """Rows that want the same columns, so that no bidding settles it and many paths must be searched: products, and few noisy levels."""
    generator = torch.Generator().manual_seed(size)
    left, right = torch.randn(2, 40, size, generator=generator, dtype=torch.float64)
    noise = torch.randn(80, size, size, generator=generator, dtype=torch.float64)
    products = left.unsqueeze(-1) * right.unsqueeze(-2) + 0.01 * noise[:40]
    return torch.cat([products, (3 * noise[40:]).round() + 1e-9 * noise[:40]])


@pytest.mark.parametrize("size", [4, 12, 25])
def test_argmax_where_rows_want_the_same_columns(size: int) -> None:
    scores = contested_scores(size)
    expected = torch.tensor([best_total(row) for row in scores.numpy()], dtype=torch.float64)
    for structure in by_kernel_and_reference(lambda: ORACLE.argmax(scores)):
        torch.testing.assert_close(total(structure, scores), expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_argmax_with_many_ties(levels: int) -> None:
    scores = torch.randint(levels, (20, 24, 24), generator=torch.Generator().manual_seed(0)).double()
    expected = torch.tensor([best_total(row) for row in scores.numpy()], dtype=torch.float64)
    for structure in by_kernel_and_reference(lambda: ORACLE.argmax(scores)):
        assert is_permutation(structure)
        assert torch.equal(total(structure, scores), expected)


@pytest.mark.parametrize("size", [2, 3, 7, 20])
def test_argmax_of_forbidden_pairs(size: int) -> None:
    scores = scores_of(size, 5.0, batch=60, masked=True)
    kernel, reference = by_kernel_and_reference(lambda: ORACLE.argmax(scores))
    for row, first, second in zip(scores, kernel, reference, strict=True):
        expected = best_total(np.where(np.isfinite(row.numpy()), row.numpy(), -1e6))
        feasible = expected > -5e5
        assert bool(first.any()) == bool(second.any()) == feasible
        if feasible:
            assert is_permutation(first)
            assert is_permutation(second)
            torch.testing.assert_close(total(first, row), torch.tensor(expected, dtype=torch.float64))
            torch.testing.assert_close(total(second, row), total(first, row))


def test_argmax_where_nothing_is_allowed() -> None:
    scores = torch.full((2, 5, 5), -math.inf)
    scores[1, :, 0] = 1.0
    for structure in by_kernel_and_reference(lambda: ORACLE.argmax(scores)):
        assert not bool(structure.any())


def test_the_twin_matches_rows_in_a_long_chain_of_exchanges() -> None:
    # Row i prefers column 0 to i, and column i to i + 1: each new row moves all others.
    size = 12
    cost = torch.arange(size).unsqueeze(-1) * torch.arange(size) * 1.0
    assert best_columns(-cost.unsqueeze(0).double())[0].tolist() == list(range(size))[::-1]


# Sums over permutations.


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 9])
def test_kernels_agree_with_the_references(size: int, scale: float, masked: bool) -> None:
    scores = scores_of(size, scale, masked=masked)
    direction = scores_of(size, seed=1)

    def covariance_product() -> Tensor:
        leaf = scores.clone().requires_grad_()
        return torch.autograd.grad(ORACLE.marginals(leaf), leaf, direction)[0]

    kernel, reference = by_kernel_and_reference(lambda: ORACLE.log_partition(scores))
    torch.testing.assert_close(kernel, reference, rtol=1e-13, atol=1e-12)
    kernel, reference = by_kernel_and_reference(lambda: ORACLE.marginals(scores))
    torch.testing.assert_close(kernel, reference, rtol=1e-10, atol=1e-12)
    kernel, reference = by_kernel_and_reference(covariance_product)
    torch.testing.assert_close(kernel, reference, rtol=1e-9, atol=1e-11)
    kernel, reference = by_kernel_and_reference(lambda: ORACLE.sample(scores, 30, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(kernel, reference)


def ryser(weights: list[list[Any]]) -> Any:
    """The permanent by inclusion and exclusion of columns, in exact numbers."""
    size = len(weights)
    permanent = 0
    for chosen in range(1, 2**size):
        columns = [j for j in range(size) if chosen >> j & 1]
        product = 1
        for row in weights:
            product = product * sum(row[j] for j in columns)
        permanent += (-1) ** (size - len(columns)) * product
    return permanent


def test_permanents_of_whole_numbers_exactly() -> None:
    weights = torch.randint(1, 9, (10, 10), generator=torch.Generator().manual_seed(0))
    permanent = ryser([[Fraction(int(value)) for value in row] for row in weights])
    for found in by_kernel_and_reference(lambda: ORACLE.log_partition(weights.double().log())):
        assert found.item() == pytest.approx(math.log(permanent), rel=1e-14)
    assert ORACLE.log_partition(torch.zeros(16, 16, dtype=torch.float64)).item() == pytest.approx(math.log(math.factorial(16)), rel=1e-15)


@pytest.mark.parametrize(
    ("size", "scale"),
    [
        (8, 1.0),
        (8, 10.0),
        (8, 100.0),
        *(pytest.param(11, scale, marks=pytest.mark.sweep) for scale in (1.0, 10.0, 100.0)),
    ],
)
def test_permanents_against_inclusion_and_exclusion_with_many_digits(size: int, scale: float) -> None:
    scores = scores_of(size, scale, batch=1, seed=int(scale))[0]
    with mpmath.workdps(60 + int(12 * scale * size / 10)):
        weights = [[mpmath.exp(mpmath.mpf(value)) for value in row] for row in scores.tolist()]
        permanent = ryser(weights)
        best = int(ORACLE.marginals(scores)[0].argmax())
        minor = ryser([row[:best] + row[best + 1 :] for row in weights[1:]])
        expected, marginal = float(mpmath.log(permanent)), float(weights[0][best] * minor / permanent)
    assert ORACLE.log_partition(scores).item() == pytest.approx(expected, rel=1e-13)
    assert ORACLE.marginals(scores)[0, best].item() == pytest.approx(marginal, rel=1e-11)


@pytest.mark.parametrize("scale", [1.0, 50.0, 1000.0])
def test_sums_at_the_largest_size_are_coherent(scale: float) -> None:
    scores = scores_of(16, scale, batch=2).requires_grad_()
    log_partition, marginals = ORACLE.log_partition(scores), ORACLE.marginals(scores)
    best = total(ORACLE.argmax(scores), scores)
    assert bool(((log_partition >= best) & (log_partition <= best + math.lgamma(17))).all())
    torch.testing.assert_close(marginals.sum(-1), torch.ones(2, 16, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(marginals.sum(-2), torch.ones(2, 16, dtype=torch.float64), rtol=0, atol=1e-12)
    direction = scores_of(16, batch=2, seed=3)
    (product,) = torch.autograd.grad(marginals, scores, direction)
    torch.testing.assert_close(product.sum(-1), torch.zeros(2, 16, dtype=torch.float64), rtol=0, atol=1e-11)
    if scale == 1.0:
        step = 1e-5
        ahead, behind = (ORACLE.marginals(scores.detach() + sign * step * direction) for sign in (1, -1))
        torch.testing.assert_close(product, (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-8)
        samples = ORACLE.sample(scores, 2000, generator=torch.Generator().manual_seed(0))
        assert is_permutation(samples)
        error = (samples.mean(0) - marginals).abs() / (marginals * (1 - marginals) / 2000).sqrt()
        assert bool((error < 5).all())


@pytest.mark.parametrize(
    "rows",
    [
        # Duals are of no use where their rounding exceeds 1, or where they overflow and make a pair seem forbidden.
        scores_of(5, 1e20, batch=1),
        torch.tensor([[[-1.7e308, -1e308], [1e308, 1.7e308]]], dtype=torch.float64),
    ],
    ids=["rounding", "overflow"],
)
def test_scores_beyond_all_bounds_are_left_to_the_reference(rows: Tensor) -> None:
    kernel, reference = by_kernel_and_reference(lambda: ORACLE.log_partition(rows))
    assert torch.equal(kernel, reference)


@pytest.mark.parametrize(
    "operation",
    [
        lambda scores: ORACLE.log_partition(scores),
        lambda scores: ORACLE.marginals(scores),
        lambda scores: ORACLE.entropy(scores),
        lambda scores: ORACLE.feasible(scores),
        lambda scores: ORACLE.log_prob(scores, scores),
        lambda scores: ORACLE.kl(scores, scores),
        lambda scores: ORACLE.sample(scores, generator=torch.Generator()),
    ],
)
def test_sums_over_too_many_permutations_are_refused(operation: Callable[[Tensor], Tensor]) -> None:
    message = r"got permutations of n=17; expected n <= 16, because a sum over permutations takes 2\*\*n steps; use argmax, kbest or proj"
    for context in (kernels.disabled(), torch.no_grad()):
        with context, pytest.raises(ValueError, match=message):
            operation(torch.zeros(17, 17))


def test_what_needs_no_sum_has_no_limit() -> None:
    scores = scores_of(40, batch=2)
    best = ORACLE.kbest(scores, 2)
    assert torch.equal(best[0], ORACLE.argmax(scores))
    assert bool((total(best[1], scores) < total(best[0], scores)).all())
    assert bool((ORACLE.project(scores).gap < 1e-10).all())


# k best.


@pytest.mark.parametrize("masked", [False, True])
def test_all_permutations_in_order(masked: bool) -> None:
    scores = scores_of(5, masked=masked, seed=2)
    everything = ORACLE.enumerate((5, 5), dtype=torch.float64)
    totals = (everything.unsqueeze(1) * torch.where(scores > -math.inf, scores, -1e9)).sum((-2, -1)).sort(0, descending=True).values
    for best in by_kernel_and_reference(lambda: ORACLE.kbest(scores, 120)):
        found = torch.where(best.sum((-2, -1)) > 0, total(best, scores), -1.0)
        torch.testing.assert_close(found, torch.where(totals > -1e8, totals, -1.0), rtol=1e-12, atol=1e-12)
        for row in range(len(scores)):
            listed = [tuple(z.flatten().tolist()) for z in best[:, row] if z.any()]
            assert len(listed) == len(set(listed)) == int((totals[:, row] > -1e8).sum())


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("step", [0.0, 0.1, 50.0])
def test_all_permutations_where_many_are_equally_good(masked: bool, step: float) -> None:
    shape = scores_of(4, masked=masked, seed=3)
    scores = torch.where(shape > -math.inf, step * torch.where(shape > -math.inf, shape, 0).round(), -math.inf)
    everything = ORACLE.enumerate((4, 4), dtype=torch.float64)
    expected = torch.stack([total(z.expand_as(scores), scores) for z in everything]).sort(0, descending=True).values
    for best in by_kernel_and_reference(lambda: ORACLE.kbest(scores, 24)):
        exists = best.flatten(2).any(-1)
        assert torch.equal(exists, expected > -math.inf)
        torch.testing.assert_close(total(best, scores)[exists], expected[exists], rtol=1e-12, atol=1e-12)
        for row in range(len(scores)):
            assert len(ORACLE.rank(best[exists[:, row], row]).unique()) == int(exists[:, row].sum())


# The projection.


def dykstra(scores: Tensor) -> Tensor:
    """The nearest doubly stochastic matrix [n, n] by Dykstra's alternating projections on sums of 1 and on cells of at least 0."""
    size = len(scores)
    point, correction = scores.clone(), torch.zeros_like(scores)
    for _ in range(200_000):
        rows, columns = point.sum(1, keepdim=True) - 1, point.sum(0, keepdim=True) - 1
        affine = point - rows / size - columns / size + rows.sum() / size**2
        moved = (affine + correction).clamp(min=0)
        correction = affine + correction - moved
        if float((moved - point).abs().max()) < 1e-14:
            break
        point = moved
    return point


@pytest.mark.parametrize("scale", [0.05, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("size", [2, 4, 7])
def test_the_projection_against_alternating_projections(size: int, scale: float) -> None:
    scores = scores_of(size, scale, batch=1, seed=size)
    expected = dykstra(scores[0])
    for solution in by_kernel_and_reference(lambda: ORACLE.project(scores)):
        torch.testing.assert_close(solution.mean[0], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scale", [0.05, 0.3, 1.0, 10.0, 1000.0, 1e6])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_the_projection_against_the_active_set(size: int, scale: float, masked: bool) -> None:
    scores = scores_of(size, scale, masked=masked, seed=4).requires_grad_()
    direction = scores_of(size, seed=5)
    kernel, reference = by_kernel_and_reference(lambda: ORACLE.project(scores))
    torch.testing.assert_close(kernel.mean, reference.mean, rtol=0, atol=1e-12 * max(1, scale))
    gradients = [torch.autograd.grad(solution.mean, scores, direction)[0] for solution in (kernel, reference)]
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-9)
    assert torch.equal(kernel.support > 0, reference.support > 0)
    assert torch.equal(kernel.gap < math.inf, reference.gap < math.inf)


@pytest.mark.parametrize("scale", [0.05, 0.1, 0.3, 1.0, 5.0, 50.0])
@pytest.mark.parametrize("size", [16, 30])
def test_larger_projections_are_certified_and_decomposed(size: int, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(solver, "solve")
    scores = scores_of(size, scale, batch=30 if size == 16 else 3)
    solution = ORACLE.project(scores)
    assert float(solution.gap.max()) < 1e-12
    for dim in (-1, -2):
        torch.testing.assert_close(solution.mean.sum(dim), torch.ones(len(scores), size, dtype=torch.float64), rtol=0, atol=size * 5e-16)
    assert is_permutation(solution.atoms[solution.weights > 0])
    mixed = torch.einsum("bm,bmij->bij", solution.weights, solution.atoms)
    torch.testing.assert_close(mixed, solution.mean, rtol=0, atol=1e-11)
    cells = (solution.mean > 0).sum((-2, -1))
    assert bool((solution.support <= cells - size + 1).all())


def test_the_certificate_of_other_points_is_the_best_permutation_along_the_residual() -> None:
    scores, points = scores_of(5, 2.0, batch=10), ORACLE.marginals(scores_of(5, batch=10, seed=1))
    everything = ORACLE.enumerate((5, 5), dtype=torch.float64)
    for row, point in zip(scores, points, strict=True):
        room = np.empty((5, 5)), np.empty((2, 5)), np.empty((5, 5), np.int64)
        found = cpu_birkhoff.certify(row.numpy(), point.numpy(), *room)
        expected = ((row - point) * (everything - point)).sum((-2, -1)).max()
        assert found == pytest.approx(expected.item(), rel=1e-12)
        assert found >= 0.5 * ((point - row).square().sum() - (ORACLE.project(row).mean - row).square().sum())


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_the_projection_of_many_ties(levels: int) -> None:
    scores = torch.randint(levels, (10, 9, 9), generator=torch.Generator().manual_seed(1)).double()
    kernel, reference = by_kernel_and_reference(lambda: ORACLE.project(scores))
    torch.testing.assert_close(kernel.mean, reference.mean, rtol=0, atol=1e-12)
    assert float(kernel.gap.max()) < 1e-13
    for row in range(10):
        atoms = kernel.atoms[row][kernel.weights[row] > 0].flatten(1)
        assert int(torch.linalg.matrix_rank(torch.nn.functional.pad(atoms, (0, 1), value=1.0))) == len(atoms)


def face_projector(mean: Tensor) -> Tensor:
    """The orthogonal projector [n², n²] on matrices that are 0 where the mean is and whose rows and columns sum to 0."""
    size = len(mean)
    zero = torch.eye(size * size, dtype=torch.float64)[mean.flatten() == 0]
    rows = torch.eye(size, dtype=torch.float64).repeat_interleave(size, 1)
    columns = torch.eye(size, dtype=torch.float64).repeat(1, size)
    constraints = torch.cat([zero, rows, columns])
    return torch.eye(size * size, dtype=torch.float64) - torch.linalg.pinv(constraints) @ constraints


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("size", [3, 6])
def test_the_jacobian_of_the_mean_keeps_to_its_face(size: int, scale: float) -> None:
    for row in scores_of(size, scale, batch=3, seed=6):
        jacobian = torch.autograd.functional.jacobian(lambda theta: ORACLE.project(theta).mean, row).reshape(size**2, size**2)
        torch.testing.assert_close(jacobian, face_projector(ORACLE.project(row).mean), rtol=0, atol=1e-12)


def test_expanded_rows_have_gradients_of_their_own() -> None:
    scores, weights = scores_of(4, batch=2), scores_of(4, batch=6, seed=7).reshape(2, 3, 4, 4)
    leaf = scores.unsqueeze(1).expand(2, 3, 4, 4).detach().requires_grad_()
    (found,) = torch.autograd.grad(ORACLE.project(leaf).mean, leaf, weights)
    copied = leaf.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
    (expected,) = torch.autograd.grad(ORACLE.project(copied).mean, copied, weights)
    torch.testing.assert_close(found, expected)


def test_the_active_set_does_rows_that_are_not_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = scores_of(5, batch=4)
    scores[2] = -math.inf
    expected = ORACLE.project(scores)
    original = kernels.find

    def spoilt(structure: str | None, operation: str, *rest: Any) -> Any:
        kernel = original(structure, operation, *rest)
        if operation != "nearest" or kernel is None:
            return kernel

        def nearest(rows: Tensor, means: Tensor, gaps: Tensor) -> None:
            kernel(rows, means, gaps)
            means[1], gaps[1] = torch.eye(5), 10 * TOLERANCE * (1 + float(rows[1].abs().max()))
            means[3], gaps[3] = math.nan, math.nan

        return nearest

    monkeypatch.setattr(kernels, "find", spoilt)
    found = ORACLE.project(scores)
    torch.testing.assert_close(found.mean, expected.mean, rtol=0, atol=1e-12)
    assert float(found.gap[[0, 1, 3]].max()) < 1e-12
    assert found.gap[2] == math.inf


# Lengths.

LENGTHS = torch.tensor([4, 2, 1, 3, 4, 2])


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("masked", [False, True])
def test_a_short_item_uses_the_first_rows_and_columns(masked: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(kernels, "find", lambda *_: None)
    scores = scores_of(4, masked=masked, seed=3)
    alone = [row[:length, :length].clone() for row, length in zip(scores, LENGTHS.tolist(), strict=True)]
    for row, length in enumerate(LENGTHS.tolist()):
        scores[row, length:] = scores[row, :, length:] = math.nan
    operations: list[Callable[..., Tensor]] = [
        ORACLE.marginals,
        lambda theta, **rest: ORACLE.argmax(theta, **rest) * ORACLE.feasible(theta, **rest).reshape(*theta.shape[:-2], 1, 1),
        lambda theta, **rest: ORACLE.project(theta, **rest).mean,
        lambda theta, **rest: ORACLE.kbest(theta, 1, **rest)[0],
    ]
    for operation in operations:
        found = operation(scores, lengths=LENGTHS)
        for row, length in enumerate(LENGTHS.tolist()):
            torch.testing.assert_close(found[row, :length, :length], operation(alone[row]), rtol=1e-10, atol=1e-12)
            assert not found[row, length:].any()
            assert not found[row, :, length:].any()
    solution = ORACLE.project(scores, lengths=LENGTHS)
    mixed = torch.einsum("bm,bmij->bij", solution.weights, solution.atoms)
    torch.testing.assert_close(mixed, solution.mean, rtol=0, atol=1e-12)
    entropies = ORACLE.entropy(scores, lengths=LENGTHS)
    torch.testing.assert_close(entropies, torch.stack([ORACLE.entropy(row) for row in alone]), rtol=1e-10, atol=1e-12)


def test_a_row_without_a_column_is_not_mistaken_for_padding() -> None:
    scores = torch.zeros(1, 3, 3)
    scores[:, 2] = scores[:, :, 2] = -math.inf
    assert ORACLE.project(scores).gap.tolist() == [math.inf]
    assert ORACLE.project(scores, lengths=torch.tensor([2])).mean[0, :2, :2].tolist() == [[0.5, 0.5], [0.5, 0.5]]


# Messages, and real scores.


@pytest.mark.parametrize("shape", [(3, 4), (2, 4, 5)])
def test_scores_must_be_square(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"`argmax` got event shape \(., .\); expected \(n, n\)"):
        ORACLE.argmax(torch.zeros(shape))


def test_the_event_shape_by_name() -> None:
    assert Assignment.event_shape(length=5) == (5, 5)
    with pytest.raises(ValueError, match=r"`assignment.event_shape` got sizes tags; expected length"):
        Assignment.event_shape(tags=5)


@pytest.mark.parametrize("stage", ["init", "early", "final"])
def test_the_best_of_real_scores_is_at_least_the_gold_permutation(stage: str) -> None:
    path = next((folder / FILE for folder in FOLDERS if (folder / FILE).exists()), None)
    if path is None:
        pytest.skip("the real score files are not here")
    with np.load(path, allow_pickle=False) as data:
        scores, lengths = torch.from_numpy(data[f"small_score_{stage}"]), torch.from_numpy(data["small_length"])
        gold = torch.from_numpy(data["small_gold_permutation"])
    best = ORACLE.argmax(scores, lengths=lengths)
    structure = torch.nn.functional.one_hot(gold.clamp(min=0), scores.shape[-1]) * (gold >= 0).unsqueeze(-1)
    assert bool((total(best, scores) >= total(structure, scores) - 1e-5).all())
    assert bool((ORACLE.log_prob(structure.float(), scores, lengths=lengths) <= 1e-6).all())
    if stage == "final":
        # The published share of items whose best permutation is the gold one.
        assert (best == structure).all(-1).all(-1).double().mean().item() == pytest.approx(0.84, abs=0.005)
