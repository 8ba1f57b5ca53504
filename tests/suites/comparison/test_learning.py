"""What models learnt, compared over seeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from structgrad.reports.comparison import words
from structgrad.suites.base import Row
from structgrad.suites.comparison.gating import gate
from structgrad.suites.comparison.learning import alike
from structgrad.suites.comparison.pooling import pooled
from structgrad.suites.comparison.verdicts import compare

CELL = ("cell", "learning", "task:clusters", "training", "", "categorical", "cross_entropy")
SEEDS = 8


def learnt(name="rloo", accuracies=(), **more):
    """A row per seed."""
    return [
        Row(*CELL, name, name, instance=f"seed={seed}", metric="accuracy", value=float(value), **more)
        for seed, value in enumerate(accuracies)
    ]


def curve(name, rates, **more):
    """A curve per seed that rises at a rate of its own."""
    return [
        Row(
            *CELL,
            name,
            name,
            instance=f"seed={seed}",
            metric="curve_accuracy",
            setting=f"step={step}",
            size=step,
            value=rate * step,
            **more,
        )
        for seed, rate in enumerate(rates)
        for step in (0, 50, 100, 150)
    ]


BASE = 0.8 + 0.03 * np.random.default_rng(0).standard_normal(SEEDS)
NOISE = 0.002 * np.random.default_rng(1).standard_normal(SEEDS)


@pytest.mark.parametrize(
    ("change", "verdict", "outcome"),
    [
        (0.0 * NOISE, "identical", "passed"),
        (NOISE, "equivalent", "passed"),
        (NOISE - 0.01, "equivalent", "passed"),
        (NOISE - 0.05, "regressed", "failed"),
        (NOISE + 0.05, "improved", "passed"),
        (10 * NOISE - 0.02, "inconclusive", "undecided"),
    ],
)
def test_accuracy_must_not_be_worse_by_two_points(change, verdict, outcome):
    found = gate(learnt(accuracies=BASE), learnt(accuracies=BASE + change))
    (one,) = found.comparisons
    assert (one.verdict, found.outcome) == (verdict, outcome)
    assert one.key.instance == ""
    assert [item.verdict for item in compare(learnt(accuracies=BASE), learnt(accuracies=BASE + change))] == [verdict]


def test_runs_are_paired_by_seed():
    """Seeds differ by far more than the change, and say so in both runs alike."""
    base = 0.8 + 0.1 * np.linspace(-1, 1, SEEDS)
    (paired,) = gate(learnt(accuracies=base), learnt(accuracies=base + NOISE - 0.05)).comparisons
    (unpaired,) = gate(learnt(accuracies=base), learnt(accuracies=base[::-1] + NOISE - 0.05)).comparisons
    assert (paired.verdict, unpaired.verdict) == ("regressed", "inconclusive")
    assert paired.method == "paired"


def test_only_seeds_that_both_have_count():
    base, head = pooled(learnt(accuracies=(0.1, 0.2, 0.9)), learnt(accuracies=(0.1, 0.2)))
    assert [row.value for row in base] == [row.value for row in head] == [pytest.approx(0.15)]
    alone = learnt(accuracies=(0.5,))
    assert pooled(alone, alone) == (alone, alone)


def test_many_estimators_share_the_level():
    """Holm: what is found alone is no finding among many."""
    change = 3.2 * NOISE - 0.0265
    (alone,) = gate(learnt(accuracies=BASE), learnt(accuracies=BASE + change)).comparisons
    many = [row for i in range(40) for row in learnt(f"e{i}", BASE)]
    others = [row for i in range(40) for row in learnt(f"e{i}", BASE + 3 * np.roll(NOISE, i))]
    crowd = gate([*learnt(accuracies=BASE), *many], [*learnt(accuracies=BASE + change), *others]).comparisons
    among = next(item for item in crowd if item.key.estimator == "rloo")
    assert alone.p_adjusted < 0.01 < among.p_adjusted


def test_two_estimators_that_learn_the_same_are_an_error():
    rows = [*curve("reinforce", (0.001, 0.002)), *curve("reinforce_running_mean", (0.001, 0.002)), *curve("rloo", (0.001, 0.003))]
    accuracies = learnt(accuracies=BASE)
    found = gate(accuracies, [*accuracies, *rows])
    assert found.outcome == "failed"
    (broken,) = found.failures
    assert "reinforce_running_mean and reinforce learn the same at every step of every seed" in words.sentence(broken)


def test_what_may_be_the_same_is_let_be():
    twins = [*curve("structured_attention", (0.001,)), *curve("differentiable_dp", (0.001,))]
    assert alike(replace(row, deterministic=True, objective="relaxed") for row in twins) == []
    assert len(alike(replace(row, deterministic=row.family[0] == "s", objective="relaxed") for row in twins)) == 1
    assert alike([*curve("reinforce", (0.0, 0.0)), *curve("rloo", (0.0, 0.0))]) == []
    elsewhere = [replace(row, problem="task:other") for row in curve("reinforce", (0.001,))]
    assert alike([*elsewhere, *curve("rloo", (0.001,))]) == []
