"""Plans, presets and their cells; a user's code that changes is measured again, and its results are not mixed."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

from structgrad.estimators import Reinforce
from structgrad.oracles import Categorical
from structgrad.oracles.plugins import loaded_file
from structgrad.oracles.sources import own_files
from structgrad.suites.measures import SUITES
from structgrad.suites.measures.suite import Effort
from structgrad.suites.problems.score_files import ScoreFile
from structgrad.suites.running import runner
from structgrad.suites.running.planning import grid as scores
from structgrad.suites.running.planning.estimates import CostModel
from structgrad.suites.running.planning.grid import grid
from structgrad.suites.running.planning.plan import Machine, Plan, Portion
from structgrad.suites.running.work import Snapshot
from tests.suites.running_cases import SMALL, kept


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


MINE = "from structgrad.estimators import LeaveOneOut\n\n\nclass Mine(LeaveOneOut):\n    pass\n\n\nclass Other(LeaveOneOut):\n    pass\n"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def plan(mine: Path) -> Plan:
    names = (f"{mine}:Mine", f"{mine}:Other", "rloo")
    effort = Effort(replicates=64, most_replicates=64, seconds=1.0)
    return Plan(suites=("bias",), problems=("categorical_regimes",), stages=("h=0.95",), estimators=names, instances=1, effort=effort)


def forget(mine: Path) -> None:
    """Remove a file's module, as in a process that has not imported it."""
    module = loaded_file(str(mine))
    assert module is not None
    del sys.modules[module.__name__]


@pytest.mark.parametrize(
    ("importing", "file"),
    [
        ("import importlib\nimportlib.import_module(f'helper_of_{\"mine\"}')", "helper_of_mine.py"),
        ("def later():\n    import helper_of_mine", "helper_of_mine.py"),
        ("import first_of_mine", "helper_of_mine.py"),
        ("import parts_of_mine", "parts_of_mine/relative.py"),
    ],
)
def test_what_it_imports_of_its_own_belongs_to_it(mine: Path, importing: str, file: str) -> None:
    for name, text in {
        "helper_of_mine.py": "X = 1\n",
        "first_of_mine.py": "import helper_of_mine\n",
        "parts_of_mine/__init__.py": "from .relative import Y\n",
        "parts_of_mine/relative.py": "Y = 1\n",
    }.items():
        (mine.parent / name).parent.mkdir(exist_ok=True)
        (mine.parent / name).write_text(text)
    mine.write_text(f"{importing}\n\n{MINE}")
    try:
        before = [cell.identity for cell in grid(plan(mine)).cells]
        files = [str(own.relative_to(mine.parent)) for own in own_files(mine)]
        assert files[0] == "mine.py"
        assert file in files
        (mine.parent / file).write_text((mine.parent / file).read_text() + "# changed\n")
        after = [cell.identity for cell in grid(plan(mine)).cells]
        assert [new == old for new, old in zip(after, before, strict=True)] == [False, False, True]
    finally:
        forget(mine)
        sys.path.remove(str(mine.parent))
        for name in [name for name in sys.modules if "of_mine" in name]:
            del sys.modules[name]


def test_a_change_in_the_middle_of_a_run_ends_it_and_is_measured_when_it_goes_on(mine: Path, tmp_path: Path) -> None:
    out, work = tmp_path / "run", plan(mine)

    def change(snapshot: Snapshot) -> None:
        mine.touch()  # no change
        if snapshot.finished == 1 and snapshot.label:
            mine.write_text(MINE + "\n# changed\n")

    with pytest.raises(
        ValueError, match=r"mine.py \(or an import\) changed while it was measured; finished cells are kept, run the command again"
    ):
        runner.run(work, out, machine=Machine(jobs=0), progress=change)
    assert len(kept(out)) == 1
    forget(mine)
    runner.run(work, out, machine=Machine(jobs=0))
    assert len(kept(out)) == 3


def test_a_changed_score_file_is_read_again(tmp_path: Path) -> None:
    mine, path = Plan(file=ScoreFile(str(tmp_path / "mine.npz"), "subset[k=1]")), tmp_path / "mine.npz"
    for size in (2, 3):
        np.savez(path, scores=np.zeros((1, size)))
        assert scores.load_problem(mine, "mine", "file", None).instances[0].scores.shape == (size,)


def test_a_suite_takes_its_portion_of_the_grid() -> None:
    portions = (("sparsity", Portion(instances=2, stages=2)),)
    plan = dataclasses.replace(SMALL, suites=("bias", "sparsity"), estimators=("ste",), instances=5, portions=portions)
    cells = grid(dataclasses.replace(plan, stages=("init", "early", "final"))).cells
    expected = [("bias", "init", 5), ("sparsity", "init", 2), ("bias", "early", 5), ("bias", "final", 5), ("sparsity", "final", 2)]
    assert [(cell.suite, cell.stage, cell.instances) for cell in cells] == expected
