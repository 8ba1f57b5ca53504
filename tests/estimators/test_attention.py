"""Attention mappings: closed forms, optimality of what they maximise, derivatives of first and second order, masks."""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from structgrad.estimators import (
    ConstrainedSoftmax,
    ConstrainedSparsemax,
    Entmax,
    Fusedmax,
    Oscarmax,
    csoftmax,
    csparsemax,
    entmax,
    fusedmax,
    oscarmax,
)
from structgrad.oracles import IndependentCategoricals
from tests.catalogue.mappings import MAPPINGS
from tests.estimator_cases import numbers
from tests.helpers import seeded

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": partial(entmax, alpha=1.0),
    "entmax[alpha=1.05]": partial(entmax, alpha=1.05),
    "entmax": entmax,
    "entmax[alpha=1.8]": partial(entmax, alpha=1.8),
    "sparsemax": partial(entmax, alpha=2.0),
    "entmax[alpha=3]": partial(entmax, alpha=3.0),
    "fusedmax": fusedmax,
    "fusedmax[strength=0.2]": partial(fusedmax, strength=0.2),
    "oscarmax": oscarmax,
    "oscarmax[strength=0.1]": partial(oscarmax, strength=0.1),
    "oscarmax[magnitudes=False]": partial(oscarmax, strength=0.2, magnitudes=False),
    "csparsemax": partial(csparsemax, upper=0.4),
    "csoftmax": partial(csoftmax, upper=0.4),
}
mappings = pytest.mark.parametrize("name", FUNCTIONS)
"""What a constant that is added to all scores leaves alone."""


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def masked(rows: int, parts: int, scale: float = 2.0, seed: int = 0) -> Tensor:
    """Rows with a third of the parts forbidden, at least 3 of them allowed, and none in the last row."""
    scores = scale * numbers(rows, parts, seed=seed)
    forbidden = torch.rand(rows, parts, generator=seeded(seed)) < 0.3
    forbidden[:, :3] = False
    scores = scores.masked_fill(forbidden, -math.inf)
    scores[-1] = -math.inf
    return scores


# What holds for all.


@mappings
@pytest.mark.parametrize("scale", [0.4, 1.5])
def test_derivatives_of_first_and_second_order(name: str, scale: float) -> None:
    scores = (scale * numbers(2, 5, seed=4)).requires_grad_()
    assert gradcheck(FUNCTIONS[name], scores, eps=1e-7, atol=1e-6)
    assert gradgradcheck(FUNCTIONS[name], scores, eps=1e-6, atol=1e-5)


@pytest.mark.parametrize("parts", [2, 5, 8])
@pytest.mark.parametrize("rows", [3, pytest.param(20, marks=pytest.mark.sweep)])
@pytest.mark.parametrize(
    ("estimator", "function"),
    [
        (Entmax(1.3), partial(entmax, alpha=1.3)),
        (Entmax(2.5), partial(entmax, alpha=2.5)),
        (Fusedmax(0.3), partial(fusedmax, strength=0.3)),
        (Oscarmax(0.2), partial(oscarmax, strength=0.2)),
        (Oscarmax(0.2, magnitudes=False), partial(oscarmax, strength=0.2, magnitudes=False)),
        (ConstrainedSparsemax(0.6), partial(csparsemax, upper=0.6)),
        (ConstrainedSoftmax(0.6), partial(csoftmax, upper=0.6)),
    ],
    ids=lambda value: "function" if isinstance(value, partial) else str(value),
)
def test_numpy_agrees(estimator: Any, function: Callable[[Tensor], Tensor], parts: int, rows: int) -> None:
    """Values and whole Jacobians."""
    few = 4 if estimator.name == "fusedmax" and parts == 8 else 20
    for scale in (0.2, 1.0, 4.0):
        for row in scale * numbers(min(rows, few), parts if estimator.name != "fusedmax" else min(parts, 6), seed=parts):
            p, jacobian = MAPPINGS[estimator.name](estimator, row.numpy())
            torch.testing.assert_close(function(row), torch.from_numpy(p), rtol=0, atol=1e-11)
            found = torch.autograd.functional.jacobian(function, row)
            torch.testing.assert_close(found, torch.from_numpy(jacobian), rtol=1e-8, atol=1e-8)


# α-entmax.


