"""The procedure keeps its error rate, and the tests of an audit keep theirs."""

from __future__ import annotations

import numpy as np
import pytest

from structgrad.suites.audit.result import Check, confirmed, settled


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
