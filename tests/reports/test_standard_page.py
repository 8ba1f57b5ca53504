"""The page of the standard run, and the finding that the README opens with: both are those of the table that ships."""

from __future__ import annotations

import importlib
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from structgrad.oracles import ORACLES
from structgrad.reports import published, results
from tests.reports import browser
from tests.reports.recommendation_cases import REINFORCE, Made, rows, written
from tests.reports.test_page import DRAWN

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / ".ci"))
standard_page = importlib.import_module("standard_page")
Standard = standard_page.Standard
STRUCTURES = {"chain" if name == "linear_chain" else name for name in ORACLES if name != "tied_chain"}
"""A tied chain has the laws of a chain."""

SCORE_SETS = 10
"""Sets of scores of real models."""


@pytest.fixture(scope="module")
def standard() -> Standard:
    return Standard.load()


def test_the_readme_opens_with_the_finding(standard: Standard) -> None:
    assert standard.summary() in (ROOT / "README.md").read_text()


def test_the_page_is_that_of_the_table(standard: Standard) -> None:
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


def test_the_table_holds_all_structures_at_four_entropies_and_real_scores_at_three_stages(standard: Standard) -> None:
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


def test_one_command_measures_the_table_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of the table run with the folder of the score files, and their results are published."""
    monkeypatch.setattr(
        published, "load", lambda: (None, {"command": "structgrad run bias --builtin && structgrad run bias --data scores"})
    )
    called: list[list[str]] = []

    def run(words: list[str], *, check: bool) -> None:
        called.append(words[3:])
        name = "built-in" if "--builtin" in words else "real"
        found = rows({"reinforce": REINFORCE, "ste": Made(bias=0.3, variance=1 / 3)})
        written(Path(words[-1]), [replace(row, problem=name) for row in found])

    monkeypatch.setattr(standard_page.subprocess, "run", run)
    standard_page.again(tmp_path / "runs", tmp_path / "data", tmp_path / "table")
    assert called == [
        ["run", "bias", "--builtin", "--out", str(tmp_path / "runs" / "0")],
        ["run", "bias", "--data", str(tmp_path / "data"), "--out", str(tmp_path / "runs" / "1")],
    ]
    monkeypatch.undo()
    assert published.load(tmp_path / "table")[1]["problems"] == ["built-in", "real"]
    page = Standard.load(tmp_path / "table").html().decode()
    assert str(tmp_path) not in page
    assert "2 gradient estimators on " in page


def test_half_of_the_options_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        standard_page.main(["--to", str(tmp_path), "--again", str(tmp_path)])
    assert "got one of --again and --data; expected both or neither" in capsys.readouterr().err


def test_a_contest_counts_who_is_the_best(tmp_path: Path) -> None:
    """The relaxation wins on two structures of one loss; REINFORCE, the only unbiased one there, on a third."""
    good, bad = Made(bias=0.1, variance=0.0), Made(bias=3.0, variance=0.0)
    table = [
        replace(row, problem=f"{scores}@squared_distance", stage="h=0.5", loss="squared_distance")
        for scores, relaxed in (("a", good), ("b", good), ("c", bad))
        for row in rows({"reinforce": REINFORCE, "ste": relaxed})
    ]
    published.write(written(tmp_path / "run", table), folder=tmp_path)
    found = Standard.load(tmp_path)
    contest = found.contest("squared_distance", "h=0.5", 256)
    assert contest.wins == Counter(ste=2, reinforce=1)
    assert (contest.winners, contest.count, contest.cell()) == (["ste"], 3, "`ste`, 2 of 3")
    assert results.TABLE not in {path.name for path in tmp_path.iterdir()}


def test_a_contest_without_a_winner(tmp_path: Path) -> None:
    """All are tied on two of three structures; the best of the third is not the winner of the contest."""
    names = ("reinforce", "ste", "imle")
    same, other = dict.fromkeys(names, Made(bias=0.3)), {**dict.fromkeys(names, Made(bias=3.0)), "ste": Made(bias=0.1)}
    table = [replace(row, problem=f"{name}@black_box") for name, known in (("a", same), ("b", same), ("c", other)) for row in rows(known)]
    published.write(written(tmp_path / "run", table), folder=tmp_path)
    contest = Standard.load(tmp_path).contest("black_box", "h=0.9")
    assert (contest.winners, contest.cell()) == ([], "none clearly best, 2 of 3")
