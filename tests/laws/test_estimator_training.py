"""Small models learn: through the surrogate of every estimator, and through every one that is a layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from structgrad.estimators import ESTIMATORS, PathwiseEstimator, make_estimator
from structgrad.oracles import Categories, LinearChain, ShiftReduce, Subset
from tests.estimator_cases import PATHWISE, numbers
from tests.helpers import seeded

ROWS, STEPS = 8, 40
SPACES: tuple[tuple[Any, tuple[int, ...]], ...] = (
    (Subset(2), (5,)),
    (Categories(), (5, 2)),
    (LinearChain(), (4, 2, 2)),
    (ShiftReduce("local"), (5, 5, 2)),
)
"""A model lives on the first that its estimator serves."""

FINER = {"fusedmax": "fusedmax[strength=0.01]", "oscarmax": "oscarmax[strength=0.01]"}
"""With their defaults, scores as close as those of the first step are one, and have no gradient."""


class Model(nn.Module):
    """Inputs to scores, and structures to a prediction of some of the inputs."""

    def __init__(self, estimator: Any) -> None:
        super().__init__()
        self.oracle, event = next(space for space in SPACES if estimator.incompatibility(*space) is None)
        self.encoder = nn.Parameter(0.1 * numbers(ROWS, *event))
        self.bias = nn.Parameter(torch.full((), 0.5, dtype=torch.float64))
        self.targets = self.oracle.argmax(numbers(ROWS, *event, seed=4))
        self.read = self.oracle.read_mask(event)

    def loss(self, z: Tensor) -> Tensor:
        return torch.where(self.read, z + self.bias - self.targets, 0).square().flatten(z.ndim - self.oracle.event_ndim).sum(-1)

    def error(self) -> float:
        """Mean loss of the best structures."""
        return float(self.loss(self.oracle.argmax(self.encoder)).mean().detach())


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
    estimator = make_estimator(FINER.get(name, name))
    model = Model(estimator)
    before = model.error()
    assert trained(estimator, model, layer=False) < 0.35 * before


@pytest.mark.parametrize("name", [name for name in PATHWISE if name in ESTIMATORS])
def test_a_model_learns_through_the_layer(name: str) -> None:
    """γ is scaled by the mean here, which shrinks the step of SPIGOT and I-MLE; a sum of losses leaves it alone."""
    estimator = make_estimator(FINER.get(name, name))
    model = Model(estimator)
    assert isinstance(estimator, PathwiseEstimator)
    before = model.error()
    assert trained(estimator, model, layer=True) < 0.35 * before
