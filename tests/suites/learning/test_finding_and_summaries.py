"""Rank correlations over estimators that come in ideas, planted predictors, and summaries over several tasks."""

import numpy as np
import pytest
import scipy

from structgrad.estimators import ESTIMATORS as REGISTERED
from structgrad.suites.learning import (
    OWN,
    Association,
    Verdict,
    associate,
    association,
    idea_of,
    probability_of_improvement,
    study,
    survival,
    verdicts,
)
from structgrad.suites.statistics.interval import Interval
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


def correlated(tasks, x, y, ideas):
    """The correlation of numbers ``[task, estimator, 1]`` of tasks of their own families."""
    return associate(list(tasks), list(tasks), x[..., 0], y[..., 0], list(ideas))


def test_one_task_is_what_scipy_says():
    random = np.random.default_rng(0)
    x, y = random.integers(5, size=(2, 1, 20, 1)).astype(float)
    found = correlated(["toy"], x, y, "abcdefghij" * 2)
    assert found.within["toy"] == pytest.approx(scipy.stats.spearmanr(x.ravel(), y.ravel()).statistic)


@pytest.mark.parametrize("tasks", ["abc", "abcdefgh"])
@pytest.mark.parametrize("correlation", [0.0, 0.7])
def test_the_interval_covers_under_dependence_within_families(correlation, tasks):
    random = np.random.default_rng(2)

    def found():
        return correlated(tasks, *drawn(random, tasks=len(tasks), correlation=correlation), DRAWN_IDEAS).pooled

    true = np.mean([found().value for _ in range(300)])
    assert sum(one.low <= true <= one.high for one in (found() for _ in range(200))) >= 180  # at 95 % fewer happen once in 300 times


def test_families_are_left_out_and_not_estimators():
    """Ten copies of six estimators are six numbers, and the interval knows where the copies are known to be of one family."""
    x, y = (np.repeat(side, 10)[None, :, None] for side in ([1.0, 2, 3, 4, 5, 6], [1.0, 3, 2, 6, 4, 5]))
    six = correlated(["toy"], x, y, np.repeat(list("abcdef"), 10))
    sixty = correlated(["toy"], x, y, [str(number) for number in range(60)])
    assert six.pooled.value == sixty.pooled.value
    assert six.pooled.half_width > 2 * sixty.pooled.half_width


def test_tasks_that_disagree_widen_the_interval_if_they_are_of_several_families():
    x = np.tile(np.arange(12.0), (4, 1))
    y = np.array([np.roll(np.arange(12.0), shift) for shift in (0, 1, 3, 6)])
    families = [associate("abcd", list(names), x, y, list("abcdefghijkl")).pooled.half_width for names in ("aabb", "abcd")]
    assert families[0] < families[1]


@pytest.mark.parametrize(
    ("x", "ideas", "note"),
    [
        ([1.0, 2, 3], "abc", "no correlation: 3 estimators, expected at least 4"),
        ([1.0, 1, 1, 1], "abcd", "no correlation: 4 estimators, all alike"),
        ([1.0, 2, 3, 4, 5], "aabbc", "no interval: 3 families behind 5 estimators; expected at least 4"),
    ],
)
def test_too_few_are_said_to_be(x, ideas, note):
    found = correlated(["toy"], np.array(x)[None, :, None], np.arange(float(len(x)))[None, :, None], ideas)
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


def test_a_declared_predictor_that_was_planted_is_confirmed_and_others_are_not():
    def of(tasks, predictor):
        return {(one.predictor, one.stage): one.verdict for one in verdicts(study(planted(tasks, predictor=predictor)), "accuracy")}

    tasks = ("clusters", "l2x_switch", "listops_frozen", "matching", "paths", "tags")
    assert of(tasks, "parameter_cosine") == {("parameter_cosine", "init"): "confirmed"}
    assert of(tasks, "gain")["parameter_cosine", "init"] in {"refuted", "open"}


def test_new_tasks_are_of_new_families_and_all_declared_predictors_count():
    """The sentences of `ner` are those of the first study's `pipeline`; seven of eight predictors were not measured here."""
    (one,) = verdicts(study(planted(("clusters", "pipeline", "ner", "paths", "tags"))), "accuracy")
    assert set(one.fresh.within) == {"paths", "tags"}
    assert one.adjusted == min(1, 8 * one.whole.p_value)


@pytest.mark.parametrize(
    ("adjusted", "whole", "fresh", "verdict"),
    [
        (0.01, (0.6, 0.4, 0.8), None, "confirmed"),
        (0.01, (0.6, 0.4, 0.8), (0.5, 0.2, 0.7), "confirmed"),
        (0.01, (0.6, 0.4, 0.8), (0.3, -0.1, 0.7), "open"),
        (0.06, (0.4, 0.1, 0.6), (0.5, 0.2, 0.7), "open"),
        (0.01, (-0.6, -0.8, -0.4), (-0.5, -0.7, -0.2), "refuted"),
        (0.9, (0.1, -0.2, 0.35), (0.1, -0.2, 0.5), "refuted"),
    ],
)
def test_the_rule_that_decides(adjusted, whole, fresh, verdict):
    """Over the list, of the right sign, and on the tasks that the first study lacks too; refuted below .4."""
    on = [None if ends is None else Association(Interval(*ends), {}, 40, 12) for ends in (whole, fresh)]
    assert Verdict("rho", "init", *on, adjusted).verdict == verdict


def test_a_censored_time_is_as_long_as_was_waited(found):
    assert found.censored["steps_to_target"].any()
    assert np.isfinite(found.outcome("steps_to_target")).all()
    assert association(found, "cosine", "init", "steps_to_target").pooled.value > 0.8


def test_items_of_a_seed_have_one_median():
    rows = list(trained("toy", "rloo", 0, 0.5))
    rows += [row("bias", "learnt:toy", "init", "rloo", f"seed-0,item={i}", "cosine", value) for i, value in enumerate((0.1, 0.2, 0.9))]
    assert study(rows).predictor("cosine", "init").tolist() == [[[0.2]]]


def test_every_registered_estimator_has_an_idea():
    assert idea_of("reinforce_greedy") == idea_of("reinforce_normalised") == "baselines"
    assert not any(idea_of(name).startswith(OWN) for name in REGISTERED)
    assert idea_of("mine").startswith(OWN)


def test_improvement_is_the_share_of_pairs_that_are_better():
    better = probability_of_improvement(np.array([[2.0, 3.0], [0.0, 1.0]]), np.array([[0.0, 1.0], [0.0, 1.0]]))
    assert better.value == pytest.approx(0.75)
    assert probability_of_improvement(np.array([[np.nan]]), np.array([[1.0]])).value is None


def test_survival_never_drops_who_did_not_arrive():
    """Runs that end before the target count for as long as they ran."""
    found = survival(np.array([10.0, 20, 30, 40, 50, np.nan]), np.array([False, True, False, False, True, False]))
    assert found == (5, 3, 40.0)
