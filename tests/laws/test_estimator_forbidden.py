"""Nothing is NaN where parts are forbidden; forbidden and ignored parts carry no gradient, and infeasible rows none at all."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from structgrad.estimators import make_estimator
from tests.estimator_cases import LOSSES, NAMES, NEVER_STILL, PATHWISE, SMALLEST, numbers, pairs, pairs_of
from tests.helpers import OracleCase, make_scores, read_parts, seeded, structures


def forbidding_scores(case: OracleCase) -> Tensor:
    """Random masks; the last parts forbidden; one structure left; one part left; the first structure forbidden."""
    random = make_scores(case, "masked", rows=20)
    late = make_scores(case, 1.0, rows=20, seed=2)
    late[:, -1] = -math.inf
    finite = make_scores(case, 1.0, rows=5, seed=1)
    first, last = structures(case)[0] > 0, structures(case)[-1] > 0
    one = torch.arange(finite[0].numel()).reshape(case.event) == 0
    return torch.cat([random, late, finite.masked_fill(~torch.stack([last, first, one, ~first, one | ~read_parts(case)]), -math.inf)])


@pytest.mark.parametrize("kind", ["smooth", "offset"])
@pairs
def test_only_free_parts_of_feasible_rows_have_a_gradient(name: str, case: OracleCase, kind: str) -> None:
    scores = forbidding_scores(case)
    feasible = case.oracle.feasible(scores)
    assert 0 < int(feasible.sum()) < len(scores)
    estimate = make_estimator(name).gradient(LOSSES[kind](case), case.oracle, scores, generator=seeded())
    assert estimate.isfinite().all()
    assert bool((estimate[scores == -math.inf] == 0).all())
    assert bool((estimate[:, ~read_parts(case)] == 0).all())
    assert bool((estimate[~feasible] == 0).all())


@pairs
def test_values_of_forbidding_rows_are_finite(name: str, case: OracleCase) -> None:
    value = make_estimator(name).surrogate(LOSSES["smooth"](case), case.oracle, forbidding_scores(case), generator=seeded())
    assert value.isfinite().all()


@pairs_of(PATHWISE)
def test_a_layer_passes_nothing_to_forbidden_parts(name: str, case: OracleCase) -> None:
    scores = forbidding_scores(case).requires_grad_()
    structure = make_estimator(name).structure(case.oracle, scores, generator=seeded())
    assert structure.isfinite().all()
    (found,) = torch.autograd.grad(LOSSES["smooth"](case)(structure).mean(), scores)
    assert found.isfinite().all()
    assert bool((found[scores == -math.inf] == 0).all())
    assert bool((found[~case.oracle.feasible(scores)] == 0).all())


@pairs
def test_ignored_entries_are_never_read(name: str, case: OracleCase) -> None:
    """Neither those of the scores, nor those of the gradient of the loss."""
    estimator, scores, loss = make_estimator(name), numbers(6, *case.event), LOSSES["smooth"](case)
    parts = read_parts(case)
    garbage = torch.where(torch.arange(6).reshape(6, *[1] * len(case.event)) % 2 == 0, math.nan, math.inf)
    expected = estimator.gradient(lambda z: loss(z * parts), case.oracle, scores, generator=seeded())
    found = estimator.gradient(
        lambda z: loss(z * parts) + 1e6 * (z * ~parts).sum(tuple(range(-len(case.event), 0))),
        case.oracle,
        torch.where(parts, scores, garbage),
        generator=seeded(),
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pairs_of(NAMES, SMALLEST)
def test_a_single_structure(name: str, case: OracleCase) -> None:
    """There is nothing to learn: 0 but for the estimators that never rest."""
    estimate = make_estimator(name).gradient(LOSSES["smooth"](case), case.oracle, numbers(3, *case.event), generator=seeded())
    assert estimate.isfinite().all()
    if name not in NEVER_STILL and name.partition("[")[0] not in NEVER_STILL:
        torch.testing.assert_close(estimate, torch.zeros_like(estimate), rtol=0, atol=1e-13)


@pytest.mark.parametrize("regime", ["ties", "equal"])
@pairs
def test_ties_give_finite_estimates(name: str, case: OracleCase, regime: str) -> None:
    estimate = make_estimator(name).gradient(LOSSES["smooth"](case), case.oracle, make_scores(case, regime), generator=seeded())
    assert estimate.isfinite().all()


@pytest.mark.parametrize("scale", [0.05, 50.0])
@pairs
def test_every_scale_of_scores_gives_finite_estimates(name: str, case: OracleCase, scale: float) -> None:
    estimate = make_estimator(name).gradient(LOSSES["offset"](case), case.oracle, scale * numbers(10, *case.event), generator=seeded())
    assert estimate.isfinite().all()
