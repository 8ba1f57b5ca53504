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
