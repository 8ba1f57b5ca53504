"""Plans, presets and their cells."""

from __future__ import annotations

import dataclasses

import pytest

from structgrad.estimators import Reinforce
from structgrad.oracles import Categorical
from structgrad.suites import problems
from structgrad.suites.measures import SUITES
from structgrad.suites.running.planning import grid as scores
from structgrad.suites.running.planning.estimates import CostModel
from structgrad.suites.running.planning.grid import grid
from structgrad.suites.running.planning.plan import Plan
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
