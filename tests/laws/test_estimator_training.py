"""Small models learn: through the surrogate of every estimator, and through every one that is a layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from structgrad.estimators import ESTIMATORS, PathwiseEstimator
from tests.estimator_cases import PATHWISE
from tests.helpers import seeded
from tests.training_cases import Model, estimator_of, first_space

STEPS = 40


def trained(estimator: Any, model: Model, *, layer: bool) -> float:
    """The error after a few steps."""
    optimiser, generator = torch.optim.Adam(model.parameters(), lr=0.2), seeded()
    for _ in range(STEPS):
        optimiser.zero_grad()
        if layer:
            losses = model.loss(estimator.structure(model.oracle, model.encoder, generator=generator))
        else:
            losses = estimator.surrogate(model.loss, model.oracle, model.encoder, generator=generator)
        losses.mean().backward()
        optimiser.step()
    return model.error()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_model_learns_from_the_surrogate(name: str) -> None:
    estimator = estimator_of(name)
    model = Model(*first_space(estimator))
    before = model.error()
    assert trained(estimator, model, layer=False) < 0.35 * before


@pytest.mark.parametrize("name", [name for name in PATHWISE if name in ESTIMATORS])
def test_a_model_learns_through_the_layer(name: str) -> None:
    """γ is scaled by the mean here, which shrinks the step of SPIGOT and I-MLE; a sum of losses leaves it alone."""
    estimator = estimator_of(name)
    model = Model(*first_space(estimator))
    assert isinstance(estimator, PathwiseEstimator)
    before = model.error()
    assert trained(estimator, model, layer=True) < 0.35 * before
