"""Plans, presets and their cells."""

from __future__ import annotations

import dataclasses

import pytest

from structgrad.estimators import Reinforce
from structgrad.oracles import Categorical
from structgrad.suites import problems
from structgrad.suites.base import split_loss
from structgrad.suites.measures import SUITES
from structgrad.suites.measures.suite import EFFORTS
from structgrad.suites.problems.named import BUILT_IN_PROBLEMS, OWN_LOSS
from structgrad.suites.running.planning import grid as scores
from structgrad.suites.running.planning.estimates import CostModel
from structgrad.suites.running.planning.grid import grid
from structgrad.suites.running.planning.plan import Plan, Portion
from structgrad.suites.running.planning.presets import CORE, FIRST_PROBLEMS, PRESETS, SECOND, plan_of
from tests.suites.running_cases import SMALL


def forget() -> None:
    """Build problems again."""
    scores._load.cache_clear()
    scores._sample.cache_clear()


def identities(plan: Plan) -> set[str]:
    return {cell.identity for cell in grid(plan).cells}


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"offset": 10.0},
        {"effort": dataclasses.replace(SMALL.effort, replicates=128)},
        {"effort": dataclasses.replace(SMALL.effort, alpha=0.5)},
        {"instances": 3},
        {"losses": ("linear",)},
        {"dtype": "float32"},
        {"tier": "mc"},
        {"stages": ("final",)},
        {"problems": ("subset_regimes",)},
        {"suites": ("sparsity",)},
        {"estimators": ("reinforce[num_samples=2]", "imle[lambda=3]")},
    ],
)
def test_what_moves_numbers_moves_the_identity(change):
    assert identities(SMALL).isdisjoint(identities(dataclasses.replace(SMALL, **change)))


@pytest.mark.parametrize(("kind", "cells"), [(SUITES["bias"], 3), (Categorical, 3), (Reinforce, 1)])
def test_a_declared_version_moves_the_identity_of_what_it_concerns(monkeypatch, kind, cells):
    before = identities(SMALL)
    monkeypatch.setattr(kind, "version", kind.version + 1)
    assert len(before - identities(SMALL)) == cells


def test_other_scores_under_the_same_name_move_the_identity(monkeypatch):
    before, real = identities(SMALL), problems.load

    def moved(name, stage, **options):
        found = real(name, stage, **options)
        items = [dataclasses.replace(item, scores=item.scores * (1 + 1e-15)) for item in found.instances]
        return dataclasses.replace(found, instances=tuple(items))

    forget()
    monkeypatch.setattr(problems, "load", moved)
    assert before.isdisjoint(identities(SMALL))
    forget()


@pytest.mark.parametrize("change", [{"batch_size": 128}, {"estimators": ("arsm", "reinforce", "ste")}])
def test_what_moves_no_number_moves_no_identity(monkeypatch, change):
    before = identities(SMALL)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "999")
    assert before == identities(dataclasses.replace(SMALL, **change))


def test_pairs_patterns_and_options():
    found = grid(dataclasses.replace(SMALL, estimators=("arm", "arsm")))
    assert [cell.estimators for cell in found.cells] == [("arsm",)]
    assert [row.reason for row in found.skips] == ["arm needs bits, which are categories of two parts, and these have 10"]
    found = grid(dataclasses.replace(SMALL, estimators=("spigot*", "imle[lambda=2.5]")))
    names = {name for cell in found.cells for name in cell.estimators} | {row.estimator for row in found.skips}
    assert names == {"spigot", "spigot_steps", "spigot_ce", "spigot_eg", "imle[lambda=2.5]"}


