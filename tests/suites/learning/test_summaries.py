"""Estimators over several tasks."""

from __future__ import annotations

import numpy as np
import pytest

from structgrad.suites.learning.summaries import interquartile_mean, probability_of_improvement, survival


def test_an_interquartile_mean_leaves_a_quarter_out_at_either_end():
    scores = np.array([[0.0, 0.1, 0.2, 0.3], [0.4, 0.5, 0.6, 100.0]])
    found = interquartile_mean(scores)
    assert found.value == pytest.approx(0.35)
    assert found.low <= found.value <= found.high


def test_resamples_stay_within_tasks():
    """Tasks that differ and seeds that do not leave nothing to chance."""
    found = interquartile_mean(np.array([[0.1] * 4, [0.5] * 4, [0.9] * 4]))
    assert found.low == found.high == pytest.approx(0.5)


def test_improvement_is_the_share_of_pairs_that_are_better():
    better = probability_of_improvement(np.array([[2.0, 3.0], [0.0, 1.0]]), np.array([[0.0, 1.0], [0.0, 1.0]]))
    assert better.value == pytest.approx(0.75)
    assert probability_of_improvement(np.array([[np.nan]]), np.array([[1.0]])).value is None


def test_survival_never_drops_who_did_not_arrive():
    """Runs that end before the target count for as long as they ran."""
    found = survival(np.array([10.0, 20, 30, 40, 50, np.nan]), np.array([False, True, False, False, True, False]))
    assert found == (5, 3, 40.0)


@pytest.mark.parametrize(("censored", "reached", "median"), [([True, True], 0, None), ([False, False], 2, 1.0)])
def test_survival_of_none_and_of_all(censored, reached, median):
    assert survival(np.array([1.0, 2.0]), np.array(censored)) == (2, reached, median)
