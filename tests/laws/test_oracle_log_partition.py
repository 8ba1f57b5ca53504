"""`log_partition` and `feasible` agree with the enumeration."""

from __future__ import annotations

import pytest
import torch

from tests.helpers import ORACLE_CASES, REGIMES, OracleCase, enumerate_truth, make_scores


@pytest.mark.parametrize("regime", REGIMES, ids=str)
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_log_partition_is_the_sum_over_structures(case: OracleCase, regime: float | str, device: torch.device) -> None:
    scores = make_scores(case, regime)
    result = case.oracle.log_partition(scores.to(device)).cpu()
    torch.testing.assert_close(result, enumerate_truth(case, scores).log_partition, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("regime", REGIMES, ids=str)
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_feasible_says_whether_a_structure_remains(case: OracleCase, regime: float | str) -> None:
    scores = make_scores(case, regime, rows=12)
    assert torch.equal(case.oracle.feasible(scores), enumerate_truth(case, scores).feasible)


@pytest.mark.parametrize("scale", [1e3, 1e6], ids=str)
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_log_partition_neither_overflows_nor_underflows(case: OracleCase, scale: float) -> None:
    scores = make_scores(case, scale)
    torch.testing.assert_close(case.oracle.log_partition(scores), enumerate_truth(case, scores).log_partition, rtol=1e-12, atol=1e-12)
