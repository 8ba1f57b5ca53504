"""REBAR, RELAX and local expectations: tuning and refusals."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

from structgrad.estimators import LocalExpectation, Rebar, Relax, make_estimator
from structgrad.oracles import IndependentCategoricals
from tests.estimator_cases import numbers
from tests.helpers import seeded


def network(event: tuple[int, ...], seed: int = 0) -> nn.Module:
    """A small one in float64, one value per point."""
    layers = nn.Sequential(nn.Flatten(-len(event)), nn.Linear(math.prod(event), 6), nn.Tanh(), nn.Linear(6, 1), nn.Flatten(-2)).double()
    for i, parameter in enumerate(layers.parameters()):
        parameter.data = numbers(*parameter.shape, seed=seed + i)
    return layers


@pytest.mark.parametrize("with_loss", [True, False])
def test_the_squared_norm_and_its_derivatives(with_loss: bool) -> None:
    """That of `gradient` from the same seed, and by finite differences in η, log τ and a weight of the network."""
    scores, loss, event = numbers(5, 2, 2), lambda z: (z * numbers(2, 2)).sum((-2, -1)).sin(), (2, 2)
    estimator = Relax(0.6, 0.8, network(event), with_loss)

    def value(settings: nn.Module) -> Tensor:
        return estimator.squared_norm(loss, IndependentCategoricals(), scores, settings, generator=seeded())  # type: ignore[arg-type]

    settings = estimator.settings()
    found = value(settings)
    expected = estimator.gradient(loss, IndependentCategoricals(), scores, generator=seeded()).square().sum((-2, -1))
    torch.testing.assert_close(found, expected)
    # It moves the parameters in place.
    assert gradcheck(lambda *_: value(settings), tuple(settings.parameters()), atol=1e-6)


def test_settings_in_a_loop_of_ones_own() -> None:
    scores, loss = numbers(64, 2, 2), lambda z: (z * numbers(2, 2, seed=3)).sum((-2, -1)).exp()
    estimator, generator = Rebar(eta=0.1), seeded()
    held = estimator.settings()
    optimiser = torch.optim.SGD(held.parameters(), lr=0.05)
    for _ in range(50):
        optimiser.zero_grad()
        estimator.squared_norm(loss, IndependentCategoricals(), scores, held, generator=generator).mean().backward()
        optimiser.step()
    assert estimator.with_settings(held).eta > 0.2


def test_the_cost_of_relax_without_the_loss() -> None:
    seen = []
    relax = Relax(control=network((2, 2)), with_loss=False)
    relax.gradient(
        lambda z: (seen.append(z.shape), z.detach().sum((-2, -1)))[1], IndependentCategoricals(), numbers(4, 2, 2), generator=seeded()
    )
    assert seen == [(4, 2, 2)]
    assert (relax.evaluations().losses, relax.evaluations().loss_gradients) == (1, 0)


def test_neither_loss_nor_control_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^`relax` got with_loss=False and no control; expected a module where the loss is left out"):
        make_estimator("relax[with_loss=False]")


def test_what_a_control_must_give() -> None:
    wrong = nn.Linear(2, 1, dtype=torch.float64)
    with pytest.raises(
        ValueError, match=r"^`relax` got a control that gives a tensor of shape \(2, 4, 3, 1\) for points of shape \(2, 4, 3, 2\)"
    ):
        Relax(control=wrong).gradient(lambda z: z.sum((-2, -1)), IndependentCategoricals(), numbers(4, 3, 2), generator=seeded())


def test_changes_beyond_memory_are_refused() -> None:
    said = LocalExpectation().incompatibility(IndependentCategoricals(), (10**3, 10**4))
    assert said
    assert said.startswith("local_expectation takes the loss on 9,999,000 structures at a time, ")
