import re
from pathlib import Path

import pytest
import torch

from structgrad.estimators import make_estimator
from structgrad.oracles import plugins
from structgrad.reports import recommend, results
from structgrad.reports.analysis.answers import is_own
from structgrad.suites import Plan, measure
from structgrad.suites.audit import audit
from structgrad.suites.base import TASK
from structgrad.suites.problems import from_file, load, with_loss
from structgrad.suites.problems.score_files import ScoreFile
from structgrad.suites.running.planning.grid import grid
from structgrad.suites.tasks import make_task
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

def constant(structures):
    return 2 + 0 * structures.sum(-1)

def not_a_number(structures):
    return structures.sum(-1) * float("nan")

def in_place(structures):
    structures += 1
    return structures.sum(-1)

def brier(predictions, labels):
    return (predictions.sigmoid() - labels).square()

def zero(predictions, labels):
    return 0 * predictions.abs()

def wrong(predictions, labels):
    return ((predictions > 0) != (labels > 0.5)).double()

def mean(predictions, labels):
    return (predictions - labels).square().mean()

def sampled(loss, oracle, scores, generator):
    z = oracle.sample(scores, generator=generator)
    return loss(z) + loss(z).detach() * oracle.log_prob(z, scores)

def plain_layer(scores):
    return scores.softmax(-1)

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


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("constant", "the loss gave 2 for every structure; expected one that depends on the structure"),
        ("one_number", "the loss gave shape () for structures"),
        ("not_a_number", "the loss gave nan; expected finite numbers"),
        ("in_place", "the loss writes into its argument"),
    ],
)
def test_it_is_examined_before_it_is_used(loss: str, message: str) -> None:
    scores = torch.zeros(5, dtype=torch.float64)
    with pytest.raises(ValueError, match=re.escape(message)):
        measure("rloo", "subset[k=2]", f"./mine.py:{loss}", scores)
    assert message in refused("audit", "rloo", "--loss", f"./mine.py:{loss}", "--oracle", "subset")
    assert message in refused("recommend", "--oracle", "subset", "--loss", f"./mine.py:{loss}")


def test_an_audit_takes_it() -> None:
    found = audit("rloo", loss="./mine.py:near", name="mine", structures=("subset",), quick=True)
    assert (found.subject, found.verdict) == ("mine", "right")
    assert audit(plain, loss="./mine.py:black_box", unbiased=True, structures=("categorical",), quick=True).verdict == "misdeclared"
    biased = audit("ste_marginals", loss="./mine.py:near", structures=("subset",), quick=True)
    assert biased.comparisons[0].relative_bias[0] > 0.1
    assert "gives values only" in refused("audit", "ste", "--loss", "./mine.py:black_box", "--oracle", "subset")


def plain(loss, oracle, scores, generator):
    z = oracle.sample(scores, generator=generator)
    return loss(z).detach() * oracle.log_prob(z, scores)


def test_a_recommendation_is_for_its_kind() -> None:
    found = recommend("subset", loss="./mine.py:black_box", stage="h=0.95")
    assert [answer.loss for answer in found.answers] == ["black_box"]
    assert "--loss ./mine.py:black_box" in found.notes[0]
    assert recommend("subset", loss="squared_distance", stage="h=0.95").answers[0].loss == "squared_distance"


def test_measure_takes_its_code_and_a_name() -> None:
    found = measure("rloo", "subset[k=2]", "./mine.py:near", torch.arange(5.0, dtype=torch.float64), name="mine")
    assert set(found.frame["estimator"]) == {"mine"}
    assert set(found.frame["loss"]) == {"./mine.py:near"}


# A loss of predictions and labels for tasks.

SMALL = "clusters[steps=4,train=100,heldout=50"


