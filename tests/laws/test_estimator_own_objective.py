"""Deterministic estimators that are exact for an objective of their own give its derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.estimators import Loss, make_estimator
from tests.catalogue.mappings import point
from tests.catalogue.values import sparse_expectation
from tests.estimator_cases import EXACT_FOR_ANOTHER_OBJECTIVE, LOSSES, numbers, pairs_of
from tests.helpers import OracleCase, seeded

STEP = 1e-5


def objective(name: str, case: OracleCase, kind: str, scores: Tensor) -> Tensor:
    """Written down per estimator, with the oracle's operations or the mappings of the catalogue alone: [*batch]."""
    loss, estimator = LOSSES[kind](case), make_estimator(name)
    if estimator.name in OBJECTIVES:
        return OBJECTIVES[estimator.name](estimator, case, loss, scores.reshape(-1, *case.event)).reshape(scores.shape[: -len(case.event)])
    return loss(torch.stack([point(estimator, row) for row in scores]))


def over_atoms(estimator: Any, case: OracleCase, loss: Loss, scores: Tensor) -> Tensor:
    solution = case.oracle.project(scores)
    return (solution.weights * loss(solution.atoms.movedim(-len(case.event) - 1, 0)).movedim(0, -1)).sum(-1)


OBJECTIVES: dict[str, Callable[[Any, OracleCase, Loss, Tensor], Tensor]] = {
    "structured_attention": lambda estimator, case, loss, scores: loss(case.oracle.marginals(scores)),
    "differentiable_dp": lambda estimator, case, loss, scores: loss(case.oracle.relax(scores, estimator.omega)),
    "sparsemap": lambda estimator, case, loss, scores: loss(case.oracle.project(scores).mean),
    "sparsemap_marginalisation": over_atoms,
    "sparsemax_marginalisation": lambda estimator, case, loss, scores: sparse_expectation(estimator, case, scores, [], loss),
    "top_k_sparsemax": lambda estimator, case, loss, scores: sparse_expectation(estimator, case, scores, [], loss),
}
"""The others evaluate the loss at a mapping of each category."""


def finite_differences(name: str, case: OracleCase, kind: str, scores: Tensor) -> Tensor:
    steps = STEP * torch.eye(scores.numel(), dtype=scores.dtype).reshape(-1, *case.event)
    difference = objective(name, case, kind, scores + steps) - objective(name, case, kind, scores - steps)
    return (difference / (2 * STEP)).reshape(case.event)


@pytest.mark.parametrize("scale", [0.05, 1.0, 5.0])
@pytest.mark.parametrize("kind", ["linear", "quadratic", "smooth"])
@pairs_of(EXACT_FOR_ANOTHER_OBJECTIVE)
def test_the_estimate_is_the_derivative_of_the_objective(name: str, case: OracleCase, kind: str, scale: float) -> None:
    scores = scale * numbers(*case.event, seed=3)
    estimate = make_estimator(name).gradient(LOSSES[kind](case), case.oracle, scores, generator=seeded())
    torch.testing.assert_close(estimate, finite_differences(name, case, kind, scores), rtol=1e-5, atol=1e-7)


@pairs_of(EXACT_FOR_ANOTHER_OBJECTIVE)
def test_the_value_is_the_objective(name: str, case: OracleCase) -> None:
    scores = numbers(4, *case.event)
    value = make_estimator(name).surrogate(LOSSES["smooth"](case), case.oracle, scores, generator=seeded())
    torch.testing.assert_close(value, objective(name, case, "smooth", scores), rtol=1e-12, atol=1e-12)
