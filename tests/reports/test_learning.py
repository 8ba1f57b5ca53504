"""The answer, the tables and the page of results of a run of training."""

from dataclasses import replace

import pandas as pd
import pytest
import typer

from structgrad.reports import published, results
from structgrad.reports.analysis.learning import sentences, winner
from structgrad.reports.page import charts, learning_page
from structgrad.reports.page.learning import learning_of, predictor_table
from structgrad.suites.learning import study
from structgrad.suites.text import coefficient
from tests.suites.learning.planted import learnt, planted, row, trained

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


SOME = ("exact", "reinforce", "rloo", "ste", "imle", "sparsemap", "spigot", "structured_attention")


def written_page(rows, folder):
    results.write(rows, folder / "run", {"command": "structgrad learn", "environment": {"commit": "abc", "packages": {"torch": "2"}}})
    return learning_page.write([folder / "run"], folder / "docs").read_text()


def test_a_part_of_a_study_says_what_is_missing(tmp_path):
    rows = [one for one in planted(("clusters", "fsdd"), SOME, 2) if one.problem.startswith("task:")]
    rows = [one for one in rows if (one.estimator, one.instance) != ("ste", "seed-1")]
    text = written_page(rows, tmp_path)
    assert "it has 2 of at least 24 tasks, 8 of at least 24 estimators, 2 of at least 3 seeds." in text
    assert "Without a result at every seed: `ste` on `clusters` (1 of 2); `ste` on `fsdd` (1 of 2)." in text
    assert "Gradients were not measured" in text
    assert "- commit: abc" in text


def test_several_runs_are_one_study(tmp_path):
    for number, task in enumerate(("clusters", "fsdd")):
        results.write(planted((task,), FEW, 2), tmp_path / str(number), {"command": f"structgrad learn {task} --out /here/{number}"})
    text = learning_page.write([tmp_path / "0", tmp_path / "1"], tmp_path).read_text()
    assert "\nstructgrad learn clusters\nstructgrad learn fsdd\n" in text
    assert "- [clusters](learning/clusters.md): latent clusters with a linear classifier each\n- [fsdd](learning/fsdd.md)" in text
    task = (tmp_path / "learning/clusters.md").read_text()
    assert "Latent clusters with a linear classifier each (`Categorical()`). `accuracy`: right labels; `structure`: V-measure." in task
    assert task.startswith("# clusters\n")
    with pytest.raises(ValueError, match=r"/1 has \w+ of \w+ on \w+:fsdd, which another run has too; expected runs of other cells$"):
        learning_page.write([tmp_path / "1", tmp_path / "1"], tmp_path)


def test_a_run_of_something_else_is_refused(tmp_path):
    results.write([row("bias", "subset_regimes", "init", "ste", "0", "gain", 1.0)], tmp_path, {})
    with pytest.raises(typer.BadParameter, match=r"holds no result of training; expected the folder of a run of `structgrad learn`$"):
        learning_page.main([tmp_path], tmp_path)


def test_a_published_study_is_what_recommend_reads(tmp_path):
    rows = planted(("clusters", "fsdd"), SOME, 2, predictor="rho")
    rows += [replace(one, metric="rho_16") for one in rows if one.metric == "rho"]
    results.write(rows, tmp_path / "run", {})
    learning_page.write([tmp_path / "run"], tmp_path / "docs", tmp_path)
    known = published.predictors(tmp_path)
    assert set(known) == set(published.predictors())
    assert (known["tasks"], known["used"]["stage"], known["trained"]["fsdd"]["structure"]) == (2, "early", "subset")
    assert len(known["trained"]["fsdd"]["best"]) == len(SOME) - 1
    numbers = pd.read_parquet(tmp_path / "learning.parquet")
    assert len(numbers) == 2 * len(SOME) * 2
    assert {"accuracy", "rho_16@early"} < set(numbers)


def test_a_study_without_the_predictor_of_recommend_is_refused_before_anything_is_written(tmp_path):
    results.write(planted(("clusters", "fsdd"), SOME, 2), tmp_path / "run", {})
    with pytest.raises(
        ValueError, match=r"^the runs hold no rho_16 at early, which `recommend` needs; `structgrad learn --study` measures it$"
    ):
        learning_page.write([tmp_path / "run"], tmp_path / "docs", tmp_path / "package")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_beliefs_are_means_over_families():
    """Three tasks of one family count as one: (.2 + .7) / 2."""
    worths = {"ner": 0.1, "parsing": 0.2, "pipeline": 0.3, "paths": 0.7}
    rows = [
        one
        for task, more in worths.items()
        for name, worth in (("rloo", 0.1 + more), ("ste", 0.1))
        for one in trained(task, name, 0, worth)
    ]
    found = {one["belief"]: one for one in learning_page._beliefs(study(rows))}
    assert found["unbiased is better"]["found"].startswith("+.45 [")


def test_differences_over_four_families_of_tasks_are_paired_by_family():
    """Seeds disagree, and families agree."""
    tasks = ("clusters", "paths", "ranking", "budget")
    rows = [
        one
        for place, task in enumerate(tasks)
        for name, side in (("rloo", 1), ("ste", -1))
        for seed in range(2)
        for one in trained(task, name, seed, 0.605 + side * (0.1 + 0.2 * (-1) ** seed + 0.01 * place))
    ]
    assert winner(study(rows), tasks).worse == ("ste",)
    assert winner(study(rows), tasks[:3]).tied == ("ste",)
    every, *_ = learning_page._decisions(study(rows))
    assert list(every.values()) == ["any structure", "4 (4)", "rloo 72%", "0 of 1 others", "ste 49%*"]


def test_correlations_are_sorted_by_their_values(found):
    cells = [cell for row in predictor_table(found).rows for cell in row[2:]]
    assert all(cell.text.startswith(coefficient(cell.key)) for cell in cells if cell.text != "–")
