"""Estimators of independent categories: antithetic samples, REBAR, RELAX and local expectations; the catalogue has their formulas."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

from structgrad.estimators import ARM, CARMS, DisARM, DisARMStickBreaking, DisARMTree, LocalExpectation, Rebar, Relax, make_estimator
from structgrad.estimators.score_function import Opposite, Recorded
from structgrad.oracles import Categorical, IndependentCategoricals, SeedBlocks
from tests.estimator_cases import numbers
from tests.helpers import seeded


@pytest.mark.parametrize("name", ["arm", "disarm"])
def test_what_is_no_bit_is_refused(name: str) -> None:
    reason = f"{name} needs bits, which are categories of two parts, and these have 3"
    assert make_estimator(name).incompatibility(Categorical(), (3,)) == reason
    assert make_estimator(name).incompatibility(IndependentCategoricals(), (3, 2)) is None
    with pytest.raises(ValueError, match=f"^{reason}; choose another pair"):
        make_estimator(name).gradient(lambda z: z[..., 0], Categorical(), torch.zeros(3), generator=seeded())


@pytest.mark.parametrize("estimator", [ARM(), DisARM(), DisARMStickBreaking(), DisARMTree(), CARMS(), CARMS(3)], ids=str)
def test_a_forbidden_part_is_never_shown(estimator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for uniforms at their edges; and a bit without a choice gets no gradient."""
    edges = torch.tensor([0.0, 0.3, 1 - 2**-53], dtype=torch.float64)
    at_edges = lambda batch, shape, **_: edges[torch.randint(3, (*batch, *shape))]  # noqa: E731
    monkeypatch.setattr("structgrad.estimators.antithetic.random_uniform", at_edges)
    scores = torch.tensor([[0.3, 0.8], [-math.inf, 1.3], [0.3, -math.inf]], dtype=torch.float64)
    seen = []
    loss = lambda z: (seen.append(z), (z * numbers(3, 2)).flatten(-2).sum(-1).sin())[1]  # noqa: E731
    found = estimator.gradient(loss, IndependentCategoricals(), scores.expand(200, 3, 2), generator=seeded())
    assert not found[:, 1:].any()
    assert found[:, 0].any()
    assert all(bool((z[..., 1, 1] == 1).all()) and bool((z[..., 2, 0] == 1).all()) for z in seen)


def test_opposite_uniforms_are_uniforms() -> None:
    """On the same lattice below 1, in the order of what was drawn, row by row from streams of their own."""
    recorded = Recorded(SeedBlocks((3, 4), 1))
    first = [recorded.uniforms(2, width, torch.device("cpu")) for width in (3, 1)]
    opposite = Opposite(recorded)
    for drawn in first:
        found = opposite.uniforms(*drawn.shape, torch.device("cpu"))
        assert torch.equal(found + drawn, torch.full_like(drawn, 1 - 2.0**-53))
        assert torch.equal(found * 2.0**53 % 1, torch.zeros_like(drawn))
    assert torch.equal(first[0], SeedBlocks((3, 4), 1).uniforms(2, 3, torch.device("cpu")))
    edges = Recorded(seeded())
    edges.drawn.append(torch.tensor([[0.0, 1 - 2.0**-53]], dtype=torch.float64))
    assert Opposite(edges).uniforms(1, 2, torch.device("cpu")).tolist() == [[1 - 2.0**-53, 0.0]]


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


def test_changes_beyond_memory_are_refused() -> None:
    said = LocalExpectation().incompatibility(IndependentCategoricals(), (10**3, 10**4))
    assert said
    assert said.startswith("local_expectation takes the loss on 9,999,000 structures at a time, ")
