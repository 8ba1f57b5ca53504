"""`argmax` is the best of the enumeration."""

from __future__ import annotations

import pytest
import torch

from structgrad.oracles import Categorical, Subset
from tests.helpers import ORACLE_CASES, REGIMES, OracleCase, enumerate_truth, make_scores, structure_indices, structures


@pytest.mark.parametrize("regime", REGIMES, ids=str)
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_argmax_is_the_best_structure(case: OracleCase, regime: float | str, device: torch.device) -> None:
    scores = make_scores(case, regime, rows=12)
    best = case.oracle.argmax(scores.to(device)).cpu()
    assert best.shape == scores.shape
    assert best.dtype == scores.dtype
    truth = enumerate_truth(case, scores)
    found = truth.structure_scores.gather(1, structure_indices(case, best).unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(found, truth.structure_scores.amax(1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("regime", ["ties", "equal", "masked_ties"])
@pytest.mark.parametrize("case", [case for case in ORACLE_CASES if isinstance(case.oracle, Categorical | Subset)], ids=str)
def test_ties_go_to_the_lowest_index(case: OracleCase, regime: str, device: torch.device) -> None:
    scores = make_scores(case, regime, rows=12)
    truth = enumerate_truth(case, scores)
    first = structures(case)[truth.structure_scores.numpy().argmax(1)]
    best = case.oracle.argmax(scores.to(device)).cpu()
    assert torch.equal(best[truth.feasible], first[truth.feasible])


@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_argmax_carries_no_gradient(case: OracleCase) -> None:
    assert not case.oracle.argmax(make_scores(case, 1.0).requires_grad_()).requires_grad
