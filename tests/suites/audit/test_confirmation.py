"""The procedure keeps its error rate, and the tests of an audit keep theirs."""

from __future__ import annotations

import numpy as np
import pytest

from structgrad.suites.audit.cases import AuditEffort
from structgrad.suites.audit.result import Check, confirmed, settled
from tests.suites.audit import published_mistakes as mistakes
from tests.suites.audit.false_alarms import alarms, checks_of, opaque

SMALL = {"first": 256, "most": 256}


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
    assert wrong / audits < alpha + 3 * (alpha / audits) ** 0.5
    assert wrong / audits > 0.2 * alpha  # it is no empty promise


def test_a_rejection_that_does_not_repeat_is_none() -> None:
    asked: list[tuple[str, int]] = []

    def test(slot: str, times: int) -> float:
        asked.append((slot, times))
        return 1e-9 if slot == "first" else 0.3

    assert confirmed(test, 0.001) == pytest.approx(0.09)
    assert asked == [("first", 1), ("confirmation", 4)]


def test_exact_violations_share_no_error_rate() -> None:
    exact = Check("seeds", "", "violated", cause="a")
    weak = [Check("sign", str(number), "holds", cause="b", p_value=0.0006) for number in range(3)]
    checks, count = settled([exact, *weak], 0.001)
    assert count == 3
    assert checks[0] is exact
    assert [(check.status, check.cause) for check in checks[1:]] == [("holds", "")] * 3
    assert settled(weak[:1], 0.001)[0][0].status == "violated"


def test_an_audit_has_all_kinds_of_tests() -> None:
    laws = [check.law for check in checks_of(opaque, AuditEffort(first=1024, most=1024)) if check.p_value is not None]
    assert sorted(set(laws)) == ["batch", "mean_of", "objective", "sign"]


def test_alarms_ring_for_what_is_wrong_alone() -> None:
    assert alarms(opaque, alpha=0.01, audits=2, **SMALL) == 0

    def wrong(loss, oracle, scores, generator):
        return -mistakes.leave_one_out(loss, oracle, scores, generator)

    assert alarms(wrong, alpha=0.01, audits=1, **SMALL) == 1
