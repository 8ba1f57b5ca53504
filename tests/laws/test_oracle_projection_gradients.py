"""Gradients of `project`: those of an affine map with fixed atoms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from tests.helpers import GENERIC_CASES, ORACLE_CASES, OracleCase, make_scores, read_parts, structures


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0], ids=str)
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_the_mean_by_finite_differences(case: OracleCase, scale: float) -> None:
    assert gradcheck(lambda theta: case.oracle.project(theta).mean, (make_scores(case, scale, rows=3).requires_grad_(),), fast_mode=True)


def face_is_a_simplex(case: OracleCase, row: Tensor) -> bool:
    """Whether the atoms are all structures of the face that holds the mean: then there is one way to write it, at nearby scores too."""
    solution = case.oracle.project(row)
    residual = (torch.where(read_parts(case), row, 0) - solution.mean).flatten()
    values = structures(case).flatten(1) @ residual
    return bool((values > values.max() - 1e-9).sum() == solution.support)


@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_the_weights_by_finite_differences_where_they_are_unique(case: OracleCase) -> None:
    rows = [row for scale in (0.3, 1.0, 3.0) for row in make_scores(case, scale, rows=6)]
    unique = [row for row in rows if face_is_a_simplex(case, row)]
    assert len(unique) > 2
    for row in unique:
        assert gradcheck(lambda theta: case.oracle.project(theta).weights, (row.clone().requires_grad_(),), fast_mode=True)


@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_the_mean_by_finite_differences_under_a_mask(case: OracleCase) -> None:
    forbidden = make_scores(case, "masked", rows=5) == -math.inf

    def mean(theta: Tensor) -> Tensor:
        result: Tensor = case.oracle.project(theta.masked_fill(forbidden, -math.inf)).mean
        return result

    assert gradcheck(mean, (make_scores(case, 1.0, rows=5).requires_grad_(),), fast_mode=True)


def weights_jacobian(atoms: np.ndarray) -> np.ndarray:
    """d weights / d scores [m, d] for fixed atoms [m, d], from the optimality system [[MMᵀ, 1], [1ᵀ, 0]] [w, τ] = [Mθ, 1]."""
    size = len(atoms)
    system = np.block([[atoms @ atoms.T, np.ones((size, 1))], [np.ones((1, size)), np.zeros((1, 1))]])
    return np.linalg.solve(system, np.vstack([atoms, np.zeros((1, atoms.shape[1]))]))[:size]


@pytest.mark.parametrize("regime", [0.05, 1.0, 5.0, 50.0, "ties", "equal"], ids=str)
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_the_jacobian_of_weights_is_affine_in_fixed_atoms(case: OracleCase, regime: float | str) -> None:
    for row in make_scores(case, regime, rows=3):
        leaf = row.clone().requires_grad_()
        solution = case.oracle.project(leaf)
        used = solution.weights > 0
        jacobian = torch.stack([torch.autograd.grad(weight, leaf, retain_graph=True)[0].flatten() for weight in solution.weights])
        expected = torch.from_numpy(weights_jacobian(solution.atoms[used].flatten(1).numpy()))
        torch.testing.assert_close(jacobian[used], expected * read_parts(case).flatten(), rtol=1e-8, atol=1e-9)
        assert bool((jacobian[~used] == 0).all())


@pytest.mark.parametrize("regime", [0.05, 1.0, 5.0, 50.0, "ties"], ids=str)
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_the_jacobian_of_the_mean_is_an_orthogonal_projector(case: OracleCase, regime: float | str) -> None:
    for row in make_scores(case, regime, rows=2):
        jacobian = torch.autograd.functional.jacobian(lambda theta: case.oracle.project(theta).mean, row)
        jacobian = jacobian.reshape(row.numel(), row.numel())
        torch.testing.assert_close(jacobian, jacobian.T, rtol=0, atol=1e-9)
        torch.testing.assert_close(jacobian @ jacobian, jacobian, rtol=0, atol=1e-9)


@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_no_gradient_is_kept_where_none_is_asked_for(case: OracleCase) -> None:
    scores = make_scores(case, 1.0)
    assert not case.oracle.project(scores).mean.requires_grad
    with torch.no_grad():
        assert not case.oracle.project(scores.requires_grad_()).mean.requires_grad
    assert case.oracle.project(scores).mean.requires_grad
    assert not case.oracle.project(scores).gap.requires_grad
