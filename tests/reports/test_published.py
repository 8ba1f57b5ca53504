"""The published table, comparisons with it, and the page of the standard run, which is made of it."""

import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from structgrad.oracles import ORACLES
from structgrad.reports import published, results
from structgrad.reports.analysis import answers
from structgrad.reports.analysis.loading import rows_of
from structgrad.suites.metrics import METRICS
from tests.reports import browser
from tests.reports.calling import call, refused
from tests.reports.recommendation_cases import REINFORCE, Made, rows, written
from tests.reports.test_page import DRAWN

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


def test_answers_of_the_reduced_table_are_those_of_the_whole_one(run: Path, tmp_path: Path) -> None:
    whole, small = (answers.answers(frame, ["reinforce"]) for frame in (results.read(run)[0], made(tmp_path, run)[0]))
    assert [(one.estimator, one.tied, one.why) for one in small] == [(one.estimator, one.tied, one.why) for one in whole]
    assert [one.score.value for one in small] == pytest.approx([one.score.value for one in whole], rel=1e-6)


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


def test_bad_comparisons(own: Path, run: Path) -> None:
    assert "Missing argument 'RUN'" in refused("compare", "published")
    assert "have no estimator on an instance in common" in refused("compare", "published", run)
    assert "whose numbers are rounded" in refused("gate", own, "--baseline", "published")


ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / ".ci"))
standard_page = importlib.import_module("standard_page")
LATER = {"cardinality_subset", "grammar", "labelled_projective_tree"}
"""Structures that are younger than the published run."""

STRUCTURES = {"chain" if name == "linear_chain" else name for name in ORACLES if name != "tied_chain"} - LATER
"""A tied chain has the laws of a chain."""

SCORE_SETS = 10
"""Sets of scores of real models."""


@pytest.fixture(scope="module")
def standard() -> Any:
    return standard_page.Standard.load()


def test_the_readme_opens_with_the_finding(standard: Any) -> None:
    assert standard.summary() in (ROOT / "README.md").read_text()


def test_the_page_is_that_of_the_table(standard: Any) -> None:
    assert (ROOT / "docs/results/standard.md").read_bytes() == standard.page()


@pytest.mark.skipif(browser.path() is None, reason="no Chromium here; STRUCTGRAD_BROWSER may name one")
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_of_the_run_is_small_and_opens_anywhere(tmp_path: Path, width: int) -> None:
    path, binary = ROOT / "docs/results/standard-run.html", browser.path()
    assert path.stat().st_size < 3_000_000
    assert binary is not None
    with browser.browser(binary, tmp_path) as tab:
        tab.open(path, width=width)
        tab.until(DRAWN)
        assert tab.run("document.documentElement.scrollWidth") <= width
        assert tab.run("document.querySelectorAll('#matrix tbody tr').length") == len(STRUCTURES) + SCORE_SETS
        assert (tab.complaints, len(tab.requests)) == ([], 1)


def test_the_table_holds_all_structures_at_four_entropies_and_real_scores_at_three_stages(standard: Any) -> None:
    measured = standard.measured().set_index("scores")
    assert len(measured) == 16 + 10
    assert all(measured["sizes"])
    assert set(measured["losses"]) == {3}
    built_in = measured[measured.index.str.endswith("_regimes")]
    assert set(built_in["entropy levels"]) == {"h=0.95, h=0.7, h=0.4, h=0.1"}
    assert set(built_in["instances each"]) == {32}
    assert {name.removesuffix("_regimes") for name in built_in.index} == STRUCTURES
    real = measured.drop(built_in.index)
    assert set(real["entropy levels"]) == {"init, early, final"}
    assert set(real["instances each"]) == {16}
    assert re.fullmatch(r"With 16 instances each, no estimator is clearly best in \d+ of 30 cells", standard.unsure())


def test_half_of_the_options_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        standard_page.main(["--to", str(tmp_path), "--again", str(tmp_path)])
    assert "got one of --again and --data; expected both or neither" in capsys.readouterr().err
