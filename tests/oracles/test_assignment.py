import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from structgrad.oracles import Assignment, kernels
from structgrad.oracles.active_set import solver
from structgrad.oracles.assignment.birkhoff import TOLERANCE

ORACLE = Assignment()


def scores_of(size: int, scale: float = 1.0, *, batch: int = 6, masked: bool = False, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = scale * torch.randn(batch, size, size, generator=generator, dtype=torch.float64)
    return scores.masked_fill(torch.rand(scores.shape, generator=generator) < 0.3, -math.inf) if masked else scores


def total(structure: Tensor, scores: Tensor) -> Tensor:
    return torch.where(structure > 0, scores, 0).sum((-2, -1))


def is_permutation(structure: Tensor) -> bool:
    ones = torch.ones(structure.shape[:-1], dtype=structure.dtype)
    return bool((structure.sum(-1) == ones).all() and (structure.sum(-2) == ones).all() and ((structure == 0) | (structure == 1)).all())


def by_kernel_and_reference(compute: Callable[[], Any]) -> tuple[Any, Any]:
    compiled = compute()
    with kernels.disabled():
        return compiled, compute()


# The best permutation.


def hard_scores(size: int) -> tuple[Tensor, ...]:
    """Also rows that want the same columns, so that no bidding settles it and many paths must be searched."""
    noise = scores_of(size, batch=40)
    left, right = torch.randn(2, 40, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    products, levels = left.unsqueeze(-1) * right.unsqueeze(-2) + 0.01 * noise, (3 * noise).round() + 1e-9 * noise.flip(0)
    # Row i prefers column 0 to i, and column i to i + 1: each new row moves all others.
    exchanges, masked = -(torch.arange(size).unsqueeze(-1) * torch.arange(size)).double(), scores_of(size, 5.0, batch=60, masked=True)
    return (1e-3 * noise, noise, 1e6 * noise, products, levels, noise.round(), 0 * noise, exchanges.unsqueeze(0), masked)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 12, 25, 33, 64])
def test_argmax_is_as_good_as_that_of_scipy(size: int) -> None:
    scores = torch.cat([kind[: 3 if size > 20 else 40] for kind in hard_scores(size)])
    costs = torch.where(scores > -math.inf, scores, -1e9).numpy()
    expected = torch.tensor([row[linear_sum_assignment(row, maximize=True)].sum() for row in costs], dtype=torch.float64)
    feasible = expected > -5e8
    structures = ORACLE.argmax(scores)
    assert torch.equal(structures.flatten(1).any(1), feasible)
    assert is_permutation(structures[feasible])
    torch.testing.assert_close(total(structures, scores)[feasible], expected[feasible], rtol=1e-12, atol=1e-13)


# Sums over permutations.


def test_what_needs_no_sum_has_no_limit() -> None:
    scores = scores_of(40, batch=2)
    best = ORACLE.kbest(scores, 2)
    assert torch.equal(best[0], ORACLE.argmax(scores))
    assert bool((total(best[1], scores) < total(best[0], scores)).all())
    assert bool((ORACLE.project(scores).gap < 1e-10).all())


# The projection.


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_the_projection_against_the_active_set(size: int) -> None:
    for scale in (0.05, 0.3, 1.0, 10.0, 1000.0, 1e6):
        given = [scores_of(size, scale, seed=4), scores_of(size, scale, masked=True), scale * scores_of(size).round()]
        scores, direction = torch.cat(given).requires_grad_(), scores_of(size, batch=18, seed=5)
        direction[12:] = 0  # where ties make several faces meet
        kernel, reference = by_kernel_and_reference(lambda scores=scores: ORACLE.project(scores))  # type: ignore[misc]
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


def test_a_row_without_a_column_is_not_mistaken_for_padding() -> None:
    scores = torch.zeros(1, 3, 3)
    scores[:, 2] = scores[:, :, 2] = -math.inf
    assert ORACLE.project(scores).gap.tolist() == [math.inf]
    assert ORACLE.project(scores, lengths=torch.tensor([2])).mean[0, :2, :2].tolist() == [[0.5, 0.5], [0.5, 0.5]]
