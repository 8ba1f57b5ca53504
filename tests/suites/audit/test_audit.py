"""Every law finds its violations, and these decide the verdict."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from structgrad.estimators import PerturbedOptimizer, Reinforce, Simple, make_estimator
from structgrad.estimators.base import Evaluations
from structgrad.estimators.noise import Gumbel
from structgrad.suites.audit import STRUCTURES, Audit, audit
from structgrad.suites.audit.cases import COUNTED, OPERATIONS
from structgrad.suites.audit.interventions import cause_of_noise
from structgrad.suites.audit.laws import snapshot
from structgrad.suites.audit.subject import subject_of
from tests.suites.audit import outside_faults as outside
from tests.suites.audit import planted_faults as planted
from tests.suites.audit import published_mistakes as mistakes


def quick(estimator: Any, *structures: str, **options: Any) -> Audit:
    return audit(estimator, quick=True, structures=structures or ("categorical",), **options)


def test_a_crash_is_no_violation_and_has_its_place() -> None:
    found = quick(planted.RaisingAtMasks)
    assert (found.verdict, found.exit_code()) == ("crashed", 3)
    (check,) = [check for check in found.checks if check.status == "crashed"]
    assert check.detail == "it raised RuntimeError: no masks here"
    assert "planted_faults.py, line" in check.cause
    with pytest.raises(AssertionError, match="no masks here"):
        found.raise_if_wrong()
    assert {check.status for check in quick(planted.changed(planted.raises)).checks} == {"crashed"}
    assert quick(lambda loss, oracle, scores, generator: scores.sum()).exit_code() == 3


def test_time_that_runs_out_leaves_it_undecided() -> None:
    found = quick(Reinforce, seconds=0.0)
    assert found.verdict == "undecided"
    assert (found.exit_code(), found.exit_code(strict=True)) == (0, 4)


def test_the_same_seed_gives_the_same_audit() -> None:
    first, second = (quick("imle", seed=3) for _ in range(2))
    assert first.checks == second.checks
    assert first.checks != quick("imle", seed=4).checks


def test_the_world_is_left_alone() -> None:
    before, estimator = torch.get_rng_state(), mistakes.RunningMeanInPlace()
    quick(estimator)
    quick(mistakes.unseeded)
    assert torch.equal(before, torch.get_rng_state())
    assert estimator.history == {"mean": 0.0}


def test_the_law_that_is_not_asked_is_named() -> None:
    for options, asked in (({}, False), ({"mean_of": "ste_marginals"}, True)):
        checks = [check for check in quick("ste_marginals", **options).checks if check.law in ("objective", "mean_of")]
        assert {(check.law, check.status) for check in checks} == {("mean_of", "holds") if asked else ("objective", "skipped")}


def test_rounding_has_no_sign() -> None:
    """A mean of 0 that comes out as −5e-16 of the gradient."""

    def nothing(loss: Any, oracle: Any, scores: Any, generator: Any) -> Any:
        return -5e-16 * make_estimator("exact").gradient(loss, oracle, scores, generator=generator)

    found = quick(nothing)
    assert {check.law for check in found.violations} == {"objective"}
    assert not any("sign" in text for text in (*found.causes, *found.seen))


def test_a_declared_bias_is_consistent_and_not_right() -> None:
    assert quick("simple").verdict == "consistent"
    assert quick("simple").exit_code(strict=True) == 0
    assert quick("simple", mean_of="simple").verdict == "right"


def test_estimates_that_are_mostly_0_are_noted() -> None:
    def rare(loss: Any, oracle: Any, scores: Any, generator: Any) -> Any:
        keep = torch.rand(scores.shape[:1], generator=generator) < 0.1
        return keep.to(scores).unsqueeze(-1) * scores

    found = quick(rare, unbiased=False)
    assert found.notes[0].endswith("% of the estimates are exactly 0 (categorical)")
    assert quick("rloo").notes == ()


@dataclasses.dataclass(frozen=True)
class SigmaForgotten(PerturbedOptimizer):
    """Noise that is not multiplied by σ."""

    sigma: float = 0.5

    def _perturbed(self, scores: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        return scores + noise


def test_the_twin_of_a_biased_estimator_is_compared() -> None:
    found = quick(SigmaForgotten())
    assert found.verdict == "consistent"
    assert "its mean is not that of perturbed_optimizer" in found.notes[0]
    assert "(by ancestry)" in found.notes[0]
    assert "--mean-of perturbed_optimizer makes that a law" in found.notes[0]
    (note,) = quick(dataclasses.make_dataclass("Mine", [], bases=(Simple,), frozen=True)()).notes
    assert note == "its mean is that of simple, the registered estimator that it resembles most (by ancestry)"

    def straight_through(loss: Any, oracle: Any, scores: Any, generator: Any) -> Any:
        return 2 * make_estimator("simple").gradient(loss, oracle, scores, generator=generator)

    (note,) = quick(straight_through, unbiased=False).notes
    assert "its mean is not that of simple, the registered estimator that it resembles most (by its mean, cosine 1.000)" in note
    assert "gain 2" in note


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_the_scale_of_the_noise_is_named(scale: float) -> None:
    def perturbed(loss: Any, oracle: Any, scores: Any, generator: Any) -> Any:
        structure = oracle.argmax(scores + scale * Gumbel().draw(oracle, scores, generator=generator))
        return loss(structure).unsqueeze(-1) * structure

    cause = cause_of_noise(subject_of(perturbed, objective="perturbed").estimator, STRUCTURES["categorical"], Gumbel())
    assert bool(re.search(r"the structures are those of noise (1\.9|2|2\.1) times as large", cause)) == (scale == 2)


def test_what_an_estimator_holds_is_compared_whole() -> None:
    def held(*values: Any) -> Any:
        return lambda: values

    tensors = [torch.zeros(2, 3), torch.zeros(3, 2), torch.zeros(2, 3).bfloat16(), torch.tensor(0.0), torch.tensor([0.0, 1e-30])]
    seen = [snapshot(held(value)) for value in [*tensors, {"a": [1, 2]}, {"a": [1, 3]}, {1, 2}, None, "None"]]
    assert all(first != second for index, first in enumerate(seen) for second in seen[:index])
    assert snapshot(held(torch.zeros(2, 3))) == seen[0]
    unset = lambda: later  # noqa: E731
    assert snapshot(unset) == {}
    later = 1
    assert snapshot(unset) == {"later": "1"}


@pytest.mark.parametrize(
    ("subject", "options", "message"),
    [
        (Reinforce(), {"objective": "perturbed"}, "got objective for reinforce, which declares it itself"),
        (mistakes.leave_one_out, {"objective": "expectd"}, "did you mean expected"),
        ("entmax", {"structures": ("subset",)}, "found no structure that entmax supports"),
    ],
)
def test_bad_input_gets_one_sentence(subject: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        audit(subject, **options)


DETAILS = {
    "every second call": "calls 4, 6, 8, 10 of 11",
    "double precision": "the loss was shown structures of torch.float64",
    "a flat list of structures": "the loss was shown (1, 6, 4) for scores (2, 3, 4)",
    "one value for the batch": "the surrogate is () for a batch (6,)",
    "a little for every part": "forbidden or ignored parts get a gradient",
    "an exponential that overflows": "NaN or infinite estimates at scores of 50",
    "scores changed in place": "the scores that were handed in were modified",
    "no gradient for parameters": "a parameter of the loss gets 0",
    "a sum over the batch": "a row gets another estimate in a batch of 6 than alone",
    "rows by distribution": "by their distributions",
    "uphill": "over random scores, linear loss",
    "a value that is not the objective": "the estimate is not 0, and the derivative of the surrogate's value is",
}
"""Words of the detail of a violation. Verdicts, laws and causes of all faults are a golden."""

DECLARATIONS = {
    "several costs": "SeveralCosts: `return Evaluations(losses=2, marginals=1, samples=2)`, with these options; what counts, per "
    "row of the batch: losses: structures that the loss is shown",
    "inherited costs": "add to InheritedCosts, which inherits `evaluations` of ScoreFunction: `return Evaluations(losses=2",
    "says that it is deterministic": "SaysDeterministic: `deterministic: ClassVar[bool] = False`",
    "does not say that it needs samples": "needs: ClassVar",
    "does not say that it leaves the structures": "inside_hull: ClassVar[bool] = True",
}
"""Words of the line to change."""


@pytest.mark.parametrize("name", DETAILS)
def test_a_violation_has_its_detail(name: str) -> None:
    result = planted.PLANTED[name].audited()
    assert any(DETAILS[name] in check.detail for check in result.violations)
    assert result.remedies == ()


@pytest.mark.parametrize("name", DECLARATIONS)
def test_a_wrong_declaration_is_no_wrong_gradient_and_has_its_line(name: str) -> None:
    result = planted.MISDECLARED[name].audited()
    assert (result.verdict, result.causes, result.seen) == ("misdeclared", (), ())
    (line,) = result.remedies
    assert DECLARATIONS[name] in line
    with pytest.raises(AssertionError, match=r"is misdeclared:\n.*; to change: "):
        result.raise_if_wrong()


def test_a_wrong_declaration_with_a_wrong_gradient_is_wrong_with_both() -> None:
    costs = planted.SeveralCosts().evaluations()
    result = planted.Fault(planted.declaring(planted.PLANTED["gain of two"].make, evaluations=lambda self: costs)).audited()
    assert (result.verdict, len(result.remedies), len(result.seen)) == ("wrong", 1, 1)


@pytest.mark.parametrize("count", [1, 4])
def test_rows_repeated_by_hand_and_two_calls_of_the_loss_are_right(count: int) -> None:
    def by_hand(loss: Any, oracle: Any, scores: Any, generator: Any) -> Any:
        samples = oracle.sample(scores.expand(count, *scores.shape), generator=generator)
        return (loss(samples).unsqueeze(-1) * (samples - oracle.marginals(scores))).mean(0)

    assert quick(by_hand).violations == ()
    for estimate in (outside.two_calls, outside.expanded_rows):
        assert quick(functools.partial(estimate, correction=4 / 3)).verdict == "right"


def test_the_page_says_what_every_cost_counts() -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/add-an-estimator.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    fields = [field.name for field in dataclasses.fields(Evaluations)]
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row[1])) == sorted(fields)
    counted = {kind: [name for _, name, counts in OPERATIONS if counts == kind] for kind in ("marginals", "relaxations")}
    for kind, operations in counted.items():
        (row,) = [row for row in rows if f"`{kind}`" in row[1]]
        assert set(re.findall(r"`(\w+)`", row[2])) == set(operations)
        assert all(f"`{name}`" in COUNTED[kind] for name in operations)
    assert set(COUNTED) < set(fields)
