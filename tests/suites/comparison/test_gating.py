"""The gate: reactions, claims, training, and its settings."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from structgrad.suites.base import Row
from structgrad.suites.comparison import KEY, Settings, gate, read_settings
from tests.suites.comparison.rows import batch_means, exact, failed, sampled


def claim(value: float, **changes: Any) -> Row:
    """The relative bias of an estimator that claims to have none."""
    known = {"metric": "relative_bias", "unbiased": True, "objective": "expected", "verdict": "unbiased-exact"}
    return exact(value, **{**known, **changes})


def sampled_claim(value: float, p_value: float, **changes: Any) -> Row:
    return claim(value, tier="mc", verdict="biased" if p_value < 1e-3 else "unresolved", p_value=p_value, low=0.0, high=1.0, **changes)


def broken(rows: list[Row], base: list[Row] | None = None) -> bool:
    return bool(gate(base or [], rows).claims["broken"].any())


OTHER = exact(2.0, estimator="ste")
BOTH = [exact(), OTHER]
RAISED = [exact(), exact(5.0, estimator="ste", estimator_version=2)]
GAINS = [[exact(value, metric="gain")] for value in (1.0, 0.9)]
NOISY = [[sampled(batch_means(seed, error=0.5), seed=seed)] for seed in (0, 1)]
SHARES = [[exact(), exact(value, metric="rho")] for value in (0.9, 0.1)]


@pytest.mark.parametrize(
    ("base", "head", "table", "outcome"),
    [
        # Only worse or missing numbers fail.
        (BOTH, BOTH, {}, "passed"),
        (BOTH, [exact(0.5), OTHER], {}, "passed"),
        (BOTH, [exact(1.1), OTHER], {}, "failed"),
        (BOTH, [failed("crash"), OTHER], {}, "failed"),
        # Reactions are settings, and none of them is silence.
        (BOTH, [OTHER], {}, "failed"),
        (BOTH, [OTHER], {"on_missing": "warn"}, "undecided"),
        (BOTH, RAISED, {}, "undecided"),
        (BOTH, RAISED, {"on_incomparable": "fail"}, "failed"),
        (*GAINS, {}, "failed"),
        (*GAINS, {"on_changed": "warn"}, "undecided"),
        (*NOISY, {}, "undecided"),
        (*NOISY, {"on_inconclusive": "fail"}, "failed"),
        (*SHARES, {}, "passed"),
        (*SHARES, {"metric": {"rho": {"gated": True}}}, "failed"),
        # Nothing in common is no pass.
        ([], [exact()], {}, "nothing to compare"),
        ([exact()], [exact(estimator_version=2)], {}, "nothing to compare"),
        ([exact()], [failed()], {}, "failed"),
        ([], [claim(1e-15)], {}, "nothing to compare"),
        ([], [claim(1e-6, verdict="biased")], {}, "failed"),
    ],
)
def test_the_outcome_of_a_gate(base: list[Row], head: list[Row], table: dict[str, Any], outcome: str) -> None:
    result = gate(base, head, settings=read_settings({"gate": table}))
    assert result.outcome == outcome
    assert outcome == "nothing to compare" or (result.count("fail") > 0) == (outcome == "failed")


def test_claims_and_comparisons_share_one_level() -> None:
    """A p-value that is proof alone is none among a hundred comparisons, and the other way round."""
    quiet = [[sampled(batch_means(seed), seed=seed, instance=f"i{n}") for n in range(100)] for seed in (0, 1)]
    assert broken([sampled_claim(0.1, 0.002)])
    assert not broken([*quiet[1], sampled_claim(0.1, 0.002)], quiet[0])
    base, head = [sampled(batch_means(0))], [sampled(batch_means(3, mean=1.06), seed=1)]
    calm = [sampled_claim(0.1, 1.0, instance=f"i{number}") for number in range(100)]
    assert (gate(base, head).outcome, gate(base, [*head, *calm]).outcome) == ("failed", "undecided")


# Models that train.

CELL = ("cell", "learning", "task:clusters", "training", "", "categorical", "cross_entropy")


def curve(name: str, rates: tuple[float, ...], **more: Any) -> list[Row]:
    points = [(seed, rate, step) for seed, rate in enumerate(rates) for step in (0, 50, 100, 150)]
    about = {"metric": "curve_accuracy", **more}
    return [
        Row(*CELL, name, name, instance=f"seed={seed}", setting=f"step={step}", size=step, value=rate * step, **about)
        for seed, rate, step in points
    ]


def test_estimators_with_equal_curves_are_broken_unless_they_may_be_one_function() -> None:
    def same(*rows: list[Row]) -> bool:
        return "broken" in set(gate([], [row for some in rows for row in some]).comparisons["verdict"])

    found = gate([], [*curve("reinforce", (0.001, 0.002)), *curve("running_mean", (0.001, 0.002)), *curve("rloo", (0.001, 0.003))])
    assert found.comparisons["reason"].tolist() == [
        "running_mean and reinforce learn the same at every step of every seed; expected them to differ"
    ]
    fixed = {"deterministic": True, "objective": "relaxed"}
    assert not same(curve("structured_attention", (0.001,), **fixed), curve("differentiable_dp", (0.001,), **fixed))
    assert same(curve("structured_attention", (0.001,), **fixed), curve("differentiable_dp", (0.001,)))
    assert not same(curve("reinforce", (0.0, 0.0)), curve("rloo", (0.0, 0.0)))
    assert not same([replace(row, problem="task:other") for row in curve("reinforce", (0.001,))], curve("rloo", (0.001,)))


# Settings.

EXAMPLE = """
[gate]
alpha = 0.05
on_missing = "warn"
[gate.metric.relative_variance]
minimum_change = 0.05
[[gate.override]]
estimator = "st_gumbel*"
metric = "relative_*"
equivalence = 0.5
[[gate.override]]
problem = "tiny"
gated = false
[[gate.override]]
problem = "none"
gated = false
[run]
preset = "quick"
"""


def test_a_file_changes_only_what_it_names_and_the_last_override_counts() -> None:
    found = read_settings(tomllib.loads(EXAMPLE))
    assert (found.alpha, found.on_missing, found.on_changed) == (0.05, "warn", "fail")
    assert read_settings({"gate": {}}) == Settings()
    rows = [exact(), exact(estimator="st_gumbel[temperature=2.0]"), exact(estimator="st_gumbel", metric="gain"), exact(problem="tiny")]
    rules, idle = found.rules(pd.DataFrame([{name: getattr(row, name) for name in KEY} for row in rows]))
    assert rules["minimum_change"].tolist() == [0.05, 0.05, 0.005, 0.05]
    assert (rules["equivalence"].tolist(), rules["gated"].tolist()) == ([0.1, 0.5, 0.05, 0.1], [True, True, True, False])
    assert idle == ["[[gate.override]] number 3 (problem = 'none')"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gate = 3", "gate got 3; expected a table"),
        ("[gaet]\nalpha = 0.1", r"^the configuration got 'gaet'; expected a table \[gate\], an empty one for the defaults$"),
        ("", r"^the configuration got nothing; expected a table \[gate\]"),
        ("[gate]\nalpa = 1", "gate.alpa is no setting; did you mean alpha"),
        ("[gate]\nalpha = 'x'", "gate.alpha got 'x'; expected a valid number"),
        ("[gate]\nminimum_bias = -1", "gate.minimum_bias got -1; expected a number greater than or equal to 0"),
        ("[gate]\nminimum_bias = inf", "gate.minimum_bias got inf; expected a finite number"),
        ("[gate]\non_missing = 'pass'", "gate.on_missing got 'pass'; expected 'fail' or 'warn'"),
        ("[gate.metric.relativ_variance]\nfloor = 1", "gate.metric: 'relativ_variance' is no metric; did you mean relative_variance"),
        ("[gate.metric.forward_time]\nfloor = 1", "'forward_time' is never compared between runs"),
        ("[gate.metric.gain]\nrole = 'lower'", "gate.metric.gain.role is no setting; "),
        ("[gate.metric]\ngain = 1", "gate.metric.gain got 1; expected a table"),
        ("[[gate.override]]\nfloor = 1", r"gate.override\[1\]: expected at least one pattern"),
        ("[[gate.override]]\nstage = 'a'\n[[gate.override]]\nstage = 3", r"gate.override\[2\].stage got 3; expected a valid string"),
        ("[[gate.override]]\nestimater = 'a'", "did you mean estimator"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_in_a_sentence(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_settings(tomllib.loads(text))