@pytest.mark.parametrize("scale", [0.1, 3.0, 300.0])
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_sorting_and_halving_agree(alpha: float, scale: float) -> None:
    """A tensor α takes the general algorithm."""
    scores = scale * masked(200, 9)
    torch.testing.assert_close(entmax(scores, torch.tensor(alpha)), entmax(scores, alpha), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(("alpha", "scale"), [(2.5, 0.1), (6.0, 2.0), (30.0, 1e-3), pytest.param(100.0, 0.1, marks=pytest.mark.sweep)])
def test_a_large_alpha_loses_nothing(alpha: float, scale: float) -> None:
    """Values and gradients against halvings of the threshold in many digits: next to it a part may rise from 0 to .2 within 1e-20."""
    rows, direction = scale * numbers(4, 5), numbers(4, 5, seed=1)
    rows[0], rows[1, 4] = rows[0].round(), -math.inf
    leaf, each = rows.clone().requires_grad_(), torch.full((4,), alpha, dtype=torch.float64)
    found = entmax(leaf, alpha)
    (gradient,) = torch.autograd.grad(found, leaf, direction)
    with mpmath.workdps(30 + 4 * int(alpha)):
        power = 1 / (mpmath.mpf(alpha) - 1)
        for row, along, p, slope in zip(rows.tolist(), direction.tolist(), found.detach(), gradient, strict=True):
            x = [value / power for value in row]
            low, high = max(x) - 1, max(x)
            for _ in range(80 + 13 * int(alpha)):
                middle = (low + high) / 2
                low, high = (middle, high) if sum(max(v - middle, 0) ** power for v in x) >= 1 else (low, middle)
            exact = [max(v - low, 0) ** power for v in x]
            weights = [q ** (2 - mpmath.mpf(alpha)) if q else mpmath.mpf(0) for q in exact]
            mean = sum(w * g for w, g in zip(weights, along, strict=True)) / sum(weights)
            torch.testing.assert_close(p, vector(*map(float, exact)), rtol=0, atol=1e-15)
            expected = vector(*(float(w * (g - mean)) for w, g in zip(weights, along, strict=True)))
            torch.testing.assert_close(slope, expected, rtol=1e-10, atol=1e-12 * float(expected.abs().max()))
    for other in (each, torch.where(torch.arange(4) < 2, 1.2, each)):  # by a tensor, where some rows are nearly flat
        assert torch.equal(entmax(rows, other)[2:], found.detach()[2:])


@pytest.mark.parametrize("alpha", [1.0, 1.0 + 1e-9, 1.02, 1.3, 1.5, 1.9, 2.0, 3.0, 10.0, 100.0])
def test_the_derivative_in_alpha(alpha: float) -> None:
    """By central differences, one-sided at α = 1; one number for all rows, and one for each."""
    scores, weights, step = numbers(12, 6), numbers(12, 6, seed=1), 1e-5
    each = torch.full((12,), alpha, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad((entmax(scores, each) * weights).sum(), each)
    values = {k: (entmax(scores, alpha + k * step) * weights).sum(-1) for k in (-1, 0, 1, 2) if alpha + k * step >= 1}
    expected = (values[1] - values[-1]) / (2 * step) if -1 in values else (4 * values[1] - 3 * values[0] - values[2]) / (2 * step)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    one = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    (total,) = torch.autograd.grad((entmax(scores, one) * weights).sum(), one)
    torch.testing.assert_close(total, found.sum())


@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.2])
def test_derivatives_in_scores_and_alpha_together(alpha: float) -> None:
    scores = numbers(2, 5, seed=4).requires_grad_()
    for shape in ((), (2,)):
        each = torch.full(shape, alpha, dtype=torch.float64, requires_grad=True)
        assert gradcheck(entmax, (scores, each), eps=1e-7, atol=1e-5)
        assert gradgradcheck(entmax, (scores, each), eps=1e-6, atol=1e-4)
    many = torch.tensor([1.2, 1.6, 2.0], dtype=torch.float64, requires_grad=True)
    assert entmax(scores[0], many).shape == (3, 5)
    assert gradcheck(entmax, (scores[0].detach().requires_grad_(), many), eps=1e-7, atol=1e-5)


# Fusedmax and oscarmax.


@pytest.mark.parametrize("function", [fusedmax, oscarmax], ids=["fusedmax", "oscarmax"])
def test_without_strength_they_are_sparsemax(function: Callable[..., Tensor]) -> None:
    scores = numbers(30, 6).round(decimals=1).requires_grad_()
    found, expected = function(scores, 0.0), entmax(scores, 2.0)
    assert torch.equal(found, expected)
    slopes = [torch.autograd.grad((p * numbers(30, 6, seed=1)).sum(), scores)[0] for p in (found, expected)]
    assert torch.equal(*slopes)
    torch.testing.assert_close(function(scores, 1e-9), expected, rtol=0, atol=1e-7)


