"""The suite that trains models: choices, findings, and resuming without loss."""

from dataclasses import replace
from pathlib import Path

import pytest

from structgrad.estimators import make_estimator
from structgrad.suites.learning import study
from structgrad.suites.measures import learning
from structgrad.suites.measures.learning import LearningSuite, ModelBatch
from structgrad.suites.measures.suite import EFFORTS, Context
from structgrad.suites.problems import load
from structgrad.suites.running.planning.grid import grid
from structgrad.suites.running.planning.plan import Machine, Plan
from structgrad.suites.running.runner import run
from structgrad.suites.tasks import make_task, references, training
from structgrad.suites.tasks.references import FIRST_TUNING_SEED, OPTIONS

NAME = "task:clusters[clusters=3,features=4,train=200,heldout=100,steps=20]"
QUICK = Context(effort=EFFORTS["quick"])
PLAN = Plan(suites=("learning",), problems=(NAME,), estimators=("rloo", "ste"), instances=2, effort=EFFORTS["quick"])


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def found() -> list:
    problem = load(NAME, "training", instances=2, data=None)
    return list(LearningSuite().findings(problem, {"imle": make_estimator("imle")}, QUICK))


def test_every_seed_has_every_metric_and_the_choices_are_found(found):
    of_seeds = {(f.instance, f.metric) for f in found if f.instance}
    metrics = {metric for _, metric in of_seeds}
    assert metrics == {
        "accuracy", "structure_accuracy", "relaxed_accuracy", "curve_mean", "curve_accuracy", "steps_to_target",
        "normalised_accuracy", "diverged", "floor_accuracy", "ceiling_accuracy",
    }  # fmt: skip
    assert of_seeds == {(seed, metric) for seed in ("seed=0", "seed=1") for metric in metrics}
    [rate], [option] = ([f for f in found if f.metric == metric] for metric in ("learning_rate", "chosen_option"))
    assert rate.value in make_task("clusters").rates
    assert option.value in OPTIONS["imle"][1]
    assert option.setting == f"lambda={option.value:g}"
    points = [f for f in found if f.metric == "curve_accuracy" and f.instance == "seed=1"]
    assert [f.size for f in points] == [float(step) for step in sorted({round(12 * i / 20) for i in range(21)})]
    last = next(f.value for f in found if f.metric == "accuracy" and f.instance == "seed=1")
    assert (points[-1].value, points[-1].setting) == (last, "step=12")


def test_choices_are_made_on_other_seeds_and_another_split(monkeypatch):
    seen = []
    actual = training.train_all

    def spied(task, estimator, jobs, **options):
        seen.append((options.get("split", "test"), {job.seed for job in jobs}, options["steps"]))
        return actual(task, estimator, jobs, **options)

    for module in (references, learning):
        monkeypatch.setattr(module, "train_all", spied)
    list(LearningSuite().findings(load(NAME, "training", instances=2, data=None), {"ste": make_estimator("ste")}, QUICK))
    assert seen == [("validation", {FIRST_TUNING_SEED}, 6), ("test", {0, 1}, 12)]


LEARNT = NAME.replace("task:", "learnt:")
ALONG = Plan(
    suites=("references", "learning", "bias", "parameter_bias"),
    problems=(NAME, LEARNT),
    stages=("training", "early"),
    estimators=("ste", "imle", "imle[lambda=7]"),
    instances=2,
    effort=replace(EFFORTS["quick"], replicates=64, most_replicates=64),
)


def test_gradients_are_measured_at_the_chosen_options(tmp_path, monkeypatch):
    tried = references.train_all

    def larger_is_better(task, estimator, jobs, **options):
        runs = tried(task, estimator, jobs, **options)
        for one in runs:
            one.metrics["accuracy"] = getattr(estimator, "lambda_", 0.0)
        return runs

    monkeypatch.setattr(references, "train_all", larger_is_better)
    rows = run(ALONG, tmp_path / "run", machine=Machine(jobs=0))
    assert {row.status for row in rows} == {"ok"}
    [trained] = {row.setting for row in rows if row.suite == "learning" and row.metric == "chosen_option"}
    assert trained == "lambda=100"
    for suite in ("bias", "parameter_bias"):
        of_suite = [row for row in rows if row.suite == suite]
        assert {(row.estimator, row.setting) for row in of_suite if row.metric == "chosen_option"} == {("imle", trained)}
    same = replace(ALONG, suites=("bias", "parameter_bias"), problems=(LEARNT,), stages=("early",), estimators=(f"imle[{trained}]", "imle"))
    fixed = run(same, tmp_path / "fixed", machine=Machine(jobs=0))
    values = {name: [row.value for row in fixed if row.estimator == name and row.metric != "chosen_option"] for name in same.estimators}
    assert values["imle"] == values[f"imle[{trained}]"]
    assert study(rows).chosen == {(NAME.removeprefix("task:"), "imle"): trained}


def test_references_have_cells_of_their_own_which_come_first(tmp_path, monkeypatch):
    cells = grid(ALONG).cells
    assert [(cell.problem, cell.stage, cell.estimators) for cell in cells if cell.suite == "references"] == [
        (NAME, "training", ("exact",)),
        (LEARNT, "early", ("exact",)),
    ]
    assert [cell.phase for cell in cells if cell.suite == "references"] < [cell.phase for cell in cells if cell.suite == "learning"]
    fewer = grid(replace(ALONG, estimators=("ste",))).cells
    assert {cell.identity for cell in cells if cell.suite == "references"} <= {cell.identity for cell in fewer}
    rows = run(replace(ALONG, suites=("references",)), tmp_path / "run", machine=Machine(jobs=0))
    assert {(row.metric, row.instance) for row in rows} == {
        (metric, f"seed={seed}") for metric in ("floor_accuracy", "ceiling_accuracy", "parameter_truth_norm") for seed in (0, 1)
    }
    for module, name in ((references, "Training"), (ModelBatch, "_truth"), (type(make_task("clusters")), "floor")):
        monkeypatch.setattr(module, name, lambda *given, **named: pytest.fail("computed again"))
    again = run(replace(ALONG, estimators=("ste",)), tmp_path / "again", machine=Machine(jobs=0))
    assert {row.status for row in again} == {"ok"}


def test_sizes_and_version_of_a_task_are_part_of_its_cells(monkeypatch):
    one, other = (grid(replace(PLAN, problems=(name,))).cells for name in (NAME, NAME.replace("steps=20", "steps=30")))
    monkeypatch.setattr(type(make_task("clusters")), "version", 77)
    newer = grid(PLAN).cells
    assert len({cell.identity for cells in (one, other, newer) for cell in cells}) == 6


def test_a_cell_goes_on_from_what_it_has_trained(tmp_path, monkeypatch):
    problem, kept_here = load(NAME, "training", instances=2, data=None), replace(QUICK, scratch=tmp_path)
    first = list(LearningSuite().findings(problem, {"rloo": make_estimator("rloo")}, kept_here))
    monkeypatch.setattr(training.Training, "_advance", lambda self: pytest.fail("trained again"))
    assert list(LearningSuite().findings(problem, {"rloo": make_estimator("rloo")}, kept_here)) == first
