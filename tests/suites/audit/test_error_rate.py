"""The procedure keeps its error rate, and the tests of an audit keep theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from structgrad.estimators import LeaveOneOut
from structgrad.suites.audit.cases import STRUCTURES, AuditEffort, Case
from structgrad.suites.audit.laws import batch, sign
from structgrad.suites.audit.means import expected_checks, same_mean_checks
from structgrad.suites.audit.result import Check, confirmed, settled
from structgrad.suites.audit.subject import subject_of
from tests.suites.audit.planted_faults import Opaque, declaring


def checks_of(estimator: Any, effort: AuditEffort) -> Iterator[Check]:
    """The checks of one audit that are tests, before they are settled."""
    subject = subject_of(estimator)
    for name in ("categorical", "subset"):
        case = Case(subject, STRUCTURES[name], effort)
        for law in (sign, batch):
            yield from law(case)
        yield from expected_checks(case, [])
        yield from same_mean_checks(case, LeaveOneOut(), [])


def false_alarms(estimator: Any, *, alpha: float, audits: int, first: int = 1024, most: int = 4096) -> int:
    """Number of audits with a violation, among audits with different seeds."""
    efforts = [AuditEffort(alpha=alpha, seed=seed, first=first, most=most) for seed in range(audits)]
    return sum(any(check.status == "violated" for check in settled(list(checks_of(estimator, one)), alpha)[0]) for one in efforts)


@pytest.mark.parametrize(("alpha", "tests"), [(0.2, 1), (0.2, 8), (0.05, 8)])
def test_false_alarms_of_the_procedure(alpha: float, tests: int) -> None:
    """Uniform p-values, screened, confirmed and corrected: the share of audits with a false alarm is below the level."""
    generator, audits = np.random.default_rng(0), 4000
    wrong = 0
    for _ in range(audits):
        p_values = [confirmed(lambda slot, times: float(generator.random()), alpha) for _ in range(tests)]
        checks, count = settled([Check("sign", "", "holds", p_value=p) for p in p_values], alpha)
        assert count == tests
        wrong += any(check.status == "violated" for check in checks)
    assert 0.2 * alpha < wrong / audits < alpha + 3 * (alpha / audits) ** 0.5


def test_exact_violations_share_no_error_rate() -> None:
    exact = Check("seeds", "", "violated", cause="a")
    weak = [Check("sign", str(number), "holds", cause="b", p_value=0.0006) for number in range(3)]
    checks, count = settled([exact, *weak], 0.001)
    assert (checks[0], count) == (exact, 3)
    assert [(check.status, check.cause) for check in checks[1:]] == [("holds", "")] * 3
    assert settled(weak[:1], 0.001)[0][0].status == "violated"


def test_only_a_wrong_estimator_is_called_wrong() -> None:
    effort = AuditEffort(first=1024, most=1024)
    assert {check.law for check in checks_of(Opaque(), effort) if check.p_value is not None} == {"batch", "mean_of", "objective", "sign"}
    assert false_alarms(Opaque(), alpha=0.01, audits=2, first=256, most=256) == 0
    assert false_alarms(declaring(Opaque, factor=-1.0)(), alpha=0.01, audits=1, first=256, most=256) == 1
