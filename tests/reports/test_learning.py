"""The answer and the tables of a run of training."""

from __future__ import annotations

from dataclasses import replace

import pytest

from structgrad.reports import page as report_page
from structgrad.reports import results
from structgrad.reports.analysis.learning import prediction, sentences, winner
from structgrad.reports.page import charts
from structgrad.reports.page.learning import learning_of
from structgrad.suites.learning.arrays import study
from tests.suites.learning.planted import ESTIMATORS, learnt, planted, row, trained

FEW = ("exact", "reinforce", "rloo", "ste", "imle", "sparsemap")


@pytest.fixture(scope="module")
def found():
    return study(planted(("clusters", "matching"), seeds=3))


def learning(worths, seeds=3, noise=0.0):
    """A run on one task, by the final accuracies of each estimator."""
    return [
        one
        for name, worth in worths.items()
        for seed in range(seeds)
        for one in trained("toy", name, seed, worth + noise * (-1) ** seed + 0.001 * seed)
    ]


def test_nobody_is_best_who_cannot_be_told_from_others():
    accuracies = {"rloo": (0.9, 0.7, 0.8), "reinforce": (0.7, 0.85, 0.8), "ste": (0.2, 0.21, 0.19)}
    rows = [
        learnt("toy", name, f"seed-{seed}", "accuracy", value) for name, values in accuracies.items() for seed, value in enumerate(values)
    ]
    text = sentences(study(rows))[0]
    assert text.startswith("On toy (3 seeds), rloo is first: 0.800 [0.552, 1.05] accuracy. Not significantly different: reinforce.")
    assert " Its lead over ste is +0.6 [0.3" in text
    without = sentences(study(one for one in rows if one.estimator != "ste"))[0]
    assert without.startswith("On toy (3 seeds), no estimator is clearly best of 2. rloo is first: ")
    assert " Its lead over reinforce is +0.01667 [-0." in without


def test_a_single_seed_proves_nothing():
    text = sentences(study(learning({"rloo": 0.9, "ste": 0.1}, seeds=1)))[0]
    assert "On toy (1 seed), no estimator is clearly best of 2. rloo is first" in text
    assert "lead" not in text


def test_the_exact_gradient_does_not_compete():
    assert winner(study(learning({"exact": 1.0, "ste": 0.5})), ("toy",)).name == "ste"


def test_who_has_not_learnt_every_task_is_not_best_over_them():
    rows = [one for one in planted(("clusters", "matching"), FEW, 3) if (one.estimator, one.problem) != ("rloo", "task:matching")]
    assert winner(study(rows), ("clusters", "matching")).name != "rloo"
    only = [one for one in rows if one.estimator == "rloo" or (one.problem.endswith("matching") and one.estimator == "ste")]
    assert sentences(study(only))[0].startswith("No estimator has a result at every seed of 2 tasks, so none is the best. ")


def test_what_is_told_true_structures_competes_among_its_like():
    def supervised(rows):
        return [replace(one, objective="supervised") for one in rows]

    ways = supervised([*trained("tags", "ste", 0, 0.9), *trained("tags", "imle", 0, 0.5)])
    shared = [one for task in ("a", "b") for name in ("rloo", "simple") for one in trained(task, name, 0, 0.6)]
    told = supervised(trained("a", "ste", 0, 1.0))
    found = study([*ways, *shared, *told])
    assert winner(found, ("tags",)).name == "ste"
    assert winner(found, ("a",)).name in ("rloo", "simple")
    assert sentences(found)[0].startswith("On the 2 of 3 tasks that most estimators learn (1 seed), no estimator is clearly best of 2.")


def test_nothing_is_said_of_nothing():
    assert sentences(study([])) == ["The run holds no result of training."]
    assert not learning_of(results.to_frame([row("bias", "subset_regimes", "init", "ste", "0", "gain", 1.0)]))


@pytest.mark.parametrize(
    ("worth", "clause"), [(True, "goes with final accuracy: Spearman +"), (False, "by which reports rank estimators, is not: ")]
)
def test_the_number_that_reports_recommend_by_is_asked_for_alone(worth, clause):
    rows = planted(("clusters",), seeds=2)
    ends = {one.estimator: one.value for one in rows if one.metric == "normalised_accuracy"}
    noise = {name: float(position * 7 % 11) for position, name in enumerate(ESTIMATORS)}
    rows = [one for one in rows if not one.problem.startswith("learnt:")]
    rows += [row("bias", "learnt:clusters", "early", name, "seed-0", "rho_16", (ends if worth else noise)[name]) for name in ESTIMATORS]
    assert clause in prediction(study(rows))


def test_a_page_of_learning_has_its_section_and_figures(found):
    frame = results.to_frame(planted(("clusters", "matching"), FEW, 2))
    page = report_page.to_html(frame, {})
    assert '<h2 id="learning">Training results</h2>' in page
    assert "<h1>Training with gradient estimators: clusters, matching</h1>" in page
    assert "Predictors of final accuracy" in page
    for name in ("curves", "points"):
        assert f'id="learning-{name}"' in page
    assert "6 estimators trained on 2 tasks, with 2 seeds each." in page
    assert "task:clusters" not in page.partition('id="numbers"')[0]
    assert 'id="answers"' in page


def test_a_page_of_training_alone_has_no_empty_sections():
    trainings = [one for one in planted(("clusters",), FEW, 1) if one.problem.startswith("task:")]
    page = report_page.to_html(results.to_frame(trainings), {})
    assert 'id="skips"' in page
    for section in ("answers", "claims", "by-problem"):
        assert f'id="{section}"' not in page
        assert f'href="#{section}"' not in page


def test_charts_have_the_rows_that_there_are():
    few = [one for one in planted(("toy",), FEW, 1) if one.metric == "accuracy"]
    assert learning_of(results.to_frame(few)).charts == {}
    rows = learning_of(results.to_frame(planted(("clusters",), FEW, 2))).charts
    curves, points = (rows[f"learning-{name}"] for name in ("curves", "points"))
    assert len(curves) == 6 * 5
    assert list(curves["seconds"]) == pytest.approx(list(curves["step"] * 0.004))
    assert set(curves["floor"]) == {0.5}
    assert ((curves["low"] <= curves["mean"]) & (curves["mean"] <= curves["high"])).all()
    assert "exact" not in set(points["estimator"])
    assert set(points["metric"]) > {"cosine of the mean at early", "quality of structures"}
    names = ["exact", *FEW]
    made = charts.training_specs(names, dict.fromkeys(names, "#000000"), ["cosine"])
    assert set(rows) <= set(made)
    assert "http" not in str(made)
