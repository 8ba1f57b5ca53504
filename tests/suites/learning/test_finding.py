"""Predictors are found where they were planted, and nowhere else."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from structgrad.estimators import ESTIMATORS as REGISTERED
from structgrad.suites.learning.arrays import IDEAS, OWN, half_of_estimator, half_of_task, idea_of, study
from structgrad.suites.learning.finding import KINDS, association, chosen, half, predictor_result
from structgrad.suites.tasks import TASKS
from tests.suites.learning.planted import ESTIMATORS, planted, row, trained


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


def test_variance_predicts_by_kind_and_not_over_all():
    """Simpson's paradox: deterministic estimators have no variance and end worse; among stochastic ones less variance ends better."""
    names = [name for name in ESTIMATORS if name != "exact"]
    facts = {one.name: one for one in study(planted(("toy",), names, 1)).contenders}
    stochastic = [name for name in names if not facts[name].deterministic]
    rows = []
    for place, name in enumerate(names):
        rank = stochastic.index(name) / len(stochastic) if name in stochastic else None
        variance = 0.0 if rank is None else 1 + rank
        for seed in range(2):
            worth = 0.3 - 0.01 * place if rank is None else 0.9 - 0.3 * rank
            rows += trained("toy", name, seed, worth)
            rows.append(row("bias", "learnt:toy", "init", name, f"seed-{seed}", "relative_variance", variance))
    found = study(rows)
    values = {kind: predictor_result(found, "relative_variance", "init", "accuracy", kind).whole for kind in KINDS}
    assert values["stochastic"].pooled.value == pytest.approx(1.0)
    assert values["all"].pooled.value < -0.2
    assert values["deterministic"].note.endswith("all alike")


def test_a_censored_time_is_as_long_as_was_waited(found):
    assert found.censored["steps_to_target"].any()
    assert np.isfinite(found.outcome("steps_to_target")).all()
    assert association(found, "cosine", "init", "steps_to_target").pooled.value > 0.8


def test_items_of_a_seed_have_one_median():
    rows = list(trained("toy", "rloo", 0, 0.5))
    rows += [row("bias", "learnt:toy", "init", "rloo", f"seed-0,item={i}", "cosine", value) for i, value in enumerate((0.1, 0.2, 0.9))]
    assert study(rows).predictor("cosine", "init").tolist() == [[[0.2]]]


def test_numbers_of_no_seed_are_of_all():
    rows = [one for seed in range(2) for one in trained("toy", "rloo", seed, 0.5)]
    rows.append(row("bias", "learnt:toy", "init", "rloo", "toy-3", "cosine", 0.25))
    assert study(rows).predictor("cosine", "init").tolist() == [[[0.25, 0.25]]]


def test_halves_are_settled_by_names():
    tasks, families = Counter(map(half_of_task, TASKS)), Counter(map(half_of_estimator, REGISTERED))
    assert abs(tasks["choice"] - tasks["confirmation"]) <= 1
    ideas = set(IDEAS.values())
    for idea in ideas:
        counts = Counter(half_of_estimator(name) for name in REGISTERED if idea_of(name) == idea)
        assert abs(counts["choice"] - counts["confirmation"]) <= 1, idea
    assert abs(families["choice"] - families["confirmation"]) <= len(ideas)


def test_halves_share_nothing(found):
    first, second = half(found, "choice"), half(found, "confirmation")
    for axis in ("tasks", "names", "seeds"):
        assert not set(getattr(first, axis)) & set(getattr(second, axis))
        assert set(getattr(first, axis)) | set(getattr(second, axis)) == set(getattr(found, axis))


def test_every_registered_estimator_has_an_idea():
    assert {idea_of(name) for name in REGISTERED} == set(IDEAS.values())
    assert idea_of("mine").startswith(OWN)
