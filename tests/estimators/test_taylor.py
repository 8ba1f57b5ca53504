"""Control variates from a Taylor expansion: no variance on linear losses, leave-one-out without one, other samples alone in it."""

from __future__ import annotations

import pytest
import torch

from structgrad.estimators import DoubleControl, LeaveOneOut, MuProp, Rodeo
from structgrad.oracles import Categorical
from tests.estimator_cases import CASES, LOSSES, loss_gradient, numbers
from tests.helpers import OracleCase, one_hots, read_parts, seeded

NATURAL = [case for case in CASES if case.potentials is None]


@pytest.mark.parametrize("case", NATURAL, ids=str)
@pytest.mark.parametrize("estimator", [MuProp(), DoubleControl(), DoubleControl(num_samples=4)], ids=str)
def test_a_linear_loss_has_no_variance(estimator: MuProp | DoubleControl, case: OracleCase) -> None:
    loss, scores = LOSSES["linear"](case), numbers(*case.event)
    found = estimator.gradient(loss, case.oracle, scores.expand(20, *case.event), generator=seeded())
    leaf = torch.where(read_parts(case), scores, 0).requires_grad_()
    (exact,) = torch.autograd.grad(loss(case.oracle.marginals(leaf) * read_parts(case)), leaf)
    torch.testing.assert_close(found, exact.expand_as(found), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("event", [(4,), (3, 2), (2, 3)], ids=str)
def test_rodeo_on_a_linear_loss_is_as_noisy_as_its_categories_alone(event: tuple[int, ...]) -> None:
    """``½ (⟨γ_c, s_c⟩ s_c + Cov γ_c)`` for each, whatever the others are."""
    case = next(case for case in CASES if case.event == event) if event != (4,) else OracleCase(Categorical(), event, one_hots)
    loss, scores = LOSSES["linear"](case), numbers(*event).expand(20, *event)
    found = Rodeo().gradient(loss, case.oracle, scores, generator=seeded())
    gamma, p, expected = loss_gradient(loss, torch.zeros(event, dtype=torch.float64)), scores.softmax(-1), torch.zeros_like(scores)
    for z in case.oracle.sample(scores, 2, generator=seeded()):
        s = z - p
        expected += ((gamma * s).sum(-1, keepdim=True) * s + p * (gamma - (p * gamma).sum(-1, keepdim=True))) / 4
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("case", NATURAL[:4], ids=str)
def test_without_a_control_it_is_leave_one_out(case: OracleCase) -> None:
    loss, scores = LOSSES["smooth"](case), numbers(20, *case.event)
    expected = LeaveOneOut(num_samples=3).gradient(loss, case.oracle, scores, generator=seeded())
    for estimator in (DoubleControl(alpha=0.0, num_samples=3), Rodeo(alpha=0.0, beta=0.0, num_samples=3)):
        if estimator.incompatibility(case.oracle, case.event) is None:
            torch.testing.assert_close(estimator.gradient(loss, case.oracle, scores, generator=seeded()), expected)
