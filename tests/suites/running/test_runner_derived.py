"""Rows that are derived from the rows of a whole run."""

from __future__ import annotations

import dataclasses

import pytest

from structgrad.suites.base import Row
from structgrad.suites.running.derived import WORK, adjusted, derive, work_rows

BLANK = Row("cell", "bias", "p", "s", "", "o", "l", "reinforce", "reinforce", instance="i", reference="expected", log_count=3.0)


ROWS = [
    dataclasses.replace(BLANK, estimator=name, metric=metric, value=1.0)
    for name in ("reinforce", "ste_marginals")
    for metric in ("gain", "rho")
]


def test_p_values_are_adjusted_over_the_tests_of_a_suite_and_one_test_counts_once():
    tests = [dataclasses.replace(BLANK, cell=str(i), p_value=p, metric="relative_bias") for i, p in enumerate((0.01, 0.04, 0.03))]
    again = dataclasses.replace(tests[0], metric="gain")
    other = dataclasses.replace(tests[0], suite="sparsity", p_value=0.02)
    found = adjusted([*tests, again, other, BLANK])
    assert [row.p_adjusted for row in found] == [pytest.approx(p) for p in (0.03, 0.06, 0.06, 0.03, 0.02)] + [None]
    assert [row.p_value for row in found[:3]] == [0.01, 0.04, 0.03]


def test_a_structure_and_the_gradient_of_its_loss_count_as_three_evaluations():
    rows = list(work_rows(ROWS))
    assert [(row.estimator, row.metric, row.value) for row in rows] == [
        ("reinforce", "loss_evaluations", 1),
        ("ste_marginals", "loss_evaluations", 3),
    ]
    assert {(row.suite, row.cell, row.instance, row.stage) for row in rows} == {(WORK, "", "i", "s")}


def test_the_rows_of_cells_come_first_and_unchanged():
    assert derive(ROWS)[: len(ROWS)] == ROWS
    assert derive([]) == []
