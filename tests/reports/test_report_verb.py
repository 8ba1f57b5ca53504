"""The verb report, and figures for a paper."""

import re
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import pytest
from typer.testing import Result

from structgrad.reports import results
from structgrad.reports.analysis import tables
from structgrad.reports.page import paper
from structgrad.suites.base import Row
from tests.reports import calling, examples


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paper, "planned", lambda frame, known: [paper.PlannedFigure("plane-toy", frame, None, "On toy.")])
    monkeypatch.setattr(
        paper.PlannedFigure, "draw", lambda planned: {f"{planned.name}.pdf": b"%PDF", f"{planned.name}.tex": f"{planned.text}\n".encode()}
    )
    results.write(examples.rows(), tmp_path / "run", examples.MANIFEST)
    return tmp_path / "run"


def call(*words: object) -> Result:
    return calling.call("report", *words)


def test_every_format_is_written(run: Path, tmp_path: Path) -> None:
    assert call(run).stdout == f"report: {run / 'report.html'}\n"
    assert call(run / results.TABLE, "--format", "md").exit_code == 0
    assert (run / "report.md").read_text().startswith("## structgrad report")
    assert call(run, "-o", tmp_path / "new" / "numbers.csv").exit_code == 0
    assert list(pd.read_csv(tmp_path / "new" / "numbers.csv").columns)[-6:] == ["median", "lower", "upper", "low", "high", "instances"]
    assert call(run, "--format", "md", "-o", "-").stdout == (run / "report.md").read_text()
    assert call(run, "--format", "parquet").exit_code == 0
    found = pd.read_parquet(run / "report.parquet")
    assert found["median"].tolist() == tables.aggregate(results.read(run)[0])["median"].tolist()


def test_figures_alone_write_no_page(run: Path, tmp_path: Path) -> None:
    result = call(run, "--figures", tmp_path / "drawn")
    assert result.stdout == f"figures: 2 files (pdf, tex) in {tmp_path / 'drawn'}\n"
    names = {"plane-toy.pdf", "plane-toy.tex"}
    assert {path.name for path in (tmp_path / "drawn").iterdir()} == names
    assert (tmp_path / "drawn" / "plane-toy.tex").read_text() == "On toy.\n"
    assert not (run / "report.html").exists()
    assert call(run, "--figures", tmp_path / "some", "--only", "plane-*").stdout.startswith("figures: 2 files")
    message = "error: --only got rank, which no figure of this run matches; expected names or patterns such as plane-toy\n"
    assert call(run, "--figures", tmp_path / "some", "--only", "rank").stderr == message
    assert "without --figures; name the folder" in call(run, "--only", "plane-*").stderr


def test_standard_output_takes_text_only(run: Path) -> None:
    result = call(run, "-o", "-", "--format", "parquet")
    assert result.exit_code == 2
    assert "`report` got --output - with --format parquet, which needs a file; name one" in result.stderr


@pytest.mark.parametrize(("option", "kind"), [("--figures", "folder"), ("--output", "file")])
def test_a_place_that_cannot_be_written_is_named(run: Path, option: str, kind: str) -> None:
    result = call(run, option, run / results.TABLE / "x.md")
    assert result.exit_code == 2
    assert re.search(rf"error: `report` cannot write .*x\.md \(.*\); name another {kind} with {option}\n", result.stderr)


def drawn(rows: list[Row]) -> dict[str, tuple[bytes, str]]:
    """PDF and caption by name."""
    files = {figure.name: figure.draw() for figure in paper.planned(results.to_frame(rows))}
    return {name: (found[f"{name}.pdf"], found[f"{name}.tex"].decode()) for name, found in files.items()}


@pytest.mark.parametrize(("stages", "width"), [(("init", "final"), paper.PAGE), (("init",), paper.COLUMN)])
def test_figures_have_the_width_of_a_page_or_a_column_and_hold_their_fonts(stages: tuple[str, ...], width: float) -> None:
    rows = [row for row in examples.rows() if row.stage in stages]
    with mpl.rc_context({"font.size": 31}):
        found = drawn(rows)
        assert mpl.rcParams["font.size"] == 31
    assert list(found) == ["matrix", "plane-toy", "error-seconds-toy"]
    for pdf in (found["plane-toy"][0], found["error-seconds-toy"][0]):
        box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+)", pdf)
        assert box is not None
        assert float(box[1]) / 72 == pytest.approx(width, abs=0.01)
        assert b"/FontFile2" in pdf
        assert b"/Type3" not in pdf
    assert "toy (subset[k=3], 220 structures; loss quadratic; 3 instances, 4,096 replicates; seed 7)." in found["plane-toy"][1]
    assert next(paper.planned(results.to_frame(rows))).draw()["matrix.pdf"] == found["matrix"][0]
