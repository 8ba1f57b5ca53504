"""``structgrad learn``."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.reports.calling import FEW, call
from tests.reports.calling import SMALL as RUN

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
