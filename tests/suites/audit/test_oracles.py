"""An audit of oracles finds every planted fault under the law that it breaks, and nothing in the shipped ones."""

from __future__ import annotations

import pytest

from structgrad.oracles import ORACLES, make_oracle
from structgrad.suites.audit.oracles import audit_oracle
from tests.suites.audit import planted_oracle_faults as faults

FAULTS = {
    faults.Neighbours: ("derivations", "is derived and is no structure"),
    faults.NeverLast: ("derivations", "has no derivation"),
    faults.TwoWays: ("derivations", "has 2 derivations; expected exactly one"),
    faults.PartTwice: ("derivations", "takes (1,) twice"),
    faults.ListedTwice: ("derivations", "1 of them twice"),
    faults.MoreCounted: ("count", "`count` is 14; expected 13"),
    faults.SecondBest: ("argmax", "the score of `argmax`"),
    faults.NoStructure: ("argmax", "is no structure"),
    faults.PaddingRead: ("ignored entries", "`read_mask` at (0,) is 1; expected 0"),
    faults.Doubled: ("log-partition", "expected"),
    faults.Hot: ("marginals", "expected"),
    faults.Biased: ("samples", "degrees of freedom"),
    faults.Unordered: ("k best", "the scores of `kbest`"),
    faults.Repeating: ("k best", "names a structure twice"),
    faults.OtherRanks: ("enumeration", "`rank`"),
    faults.Rounded: ("projection", "the duality gap"),
    faults.LengthsForgotten: ("lengths", "length"),
}
OPTIONS = {"subset": "subset[k=2]"}


def test_an_oracle_without_a_fault() -> None:
    found = audit_oracle(faults.Apart(), events=[(6,)])
    assert found.verdict == "right"
    assert {check.law for check in found.checks} >= {law for law, _ in FAULTS.values()}
    found.raise_if_wrong()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault(fault: type[faults.Apart]) -> None:
    found = audit_oracle(fault(), events=[(6,)], quick=True)
    violated = {check.law: check.detail for check in found.checks if check.status == "violated"}
    law, said = FAULTS[fault]
    assert found.verdict == "wrong"
    assert found.exit_code() == 1
    assert said in violated[law]
    with pytest.raises(AssertionError, match="is wrong"):
        found.raise_if_wrong()


def test_what_raises_is_told() -> None:
    found = audit_oracle(faults.Raising(), events=[(6,)])
    assert (found.verdict, found.exit_code()) == ("crashed", 3)
    assert [check.detail for check in found.checks] == ["RuntimeError: planted"]


@pytest.mark.parametrize("name", ORACLES)
def test_no_shipped_oracle_is_accused(name: str) -> None:
    found = audit_oracle(OPTIONS.get(name, name), quick=True, seconds=300)
    found.raise_if_wrong()
    assert found.verdict == "right"


def test_time_is_kept() -> None:
    found = audit_oracle(make_oracle("categorical"), seconds=0)
    assert (found.verdict, found.exit_code(), found.exit_code(strict=True)) == ("undecided", 0, 4)
    assert {check.status for check in found.checks} == {"holds", "undecided"}


def test_an_event_that_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected \(n \+ 1,\)"):
        audit_oracle(faults.Apart(), events=[(1,)])


def test_an_oracle_without_small_events() -> None:
    with pytest.raises(ValueError, match=r"give sizes, such as subset\[length=...\]"):
        audit_oracle("subset[k=40]")
