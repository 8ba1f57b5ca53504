"""An audit of oracles finds every planted fault under the law that it breaks, and nothing in the shipped ones."""

from __future__ import annotations

import pytest

from structgrad.oracles import ORACLES, make_oracle
from structgrad.suites.audit.oracles import audit_oracle
from tests.suites.audit.planted_oracle_faults import FAULTS, Apart, Raising

OPTIONS = {"subset": "subset[k=2]"}


def test_an_oracle_without_a_fault() -> None:
    found = audit_oracle(Apart(), events=[(6,)])
    assert found.verdict == "right"
    assert {check.law for check in found.checks} >= {law for law, _ in FAULTS.values()}
    found.raise_if_wrong()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault(fault: type[Apart]) -> None:
    found = audit_oracle(fault(), events=[(6,)], quick=True)
    violated = {check.law: check.detail for check in found.checks if check.status == "violated"}
    law, said = FAULTS[fault]
    assert found.verdict == "wrong"
    assert found.exit_code() == 1
    assert said in violated[law]
    with pytest.raises(AssertionError, match="is wrong"):
        found.raise_if_wrong()


def test_what_raises_is_told() -> None:
    found = audit_oracle(Raising(), events=[(6,)])
    assert (found.verdict, found.exit_code()) == ("crashed", 3)
    assert [check.detail for check in found.checks] == ["it raised RuntimeError: planted"]


@pytest.mark.parametrize("name", ORACLES)
def test_no_shipped_oracle_is_accused(name: str) -> None:
    found = audit_oracle(OPTIONS.get(name, name), quick=True, seconds=300)
    found.raise_if_wrong()
    assert found.verdict == "right"


def test_an_event_whose_shorter_items_have_no_structure() -> None:
    assert audit_oracle("subset[n=2,k=2]", quick=True).verdict == "right"


def test_time_is_kept() -> None:
    found = audit_oracle(make_oracle("categorical"), seconds=0)
    assert (found.verdict, found.exit_code(), found.exit_code(strict=True)) == ("undecided", 0, 4)
    assert {check.status for check in found.checks} == {"holds", "undecided"}


def test_an_event_that_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected \(n \+ 1,\)"):
        audit_oracle(Apart(), events=[(1,)])


def test_an_oracle_without_small_events() -> None:
    with pytest.raises(ValueError, match=r"give sizes, such as subset\[length=...\]"):
        audit_oracle("subset[k=40]")
