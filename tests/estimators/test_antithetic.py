"""Antithetic samples: refusals, forbidden parts and opposite uniforms; the catalogue has their formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from structgrad.estimators import ARM, CARMS, DisARM, DisARMStickBreaking, DisARMTree, make_estimator
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
