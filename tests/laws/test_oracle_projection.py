"""`project` finds the nearest point of the marginal polytope: no structure lies beyond its supporting hyperplane."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from structgrad.oracles import SparseSolution
from tests.helpers import ORACLE_CASES, REGIMES, OracleCase, binary_parts, enumerate_truth, make_scores, structure_indices, structures


def feasible_projection(case: OracleCase, regime: float | str, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor, SparseSolution]:
    """Feasible scores [b, d] with forbidden parts at 0, the mask of structures that stay feasible [b, s], and the projection."""
    scores = make_scores(case, regime, rows=12)
    truth = enumerate_truth(case, scores)
    solution = case.oracle.project(scores[truth.feasible].to(device))
    finite = torch.where(scores > -math.inf, scores, 0)[truth.feasible].flatten(1)
    return finite, truth.structure_scores[truth.feasible] > -math.inf, solution


def scale_of(scores: Tensor) -> float:
    return max(1.0, scores.abs().max().item())


@pytest.mark.parametrize("regime", REGIMES, ids=str)
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_atoms_are_affinely_independent_structures(case: OracleCase, regime: float | str) -> None:
    _, possible, solution = feasible_projection(case, regime)
    dimension = int(torch.linalg.matrix_rank(structures(case).flatten(1) - structures(case)[0].flatten()))
    for weights, atoms, allowed, support in zip(solution.weights, solution.atoms, possible, solution.support, strict=True):
        used = atoms[weights > 0]
        indices = structure_indices(case, used)
        assert int(support) == len(used) == len(indices.unique()) <= dimension + 1
        assert bool(allowed[indices].all())
        lifted = torch.nn.functional.pad(used.flatten(1), (0, 1), value=1.0)
        assert int(torch.linalg.matrix_rank(lifted)) == len(used)


@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_a_point_of_the_polytope_is_its_own_projection(case: OracleCase) -> None:
    inside = case.oracle.marginals(make_scores(case, 1.0))
    torch.testing.assert_close(case.oracle.project(inside).mean, inside, rtol=0, atol=1e-9)
    # Where parts are counted, the best structure may be another one than the point itself, which then comes out as a mean.
    own = 0.0 if bool(binary_parts(case).all()) else 1e-12
    torch.testing.assert_close(case.oracle.project(structures(case)).mean, structures(case), rtol=0, atol=own)


@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_the_projection_does_not_expand_distances(case: OracleCase) -> None:
    first, second = make_scores(case, 1.0, rows=20, seed=1), make_scores(case, 1.0, rows=20, seed=2)
    mask = structures(case).sum(0) > 0
    moved = (case.oracle.project(first).mean - case.oracle.project(second).mean).flatten(1).norm(dim=-1)
    assert bool((moved <= ((first - second) * mask).flatten(1).norm(dim=-1) + 1e-9).all())
