"""Which chains from structure to structure keep the mean, and what they are worth at best."""

from __future__ import annotations

import pytest
import torch

from structgrad.oracles import Assignment, LinearChain, ProjectiveTree, SpanningTree, Subset
from structgrad.oracles.capabilities import EnumerableOracle
from structgrad.suites.studies.field import field_neighbours
from tests.helpers import seeded

ORACLES = {
    "subset": (Subset(2), (5,)),
    "linear chain": (LinearChain(), (3, 2, 2)),
    "spanning tree": (SpanningTree(single_root=False), (4, 4)),
    "projective tree": (ProjectiveTree(single_root=False), (4, 4)),
    "assignment": (Assignment(), (3, 3)),
}


def listed(oracle: EnumerableOracle, event: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Structures, flat; their probabilities at random scores; who are neighbours."""
    structures = oracle.enumerate(event).double()
    p = oracle.log_prob(structures, torch.randn(event, generator=seeded(), dtype=torch.float64)).exp()  # type: ignore[attr-defined]
    return structures.flatten(1), p, field_neighbours.neighbours(oracle, structures)


@pytest.mark.parametrize("name", ORACLES)
def test_moves_are_mutual_and_reach_every_structure(name: str) -> None:
    near = listed(*ORACLES[name])[2]
    assert torch.equal(near, near.T)
    assert not near.diagonal().any()
    reached = (near | torch.eye(len(near), dtype=torch.bool)).double().matrix_power(len(near)) > 0
    assert reached.all()


@pytest.mark.parametrize("name", ORACLES)
def test_what_keeps_the_mean(name: str) -> None:
    structures, p, near = listed(*ORACLES[name])
    losses, slopes = (torch.randn(*shape, generator=seeded(1), dtype=torch.float64) for shape in (p.shape, structures.shape))
    means = {
        text: field_neighbours.law(structures, p, losses, slopes, rates(p, near)).mean for text, rates in field_neighbours.RATES.items()
    }
    degrees = near.sum(1)
    assert (means.pop("Metropolis, degrees left out") > 1e-3) == bool(degrees.min() < degrees.max())
    assert max(means.values()) < 1e-12
    assert name not in {"spanning tree", "projective tree"} or degrees.min() < degrees.max()


def test_all_structures_leave_a_linear_loss_no_variance() -> None:
    structures, p, near = listed(*ORACLES["spanning tree"])
    slope = torch.randn(structures.shape[1], generator=seeded(1), dtype=torch.float64)
    seen = structures, p, structures @ slope, slope.expand_as(structures)
    assert field_neighbours.law(*seen, field_neighbours.refresh(p, near)).ratio < 1e-9
    assert 0.01 < field_neighbours.law(*seen, field_neighbours.barker(p, near)).ratio < 1
