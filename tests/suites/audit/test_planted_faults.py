"""The word and the cause for each planted fault: a cause is named where it fits, and none where nothing does."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from structgrad.suites.audit import Audit, audit
from tests.suites.audit import outside_faults
from tests.suites.audit import planted_faults as faults
from tests.suites.audit.outside_faults import FAULTS
from tests.suites.audit.published_mistakes import leave_one_out


def own_sample(loss: Any, oracle: Any, scores: Any, generator: Any) -> Any:
    return leave_one_out(loss, oracle, scores, generator, own_sample=True)


OWN_SAMPLE = "the baseline of a sample includes the sample itself"
KEPT = "that is kept between calls, outside of the estimator"

WRONG: dict[str, tuple[Callable[[], Any], str, str]] = {
    "gain of a half": (faults.Times, "", "gain 0.5 on every part at all 10 places"),
    "gain of two": (faults.Twice, "", "gain 2 on every part at all 10 places"),
    "gain below 0": (
        faults.Turned,
        "",
        "gain -0.7 on every part at all 10 places, and no certain cause; the sign is wrong too",
    ),
    "an option that shrinks by a half": (faults.Shrunk, "gain 0.5 = shrink: the estimate is multiplied by shrink", ""),
    "another value of it": (lambda: faults.Shrunk(3, shrink=2 / 3), "gain 0.6667 = shrink: the estimate is multiplied by shrink", ""),
    "a half from nowhere, beside two samples": (faults.ShrunkByNobody, "", "gain 0.5 on every part"),
    "own sample of two": (faults.OwnSample, f"gain 0.5 = (N − 1)/N with N = 2: {OWN_SAMPLE}", ""),
    "own sample of four": (lambda: faults.OwnSample(4), f"gain 0.75 = (N − 1)/N with N = 4: {OWN_SAMPLE}", ""),
    "own sample of a function, which has no option to tell by": (lambda: own_sample, f"gain 0.75 = (N − 1)/N with N = 4: {OWN_SAMPLE}", ""),
    "sum over samples": (lambda: faults.SumOverSamples(3), "gain 3 = N with N = 3: the samples are summed, not averaged", ""),
    "sign of one part": (faults.PartTurned, "part (0) has the other sign, and all others are right", ""),
    "one part dropped": (faults.PartDropped, "part (1) has no gradient, and all others are right", ""),
    "one part halved": (faults.PartHalved, "part (2) has a factor of 0.5, and all others are right", ""),
    "two parts swapped": (faults.Swapped, "parts (0) and (1) change places, and all others are right", ""),
    "at masks alone": (faults.AtMasksAlone, "", "the mean is wrong at 2 of 10 places, gain 0.5; "),
    "every second call": (faults.EverySecondCall, f"state {KEPT}", ""),
    "every third call": (faults.EveryThirdCall, f"state {KEPT}", ""),
    "stale noise": (faults.StaleNoise, "noise that is kept from an earlier call, outside of the estimator", ""),
    "no score-function term": (faults.NoScoreFunction, "the estimate does not depend on the losses", ""),
    "no pathwise term": (faults.NoPathwise, "has a mean, and it is not put back", ""),
    "says that it is unbiased": (faults.SaysUnbiased, "made of the gradient of the loss alone, as a straight-through estimate", ""),
    "a global generator": (faults.GlobalDraw, "a draw without generator=", ""),
    "a baseline over the batch": (faults.MixedBatch, "a baseline, a norm or a running value that is taken over the batch", ""),
    "tested, a half": (faults.OpaqueHalf, "", "gain 0.498 ± 0.0"),
    "tested, own sample of four": (faults.OpaqueOwnSample, "(N − 1)/N with N = 4", ""),
    "tested, own sample of three": (lambda: faults.OpaqueOwnSample(3), "(N − 1)/N with N = 3", ""),
    "tested, sign of one part": (faults.OpaquePart, "part (0) has the other sign", ""),
}
"""The estimator, the one cause that may be named, and what must be seen where none is."""

MISDECLARED: dict[str, tuple[Callable[[], Any], str, tuple[str, ...]]] = {
    "several costs": (
        faults.SeveralCosts,
        "one estimate took losses 2 (declared 7), loss_gradients 0 (declared 1), marginals 1 (declared 3), samples 2 (declared 1)",
        (
            "planted_faults.py, line ",
            "`return Evaluations(losses=2, marginals=1, samples=2)`, with these options; what counts, per row of the batch: ",
            "losses: structures that the loss is shown",
            "loss_gradients: structures in which the loss is differentiated",
            "marginals: rows given to `marginals`, `log_partition`, `log_prob`, `entropy`, `step_log_probs`",
            "samples: structures that `sample` draws",
        ),
    ),
    "inherited costs": (
        faults.InheritedCosts,
        "one estimate took losses 2 (declared 1), samples 2 (declared 1)",
        ("add to InheritedCosts, which inherits `evaluations` of ScoreFunction: `return Evaluations(losses=2, marginals=1, samples=2)`",),
    ),
    "says that it is deterministic": (
        faults.SaysDeterministic,
        "it declares to be deterministic, and draws",
        ("planted_faults.py, line ", "`deterministic: ClassVar[bool] = False`"),
    ),
}
"""The estimator, what was found, and what is to be changed."""


def found(make: Callable[[], Any], *structures: str) -> Audit:
    return audit(make(), quick=True, structures=structures or ("categorical", "subset"))


@pytest.mark.parametrize("name", WRONG)
def test_a_fault_is_wrong_and_has_the_cause_that_fits_or_none(name: str) -> None:
    make, cause, seen = WRONG[name]
    result = found(make, *(["categorical"] if name.startswith("tested") else []))
    assert (result.verdict, result.exit_code(), result.remedies) == ("wrong", 1, ())
    if cause:
        assert [one for one in result.causes if cause not in one] == []
        assert result.causes
    else:
        assert result.causes == ()
    assert seen in "".join(result.seen)
    assert bool(result.seen) == bool(seen)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_plain_pytorch_has_its_cause(name: str) -> None:
    estimate, cause = FAULTS[name]
    result = found(lambda: estimate, "categorical")
    assert result.verdict == "wrong"
    assert [cause in one for one in result.causes] == [True]
    assert not any("no error is proven" in check.detail for check in result.violations)


@pytest.mark.parametrize("name", MISDECLARED)
def test_a_wrong_declaration_is_no_wrong_gradient_and_has_its_line(name: str) -> None:
    make, detail, remedy = MISDECLARED[name]
    result = found(make)
    assert (result.verdict, result.exit_code(), result.causes, result.seen) == ("misdeclared", 1, (), ())
    assert {check.detail for check in result.violations} == {detail}
    (line,) = result.remedies
    for words in remedy:
        assert words in line
    with pytest.raises(AssertionError, match=r"is misdeclared:\n.*; to change: "):
        result.raise_if_wrong()


def test_the_named_line_is_the_one_to_change() -> None:
    from pathlib import Path

    (line,) = found(faults.SaysDeterministic).remedies
    number = int(line.partition(", line ")[2].partition(":")[0])
    assert Path(faults.__file__).read_text().splitlines()[number - 1] == "    deterministic: ClassVar[bool] = True"


def test_a_wrong_declaration_beside_a_wrong_gradient_is_wrong_with_both() -> None:
    class Both(faults.Times):
        def evaluations(self) -> Any:
            return faults.SeveralCosts().evaluations()

    result = found(Both)
    assert result.verdict == "wrong"
    assert result.seen
    assert len(result.remedies) == 1


def test_a_part_of_events_of_several_dimensions() -> None:
    result = found(faults.PartTurned, "categorical", "categories")
    assert result.causes == ("the parts with the last index 0 have the other sign, and all others are right",)
    assert found(faults.PartDropped, "categories").causes == ("the parts with the last index 1 have no gradient, and all others are right",)


def test_which_calls_are_wrong_is_told() -> None:
    for make, calls in ((faults.EverySecondCall, "calls 4, 6, 8, 10 of 11"), (faults.EveryThirdCall, "of 11 gave other numbers")):
        assert any(calls in check.detail for check in found(make).violations)


def test_the_twin_with_both_terms_is_right() -> None:
    for make in (faults.BothTerms, faults.Opaque):
        result = found(make)
        assert (result.verdict, result.causes, result.seen) == ("right", (), ())


@pytest.mark.parametrize("estimate", [outside_faults.two_calls, outside_faults.expanded_rows])
def test_two_calls_of_the_loss_and_rows_repeated_by_hand_are_right(estimate: Any) -> None:
    result = found(lambda: functools.partial(estimate, correction=4 / 3), "categorical")
    assert (result.verdict, result.violations) == ("right", ())