def test_a_suite_takes_its_portion_of_the_grid():
    plan = dataclasses.replace(
        SMALL,
        suites=("bias", "sparsity"),
        estimators=("ste",),
        stages=("init", "early", "final"),
        instances=5,
        portions=(("sparsity", Portion(instances=2, stages=2)),),
    )
    assert [(cell.suite, cell.stage, cell.instances) for cell in grid(plan).cells] == [
        ("bias", "init", 5),
        ("sparsity", "init", 2),
        ("bias", "early", 5),
        ("bias", "final", 5),
        ("sparsity", "final", 2),
    ]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_covers_structures_states_and_losses(preset):
    plan = dataclasses.replace(plan_of(preset), instances=1)
    found = grid(plan)
    scores = {split_loss(cell.problem)[0] for cell in found.cells}
    every = {"quick": set(FIRST_PROBLEMS), "standard": set(BUILT_IN_PROBLEMS) - set(SECOND), "thorough": set(BUILT_IN_PROBLEMS)}
    assert scores >= every[preset]
    assert len({cell.stage for cell in found.cells}) >= 3
    losses = set(PRESETS[preset].plan.losses) - {OWN_LOSS}
    for name in scores:
        assert {split_loss(cell.problem)[1] for cell in found.cells if split_loss(cell.problem)[0] == name} >= losses
    assert plan.effort == EFFORTS[preset]
    assert {cell.suite for cell in found.cells} >= {"bias", "wall_clock"}


def test_options_override_a_preset():
    plan = plan_of("standard", instances=2, stages=("final",), estimators=("ste",), suites=(), losses=("own",))
    assert (plan.instances, plan.stages, plan.estimators, plan.portions) == (2, ("final",), ("ste",), ())
    kept = plan_of("standard", estimators=("ste",))
    assert kept.portion("descent") == Portion(instances=2, stages=1)
    assert plan_of("standard", instances=9).portion("descent") == Portion(stages=1)
    assert plan_of("standard").estimators == CORE
    assert len(CORE) >= 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stages": ("h=1.5",)}, r"unknown stage 'h=1.5'; did you mean"),
        ({"problems": ("tagging_coarse5",)}, "without a folder of score files"),
        ({"losses": ("hammin",)}, "unknown loss 'hammin'; did you mean hamming"),
        (
            {"problems": ("subset[n=2,k=6]",), "stages": ("h=0.5",)},
            r"^got the problem 'subset\[n=2,k=6\]' with 0 structures; expected at least 2, take other sizes$",
        ),
    ],
)
def test_a_plan_that_cannot_be_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        grid(dataclasses.replace(SMALL, **change))
    with pytest.raises(ValueError, match=r"unknown preset 'standart'; did you mean standard"):
        plan_of("standart")


def test_a_stage_may_be_any_entropy_and_a_glob_matches_available_problems():
    plan = dataclasses.replace(SMALL, problems=("sub*",), stages=("h=0.33", "h=0.9*", "early"), estimators=("ste",))
    assert scores.stages_by_problem(plan) == {"subset_regimes": ["h=0.33", "h=0.95", "early"]}


def test_costs_are_learned_from_the_nearest_cells():
    plan = dataclasses.replace(SMALL, suites=("bias",), problems=("categorical_regimes", "chain_regimes"), instances=2)
    cells = {(cell.problem, cell.estimators[0]): cell for cell in grid(plan).cells}
    model = CostModel(plan)
    assert model.seconds(cells["chain_regimes", "ste"]) > 0
    model.add(cells["categorical_regimes", "arsm"], 8.0)
    model.add(cells["chain_regimes", "reinforce"], 2.0)
    assert model.seconds(cells["categorical_regimes", "arsm"]) == 8.0
    assert model.seconds(cells["categorical_regimes", "ste"]) == 8.0
    assert model.seconds(cells["chain_regimes", "ste"]) == 2.0
    assert model.left([cells["chain_regimes", "ste"], cells["categorical_regimes", "arsm"]], 2) == 8.0  # one cell is not shared


def test_losses_are_an_axis_of_the_plan():
    plan = dataclasses.replace(SMALL, problems=("subset_regimes", "chain_regimes@f1"), losses=("own", "hamming"), estimators=("rloo",))
    names = ["subset_regimes", "subset_regimes@hamming", "chain_regimes@f1"]
    assert list(dict.fromkeys(cell.problem for cell in grid(plan).cells)) == names
    fewer = dataclasses.replace(plan, portions=(("sparsity", Portion(losses=1)),), suites=("bias", "sparsity"))
    assert list(dict.fromkeys(cell.problem for cell in grid(fewer).cells if cell.suite == "sparsity")) == [names[0], names[2]]
    assert list(dict.fromkeys(cell.problem for cell in grid(fewer).cells if cell.suite == "bias")) == names
