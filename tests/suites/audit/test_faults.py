"""Violations have their detail, and wrong declarations their line. Verdicts and causes of all faults are a golden."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from structgrad.suites.audit import audit
from tests.suites.audit import outside_faults, planted_faults
from tests.suites.audit.planted_faults import MISDECLARED, ON_CLASSES, PLANTED, Fault

DETAILS = {
    "every second call": ("state", "calls 4, 6, 8, 10 of 11"),
    "every third call": ("state", "of 11 gave other numbers"),
    "double precision": ("dtypes", "the loss was shown structures of torch.float64"),
    "a flat list of structures": ("shapes", "the loss was shown (1, 6, 4) for scores (2, 3, 4)"),
    "one value for the batch": ("shapes", "the surrogate is () for a batch (6,)"),
    "a little for every part": ("forbidden", "forbidden or ignored parts get a gradient"),
    "an exponential that overflows": ("finite", "NaN or infinite estimates at scores of 50"),
    "scores changed in place": ("inputs", "the scores that were handed in were modified"),
    "no gradient for parameters": ("parameters", "a parameter of the loss gets 0"),
    "a sum over the batch": ("batch", "a row gets another estimate in a batch of 6 than alone"),
    "rows by distribution": ("batch", "by their distributions"),
    "uphill": ("sign", "over random scores, linear loss"),
    "a value that is not the objective": ("objective", "the estimate is not 0, and the derivative of the surrogate's value is"),
}
"""By fault: the violated law, and words of its detail."""

DECLARATIONS = {
    "several costs": (
        "evaluations",
        "one estimate took losses 2 (declared 7), loss_gradients 0 (declared 1), marginals 1 (declared 3), samples 2 (declared 1)",
        "`return Evaluations(losses=2, marginals=1, samples=2)`, with these options; what counts, per row of the batch: losses: structures "
        "that the loss is shown; loss_gradients: structures in which the loss is differentiated; marginals: rows given to `marginals`, "
        "`log_partition`, `log_prob`, `entropy`, `step_log_probs`; samples: structures that `sample` draws",
    ),
    "inherited costs": (
        "evaluations",
        "one estimate took losses 2 (declared 1), samples 2 (declared 1)",
        "add to InheritedCosts, which inherits `evaluations` of ScoreFunction: `return Evaluations(losses=2, marginals=1, samples=2)`",
    ),
    "says that it is deterministic": (
        "deterministic",
        "it declares to be deterministic, and draws",
        "`deterministic: ClassVar[bool] = False`",
    ),
    "does not say that it needs samples": ("needs", "it uses SamplingOracle", "needs: ClassVar"),
    "does not say that it leaves the structures": ("hull", "is declared False", "inside_hull: ClassVar[bool] = True"),
}
"""By wrong declaration: the law, words of its detail, and of the line to change."""


@pytest.mark.parametrize("name", DETAILS)
def test_a_violation_has_its_detail(name: str) -> None:
    law, detail = DETAILS[name]
    result = PLANTED[name].audited()
    assert any(detail in check.detail for check in result.violations if check.law == law)
    assert not any("no error is proven" in check.detail for check in result.violations)
    assert result.remedies == ()


@pytest.mark.parametrize("name", DECLARATIONS)
def test_a_wrong_declaration_is_no_wrong_gradient_and_has_its_line(name: str) -> None:
    law, detail, remedy = DECLARATIONS[name]
    result = MISDECLARED[name].audited()
    assert (result.verdict, result.causes, result.seen) == ("misdeclared", (), ())
    assert all(detail in check.detail and check.law == law for check in result.violations)
    (line,) = result.remedies
    assert remedy in line
    with pytest.raises(AssertionError, match=r"is misdeclared:\n.*; to change: "):
        result.raise_if_wrong()
    if law == "deterministic":
        number = int(line.partition(", line ")[2].partition(":")[0])
        assert Path(planted_faults.__file__).read_text().splitlines()[number - 1] == "    deterministic: ClassVar[bool] = True"


@pytest.mark.parametrize("estimate", [outside_faults.two_calls, outside_faults.expanded_rows])
def test_two_calls_of_the_loss_and_rows_repeated_by_hand_are_right(estimate: Any) -> None:
    result = audit(functools.partial(estimate, correction=4 / 3), quick=True, **ON_CLASSES)
    assert (result.verdict, result.violations) == ("right", ())


def test_a_wrong_declaration_with_a_wrong_gradient_is_wrong_with_both() -> None:
    costs = planted_faults.SeveralCosts().evaluations()
    result = Fault(planted_faults.declaring(PLANTED["gain of two"].make, evaluations=lambda self: costs)).audited()
    assert (result.verdict, len(result.remedies), len(result.seen)) == ("wrong", 1, 1)
