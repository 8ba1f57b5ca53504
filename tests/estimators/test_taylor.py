"""Control variates from a Taylor expansion: no variance on linear losses, leave-one-out without one, other samples alone in it."""

from __future__ import annotations

import pytest
import torch

from structgrad.estimators import DoubleControl, LeaveOneOut, MuProp
from tests.estimator_cases import CASES, LOSSES, numbers
from tests.helpers import OracleCase, read_parts, seeded

NATURAL = [case for case in CASES if case.potentials is None]


@pytest.mark.parametrize("case", NATURAL, ids=str)
@pytest.mark.parametrize("estimator", [MuProp(), DoubleControl(), DoubleControl(num_samples=4)], ids=str)
def test_a_linear_loss_has_no_variance(estimator: MuProp | DoubleControl, case: OracleCase) -> None:
    loss, scores = LOSSES["linear"](case), numbers(*case.event)
    found = estimator.gradient(loss, case.oracle, scores.expand(20, *case.event), generator=seeded())
    leaf = torch.where(read_parts(case), scores, 0).requires_grad_()
    (exact,) = torch.autograd.grad(loss(case.oracle.marginals(leaf) * read_parts(case)), leaf)
    torch.testing.assert_close(found, exact.expand_as(found), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", NATURAL[:4], ids=str)
def test_without_a_control_it_is_leave_one_out(case: OracleCase) -> None:
    loss, scores = LOSSES["smooth"](case), numbers(20, *case.event)
    found = DoubleControl(alpha=0.0, num_samples=3).gradient(loss, case.oracle, scores, generator=seeded())
    torch.testing.assert_close(found, LeaveOneOut(num_samples=3).gradient(loss, case.oracle, scores, generator=seeded()))
