"""The published table: its rows and columns, and comparisons with it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from structgrad.reports import published, results
from structgrad.reports.analysis import answers
from structgrad.reports.analysis.loading import load, rows_of
from structgrad.reports.published import __main__ as command
from structgrad.suites.metrics import METRICS
from tests.reports.calling import call, refused
from tests.reports.recommendation_cases import MANIFEST, REINFORCE, Made, rows, written

KNOWN = {"reinforce": REINFORCE, "ste": Made(bias=0.3, variance=1 / 3), "exact": Made(verdict="unbiased-exact")}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return written(tmp_path / "run", rows(KNOWN))


def made(folder: Path, run: Path) -> tuple[pd.DataFrame, results.Manifest]:
    published.write(run, folder=folder)
    return published.load(folder)


def test_the_table_of_the_package_is_small_and_whole() -> None:
    frame, about = published.load()
    assert (published.FOLDER / published.TABLE).stat().st_size < published.LARGEST
    assert set(published.METRICS) - {"time_ratio"} <= set(frame["metric"]) <= set(published.METRICS) <= set(METRICS)
    assert set(frame["problem"].astype(object)) == set(about["problems"])
    assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == {
        name: {"category": "category"}.get(dtype, dtype).replace("string", str(frame["reason"].dtype))
        for name, dtype in results.COLUMNS.items()
    }
    part = frame.iloc[::97].reset_index(drop=True)
    pd.testing.assert_frame_equal(published.reduced(part), part, check_categorical=False)


def test_what_is_told_of_its_run_names_command_versions_machine_date_and_commit_and_no_folder() -> None:
    _, about = published.load()
    assert about["command"].startswith("structgrad run ")
    assert "--out" not in about["command"]
    assert "/" not in about["command"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*", about["finished"])
    assert re.fullmatch(r"[0-9a-f]{40}", about["environment"]["commit"])
    assert {"python", "cpu", "cores", "packages"} <= {name for name, value in about["environment"].items() if value}


def test_answers_of_the_reduced_table_are_those_of_the_whole_one(run: Path, tmp_path: Path) -> None:
    whole, small = (answers.answers(frame, ["reinforce"]) for frame in (results.read(run)[0], made(tmp_path, run)[0]))
    assert [(one.estimator, one.tied, one.why) for one in small] == [(one.estimator, one.tied, one.why) for one in whole]
    assert [one.score.value for one in small] == pytest.approx([one.score.value for one in whole], rel=1e-6)


def test_rows_that_no_recommendation_asks_for_are_left_out(run: Path, tmp_path: Path) -> None:
    frame, about = made(tmp_path, run)
    assert set(frame["estimator"]) == {"reinforce", "ste"}
    assert len(frame) == about["rows"] == 2 * (4 * 6 + 2)
    assert about["command"] == "structgrad run bias sparsity wall_clock --builtin"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"status": "stopped"}, "is a run that is stopped; expected a finished one"),
        ({"metric": "loss_evaluations"}, "holds no loss_evaluations; expected a run of the suites bias and wall_clock"),
        ({"largest": 10}, r"has \d+ bytes; expected at most 10"),
    ],
)
def test_a_run_that_cannot_be_published_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict, said: str) -> None:
    monkeypatch.setattr(published, "LARGEST", change.get("largest", published.LARGEST))
    table = [row for row in rows(KNOWN) if row.metric != change.get("metric")]
    run = written(tmp_path / "run", table, status=change.get("status", "finished"))
    with pytest.raises(ValueError, match=said):
        published.write(run, folder=tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_several_runs_make_one_table_of_all_their_problems(run: Path, tmp_path: Path) -> None:
    other = [replace(row, problem="elsewhere") for row in rows(KNOWN)]
    published.write(run, written(tmp_path / "other", other), folder=tmp_path)
    frame, about = published.load(tmp_path)
    alone, _ = made(tmp_path / "alone", run)
    assert len(frame) == about["rows"] == 2 * len(alone)
    assert about["problems"] == [*alone["problem"].unique(), "elsewhere"]
    assert about["command"] == " && ".join(["structgrad run bias sparsity wall_clock --builtin"] * 2)
    with pytest.raises(ValueError, match="two of the runs hold"):
        published.write(run, run, folder=tmp_path / "to")


def test_the_command(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command.main([str(run), "--to", str(tmp_path / "to")])
    assert str(tmp_path / "to" / published.TABLE) in capsys.readouterr().out
    assert published.load(tmp_path / "to")[1]["environment"]["cpu"] == MANIFEST["environment"]["cpu"]
    with pytest.raises(SystemExit) as ended:
        command.main([str(tmp_path / "none")])
    assert ended.value.code == 2
    assert "found no run" in capsys.readouterr().err


def test_a_table_of_another_schema_is_refused(run: Path, tmp_path: Path) -> None:
    made(tmp_path, run)
    about = json.loads((tmp_path / published.ABOUT).read_text())
    (tmp_path / published.ABOUT).write_text(json.dumps(about | {"schema_version": 1}))
    with pytest.raises(ValueError, match="has the schema version 1"):
        published.load(tmp_path)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A run that holds a part of the published table, and a row of its own that no published table has."""
    frame, about = published.load()
    first = frame[(frame["problem"] == about["problems"][0]) & frame["estimator"].isin(["reinforce", "ste"])]
    table = rows_of(first)
    return written(tmp_path / "own", [*table, replace(table[0], metric="cosine", value=0.5)], environment=about["environment"])


def test_a_run_is_compared_with_the_published_table_by_its_name(own: Path) -> None:
    text = call("compare", "published", own).stdout
    assert "nothing changed" in text
    assert "missing" not in text
    assert "cosine" not in text


def test_a_folder_or_a_baseline_of_that_name_comes_first(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load("published").is_published
    call("baseline", "save", own, "--name", "published", "--dir", "store")
    written(tmp_path / "published", rows(KNOWN))
    assert not load("published").is_published


def test_bad_comparisons(own: Path, run: Path) -> None:
    assert "Missing argument 'RUN'" in refused("compare", "published")
    assert "have no estimator on an instance in common" in refused("compare", "published", run)
    assert "whose numbers are rounded" in refused("gate", own, "--baseline", "published")
