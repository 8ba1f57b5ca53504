"""The verdict on a number in two runs, the gate, and its settings; `tests/goldens/test_comparison.py` has many more pairs."""

import tomllib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from structgrad.suites.base import Row, to_frame
from structgrad.suites.comparison import compare, gate, read_settings
from structgrad.suites.statistics.selection import holm_values
from tests.suites.comparison.rows import batch_means, compared, exact, failed, sampled

NONFINITE = exact(None, status="nonfinite", reason="the value is nan")
MACHINE = {"cpu": "x", "cores": 2, "python": "3.11", "packages": {"torch": "2.8"}}


def verdict(base: Row | None, head: Row | None, **options: Any) -> Any:
    (found,) = compared([base] if base else [], [head] if head else [], **options)
    return found


@pytest.mark.parametrize(
    ("base", "head", "expected"),
    [
        (exact(), NONFINITE, "broken"),
        (exact(), exact(None), "broken"),
        (NONFINITE, NONFINITE, "incomparable"),
        (None, failed(), "incomparable"),
        (NONFINITE, None, "incomparable"),
        (exact(None), exact(), "new"),
        (exact(), exact(None, status="nonfinite", estimator_version=2), "broken"),
        *((exact(), exact(2.0, **{name: 9}), "incomparable") for name in ("oracle_version", "suite_version", "schema_version")),
        (exact(entropy=1.0), exact(2.0, entropy=1.1, seed=5), "incomparable"),
        (exact(entropy=1.0), exact(2.0, entropy=1.0, seed=5), "regressed"),
        (sampled(batch_means(0), batches=(), low=None), sampled(batch_means(0), batches=(), low=None), "inconclusive"),
    ],
)
def test_no_number_is_never_a_pass(base: Row | None, head: Row | None, expected: str) -> None:
    assert verdict(base, head).verdict == expected


@pytest.mark.parametrize("change", [{}, {"cpu": "y"}, {"cores": 4}, {"python": "3.12"}, {"packages": {"torch": "2.9"}}])
def test_times_need_the_same_machine_and_bytes_the_same_torch(change: dict[str, Any]) -> None:
    rows = [replace(sampled(batch_means(0)), metric="time_ratio", batches=()), exact(1e6, metric="peak_memory", tier="")]
    found = [item.verdict for item in compared(rows, rows, machines=(MACHINE, {**MACHINE, **change}))]
    assert found == ["incomparable" if change else "identical", "incomparable" if "packages" in change else "identical"]


LAWS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda random, shape: random.standard_normal(shape),
    "cubic": lambda random, shape: random.standard_t(3, shape),
    "lognormal": lambda random, shape: np.exp(2 * random.standard_normal(shape)),
    "rare": lambda random, shape: 100.0 * (random.random(shape) < 1 / 2000) + 1e-16 * random.random(shape),
    "sparse": lambda random, shape: 30.0 * (random.random(shape) < 1 / 300) * random.standard_normal(shape),
}
"""Estimates with light and heavy tails. ``rare``: two of five runs see nothing but rounding."""


def test_200_gates_on_unchanged_code_fail_no_more_often_than_stated() -> None:
    """Gain and variance of each law on two instances, with fresh random numbers; one Holm correction per gate."""
    gates, random, sides = 200, np.random.default_rng(0), []
    for seed in (0, 1):
        rows = []
        for run in range(gates):
            for name, law in LAWS.items():
                for item in range(2):
                    samples = law(random, (32, 32))
                    squares = (samples - samples.mean()) ** 2
                    about = {"problem": f"p{run}", "estimator": name, "instance": f"i{item}", "seed": seed}
                    rows.append(sampled(samples.mean(1), metric="gain", **about))
                    means, deviations = ((one.sum() - one.sum(1)) / (one.size - 32) for one in (squares, samples - samples.mean()))
                    variances = tuple((means - deviations**2).tolist())
                    rows.append(sampled(squares.mean(1), **{**about, "value": float(samples.var()), "batches": variances}))
        sides.append(to_frame(rows))
    found = compare(*sides)
    alarms = sum((holm_values(part["p_value"].to_numpy(float)) < 0.01).any() for _, part in found.groupby("problem", observed=True))
    assert alarms <= stats.binom.ppf(0.99, gates, 0.01)  # what a true rate of 0.01 gives in 99 of 100 such experiments


def claim(value: float, **changes: Any) -> Row:
    """The relative bias of an estimator that claims to have none."""
    known = {"metric": "relative_bias", "unbiased": True, "objective": "expected", "verdict": "unbiased-exact"}
    return exact(value, **{**known, **changes})


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
    assert same(curve("simple", (0.0,)), curve("reinforce", (0.001,)), curve("rloo", (0.001,)))
    assert not same([replace(row, problem="task:other") for row in curve("reinforce", (0.001,))], curve("rloo", (0.001,)))


# Settings.


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
