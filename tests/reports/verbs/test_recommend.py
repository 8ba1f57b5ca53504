"""The verb recommend."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from tests.reports.calling import call, refused
from tests.reports.recommendation_cases import REINFORCE, Made, rows, written

KNOWN = {"reinforce": REINFORCE, "rloo": Made(variance=40.0, unbiased=True, verdict="equivalent"), "ste": Made(bias=0.1, variance=1.0)}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return written(tmp_path / "run", rows(KNOWN, losses=("squared_distance", "black_box")))


def test_an_answer(run: Path) -> None:
    result = call("recommend", "--oracle", "subset", "--loss-gradients", "yes", "--stage", "h=0.9", "--run", run)
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    for said in (
        "subset, differentiable loss, batch of 32, entropy level h=0.9",
        "Loss squared_distance: ‖z − b‖²: linear on the structures, where z² = z, and quadratic between them.",
        "Take ste, ρ 0.980: significantly better than all 2 others.",
        "ste: bias 0.100, variance 1, never 0, 1e-5 s (REINFORCE × 1), 1 loss evaluation each, 32 averaged.",
        "Measured on toy@squared_distance, 220 structures, h=0.9, 4 instances, 4096 replicates each.",
        "ρ = E⟨ĝ, g⟩ / (‖g‖ √E‖ĝ‖²) lies between −1 and 1, higher is better.",
        f"From {run}: 2001-02-03, a cpu, structgrad 012345678.",
    ):
        assert said in text, text
    assert "black_box" not in text


def test_the_options(run: Path) -> None:
    words = ("recommend", "--oracle", "subset", "--stage", "h=0.9", "--run", run)
    options = {
        ("--loss-gradients", "no"): "black-box loss",
        ("--unbiased",): "differentiable loss, unbiased,",
        ("--batch", "4"): "batch of 4,",
        ("--loss-cost", "2.5"): "an evaluation of the loss takes 2.5 REINFORCE estimates",
    }
    assert {option: said in call(*words, *option).stdout for option, said in options.items()} == dict.fromkeys(options, True)
    assert "Take rloo" in call(*words, "--unbiased").stdout
    assert call(*words).stdout == call("recommend", "--oracle", "subset", "--entropy-level", "h=0.9", "--run", run).stdout
    assert re.search(r"ste +ρ 0\.980 +time × 1 +best\n  rloo +ρ 0\.667", call(*words, "--all").stdout)


def test_json_is_strict_and_says_all(run: Path) -> None:
    result = call("recommend", "--oracle", "subset", "--stage", "h=0.9", "--run", run, "--json")
    found = json.loads(result.stdout, parse_constant=pytest.fail)
    (answer,) = found["answers"]
    assert (answer["best"]["estimator"], answer["loss"], answer["instances"]) == ("ste", "squared_distance", 4)
    assert answer["best"]["rho"]["value"] == pytest.approx(KNOWN["ste"].rho(32))
    assert [one["estimator"] for one in answer["order"]] == ["ste", "rloo", "reinforce"]
    assert found["predictors"]["used"]["correlation"] == [0.43, 0.29, 0.56]
    assert found["wish"]["batch"] == 32


def test_a_run_on_a_file_of_ones_own_is_used_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = {"suites": ["bias", "wall_clock"], "file": {"oracle": "subset[k=3]"}}
    own = [replace(row, stage="file", source="mine.npz") for row in rows(KNOWN)]
    written(tmp_path / "structgrad-results" / "mine", own, plan=plan)
    text = call("recommend", "--oracle", "subset").stdout
    assert "From structgrad-results/mine: " in text
    assert "was not measured" not in text
    assert "From the published table: " in call("recommend", "--oracle", "subset", "--run", "published").stdout


def test_the_command_that_is_offered_is_understood(run: Path) -> None:
    """A dry run accepts the suggested commands: for another stage, and for another structure."""
    told = call(
        "recommend", "--oracle", "subset", "--stage", "h=0.33", "--run", written(run.parent / "named", rows(KNOWN, "subset_regimes"))
    )
    offered = [
        *re.findall("`(.*?)`", " ".join(told.stdout.split())),
        *re.findall("`(.*?)`", refused("recommend", "--oracle", "ctc", "--run", run)),
    ]
    assert [shlex.split(line)[:2] for line in offered] == [["structgrad", "run"]] * 2
    for line in offered:
        result = call(*shlex.split(line)[1:], "--dry-run")
        assert result.exit_code == 0, result.output
