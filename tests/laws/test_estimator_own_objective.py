"""Deterministic estimators that are exact for an objective of their own give its derivative."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from structgrad.estimators import make_estimator
from tests.catalogue.deterministic import OBJECTIVES
from tests.catalogue.mappings import point
from tests.estimator_cases import EXACT_FOR_ANOTHER_OBJECTIVE, LOSSES, numbers, pairs_of
from tests.helpers import OracleCase, seeded

STEP = 1e-5


def objective(name: str, case: OracleCase, kind: str, scores: Tensor) -> Tensor:
    """Written down per estimator, with the oracle's operations or the mappings of the catalogue alone: [*batch]."""
    loss, estimator = LOSSES[kind](case), make_estimator(name)
    if estimator.name in OBJECTIVES:
        return OBJECTIVES[estimator.name](estimator, case, loss, scores.reshape(-1, *case.event)).reshape(scores.shape[: -len(case.event)])
    return loss(torch.stack([point(estimator, row) for row in scores]))


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
