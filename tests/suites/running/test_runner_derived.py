"""Rows that are derived from the rows of a whole run."""

from __future__ import annotations

import dataclasses

import pytest

from structgrad.suites.base import Row
from structgrad.suites.running.derived import WORK, adjusted, derive, work_rows

BLANK = Row("cell", "bias", "p", "s", "", "o", "l", "reinforce", "reinforce", instance="i", reference="expected", log_count=3.0)


def measured(estimator: str, **metrics: float) -> list[Row]:
    return [
        dataclasses.replace(BLANK, estimator=estimator, cell=estimator, metric=metric, value=value) for metric, value in metrics.items()
    ]


def timed(estimator: str, seconds: float) -> Row:
    return dataclasses.replace(
        BLANK,
        suite="wall_clock",
        estimator=estimator,
        stage="other",
        instance="",
        reference="",
        metric="seconds_per_estimate",
        value=seconds,
    )


UNBIASED = measured("reinforce", relative_bias_squared=0.0, relative_variance=26.8, gain=1.0, cosine=1.0)
BIASED = measured("ste_marginals", relative_bias_squared=0.04, relative_variance=0.8, gain=1.0, cosine=0.98)
TIMES = [timed("reinforce", 2e-6), timed("ste_marginals", 4e-6)]


def value(rows: list[Row], estimator: str, metric: str, setting: str = "") -> float | None:
    (row,) = [row for row in rows if (row.estimator, row.metric, row.setting) == (estimator, metric, setting)]
    return row.value


def test_p_values_are_adjusted_over_the_tests_of_a_suite_and_one_test_counts_once():
    tests = [dataclasses.replace(BLANK, cell=str(i), p_value=p, metric="relative_bias") for i, p in enumerate((0.01, 0.04, 0.03))]
    again = dataclasses.replace(tests[0], metric="gain")
    other = dataclasses.replace(tests[0], suite="sparsity", p_value=0.02)
    found = adjusted([*tests, again, other, BLANK])
    assert [row.p_adjusted for row in found] == [pytest.approx(p) for p in (0.03, 0.06, 0.06, 0.03, 0.02)] + [None]
    assert [row.p_value for row in found[:3]] == [0.01, 0.04, 0.03]


def test_work_is_variance_times_seconds_and_the_budget_at_which_the_unbiased_one_wins():
    rows = list(work_rows([*UNBIASED, *BIASED, *TIMES]))
    assert value(rows, "reinforce", "variance_seconds") == pytest.approx(26.8 * 2e-6)
    expected = (26.8 * 2e-6 - 0.8 * 4e-6) / 0.04
    assert value(rows, "ste_marginals", "break_even_seconds", "criterion=mse") == pytest.approx(expected)
    # A structure and the gradient of its loss count as three evaluations, those of the reference as one.
    expected = (26.8 * 1 - 0.8 * 3) / 0.04
    assert value(rows, "ste_marginals", "break_even_evaluations", "criterion=mse") == pytest.approx(expected)
    assert value(rows, "ste_marginals", "break_even_seconds", "criterion=rho") > 0
    assert [value(rows, name, "loss_evaluations") for name in ("reinforce", "ste_marginals")] == [1, 3]
    assert {(row.suite, row.cell, row.instance, row.stage) for row in rows} == {(WORK, "", "i", "s")}
    assert {row.unit for row in rows if row.metric.endswith("seconds")} == {"s"}


@pytest.mark.parametrize("known", range(5))
def test_seconds_are_those_of_the_nearest_stage_and_loss_with_times(known: int):
    """Times of another loss at that stage come next, then of another stage, then of another loss there. Other scores have none."""
    here, elsewhere = BLANK.stage, "other"
    places = [("p@f1", here), ("p", here), ("p@f1", elsewhere), ("p", elsewhere), ("q", here)]
    times = [dataclasses.replace(timed("reinforce", 1e-6 * (i + 1)), problem=p, stage=s) for i, (p, s) in enumerate(places)]
    measured_there = [dataclasses.replace(row, problem="p@f1", loss="f1") for row in UNBIASED]
    found = value(list(work_rows([*measured_there, *reversed(times[known:])])), "reinforce", "variance_seconds")
    assert found == (pytest.approx(26.8e-6 * (known + 1)) if known < 4 else None)


def test_without_times_there_are_evaluations_and_without_the_reference_there_is_no_break_even():
    rows = list(work_rows([*UNBIASED, *BIASED]))
    assert value(rows, "ste_marginals", "variance_seconds") is None
    assert {row.metric for row in rows if row.value is not None} == {"break_even_evaluations", "loss_evaluations"}
    assert {row.metric for row in work_rows([*BIASED, *TIMES])} == {"variance_seconds", "loss_evaluations"}


def test_the_rows_of_cells_come_first_and_unchanged():
    rows = [*UNBIASED, *BIASED, *TIMES]
    assert derive(rows)[: len(rows)] == rows
    assert derive([]) == []
