from __future__ import annotations

from pathlib import Path

import pytest
import torch

from structgrad.estimators import make_estimator
from structgrad.oracles import plugins
from structgrad.suites import Plan, measure
from structgrad.suites.base import TASK
from structgrad.suites.problems import from_file, load, with_loss
from structgrad.suites.problems.score_files import ScoreFile
from structgrad.suites.running.planning.grid import grid
from tests.reports.calling import call, refused

MINE = """
import torch

def smooth(structures):
    return (structures * torch.arange(structures.shape[-1])).sum(-1).sin()

def black_box(structures):
    return (structures[..., 0] == structures[..., 1]).double()

def hull(structures):
    return (structures.sum(-1) - structures.pow(0.5).sum(-1)).log1p()

def near(instance):
    return lambda structures: (structures - instance.scores.sigmoid()).square().sum(-1)

def raising(instance):
    return instance.nothing

def no_function(instance):
    return 3

def one_number(structures):
    return structures.sum()

word = 3
"""
NAME = "subset[n=5,k=2]"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    yield tmp_path
    plugins.use(())


def test_it_replaces_the_loss_of_a_problem() -> None:
    problem = load(f"{NAME}@./mine.py:smooth", "h=0.7", instances=2, data=None, offset=1.0)
    own = load(NAME, "h=0.7", instances=2, data=None)
    z = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    for item, before in zip(problem.instances, own.instances, strict=True):
        assert torch.equal(item.scores, before.scores)
        assert float(item.loss(z)) == pytest.approx(1 + torch.tensor(3.0).sin().item())
        assert (item.loss.offset, item.loss.extension, item.loss.vertex_degree) == (1.0, "formula", None)
        found = measure(make_estimator("rloo"), problem.oracle, item.loss, item.scores)
        assert found.verdict == "unbiased-exact"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("smooth", (True, True, "formula")),
        ("black_box", (False, False, "none")),
        ("hull", (False, False, "none")),
        ("near", (True, True, "formula")),
    ],
)
def test_its_derivative_is_tried_out(name: str, expected: tuple[bool, bool, str]) -> None:
    loss = load(f"{NAME}@./mine.py:{name}", "h=0.7", instances=1, data=None).instances[0].loss
    assert (loss.differentiable, loss.inside_hull, loss.extension) == expected


def test_a_factory_gets_the_instance() -> None:
    for item in load(f"{NAME}@./mine.py:near", "h=0.7", instances=2, data=None).instances:
        assert float(item.loss(item.scores.sigmoid())) == 0


def test_a_run_measures_it_and_again_when_its_file_changes() -> None:
    words = ("run", "bias", "--builtin", "-j", "0", "-p", NAME, "--stage", "h=0.7", "-e", "rloo", "--instances", "1", "--no-timing")
    done = call(*words, "--loss", "./mine.py:smooth", "--out", "out", "--replicates", "64", "--max-replicates", "64")
    assert done.exit_code == 0, done.output
    assert f"{NAME}@./mine.py:smooth" in done.stdout
    plan = Plan(suites=("bias",), problems=(NAME,), stages=("h=0.7",), estimators=("rloo",), losses=("./mine.py:smooth",), instances=1)
    before = [cell.identity for cell in grid(plan).cells]
    assert before == [cell.identity for cell in grid(plan).cells]
    Path("mine.py").write_text(MINE.replace(".sin()", ".cos()"))
    plugins.use(())
    assert before != [cell.identity for cell in grid(plan).cells]


def test_scores_of_a_file_take_it() -> None:
    import numpy as np

    np.savez("scores.npz", scores=np.random.default_rng(0).standard_normal((2, 5)))
    problem = from_file(ScoreFile("scores.npz", "subset[k=2]"), "./mine.py:near")
    assert problem.name.endswith("@./mine.py:near")
    assert float(problem.instances[1].loss(problem.instances[1].scores.sigmoid())) == 0


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("./mine.py:word", "got the loss './mine.py:word', a int; expected a function"),
        ("./mine.py:missing", "could not import it: ./mine.py defines no 'missing'"),
        ("./other.py:loss", "could not import it"),
        ("./mine.py:raising", "the loss './mine.py:raising' raised AttributeError for the instance"),
        ("./mine.py:no_function", "made a int of an instance; expected a function of structures"),
        ("./mine.py:one_number", "the loss gave shape () for structures"),
        ("f3", "got the unknown loss 'f3'"),
    ],
)
def test_what_is_no_loss_is_refused_in_one_sentence(loss: str, message: str) -> None:
    assert message in refused("run", "bias", "--builtin", "-p", NAME, "--stage", "h=0.7", "-e", "rloo", "--loss", loss, "--dry-run")


def test_a_task_keeps_its_loss() -> None:
    assert with_loss(f"{TASK}clusters", "./mine.py:smooth") == f"{TASK}clusters"
