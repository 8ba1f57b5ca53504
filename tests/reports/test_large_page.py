"""The page of a large run, made of a small one."""

from __future__ import annotations

import base64
import os
import re
import signal
import subprocess
import sys
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import pytest
from click.testing import Result
from typer.testing import CliRunner

from structgrad.reports import page, results
from structgrad.reports.analysis import answers, loading, tables
from structgrad.reports.cli import app
from structgrad.reports.page import large
from structgrad.reports.page.content import Report
from structgrad.reports.page.large import fitting, folder
from structgrad.suites import processors
from structgrad.suites.base import Row
from tests.reports import examples


def elsewhere(rows: list[Row], scores: str) -> list[Row]:
    """The same measured on other scores."""
    return [replace(row, problem=row.problem.replace("toy", scores), cell=row.cell and scores + row.cell) for row in rows]


def rows() -> list[Row]:
    made = examples.rows()
    return [*made, *elsewhere(made, "<b>../odd name")]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(loading, "LARGE", 1)
    results.write(rows(), tmp_path / "run", examples.MANIFEST)
    return tmp_path / "run"


def call(*words: object) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, words)])


def ordered(table: pd.DataFrame) -> pd.DataFrame:
    keys = ["problem", "stage", "estimator", "metric"]
    return table.astype(dict.fromkeys([*keys, "family"], object)).sort_values(keys).reset_index(drop=True)


def test_what_is_said_is_what_the_page_of_a_small_run_says(run: Path) -> None:
    frame, manifest = results.read(run)
    small, found = page.report(frame, manifest), large.gather(run)
    said = found.report()
    for name in ("headline", "counts", "claims", "price", "minute", "setup", "environment", "command", "quick"):
        assert getattr(said, name) == getattr(small, name), name
    for name in ("contradictions", "failures"):
        assert sorted(map(str, getattr(said, name))) == sorted(map(str, getattr(small, name))), name
    assert said.skipped.rows == small.skipped.rows
    assert [str(entry) for entry in said.references] == [str(entry) for entry in small.references]
    assert sorted(map(str, found.answers)) == sorted(map(str, answers.answers(tables.by_loss(frame), None)))
    medians = pd.concat([part.to_pandas() for part in found.medians])
    pd.testing.assert_frame_equal(ordered(medians), ordered(tables.aggregate(tables.by_loss(frame))))


def test_processes_side_by_side_find_what_one_finds(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = large.gather(run)
    monkeypatch.setattr(results, "BLOCK", 1)
    monkeypatch.setattr(processors, "processors", lambda: 2)
    both = large.gather(run, folder.file_of, Written(run))
    assert (both.answers, both.counts, both.estimators, both.instances) == (alone.answers, alone.counts, alone.estimators, alone.instances)
    assert [line.name for line in both.structures] == [line.name for line in alone.structures]
    assert [part.to_pylist() for part in both.medians] == [part.to_pylist() for part in alone.medians]
    assert {path.name for path in run.glob("*.html")} == {line.file for line in both.structures}


@dataclass(frozen=True)
class Written:
    """Leaves a file for each structure."""

    folder: Path

    def __call__(self, name: str, frame: pd.DataFrame, said: Report) -> None:
        (self.folder / folder.file_of(name)).write_text(said.headline)


def test_a_process_that_is_killed_is_a_sentence(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "BLOCK", 1)
    monkeypatch.setattr(processors, "processors", lambda: 2)
    with pytest.raises(ValueError, match=r"a process that read .* was killed, as where memory runs out"):
        large.gather(run, str, killed)


def killed(name: str, frame: pd.DataFrame, said: Report) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_page_links_a_page_for_each_structure(run: Path) -> None:
    (run / "report-structures").mkdir()
    for name in ("medians.parquet", "stale.html"):
        (run / "report-structures" / name).touch()
    result = call(run)
    beside = run / "report-structures"
    assert result.stdout == f"report: {run / 'report.html'}, with a page for each structure in {beside}\n"
    text = (run / "report.html").read_text()
    bodies = [zlib.decompress(base64.b64decode(packed)).decode() for packed in re.findall(r'data-packed="([^"]*)"', text)]
    links = set(re.findall(r'href="(report-structures/[^"]*)"', "".join([text, *bodies])))
    assert links == {f"report-structures/{path.name}" for path in beside.iterdir()}
    assert len(links) == 3
    assert "<b>../odd" not in text
    assert all("<b>../odd" not in path.read_text() for path in beside.glob("*.html"))
    assert not [path for path in run.iterdir() if path.name.endswith((".tmp", ".old"))]


def test_other_formats_hold_all_structures(run: Path) -> None:
    assert (
        call(run, "--format", "parquet").exit_code == call(run, "--format", "csv").exit_code == call(run, "--format", "md").exit_code == 0
    )
    expected = tables.aggregate(results.read(run)[0])
    assert len(pd.read_parquet(run / "report.parquet")) == len(pd.read_csv(run / "report.csv")) == len(expected)
    assert "contradicts" in (run / "report.md").read_text() or "Contradicted claim" in (run / "report.md").read_text()


def test_a_page_with_a_folder_is_no_stream(run: Path) -> None:
    result = call(run, "--output", "-")
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: `report` got --output - for {len(rows())} rows, whose page needs a folder next to it; name a local file with --output\n"
    )


