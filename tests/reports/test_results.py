from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from structgrad.reports import results
from structgrad.suites.base import SCHEMA_VERSION, Row
from structgrad.suites.running import runner
from tests.reports import examples
from tests.suites.running_cases import HERE, SMALL


def test_table_and_manifest_come_back_as_they_were(tmp_path: Path) -> None:
    results.write(examples.rows(), tmp_path, examples.MANIFEST)
    frame, manifest = results.read(tmp_path)
    pd.testing.assert_frame_equal(frame, results.to_frame(examples.rows()))
    assert manifest == {"schema_version": SCHEMA_VERSION, **examples.MANIFEST}
    assert json.loads((tmp_path / results.MANIFEST).read_text()) == manifest


def test_table_is_read_by_the_name_of_its_file_too(tmp_path: Path) -> None:
    path = results.write(examples.rows(), tmp_path, examples.MANIFEST)
    assert len(results.read(path)[0]) == len(examples.rows())


def test_columns_are_those_of_a_row_with_fixed_types() -> None:
    frame = results.to_frame([])
    assert list(frame.columns) == list(Row.__dataclass_fields__)
    full = results.to_frame(examples.rows())
    assert [str(dtype) for dtype in full.dtypes] == [str(dtype) for dtype in frame.dtypes]
    assert str(full["value"].dtype) == "Float64"
    assert str(full["replicates"].dtype) == "Int64"
    assert str(full["estimator"].dtype) == "category"


def test_a_missing_value_is_missing_and_infinity_stays() -> None:
    shared = examples.shared("reinforce", "init")
    rows = [Row(cell="a", suite="bias", **shared, value=None), Row(cell="b", suite="bias", **shared, value=math.inf)]
    assert results.to_frame(rows)["value"].isna().tolist() == [True, False]


def test_the_batches_behind_a_number_come_back(tmp_path: Path) -> None:
    rows = [Row(cell=cell, suite="bias", **examples.shared("reinforce", "init"), batches=batches) for cell, batches in BATCHES]
    results.write(rows, tmp_path, {})
    assert results.read(tmp_path)[0]["batches"].tolist() == [batches for _, batches in BATCHES]
    assert pq.read_schema(tmp_path / results.TABLE).field("batches").type == pa.list_(pa.float64())


BATCHES = (("a", (1.5, -0.25)), ("b", ()))


def test_schema_version_is_in_the_metadata(tmp_path: Path) -> None:
    path = results.write(examples.rows(), tmp_path, examples.MANIFEST)
    assert pq.read_schema(path).metadata[b"structgrad_schema_version"] == str(SCHEMA_VERSION).encode()


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    path = results.write(examples.rows(), tmp_path, examples.MANIFEST)
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"structgrad_schema_version": b"999"}), path)
    with pytest.raises(
        ValueError, match=r"results.parquet has the schema version 999, this structgrad reads 3; nothing was changed: upgrade structgrad"
    ):
        results.read(tmp_path)


def test_another_parquet_table_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / results.TABLE)
    with pytest.raises(ValueError, match=r"schema version of no structgrad table; expected 3"):
        results.read(tmp_path)


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / results.TABLE).write_text("no table")
    with pytest.raises(ValueError, match=r"results\.parquet is no Parquet file, or damaged; expected the results\.parquet of a run"):
        results.read(tmp_path)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"`read` found no table .*results\.parquet; expected the folder of a finished run"):
        results.read(tmp_path)


def test_a_killed_run_is_read_from_its_cells(tmp_path: Path) -> None:
    runner.run(SMALL, tmp_path, machine=HERE)
    results.write_manifest(tmp_path, examples.MANIFEST)
    frame, manifest = results.read(tmp_path)
    pd.testing.assert_frame_equal(frame, results.to_frame(runner.collect(tmp_path)))
    assert len(frame) > 20
    assert manifest == {"schema_version": SCHEMA_VERSION, **examples.MANIFEST}
    next((tmp_path / "cells").glob("*/*.json")).unlink()
    assert 0 < len(results.read(tmp_path)[0]) < len(frame)


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_failing_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    path = tmp_path / "file"
    results.write_whole(path, b"old")

    def fail(*arguments: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(results.os, broken, fail)
    with pytest.raises(OSError, match="disk full"):
        results.write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_plan_hash_is_blind_to_what_changes_no_number() -> None:
    plan = {"seed": 0, "batch_size": 1}
    assert results.plan_hash(plan) == results.plan_hash({**plan, "batch_size": 2})
    assert results.plan_hash(plan) != results.plan_hash({**plan, "seed": 1})
    assert len(results.plan_hash(plan)) == 8


def test_environment_names_versions_and_machine() -> None:
    found = results.environment()
    assert set(found["packages"]) == {"structgrad", "torch", "numpy", "scipy", "pandas"}
    assert found["threads"] >= 1
    assert found["cpu"]
    json.dumps(found)


def test_commit_is_that_of_the_checkout_of_the_package_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "__file__", str(tmp_path / "results.py"))
    assert results.environment()["commit"] is None
    assert results.environment()["dirty"] is None
