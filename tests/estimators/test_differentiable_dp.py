"""Differentiable dynamic programming: the value, its gradient, its Hessian, and its two limits."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

from structgrad.estimators import DifferentiableDP, smoothed_maximum
from structgrad.oracles import LinearChain
from tests.catalogue.setting import nearest
from tests.catalogue.walks import WALKS, sparsemax
from tests.estimator_cases import CASES, LOSSES, numbers
from tests.helpers import OracleCase, enumerate_truth, make_scores, seeded

RELAXED = tuple(case for case in CASES if type(case.oracle) in WALKS and case.potentials is None)
"""Where scores are natural parameters, in which the value is convex."""

cases = pytest.mark.parametrize("case", RELAXED, ids=str)
omegas = pytest.mark.parametrize("omega", ["l2", "entropy"])


@cases
@omegas
@pytest.mark.parametrize("regime", [0.05, 1.0, 10.0, "masked"], ids=str)
def test_the_gradient_of_the_value_is_the_expected_walk(case: OracleCase, omega: str, regime: float | str) -> None:
    scores = make_scores(case, regime).requires_grad_()
    value = smoothed_maximum(case.oracle, scores, omega)
    feasible = case.oracle.feasible(scores)
    assert torch.equal(value.detach() > -math.inf, feasible)
    (found,) = torch.autograd.grad(value[feasible].sum(), scores)
    torch.testing.assert_close(found, case.oracle.relax(scores.detach(), omega), rtol=1e-10, atol=1e-11)


@cases
def test_with_entropy_the_value_is_the_log_partition(case: OracleCase) -> None:
    scores = numbers(5, *case.event)
    found = smoothed_maximum(case.oracle, scores, "entropy")
    torch.testing.assert_close(found, enumerate_truth(case, scores).log_partition, rtol=1e-12, atol=1e-12)


@cases
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_the_values_bracket_the_best_score(case: OracleCase, scale: float) -> None:
    """Smoothed by ½‖·‖² at most ½ below for every step, smoothed by the entropy at most log #structures above."""
    scores = scale * numbers(50, *case.event)
    totals = enumerate_truth(case, scores).structure_scores
    best, steps = totals.amax(-1), sum(case.event)
    sparse, soft = smoothed_maximum(case.oracle, scores), smoothed_maximum(case.oracle, scores, "entropy")
    assert bool(((sparse <= best + 1e-9) & (sparse >= best - steps / 2)).all())
    assert bool(((soft >= best - 1e-9) & (soft <= best + math.log(totals.shape[1]) + 1e-9)).all())


@cases
@omegas
def test_the_value_is_convex(case: OracleCase, omega: str) -> None:
    start, end = numbers(200, *case.event), numbers(200, *case.event, seed=1)
    middle = smoothed_maximum(case.oracle, 0.3 * start + 0.7 * end, omega)
    assert bool(
        (middle <= 0.3 * smoothed_maximum(case.oracle, start, omega) + 0.7 * smoothed_maximum(case.oracle, end, omega) + 1e-9).all()
    )


@cases
@omegas
def test_the_estimate_is_the_hessian_times_the_loss_gradient(case: OracleCase, omega: str) -> None:
    """Differentiated twice, and by finite differences of the walk."""
    scores, loss = numbers(*case.event), LOSSES["smooth"](case)
    point = case.oracle.relax(scores, omega).requires_grad_()
    (gamma,) = torch.autograd.grad(loss(point), point)
    _, product = torch.autograd.functional.hvp(lambda theta: smoothed_maximum(case.oracle, theta, omega), scores, gamma)
    found = DifferentiableDP(omega).gradient(loss, case.oracle, scores, generator=seeded())  # type: ignore[arg-type]
    torch.testing.assert_close(found, product, rtol=1e-9, atol=1e-10)
    step = 1e-6
    difference = (case.oracle.relax(scores + step * gamma, omega) - case.oracle.relax(scores - step * gamma, omega)) / (2 * step)
    torch.testing.assert_close(found, difference, rtol=1e-5, atol=1e-7)


def test_a_chain_of_one_tag_step_is_sparsemax() -> None:
    """One maximum alone: differentiable DP, SparseMAP and sparsemax are the same; of two, they are not."""
    scores = torch.full((20, 1, 4, 4), 0.0, dtype=torch.float64)
    scores[:, 0, 0] = numbers(20, 4)
    found = LinearChain().relax(scores, "l2")[:, 0, 0]
    expected = torch.from_numpy(np.stack([sparsemax(row)[1] for row in numbers(20, 4).numpy()]))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    case = next(case for case in RELAXED if isinstance(case.oracle, LinearChain))
    scores = 0.3 * numbers(*case.event)
    assert float((case.oracle.relax(scores, "l2") - nearest(case, scores)).abs().max()) > 1e-2


@omegas
def test_the_value_of_padded_items(omega: str) -> None:
    scores, lengths = numbers(3, 5, 2, 2), torch.tensor([1, 3, 5])
    found = smoothed_maximum(LinearChain(), scores, omega, lengths=lengths)  # type: ignore[arg-type]
    single = [smoothed_maximum(LinearChain(), row[:size], omega) for row, size in zip(scores, lengths.tolist(), strict=True)]  # type: ignore[arg-type]
    # Each position of the padding is one more maximum, without a choice.
    constant = (5 - lengths) / 2 if omega == "l2" else 0
    torch.testing.assert_close(found + constant, torch.stack(single))


def test_a_value_layer_trains() -> None:
    """``DP_Ω(θ) − ⟨θ, y⟩`` is a convex loss, least where E(θ) = y: −½ for each of five maxima without a choice."""
    target = LinearChain.structure(torch.tensor([0, 1, 1, 0]), 2, torch.float64)
    scores = torch.zeros(4, 2, 2, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([scores], lr=1.0)
    for _ in range(60):
        optimiser.zero_grad()
        loss = smoothed_maximum(LinearChain(), scores) - (scores * target).sum()
        loss.backward()
        optimiser.step()
    assert float(loss.detach()) == pytest.approx(-2.5)
    torch.testing.assert_close(LinearChain().relax(scores.detach(), "l2"), target)


@omegas
def test_float32_and_half_precision(omega: str) -> None:
    scores = numbers(4, 3, 2, 2)
    exact = smoothed_maximum(LinearChain(), scores, omega)  # type: ignore[arg-type]
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.05)):
        found = smoothed_maximum(LinearChain(), scores.to(dtype), omega)  # type: ignore[arg-type]
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=tolerance)


def test_refused_options() -> None:
    with pytest.raises(ValueError, match=re.escape('`relaxed_value` got omega=\'max\'; expected "entropy" or "l2"')):
        smoothed_maximum(LinearChain(), torch.zeros(2, 2, 2), "max")  # type: ignore[arg-type]