def test_a_folder_of_somebody_else_is_not_replaced(run: Path) -> None:
    (run / "report-structures").mkdir()
    (run / "report-structures" / "notes.txt").write_text("mine")
    result = call(run)
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: `report` writes pages into {run / 'report-structures'}, which holds something else; "
        "move it, or name another file with --output\n"
    )
    assert (run / "report-structures" / "notes.txt").read_text() == "mine"


def test_a_report_that_fails_leaves_what_there_was(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(run).exit_code == 0
    (run / "report-structures" / "earlier.html").touch()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    monkeypatch.setattr(folder, "page", lambda *_: (_ for _ in ()).throw(ValueError("broken")))
    assert call(run).exit_code == 2
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_run_that_trains_keeps_its_ordinary_page(run: Path) -> None:
    training = replace(examples.rows()[0], problem="task:mine@rloo")
    results.write([*examples.rows(), training], run, examples.MANIFEST)
    assert call(run, "--format", "csv").exit_code == 0
    from structgrad.reports.page.large import blocks

    assert blocks.trains(results.opened(run)[0])


def test_file_names_are_plain_and_differ() -> None:
    assert folder.file_of("../a b") != folder.file_of("..-a-b")
    assert re.fullmatch(r"[\w-]+\.html", folder.file_of("../../\x00\n"))


def test_a_page_that_would_be_too_large_is_cut_and_says_so(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = [row for number in range(12) for row in elsewhere(examples.rows(), f"{number}-{os.urandom(1000).hex()}-toy")]
    results.write(named, run, {**examples.MANIFEST, "command": "structgrad run " + "x" * 10_000})
    found = large.gather(run, folder.file_of)
    whole = folder.page(found, "beside")
    monkeypatch.setattr(fitting, "LARGEST", 90_000)
    text = folder.page(found, "beside")
    assert len(whole) > 120_000
    assert len(text.encode()) <= 90_000
    assert "this page would have more than" in text
    assert "The folder beside has a page with all answers for each structure" in text
    assert "this page would have more than" not in whole


KILLED = """
import os, signal, sys
from pathlib import Path
from structgrad.reports.page.large import folder

def rename(old, new, replace=os.replace):
    if str(old).endswith(".tmp") and Path(old).is_dir():
        os.kill(os.getpid(), signal.SIGKILL)
    replace(old, new)

os.replace = rename
folder.gather, folder.medians, folder.page = (lambda *_: None), (lambda _: b"none"), (lambda *_: "none")
folder.write(Path(sys.argv[1]), "there", Path(sys.argv[1]) / "report.html")
"""


def test_a_report_killed_while_it_replaces_the_folder_is_put_right_by_the_next(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(run).exit_code == 0
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert subprocess.run([sys.executable, "-c", KILLED, str(run)], check=False).returncode == -signal.SIGKILL
    assert not (run / "report-structures").exists()
    with monkeypatch.context() as patched:
        patched.setattr(folder, "page", lambda *_: (_ for _ in ()).throw(ValueError("broken")))
        assert call(run).exit_code == 2
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert call(run).exit_code == 0
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