def test_a_task_learns_by_it() -> None:
    assert with_loss(f"{TASK}clusters", "./mine.py:brier") == f"{TASK}clusters[loss=./mine.py:brier]"
    assert with_loss("learnt:clusters[steps=4]@ste", "./mine.py:brier") == "learnt:clusters[steps=4,loss=./mine.py:brier]@ste"
    assert with_loss(f"{TASK}clusters", "f1") == f"{TASK}clusters"
    task = make_task(f"{SMALL},loss=./mine.py:brier]")
    batch, model = task.batch("train", torch.arange(3)), task.model(0)
    loss = task.loss(model, batch)
    z = task.oracle.argmax(torch.randn(2, 3, 10, generator=torch.Generator().manual_seed(0)))
    assert torch.allclose(loss(z), (task.predict(model, batch, z).sigmoid() - batch.labels).square())
    assert (loss.name, loss.differentiable, loss.inside_hull) == ("./mine.py:brier", True, True)
    words = ("learn", f"{SMALL}]", "-e", "./mine.py:sampled", "--name", "mine", "--seeds", "1", "--no-gradients", "-j", "0", "--out", "out")
    done = call(*words, "--loss", "./mine.py:brier")
    assert done.exit_code == 0, done.output
    frame, _ = results.read(Path("out"))
    assert set(frame["estimator"]) >= {"mine"}
    assert set(frame["problem"]) == {f"{TASK}{SMALL},loss=./mine.py:brier]"}
    before = repr(task)
    Path("mine.py").write_text(MINE.replace("sigmoid() - labels", "tanh() - labels"))
    plugins.use(())
    assert repr(make_task(f"{SMALL},loss=./mine.py:brier]")) != before


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("smooth", "for the task clusters (too many positional arguments); expected a function of predictions and labels"),
        ("word", "a int; expected a function of predictions and labels"),
        ("zero", "gave 0 for all predictions"),
        ("wrong", "gives values only, from which its decoder cannot learn"),
        ("mean", "./mine.py:mean gave () for 8 items; expected a function of predictions and labels, with one value per item"),
    ],
)
def test_a_loss_without_a_meaning_for_a_task_is_refused(loss: str, message: str) -> None:
    assert message in refused("learn", f"{SMALL}]", "-e", "ste", "--loss", f"./mine.py:{loss}", "--dry-run")


# Names.


def test_an_estimator_of_ones_own_has_the_name_that_it_is_given() -> None:
    words = ("run", "bias", "--builtin", "-j", "0", "-p", NAME, "--stage", "h=0.7", "--instances", "1", "--no-timing", "--loss", "own")
    done = call(*words, "-e", "one=./mine.py:sampled", "-e", "two=./mine.py:sampled", "-e", "rloo", "--out", "out", "--replicates", "64")
    assert done.exit_code == 0, done.output
    frame, _ = results.read(Path("out"))
    assert set(frame["estimator"]) == {"one", "two", "rloo"}
    assert [is_own(name) for name in ("one", "rloo[num_samples=4]", "./mine.py:sampled")] == [True, False, True]
    for given, message in (
        (("-e", "rloo", "--name", "x"), "--name got 'x' with 0 estimators of one's own"),
        (("-e", "./mine.py:sampled", "--name", "x=y"), "--name got 'x=y'; expected a name without ="),
        (("-e", "=./mine.py:sampled"), "got the estimator '=./mine.py:sampled'; expected one name before its code"),
        (("-e", "x=y=./mine.py:sampled"), "got the estimator 'x=y=./mine.py:sampled'; expected one name before its code"),
        (("-e", "./mine.py:sampled", "--name", "rloo"), "got the name 'rloo' for ./mine.py:sampled, which an estimator of the package has"),
        (("-e", "a=./mine.py:sampled", "-e", "a=./mine.py:plain_layer"), "the plan got 2 estimators with the name 'a'"),
    ):
        assert message in refused(*words, *given, "--dry-run")
    assert call("describe", "./mine.py:sampled", "--name", "mine").stdout.startswith("estimator mine:")
