"""Small models learn: through the surrogate of every estimator, and through every one that is a layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from structgrad.estimators import ESTIMATORS, PathwiseEstimator, make_estimator
from structgrad.oracles import Subset
from tests.estimator_cases import PATHWISE, numbers
from tests.helpers import seeded

ROWS, PARTS, STEPS = 8, 5, 40
ORACLE = Subset(2)


class Model(nn.Module):
    """Inputs to scores, and structures to a prediction of two of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Parameter(0.1 * numbers(ROWS, PARTS))
        self.bias = nn.Parameter(torch.full((), 0.5, dtype=torch.float64))
        self.targets = ORACLE.argmax(numbers(ROWS, PARTS, seed=4))

    def loss(self, z: Tensor) -> Tensor:
        return (z + self.bias - self.targets).square().sum(-1)

    def error(self) -> float:
        """Mean loss of the best structures."""
        return float(self.loss(ORACLE.argmax(self.encoder)).mean().detach())


def trained(estimator: Any, model: Model, *, layer: bool) -> float:
    """The error after a few steps."""
    optimiser, generator = torch.optim.Adam(model.parameters(), lr=0.2), seeded()
    for _ in range(STEPS):
        optimiser.zero_grad()
        if layer:
            losses = model.loss(estimator.structure(ORACLE, model.encoder, generator=generator))
        else:
            losses = estimator.surrogate(model.loss, ORACLE, model.encoder, generator=generator)
        losses.mean().backward()
        optimiser.step()
    return model.error()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_model_learns_from_the_surrogate(name: str) -> None:
    model = Model()
    before = model.error()
    assert trained(make_estimator(name), model, layer=False) < 0.35 * before


@pytest.mark.parametrize("name", [name for name in PATHWISE if name in ESTIMATORS])
def test_a_model_learns_through_the_layer(name: str) -> None:
    """γ is scaled by the mean here, which shrinks the step of SPIGOT and I-MLE; a sum of losses leaves it alone."""
    estimator, model = make_estimator(name), Model()
    assert isinstance(estimator, PathwiseEstimator)
    before = model.error()
    assert trained(estimator, model, layer=True) < 0.35 * before
