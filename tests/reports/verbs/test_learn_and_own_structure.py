"""The verb learn; every verb takes a structure of one's own in a file, or refuses it in one sentence."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from tests.reports.calling import FEW, SMALL as RUN, call, refused

SMALL = "clusters[steps=12,train=256,heldout=128]"


def test_a_run_answers_first_and_its_repetition_measures_nothing_twice(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = ("learn", SMALL, "-e", "rloo", "-e", "ste", "--seeds", "2", "--no-gradients", "-j", "0", "-o", tmp_path / "run", "--json")
    done, again = call(*words), call(*words)
    told = json.loads(done.stdout.splitlines()[-1])
    assert (done.exit_code, told["ok"], told["failed"]) == (0, 4, 0)
    (sentence,) = told["answer"]
    assert sentence.startswith(f"On {SMALL} (2 seeds), ")
    assert "Gradients were not measured" in sentence
    assert sentence in " ".join(done.stderr.split())
    assert set(shlex.split(told["command"])) >= {"structgrad", "learn", SMALL, "--seeds", "2", "--no-gradients", "--out"}
    assert json.loads(again.stdout.splitlines()[-1])["answer"] == told["answer"]
    assert "4/4 cells resumed" in again.stderr


@pytest.mark.parametrize(("words", "measured"), [((), True), (("--quick",), False), (("--quick", "--gradients"), True)])
def test_gradients_are_measured_where_there_is_time(words, measured, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = call("learn", SMALL, "-e", "ste", "--dry-run", *words)
    assert (f"learnt:{SMALL}" in done.stdout) == measured
    assert ("parameter_bias: 3 cells" in done.stdout) == measured


@pytest.mark.parametrize("words", [["learn", SMALL, "--seeds", "1", "--no-gradients", "-j", "0"], [*RUN, *FEW]], ids=["learn", "run"])
def test_an_estimator_of_nan_is_broken_with_exit_code_1(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = call(*words, "-e", "tests.suites.broken_estimators:Nan", "-o", "out")
    assert found.exit_code == 1
    assert ("1 cell ok, " if words[0] == "learn" else "0 cells ok, ") in found.stdout  # the references of the task
    assert "(1 by NaN or infinity)" in found.stdout
    assert "returned NaN in " in found.stdout
    assert call("gate", "out", "-b", "out").exit_code == 1
    page = call("report", "out", "--format", "md", "-o", "-").stdout
    assert "returned NaN in " in page
    assert "broken" in page


SPREAD = "./my_structure.py:Spread"
SIZED = f"{SPREAD}[n=4,k=2]"
RUN = ["run", "bias", "-e", "rloo", "-j", "0", "--instances", "2", "--loss", "own", *FEW]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the file that `init --oracle` writes."""
    monkeypatch.chdir(tmp_path)
    assert call("init", "--oracle").exit_code == 0
    return tmp_path


def test_it_is_measured_looked_at_exported_and_gated() -> None:
    found = call(*RUN, "-p", SIZED, "--stage", "h=0.95", "-o", "out")
    assert found.exit_code == 0, found.output
    assert SIZED in found.stdout
    for words in (["status", "out"], ["report", "out"], ["export", "out"], ["compare", "out", "out"], ["baseline", "save", "own", "out"]):
        assert call(*words).exit_code == 0, words
    assert call("gate", "out", "--baseline", "own").exit_code == 0
    assert SIZED in Path("out/export.csv").read_text()


def test_it_scores_the_arrays_of_a_file(folder: Path) -> None:
    np.savez(folder / "mine.npz", scores=np.random.default_rng(0).standard_normal((3, 6)), lengths=np.array([6, 4, 2]))
    words = [*RUN, "--file", "mine.npz", "-o", "out"]
    assert call(*words, "--oracle", f"{SPREAD}[k=2]", "--field", "lengths=lengths").exit_code == 0
    assert refused(*words, "--oracle", f"{SPREAD}[n=6,k=2]") == (
        f"error: mine.npz: got the oracle '{SPREAD}[n=6,k=2]' with the size n; expected none, for the scores have it\n"
    )


def test_estimators_are_audited_on_it() -> None:
    found = json.loads(call("audit", "rloo", "--oracle", SIZED, "--quick", "--json").stdout)
    assert found["verdict"] == "right"
    assert {"spread 4"} <= {check["where"] for check in found["checks"]}


def test_a_task_of_ones_own_may_have_it(folder: Path) -> None:
    assert call("init", "--task").exit_code == 0
    text = (folder / "my_task.py").read_text().replace("from structgrad.oracles import Subset", "from my_structure import Spread")
    text = text.replace("Subset(2)", "Spread(2)").replace("[1, 2]", "[1, 3]").replace("[3, 4]", "[2, 4]").replace("3000", "600")
    (folder / "my_task.py").write_text(text.replace("steps=400", "steps=20"))
    found = call("learn", "./my_task.py:task", "-e", "ste", "--seeds", "1", "--no-gradients", "-j", "0", "-o", "out")
    assert found.exit_code == 0, found.output
