"""Every law finds its violations, and these decide the verdict; an audit of oracles finds nothing in the shipped ones."""

import dataclasses
import functools
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from structgrad.estimators import PerturbedOptimizer, Reinforce, Simple, make_estimator
from structgrad.estimators.base import Evaluations
from structgrad.oracles import ORACLES, make_oracle
from structgrad.suites.audit import Audit, audit
from structgrad.suites.audit.cases import COUNTED, OPERATIONS
from structgrad.suites.audit.oracles import audit_oracle
from tests.suites.audit import outside_faults as outside, planted_faults as planted, published_mistakes as mistakes
from tests.suites.audit.planted_oracle_faults import FAULTS, LAWS, Apart, Raising


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


def test_a_wrong_declaration_is_no_wrong_gradient() -> None:
    result = planted.MISDECLARED["several costs"].audited()
    assert (result.verdict, result.causes, result.seen) == ("misdeclared", (), ())
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


OPTIONS = {"subset": "subset[k=2]"}


def test_an_oracle_without_a_fault() -> None:
    found = audit_oracle(Apart(), events=[(6,)])
    assert found.verdict == "right"
    assert {check.law for check in found.checks} >= LAWS
    found.raise_if_wrong()


def test_a_planted_fault_is_raised() -> None:
    with pytest.raises(AssertionError, match="is wrong"):
        audit_oracle(FAULTS[0](), events=[(6,)], quick=True).raise_if_wrong()


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
