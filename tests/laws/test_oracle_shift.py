"""A constant added to parts of which every structure has the same number moves no probability."""

from __future__ import annotations

import pytest
import torch

from tests.helpers import ORACLE_CASES, OracleCase, make_scores, shared_parts, structures


@pytest.mark.parametrize("shift", [-300.0, 0.5, 300.0], ids=str)
@pytest.mark.parametrize("regime", [1.0, 5.0, "masked"], ids=str)
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_a_shift_moves_the_log_partition_alone(case: OracleCase, regime: float | str, shift: float) -> None:
    scores = make_scores(case, regime)
    moved = scores + shift * shared_parts(case)
    # A policy divides the constant out at every state.
    parts = int(structures(case)[0][shared_parts(case)].sum()) if case.potentials is None else 0
    torch.testing.assert_close(case.oracle.log_partition(moved), case.oracle.log_partition(scores) + shift * parts, rtol=1e-12, atol=1e-11)
    torch.testing.assert_close(case.oracle.marginals(moved), case.oracle.marginals(scores), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(case.oracle.entropy(moved), case.oracle.entropy(scores), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(case.oracle.project(moved).mean, case.oracle.project(scores).mean, rtol=1e-8, atol=1e-10)
    assert torch.equal(case.oracle.argmax(moved), case.oracle.argmax(scores))
