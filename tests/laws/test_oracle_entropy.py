"""`entropy` is that of the enumerated distribution."""

from __future__ import annotations

import math

import pytest
import torch

from tests.helpers import ORACLE_CASES, REGIMES, OracleCase, enumerate_truth, make_scores, natural_parameters, pulled_back, structures


@pytest.mark.parametrize("regime", REGIMES, ids=str)
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_entropy_is_that_of_the_enumeration(case: OracleCase, regime: float | str, device: torch.device) -> None:
    scores = make_scores(case, regime)
    result = case.oracle.entropy(scores.to(device)).cpu()
    torch.testing.assert_close(result, enumerate_truth(case, scores).entropy, rtol=1e-9, atol=2e-12)


@pytest.mark.parametrize("case", [case for case in ORACLE_CASES if case.potentials is None], ids=str)
def test_entropy_of_equal_scores_is_the_logarithm_of_the_count(case: OracleCase) -> None:
    entropy = case.oracle.entropy(torch.zeros(case.event, dtype=torch.float64))
    assert entropy.item() == pytest.approx(math.log(len(structures(case))), abs=1e-13)


@pytest.mark.parametrize("regime", [0.05, 1.0, 5.0, "ties", "masked"], ids=str)
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_the_gradient_of_entropy_is_minus_covariance_times_scores(case: OracleCase, regime: float | str) -> None:
    scores = make_scores(case, regime).requires_grad_()
    (gradient,) = torch.autograd.grad(case.oracle.entropy(scores).sum(), scores)
    natural = natural_parameters(case, scores.detach())
    finite = torch.where(natural > -math.inf, natural, 0).flatten(1)
    expected = -torch.einsum("bij,bj->bi", enumerate_truth(case, scores.detach()).covariance, finite)
    expected = pulled_back(case, scores.detach(), expected.reshape(scores.shape))
    torch.testing.assert_close(gradient, expected, rtol=1e-8, atol=1e-11)
