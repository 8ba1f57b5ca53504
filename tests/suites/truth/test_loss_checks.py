"""A loss that cannot be measured is refused, in one sentence, by everything that measures with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from structgrad.estimators import make_estimator
from structgrad.oracles import Subset
from structgrad.suites.measures.bias import measure
from structgrad.suites.truth import exact_truth
from structgrad.suites.truth.closed_form import known_truth
from structgrad.suites.truth.loss_checks import examine_loss

ORACLE, SCORES = Subset(2), torch.tensor([0.3, -0.2, 0.5, 0.0], dtype=torch.float64)
COSTS = torch.tensor([1.0, -0.5, 2.0, 0.3], dtype=torch.float64)


def linear(z: Tensor) -> Tensor:
    return z @ COSTS


def write(z: Tensor) -> Tensor:
    z.mul_(2)
    return linear(z)


def by_place(z: Tensor) -> Tensor:
    return linear(z) + torch.arange(z.shape[0], dtype=z.dtype)


def normalised() -> Callable[[Tensor], Tensor]:
    layer = nn.BatchNorm1d(4, affine=False, track_running_stats=False).double()
    return lambda z: linear(layer(z)) if len(z) > 1 else linear(z)


def rare(z: Tensor) -> Tensor:
    """NaN at one structure, which has the lowest score of all: no look at a few sees it."""
    return torch.where(z[..., 1] * z[..., 3] > 0, math.nan, linear(z))


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "nan": (lambda: lambda z: linear(z) * math.nan, r"the loss gave nan; expected finite numbers below 1e\+77, for every structure"),
    "huge": (lambda: lambda z: linear(z) * 1e200, r"the loss gave -?\d.*e\+200; expected finite numbers below 1e\+77"),
    "random": (lambda: lambda z: linear(z) + torch.randn(z.shape[:-1]), "another value in a second call; expected .*must not be random"),
    "writes": (lambda: write, "the loss writes into its argument; expected it to leave the structures as they are"),
    "place": (lambda: by_place, "another value next to other structures; expected a value that depends on the structure alone"),
    "batch norm": (normalised, "another value next to other structures; .*no batch normalisation"),
    "reduces": (lambda: lambda z: linear(z).mean(), r"the loss gave shape \(\) for structures \(8, 4\); expected .*, \(8,\)"),
    "float": (lambda: lambda z: 1.0, "the loss gave a float; expected a function"),
    "complex": (lambda: lambda z: linear(z) * 1j, "the loss gave a tensor of dtype torch.complex128"),
    "single": (lambda: lambda z: z @ COSTS.float(), "the loss raised RuntimeError: .*; expected a function .* of float64 structures"),
    "raises": (lambda: lambda z: 1 / 0, "the loss raised ZeroDivisionError: division by zero; expected a function"),
}
each_wrong = pytest.mark.parametrize("name", list(WRONG))


@each_wrong
def test_a_loss_that_cannot_be_measured(name: str) -> None:
    make, message = WRONG[name]
    calls: dict[str, Callable[[Any], object]] = {
        "examine_loss": lambda loss: examine_loss(loss, ORACLE, SCORES),
        "exact_truth": lambda loss: exact_truth(loss, ORACLE, SCORES),
        "known_truth": lambda loss: known_truth(loss, ORACLE, SCORES),
        "measure": lambda loss: measure(make_estimator("rloo"), ORACLE, loss, SCORES),
        "measure with a truth": lambda loss: measure(
            make_estimator("rloo"), ORACLE, loss, SCORES, truth=exact_truth(linear, ORACLE, SCORES)
        ),
    }
    for call in calls.values():
        with pytest.raises(ValueError, match=f"^{message}" if message.startswith("the loss") else message):
            call(make())


def test_a_rare_structure_is_found_by_enumeration() -> None:
    scores = torch.tensor([60.0, -60.0, 60.0, -60.0], dtype=torch.float64)
    examine_loss(rare, ORACLE, scores / 60 * 1e6)
    with pytest.raises(ValueError, match="the loss gave nan; expected finite numbers"):
        exact_truth(rare, ORACLE, scores)


def test_a_gradient_that_is_no_number() -> None:
    """A norm at distance 0: the values are right, so estimators that need values alone can be measured."""
    target = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64)

    def root(z: Tensor) -> Tensor:
        return (z - target).square().sum(-1).sqrt()

    with pytest.raises(ValueError, match="the gradient of the loss is nan at a structure; expected finite numbers"):
        measure(make_estimator("ste"), ORACLE, root, SCORES)
    assert measure(make_estimator("rloo"), ORACLE, root, SCORES).verdict == "unbiased-exact"
