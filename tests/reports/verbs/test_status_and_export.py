import io
import json
import platform
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from structgrad.reports import results
from structgrad.reports.verbs import export
from structgrad.suites.base import COLUMNS, from_csv
from structgrad.suites.running import runner, store
from structgrad.suites.running.planning.plan import Plan
from tests.reports import examples
from tests.reports.calling import call, refused
from tests.suites.running_cases import HERE, SMALL, cells_of, forget

FAILING = "tests.suites.broken_estimators:Failing"


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four cells: two done, one failed, one left; its process is gone."""
    plan = Plan(**{**vars(SMALL), "estimators": ("ste", FAILING, "rloo", "reinforce"), "instances": 1})
    folder = tmp_path_factory.mktemp("killed")
    runner.run(plan, folder, machine=HERE)
    forget(folder, cells_of(folder)[-1].identity)
    manifest = {"status": "running", "started": "2026-01-01", "command": "structgrad run again"}
    results.write_manifest(folder, {**manifest, "process": {"id": 2**22 + 1, "host": platform.node()}})
    return folder


@pytest.fixture
def folder(killed: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(killed, tmp_path / "structgrad-results" / "abc")


def test_a_killed_run_says_how_far_it_came_and_how_to_go_on(folder: Path) -> None:
    assert call("status", folder).stdout.splitlines() == [
        f"{folder}: killed",
        "  2 done, 1 failed, 1 left; 0 pairs skipped",
        "  bias 2/4, 1 failed",
        f"  error: {FAILING} on categorical_regimes, init: RuntimeError: a mistake",
        "  continue with: structgrad run again",
    ]


def test_without_an_argument_all_runs_of_this_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parents[1])
    (found,) = json.loads(call("status", "--json").stdout)
    assert found["folder"] == "structgrad-results/abc"
    assert found["suites"] == {"bias": {"done": 2, "failed": 1, "left": 1}}
    assert (found["status"], found["done"], found["failed"], found["left"]) == ("killed", 2, 1, 1)
    (folder / results.MANIFEST).write_text("{damaged")
    assert json.loads(call("status", "--json").stdout)[0]["status"] == "killed"


# Export.


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    results.write(examples.rows(), tmp_path, examples.MANIFEST)
    return tmp_path


def test_every_row_is_exported(run_folder: Path) -> None:
    frame, _ = results.read(run_folder)
    assert len(pd.read_csv(io.StringIO(call("export", run_folder / results.TABLE, "-o", "-").stdout))) == len(frame)
    for kind in export.FORMATS:
        assert call("export", run_folder, "--to", kind).stdout == f"export: {run_folder / f'export.{kind}'}\n"
    csv, parquet = pd.read_csv(run_folder / "export.csv"), pd.read_parquet(run_folder / "export.parquet")
    lines = [json.loads(line) for line in (run_folder / "export.json").read_text().splitlines()]
    for table in (csv, parquet, pd.DataFrame(lines)):
        assert list(table.columns) == list(frame.columns)
        assert len(table) == len(frame)
        pd.testing.assert_series_equal(table["value"].astype(float), frame["value"].astype(float), check_exact=True)
    assert not any(isinstance(dtype, pd.CategoricalDtype) for dtype in parquet.dtypes)
    assert {line["status"] for line in lines} == set(frame["status"])


def test_csv_and_json_lines_come_back_through_pandas_in_all_columns(tmp_path: Path) -> None:
    odd = {"value": float("inf"), "low": None, "reason": 'NA, "x"\n2', "instance": "07", "estimator": "ste[a=1, b=2]", "traceback": "nan"}
    batched = [replace(row, batches=tuple(np.array([0.1, 1e-17, -3.0]))) for row in examples.rows()[:5]]
    results.write([*examples.rows(), *examples.swept_rows(), *batched, replace(examples.rows()[0], **odd)], tmp_path, examples.MANIFEST)
    frame, _ = results.read(tmp_path)
    for kind in ("csv", "jsonl"):
        call("export", tmp_path, "--to", kind)
    assert "np." not in (tmp_path / "export.csv").read_text()
    strict = json.loads((tmp_path / "export.jsonl").read_text().splitlines()[-1], parse_constant=pytest.fail)
    assert (strict["value"], strict["low"]) == ("inf", None)
    categories = {name: "string" for name, dtype in COLUMNS.items() if dtype == "category"}
    found = from_csv(tmp_path / "export.csv")
    assert found.dtypes.map(str).to_dict() == COLUMNS
    pd.testing.assert_frame_equal(found.astype(categories), frame.astype(categories), check_exact=True)
    lines = pd.read_json(tmp_path / "export.jsonl", lines=True, dtype=False).assign(batches=lambda table: table["batches"].map(tuple))
    pd.testing.assert_frame_equal(
        lines.replace("inf", np.inf).astype({**COLUMNS, **categories}), frame.astype(categories), check_exact=True
    )


def test_tables_in_latex_have_the_best_in_bold(run_folder: Path) -> None:
    assert call("export", run_folder, "--to", "latex").exit_code == 0
    text = (run_folder / "export.latex").read_text()
    assert text.count(r"\begin{tabular}") == text.count(r"\bottomrule") == text.count(r"\caption{Estimators on ") > 0
    assert r"$\rho$" in text
    assert r"$|$bias$|$ $<$" in text
    assert not set("<>|") & set(re.sub(r"\$[<>|]\$", "", text)), "other signs in OT1"
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert any(r"\textbf{" in row and "[" in row for row in rows)
    assert len({row.count(" & ") for row in text.split(r"\end{tabular}")[0].splitlines() if " & " in row}) == 1
    assert text.isascii()


@pytest.mark.parametrize("verb", [("report",), ("export", "--to", "parquet"), ("compare", "published")])
@pytest.mark.parametrize("name", [results.TABLE, results.MANIFEST, store.FILE])
def test_what_was_measured_is_not_written_over(folder: Path, verb: tuple[str, ...], name: str) -> None:
    file = folder / name
    before = file.read_bytes() if file.exists() else None
    kind = () if verb[0] == "export" else ("--format", "md")
    assert refused(*verb, folder, *kind, "--output", file) == (
        f"error: `{verb[0]}` got the file {file} to write, which is for what was measured; expected another one: name a new file\n"
    )
    assert (file.read_bytes() if file.exists() else None) == before
