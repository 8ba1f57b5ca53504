"""Rank correlations over estimators that come in ideas, planted predictors, and summaries over several tasks."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from structgrad.estimators import ESTIMATORS as REGISTERED
from structgrad.suites.learning.arrays import IDEAS, OWN, idea_of, study
from structgrad.suites.learning.finding import (
    associate,
    association,
    chosen,
    interquartile_mean,
    predictor_result,
    probability_of_improvement,
    survival,
)
from tests.suites.learning.planted import planted, row, trained

DRAWN_IDEAS = [name for name, size in zip("abcdefghi", (1, 6, 4, 3, 2, 2, 2, 3, 1), strict=True) for _ in range(size)]


def drawn(random, ideas=DRAWN_IDEAS, tasks=3, correlation=0.0, shared=0.9):
    """Predictors and outcomes ``[task, estimator, 1]`` of which so large a share is common to an idea."""
    names = sorted(set(ideas))
    members = np.array([names.index(idea) for idea in ideas])

    def pairs(count):
        x, y = random.standard_normal((2, tasks, count))
        return x, correlation * x + np.sqrt(1 - correlation**2) * y

    (group_x, group_y), (own_x, own_y) = pairs(len(names)), pairs(len(ideas))
    return tuple(
        (np.sqrt(shared) * group[:, members] + np.sqrt(1 - shared) * own)[..., None] for group, own in ((group_x, own_x), (group_y, own_y))
    )


def test_one_task_is_what_scipy_says():
    random = np.random.default_rng(0)
    x, y = random.integers(5, size=(2, 1, 20, 1)).astype(float)
    found = associate(["toy"], x, y, list("abcdefghij" * 2))
    assert found.within["toy"] == pytest.approx(scipy.stats.spearmanr(x.ravel(), y.ravel()).statistic)


@pytest.mark.parametrize("correlation", [0.0, 0.7])
def test_the_interval_covers_under_dependence_within_ideas(correlation):
    random = np.random.default_rng(2)
    true = np.mean([associate("abc", *drawn(random, correlation=correlation), DRAWN_IDEAS, resamples=2).pooled.value for _ in range(300)])
    found = [associate("abc", *drawn(random, correlation=correlation), DRAWN_IDEAS, resamples=150).pooled for _ in range(60)]
    assert sum(one.low <= true <= one.high for one in found) >= 53  # of 60; at 95 % fewer happen once in 150 times


def test_ideas_are_drawn_and_not_estimators():
    """Ten copies of six estimators are six numbers, and the interval knows where the copies are known to be of one idea."""
    x, y = (np.repeat(side, 10)[None, :, None] for side in ([1.0, 2, 3, 4, 5, 6], [2.0, 1, 4, 3, 6, 5]))
    six = associate(["toy"], x, y, list(np.repeat(list("abcdef"), 10)))
    sixty = associate(["toy"], x, y, [str(number) for number in range(60)])
    assert six.pooled.value == sixty.pooled.value
    assert sixty.pooled.half_width < 0.1
    assert six.pooled.half_width > 0.3
    assert sixty.significant
    assert not six.significant


@pytest.mark.parametrize(
    ("x", "ideas", "note"),
    [
        ([1.0, 2, 3], "abc", "no correlation: 3 estimators, expected at least 4"),
        ([1.0, 1, 1, 1], "abcd", "no correlation: 4 estimators, all alike"),
        ([1.0, 2, 3, 4, 5], "aabbc", "no interval: 3 ideas behind 5 estimators; expected at least 4"),
    ],
)
def test_too_few_are_said_to_be(x, ideas, note):
    found = associate(["toy"], np.array(x)[None, :, None], np.arange(float(len(x)))[None, :, None], list(ideas))
    assert found.note == note
    assert found.pooled.low is None
    assert not found.significant


@pytest.fixture(scope="module")
def found():
    return study(planted())


def test_a_planted_predictor_is_found_and_another_is_not(found):
    cosine, rho = (association(found, name, "init", "accuracy") for name in ("cosine", "rho"))
    assert cosine.pooled.value > 0.95
    assert cosine.significant
    assert abs(rho.pooled.value) < 0.4
    assert not rho.significant


def test_what_was_chosen_is_confirmed_on_the_other_half(found):
    listed = [predictor_result(found, name, "init", "accuracy", "all") for name in ("cosine", "rho", "gain")]
    best = chosen(listed, "accuracy")
    assert best.predictor == "cosine"
    assert best.confirmed
    assert chosen(listed, "curve_mean") is None


def test_a_censored_time_is_as_long_as_was_waited(found):
    assert found.censored["steps_to_target"].any()
    assert np.isfinite(found.outcome("steps_to_target")).all()
    assert association(found, "cosine", "init", "steps_to_target").pooled.value > 0.8


def test_items_of_a_seed_have_one_median():
    rows = list(trained("toy", "rloo", 0, 0.5))
    rows += [row("bias", "learnt:toy", "init", "rloo", f"seed-0,item={i}", "cosine", value) for i, value in enumerate((0.1, 0.2, 0.9))]
    assert study(rows).predictor("cosine", "init").tolist() == [[[0.2]]]


def test_every_registered_estimator_has_an_idea():
    assert {idea_of(name) for name in REGISTERED} == set(IDEAS.values())
    assert idea_of("mine").startswith(OWN)


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
