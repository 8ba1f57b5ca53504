"""Rank correlations over estimators that come in ideas."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from structgrad.suites.learning.finding import associate

IDEAS = [name for name, size in zip("abcdefghi", (1, 6, 4, 3, 2, 2, 2, 3, 1), strict=True) for _ in range(size)]


def drawn(random, ideas=IDEAS, tasks=3, correlation=0.0, shared=0.9):
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
    true = np.mean([associate("abc", *drawn(random, correlation=correlation), IDEAS, resamples=2).pooled.value for _ in range(300)])
    found = [associate("abc", *drawn(random, correlation=correlation), IDEAS, resamples=150).pooled for _ in range(60)]
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


def test_seeds_are_drawn_too():
    """Differences between seeds widen the interval; the same number for all seeds does not."""
    random = np.random.default_rng(3)
    x = np.broadcast_to(np.arange(8.0)[None, :, None], (1, 8, 4))
    steady = x + 0.8 * random.standard_normal((1, 8, 1))
    noisy = steady + np.array([-9.0, -3, 3, 9]) * random.standard_normal((1, 8, 1))
    ideas = list("abcdefgh")
    assert associate(["toy"], x, noisy, ideas).pooled.half_width > associate(["toy"], x, steady, ideas).pooled.half_width


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