def test_a_score_of_0_moves_oscarmax_on_either_side() -> None:
    scores = vector(0.3, 0.0, 0.2).requires_grad_()
    assert gradcheck(partial(oscarmax, strength=0.05), scores, eps=1e-7, atol=1e-6)


def test_equal_scores_move_together() -> None:
    """A tie inside a group is no kink: the group stays one for small changes."""
    for function in (partial(fusedmax, strength=0.3), partial(oscarmax, strength=0.3, magnitudes=False)):
        scores = vector(1.0, 1.0, 0.2, 0.2, -1.0).requires_grad_()
        assert gradcheck(function, scores, eps=1e-7, atol=1e-6)


# Under upper bounds.


def test_derivatives_in_scores_and_bounds() -> None:
    upper = vector(0.3, 0.25, 0.5, 0.2, 0.4).requires_grad_()
    for seed, function in itertools.product(range(4), (csparsemax, csoftmax)):
        assert gradcheck(function, ((2 * numbers(5, seed=seed)).requires_grad_(), upper), eps=1e-7, atol=1e-6)


@pytest.mark.parametrize("scale", [0.3, 3.0, 30.0])
def test_bounds_of_each_part_by_their_conditions(scale: float) -> None:
    """One threshold for all parts: ``p = clip(θ − τ, 0, u)``, and ``p = min(u, e^(θ−c))``."""
    scores, upper = scale * numbers(200, 6), 0.02 + torch.rand(200, 6, generator=seeded(), dtype=torch.float64)
    for function, level, back in (
        (csparsemax, lambda p: scores - p, lambda t: (scores - t).clamp(min=0)),
        (csoftmax, lambda p: scores - p.log(), lambda t: (scores - t).exp()),
    ):
        p = function(scores, upper)
        free = (p > 0) & (p < upper - 1e-9)
        some = free.any(-1)
        assert int(some.sum()) > 100
        threshold = torch.where(free, level(p), -math.inf).amax(-1, keepdim=True)
        torch.testing.assert_close(torch.minimum(back(threshold), upper)[some], p[some], rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(p.sum(-1), torch.ones(200, dtype=torch.float64), rtol=0, atol=1e-11)


@pytest.mark.parametrize("scale", [0.0, 1.0, 100.0])
def test_bounds_that_leave_no_choice(scale: float) -> None:
    """Where they sum to 1 the result is the bounds, and nothing moves; rounding in float32 is forgiven."""
    scores = (scale * numbers(10, 10)).requires_grad_()
    for function in (csparsemax, csoftmax):
        for upper in (0.1, torch.full((10,), 0.1), torch.full((10,), 0.1, dtype=torch.float64)):
            p = function(scores, upper)
            torch.testing.assert_close(p, torch.full_like(p, 0.1), rtol=0, atol=1e-7)
            (slope,) = torch.autograd.grad((p * numbers(10, 10, seed=1)).sum(), scores)
            # In float32 the bounds sum to a little more than 1, and equal scores find that.
            assert float(slope.abs().max()) < 1e-6 or getattr(upper, "dtype", None) == torch.float32


def test_a_bound_of_0_forbids() -> None:
    scores, upper = numbers(4, 3), vector(1.0, 0.0, 1.0)
    without = torch.where(upper > 0, scores, -math.inf)
    torch.testing.assert_close(csparsemax(scores, upper), entmax(without, 2.0), rtol=0, atol=1e-13)
    torch.testing.assert_close(csoftmax(scores, upper), entmax(without, 1.0), rtol=1e-12, atol=1e-14)
    nothing = torch.full((3,), -math.inf)
    assert not (csparsemax(nothing, upper) + csoftmax(nothing, upper)).any()


def test_the_estimators_raise_a_bound_that_is_too_low() -> None:
    """To 1/m where m parts are allowed: two bits at u = 0.3 are at ½."""
    scores = torch.tensor([[0.0, 3.0], [1.0, -math.inf]], dtype=torch.float64)
    for estimator in (ConstrainedSparsemax(0.3), ConstrainedSoftmax(0.3)):
        found = estimator.structure(IndependentCategoricals(), scores, generator=seeded())
        assert found.tolist() == [[0.5, 0.5], [1.0, 0.0]]
    high = ConstrainedSoftmax(0.9).structure(IndependentCategoricals(), scores, generator=seeded())
    torch.testing.assert_close(high, vector(0.1, 0.9, 1.0, 0.0).reshape(2, 2))


# Errors, and what an estimator does with an oracle.
