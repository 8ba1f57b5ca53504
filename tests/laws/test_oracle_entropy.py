"""`entropy` is that of the enumerated distribution."""

from __future__ import annotations

import math

import pytest
import torch

from tests.helpers import ORACLE_CASES, REGIMES, OracleCase, enumerate_truth, make_scores, structures


@pytest.mark.parametrize("regime", REGIMES, ids=str)
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_entropy_is_that_of_the_enumeration(case: OracleCase, regime: float | str, device: torch.device) -> None:
    scores = make_scores(case, regime)
    result = case.oracle.entropy(scores.to(device)).cpu()
    torch.testing.assert_close(result, enumerate_truth(case, scores).entropy, rtol=1e-9, atol=2e-12)


@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_entropy_of_equal_scores_is_the_logarithm_of_the_count(case: OracleCase) -> None:
    entropy = case.oracle.entropy(torch.zeros(case.event, dtype=torch.float64))
    assert entropy.item() == pytest.approx(math.log(len(structures(case))), abs=1e-13)


@pytest.mark.parametrize("regime", [0.05, 1.0, 5.0, "ties", "masked"], ids=str)
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_the_gradient_of_entropy_is_minus_covariance_times_scores(case: OracleCase, regime: float | str) -> None:
    scores = make_scores(case, regime).requires_grad_()
    (gradient,) = torch.autograd.grad(case.oracle.entropy(scores).sum(), scores)
    finite = torch.where(scores > -math.inf, scores, 0).detach().flatten(1)
    expected = -torch.einsum("bij,bj->bi", enumerate_truth(case, scores.detach()).covariance, finite)
    torch.testing.assert_close(gradient, expected.reshape(scores.shape), rtol=1e-8, atol=1e-11)
