"""`log_prob` is the logarithm of the enumerated probability."""

from __future__ import annotations

import math

import pytest
import torch

from tests.helpers import ORACLE_CASES, REGIMES, OracleCase, enumerate_truth, make_scores, pulled_back, structures


@pytest.mark.parametrize("regime", REGIMES, ids=str)
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_log_prob_of_every_structure(case: OracleCase, regime: float | str, device: torch.device) -> None:
    scores = make_scores(case, regime)
    every = structures(case).unsqueeze(1).to(device)
    result = case.oracle.log_prob(every, scores.to(device)).cpu()
    truth = enumerate_truth(case, scores)
    expected = torch.where(truth.feasible.unsqueeze(1), truth.structure_scores - truth.log_partition.unsqueeze(1), -math.inf).T
    assert result.shape == (len(every), len(scores))
    torch.testing.assert_close(result, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_a_structure_with_a_forbidden_part_is_impossible(case: OracleCase) -> None:
    structure = structures(case)[-1]
    scores = torch.where(structure > 0, -math.inf, make_scores(case, 1.0)[0])
    assert case.oracle.log_prob(structure, scores).item() == -math.inf


@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_structures_and_scores_broadcast(case: OracleCase) -> None:
    scores = make_scores(case, 1.0, rows=6).reshape(2, 3, *case.event)
    one = structures(case)[0]
    many = one.expand(4, 1, 3, *case.event)
    expected = case.oracle.log_prob(one.expand_as(scores), scores)
    assert torch.equal(case.oracle.log_prob(one, scores), expected)
    assert torch.equal(case.oracle.log_prob(many, scores), expected.expand(4, 2, 3))
    assert torch.equal(case.oracle.log_prob(many[0, 0, 0], scores[0, 0]), expected[0, 0])


@pytest.mark.parametrize("regime", [1.0, 5.0, "masked"], ids=str)
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_the_score_function_is_structure_minus_marginals(case: OracleCase, regime: float | str) -> None:
    scores = make_scores(case, regime).requires_grad_()
    truth = enumerate_truth(case, scores.detach())
    best = structures(case)[truth.structure_scores.argmax(1)]
    (gradient,) = torch.autograd.grad(case.oracle.log_prob(best, scores).sum(), scores)
    feasible = truth.feasible.reshape(-1, *[1] * len(case.event))
    expected = pulled_back(case, scores.detach(), torch.where(feasible, best - truth.marginals, 0))
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)
