"""Nothing is NaN where parts are forbidden, and a forbidden part has neither mass nor gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers import ORACLE_CASES, OracleCase, make_scores, seeded, structures

OPERATIONS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "log_partition": lambda oracle, scores: oracle.log_partition(scores),
    "marginals": lambda oracle, scores: oracle.marginals(scores),
    "entropy": lambda oracle, scores: oracle.entropy(scores),
    "log_prob": lambda oracle, scores: oracle.log_prob(oracle.argmax(scores), scores),
    "project_mean": lambda oracle, scores: oracle.project(scores).mean,
    "project_weights": lambda oracle, scores: oracle.project(scores).weights,
}


def forbidding_scores(case: OracleCase) -> Tensor:
    """Random masks; no feasible part at all; a single structure left; all but one part forbidden; the first or last structure forbidden."""
    random = make_scores(case, "masked", rows=8)
    finite = make_scores(case, 1.0, rows=5, seed=1)
    keep = torch.stack(
        [
            structures(case)[-1] > 0,
            structures(case)[0] > 0,
            torch.arange(finite[0].numel()).reshape(case.event) == 0,
            structures(case)[0] == 0,
            structures(case)[-1] == 0,
        ]
    )
    return torch.cat([random, finite.masked_fill(~keep, -math.inf)])


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_values_and_gradients_are_never_nan(case: OracleCase, operation: str) -> None:
    scores = forbidding_scores(case).requires_grad_()
    feasible = case.oracle.feasible(scores)
    result = OPERATIONS[operation](case.oracle, scores)
    assert not result.isnan().any()
    (gradient,) = torch.autograd.grad(result[feasible].square().sum(), scores, create_graph=True)
    assert gradient.isfinite().all()
    assert bool((gradient[scores == -math.inf] == 0).all())
    assert bool((gradient[~feasible] == 0).all())
    if gradient.requires_grad:
        (second,) = torch.autograd.grad(gradient.square().sum(), scores)
        assert second.isfinite().all()
        assert bool((second[scores == -math.inf] == 0).all())


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_gradients_of_infeasible_rows_are_zero(case: OracleCase, operation: str) -> None:
    scores = forbidding_scores(case).requires_grad_()
    infeasible = ~case.oracle.feasible(scores)
    result = OPERATIONS[operation](case.oracle, scores)
    (gradient,) = torch.autograd.grad(result.sum(), scores, create_graph=True)
    assert bool((gradient[infeasible] == 0).all())
    if gradient.requires_grad:
        (second,) = torch.autograd.grad(gradient.sum(), scores)
        assert bool((second[infeasible] == 0).all())


@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_forbidden_parts_have_no_mass(case: OracleCase) -> None:
    scores = forbidding_scores(case)
    forbidden, feasible = scores == -math.inf, case.oracle.feasible(scores)
    solution = case.oracle.project(scores)
    samples = case.oracle.sample(scores, 50, generator=seeded())
    assert bool((case.oracle.argmax(scores)[feasible] * forbidden[feasible] == 0).all())
    assert bool((case.oracle.marginals(scores)[forbidden] == 0).all())
    assert bool((samples * forbidden == 0).all())
    assert bool((solution.mean[forbidden] == 0).all())
    assert bool(
        (
            (solution.weights > 0).reshape(*solution.weights.shape, *[1] * len(case.event)) * solution.atoms * forbidden.unsqueeze(1) == 0
        ).all()
    )


@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_an_infeasible_item_gives_zeros(case: OracleCase) -> None:
    scores = forbidding_scores(case)
    infeasible = ~case.oracle.feasible(scores)
    assert bool(infeasible.any())
    solution = case.oracle.project(scores)
    assert bool((case.oracle.log_partition(scores)[infeasible] == -math.inf).all())
    assert bool((case.oracle.marginals(scores)[infeasible] == 0).all())
    assert bool((case.oracle.entropy(scores)[infeasible] == 0).all())
    assert bool((case.oracle.log_prob(case.oracle.argmax(scores), scores)[infeasible] == -math.inf).all())
    assert bool((case.oracle.sample(scores, 3, generator=seeded())[:, infeasible] == 0).all())
    assert bool((solution.mean[infeasible] == 0).all())
    assert bool((solution.weights[infeasible] == 0).all())
    assert bool((solution.support[infeasible] == 0).all())
    assert bool((solution.gap[infeasible] == math.inf).all())


@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_free_parts_are_read_and_not_forbidden(case: OracleCase) -> None:
    scores = forbidding_scores(case)
    assert torch.equal(case.oracle.free_parts(scores), (scores > -math.inf) & (structures(case).sum(0) > 0))
