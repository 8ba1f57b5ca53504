"""A small model around a latent structure, on which the laws of training go through all estimators."""

from typing import Any

import torch
from torch import Tensor, nn

from structgrad.estimators import Estimator, make_estimator
from structgrad.oracles import IndependentCategoricals, LinearChain, ShiftReduce, Subset
from tests.estimator_cases import numbers

ROWS = 8

SPACES: tuple[tuple[Any, tuple[int, ...]], ...] = (
    (Subset(2), (5,)),
    (IndependentCategoricals(), (5, 2)),
    (LinearChain(), (4, 2, 2)),
    (ShiftReduce("local"), (5, 5, 2)),
)
"""A model lives on the first that its estimator serves."""

FINER = {"fusedmax": "fusedmax[strength=0.01]", "oscarmax": "oscarmax[strength=0.01]"}
"""With their defaults, scores as close as those of the first step are one, and have no gradient."""


def estimator_of(name: str) -> Estimator[Any]:
    """The estimator of an entry of the registry, with a gradient at the scores of the first step."""
    return make_estimator(FINER.get(name, name))


def first_space(estimator: Estimator[Any]) -> tuple[Any, tuple[int, ...]]:
    """Oracle and event shape."""
    return next(space for space in SPACES if estimator.incompatibility(*space) is None)


class Model(nn.Module):
    """Inputs to scores, and structures to a prediction of some of the inputs."""

    def __init__(self, oracle: Any, event: tuple[int, ...]) -> None:
        super().__init__()
        self.oracle, self.event = oracle, event
        self.encoder = nn.Parameter(0.1 * numbers(ROWS, *event))
        self.bias = nn.Parameter(torch.full((), 0.5, dtype=torch.float64))
        self.targets = oracle.argmax(numbers(ROWS, *event, seed=4))
        self.read = oracle.read_mask(event)
        # Far from 0, with gradients of every size.
        self.weights = torch.linspace(0.1, 1.5, self.encoder[0].numel(), dtype=torch.float64).reshape(event)

    def loss(self, z: Tensor) -> Tensor:
        errors = torch.where(self.read, z + self.bias - self.targets, 0).square() * self.weights
        return 3 + errors.flatten(z.ndim - self.oracle.event_ndim).sum(-1)
