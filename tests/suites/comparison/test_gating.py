from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from structgrad.suites.base import Row
from structgrad.suites.comparison import Settings, gate, read_settings
from structgrad.suites.metrics import METRICS, Rule
from tests.suites.comparison.rows import batch_means, exact, sampled


def settings(**gate_table: Any) -> Settings:
    return read_settings({"gate": gate_table})


def claim(value: float, **changes: Any) -> Row:
    """The relative bias of an estimator that claims to have none."""
    known = {"metric": "relative_bias", "unbiased": True, "objective": "expected", "verdict": "unbiased-exact"}
    return exact(value, **{**known, **changes})


def sampled_claim(value: float, p_value: float, **changes: Any) -> Row:
    return claim(value, tier="mc", verdict="biased" if p_value < 1e-3 else "unresolved", p_value=p_value, low=0.0, high=1.0, **changes)


def test_unchanged_runs_pass_and_improvements_never_fail() -> None:
    assert gate([exact(1.0)], [exact(1.0)]).outcome == "passed"
    assert gate([exact(1.0)], [exact(0.5)]).outcome == "passed"


@pytest.mark.parametrize(
    "head",
    [
        [exact(1.1)],
        [exact(None, status="nonfinite", reason="the value is nan")],
        [exact(None)],
        [exact(None, metric="", status="crash", reason="died")],
        [],
    ],
    ids=["worse", "nonfinite", "undefined", "crashed", "missing"],
)
def test_what_is_worse_or_gone_fails(head: list[Row]) -> None:
    other = exact(2.0, estimator="ste")
    result = gate([exact(1.0), other], [*head, other])
    assert result.outcome == "failed"
    assert len(result.failures) == 1


def test_a_metric_that_is_only_shown_does_not_fail_unless_it_is_told_to() -> None:
    base, head = [exact(1.0), exact(0.9, metric="rho")], [exact(1.0), exact(0.1, metric="rho")]
    assert gate(base, head).outcome == "passed"
    assert gate(base, head, settings=settings(metric={"rho": {"gated": True}})).outcome == "failed"


def test_reactions_can_be_chosen_and_none_is_silence() -> None:
    both, one = [exact(1.0), exact(1.0, estimator="ste")], [exact(1.0)]
    assert gate(both, one, settings=settings(on_missing="warn")).outcome == "undecided"
    raised = [exact(1.0), exact(5.0, estimator="ste", estimator_version=2)]
    assert gate(both, raised).outcome == "undecided"
    assert gate(both, raised, settings=settings(on_incomparable="fail")).outcome == "failed"
    gains = [[exact(value, metric="gain")] for value in (1.0, 0.9)]
    assert gate(*gains).outcome == "failed"
    assert gate(*gains, settings=settings(on_changed="warn")).outcome == "undecided"
    noisy = [sampled(batch_means(seed, error=0.5), seed=seed) for seed in (0, 1)]
    assert gate(noisy[:1], noisy[1:]).outcome == "undecided"
    assert gate(noisy[:1], noisy[1:], settings=settings(on_inconclusive="fail")).outcome == "failed"


def test_nothing_in_common_is_no_pass() -> None:
    assert gate([], [exact()]).outcome == "nothing to compare"
    assert gate([exact()], [exact(problem="another")]).outcome == "nothing to compare"
    assert gate([exact()], [exact(estimator_version=2)]).outcome == "nothing to compare"
    assert gate([], []).outcome == "nothing to compare"


def test_a_run_in_which_everything_is_broken_fails() -> None:
    assert gate([exact()], [exact(None, metric="", status="oom", reason="no memory")]).outcome == "failed"


def test_an_exact_bias_breaks_a_claim_without_any_baseline() -> None:
    assert gate([], [claim(1e-15)]).outcome == "nothing to compare"
    result = gate([], [claim(1e-6, verdict="biased")])
    assert result.outcome == "failed"
    assert "claims to be unbiased" in result.claims[0].reason


def test_nobody_else_is_held_to_the_claim() -> None:
    for change in ({"unbiased": False}, {"objective": "perturbed"}, {"reference": "perturbed"}, {"metric": "orthogonal_bias"}):
        rows = [claim(0.5, verdict="biased", **change)]
        assert gate(rows, rows).outcome == "passed", change


def test_rounding_in_single_precision_is_no_bias() -> None:
    assert not gate([], [claim(1e-4, verdict="biased", dtype="float32")]).claims[0].broken
    assert gate([], [claim(1e-2, verdict="biased", dtype="float32")]).claims[0].broken


def test_a_sampled_bias_needs_proof_over_all_tests_and_an_effect() -> None:
    assert gate([], [sampled_claim(0.1, 1e-6)]).claims[0].broken
    assert not gate([], [sampled_claim(0.001, 1e-6)]).claims[0].broken
    gain = exact(0.98, metric="gain", tier="mc", low=0.97, high=0.99)
    assert gate([], [sampled_claim(0.001, 1e-6), gain]).claims[0].broken
    others = [sampled_claim(0.1, 1.0, instance=f"i{number}") for number in range(100)]
    assert gate([], [sampled_claim(0.1, 0.005)]).claims[0].broken
    assert not gate([], [sampled_claim(0.1, 0.005), *others]).claims[0].broken


def test_claims_and_comparisons_share_one_level() -> None:
    """A p-value that is proof alone is none beside a hundred comparisons."""
    quiet = [[sampled(batch_means(seed), seed=seed, instance=f"i{n}") for n in range(100)] for seed in (0, 1)]
    assert gate([], [sampled_claim(0.1, 0.002)]).claims[0].broken
    assert not gate(quiet[0], [*quiet[1], sampled_claim(0.1, 0.002)]).claims[0].broken
    base, head = [sampled(batch_means(0))], [sampled(batch_means(3, mean=1.06), seed=1)]
    assert gate(base, head).outcome == "failed"
    calm = [sampled_claim(0.1, 1.0, instance=f"i{number}") for number in range(100)]
    assert gate(base, [*head, *calm]).outcome == "undecided"


def test_what_gates_look_at_is_the_documented_table() -> None:
    gated = {name for name, metric in METRICS.items() if metric.rule.gated}
    assert {"relative_bias", "relative_variance", "relative_mse", "gain", "truth_norm", "support", "peak_memory", "time_ratio"} <= gated
    assert gated.isdisjoint({"rho", "cosine", "snr", "forward_time"})
    assert Rule("lower").gated is False


def test_a_number_that_is_not_resolved_any_more_is_neither_worse_nor_fine() -> None:
    known = sampled(batch_means(0), metric="relative_variance")
    rare = replace(known, value=None, low=None, high=None, batches=(), reason="rare events: fewer than 30 replicates carry the variance")
    other = exact(1.0, estimator="ste")
    result = gate([known, other], [rare, other])
    assert [(found.verdict, found.reason[:11]) for found in result.warnings] == [("inconclusive", "rare events")]
    assert gate([rare, other], [known, other]).outcome == "passed"


@pytest.mark.parametrize(("verdict", "broken"), [("biased", 1), ("unresolved: rare events", 0)])
def test_a_claim_that_is_found_false_twice_is_broken_without_the_size_of_the_bias(verdict: str, broken: int) -> None:
    row = claim(0.0, tier="mc", p_value=1e-9)
    found = gate([], [replace(row, value=None, verdict=verdict, reason="rare events: fewer than 30 replicates carry the variance")])
    assert [claim.evidence.split(" (")[0] for claim in found.claims if claim.broken] == ["of unknown size"] * broken
