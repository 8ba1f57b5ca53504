"""The relaxed dynamic programme: with entropy it is the Gibbs law, with ½‖·‖² every step of its walk is a sparsemax."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.oracles import LinearChain
from structgrad.oracles.capabilities import RelaxedOracle
from structgrad.oracles.numerics import sparse_max
from tests.catalogue.walks import WALKS, sparsemax
from tests.helpers import ORACLE_CASES, REGIMES, OracleCase, make_scores, natural_parameters, structures
from tests.oracle_operations import assert_derivatives

CASES = [case for case in ORACLE_CASES if isinstance(case.oracle, RelaxedOracle)]
cases = pytest.mark.parametrize("case", CASES, ids=str)


def test_every_relaxed_oracle_has_a_walk() -> None:
    assert {type(case.oracle) for case in CASES} == set(WALKS)


@cases
@pytest.mark.parametrize("regime", REGIMES, ids=str)
def test_with_entropy_it_is_the_marginals(case: OracleCase, regime: float | str) -> None:
    scores = make_scores(case, regime)
    assert torch.equal(case.oracle.relax(scores), case.oracle.marginals(scores))


@cases
@pytest.mark.parametrize("regime", [0.05, 1.0, 10.0, "masked"], ids=str)
def test_with_l2_it_is_the_expected_structure_of_the_sparse_walk(case: OracleCase, regime: float | str) -> None:
    scores = make_scores(case, regime)
    feasible = case.oracle.feasible(scores)
    walk = WALKS[type(case.oracle)]
    expected = torch.from_numpy(np.stack([walk(case.oracle, row) for row in natural_parameters(case, scores).numpy()]))
    expected = torch.where(feasible.reshape(-1, *[1] * len(case.event)), expected, 0)
    torch.testing.assert_close(case.oracle.relax(scores, "l2"), expected, rtol=0, atol=1e-10)


@cases
def test_it_lies_in_the_marginal_polytope_and_is_a_structure_where_scores_are_peaked(case: OracleCase) -> None:
    scores = make_scores(case, 1.0)
    listed = structures(case).flatten(1)
    relaxed = case.oracle.relax(scores, "l2").flatten(1)
    # No linear function is greater on it than on every vertex.
    directions = torch.randn(200, listed.shape[1], generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert bool(((relaxed @ directions.T) <= (listed @ directions.T).amax(0) + 1e-9).all())
    peaked = case.oracle.relax(1e4 * scores, "l2")
    torch.testing.assert_close(peaked, case.oracle.argmax(1e4 * scores), rtol=0, atol=1e-9)


@cases
def test_it_is_differentiable(case: OracleCase) -> None:
    assert_derivatives(lambda theta: case.oracle.relax(theta, "l2"), make_scores(case, 1.0, rows=2))


@cases
def test_forbidden_parts_and_infeasible_items(case: OracleCase) -> None:
    scores = make_scores(case, "masked").requires_grad_()
    relaxed = case.oracle.relax(scores, "l2")
    assert bool((relaxed[scores == -math.inf] == 0).all())
    assert not relaxed[~case.oracle.feasible(scores)].any()
    (gradient,) = torch.autograd.grad(relaxed.square().sum(), scores)
    assert bool(gradient.isfinite().all())
    assert bool((gradient[scores == -math.inf] == 0).all())


@cases
def test_shared_rows_batches_and_dtypes(case: OracleCase) -> None:
    scores = make_scores(case, 1.0)
    relaxed = case.oracle.relax(scores, "l2")
    torch.testing.assert_close(torch.stack([case.oracle.relax(row, "l2") for row in scores]), relaxed, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(case.oracle.relax(scores[:1].expand(3, *case.event), "l2"), relaxed[:1].expand(3, *case.event))
    single = case.oracle.relax(scores.float(), "l2")
    assert single.dtype == torch.float32
    torch.testing.assert_close(single, relaxed.float(), rtol=1e-4, atol=1e-5)


def test_only_two_regularisers_are_known() -> None:
    with pytest.raises(ValueError, match='`relax` got omega=\'max\'; expected "entropy" or "l2"'):
        LinearChain().relax(torch.zeros(2, 2, 2), "max")  # type: ignore[arg-type]


@pytest.mark.parametrize("regime", ["plain", "ties", "masked"])
def test_sparse_max_is_the_regularised_maximum(regime: str) -> None:
    values = torch.randn(50, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = {"plain": values, "ties": values.round(), "masked": values.masked_fill(values < -0.5, -math.inf)}[regime]
    values[0] = -math.inf
    leaf = values.requires_grad_()
    found = sparse_max(leaf, 1)
    (gradient,) = torch.autograd.grad(found[1:].sum(), leaf)
    expected = [sparsemax(row) for row in values.detach()[1:].numpy()]
    torch.testing.assert_close(found[1:], Tensor([value for value, _ in expected]).double(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(gradient[1:], torch.from_numpy(np.stack([p for _, p in expected])), rtol=0, atol=1e-12)
    assert found[0] == -math.inf
    assert not gradient[0].any()
