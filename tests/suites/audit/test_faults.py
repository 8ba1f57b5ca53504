"""Every fault is called wrong, under the law that it breaks, with its cause or its symptoms; twins without a fault are right."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from structgrad.suites.audit import Audit, audit
from tests.suites.audit import outside_faults, planted_faults
from tests.suites.audit.outside_faults import FAULTS
from tests.suites.audit.planted_faults import CALLS, MISDECLARED, ON_CLASSES, PLANTED, SEEDS, Fault
from tests.suites.audit.published_mistakes import PUBLISHED, RIGHT

OUTSIDE = {name: Fault(lambda estimate=estimate: estimate, cause, options=ON_CLASSES) for name, (estimate, cause) in FAULTS.items()}
WRONG = PLANTED | PUBLISHED | OUTSIDE


def found(fault: Fault) -> Audit:
    """The audit of a fault, as of a new process: calls and seeds that faults keep outside of themselves are forgotten."""
    CALLS.clear()
    SEEDS.clear()
    make = fault.make
    return audit(make() if getattr(make, "__name__", "") == "<lambda>" else make, quick=True, **fault.options)


@pytest.mark.parametrize("name", WRONG)
def test_a_fault_is_wrong_and_has_its_cause(name: str) -> None:
    fault = WRONG[name]
    result = found(fault)
    details = [check.detail for check in result.violations if check.law == fault.law or name in OUTSIDE]
    assert (result.verdict, result.exit_code(), result.remedies) == ("wrong", 1, ())
    assert any(fault.detail in detail for detail in details)
    assert fault.cause in "".join(result.causes[:1])
    assert bool(result.causes) == bool(fault.cause)
    assert fault.seen in "".join(result.seen)
    assert bool(result.seen) == bool(fault.seen)
    assert not any("no error is proven" in check.detail for check in result.violations)


@pytest.mark.parametrize("name", MISDECLARED)
def test_a_wrong_declaration_is_no_wrong_gradient_and_has_its_line(name: str) -> None:
    fault = MISDECLARED[name]
    result = found(fault)
    assert (result.verdict, result.exit_code(), result.causes, result.seen) == ("misdeclared", 1, (), ())
    assert all(fault.detail in check.detail and check.law == fault.law for check in result.violations)
    (line,) = result.remedies
    assert fault.cause in line
    with pytest.raises(AssertionError, match=r"is misdeclared:\n.*; to change: "):
        result.raise_if_wrong()


@pytest.mark.parametrize("name", RIGHT)
def test_a_twin_without_a_fault_is_right(name: str) -> None:
    make, options = RIGHT[name]
    result = audit(make(), quick=True, **options)
    verdict = "right" if result.declared["unbiased"] or "mean_of" in options else "consistent"
    assert (result.verdict, result.violations, result.causes, result.seen, result.possible) == (verdict, (), (), (), ())
    assert result.exit_code(strict=True) == 0


@pytest.mark.parametrize("estimate", [outside_faults.two_calls, outside_faults.expanded_rows])
def test_two_calls_of_the_loss_and_rows_repeated_by_hand_are_right(estimate: Any) -> None:
    result = audit(functools.partial(estimate, correction=4 / 3), quick=True, **ON_CLASSES)
    assert (result.verdict, result.violations) == ("right", ())


def test_two_possible_causes_of_a_factor_are_named() -> None:
    possible = found(PLANTED["gain of a half"]).possible
    assert [cause.partition(",")[0] for cause in possible] == [
        "gain 0.5 = 1/2: a mean over 2 terms",
        "gain 0.5: a constant factor on every term",
    ]


def test_the_named_line_is_the_one_to_change() -> None:
    (line,) = found(MISDECLARED["says that it is deterministic"]).remedies
    number = int(line.partition(", line ")[2].partition(":")[0])
    assert Path(planted_faults.__file__).read_text().splitlines()[number - 1] == "    deterministic: ClassVar[bool] = True"


def test_a_wrong_declaration_with_a_wrong_gradient_is_wrong_with_both() -> None:
    costs = planted_faults.SeveralCosts().evaluations()
    result = found(Fault(planted_faults.declaring(PLANTED["gain of two"].make, evaluations=lambda self: costs)))
    assert (result.verdict, len(result.remedies), len(result.seen)) == ("wrong", 1, 1)
