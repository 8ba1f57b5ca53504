import json
import math
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from structgrad.reports import results
from structgrad.suites.base import SCHEMA_VERSION, Row
from tests.reports import examples


def test_table_and_manifest_come_back_as_they_were(tmp_path: Path) -> None:
    results.write(examples.rows(), tmp_path, examples.MANIFEST)
    frame, manifest = results.read(tmp_path)
    pd.testing.assert_frame_equal(frame, results.to_frame(examples.rows()))
    assert manifest == {"schema_version": SCHEMA_VERSION, **examples.MANIFEST}
    assert json.loads((tmp_path / results.MANIFEST).read_text()) == manifest


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


OTHER = "measure it again, or read it with the structgrad that wrote it"
TABLES: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "newer": (lambda table: versioned(table, "999"), "has the schema version 999, this structgrad reads 3; nothing was changed: upgrade"),
    "older": (lambda table: versioned(table, "1"), f"has the schema version 1, this structgrad reads 3; {OTHER}"),
    "no number": (lambda table: versioned(table, "three"), f"has the schema version three, this structgrad reads 3; {OTHER}"),
    "somebody else's": (lambda table: pa.table({"a": [1]}), "has no schema version, and is no table of structgrad; expected the results"),
    "without a column": (
        lambda table: table.drop_columns("metric"),
        "is not what its schema version 3 says (\"['metric'] not in index\");",
    ),
    "without batches": (lambda table: table.drop_columns("batches"), "is not what its schema version 3 says ('batches'); measure it again"),
    "of other types": (
        lambda table: table.set_column(table.schema.get_field_index("value"), "value", pa.array(["x"] * len(table))),
        "is not what its schema version 3 says (",
    ),
    "without a manifest": (
        lambda table: table.replace_schema_metadata({b"structgrad_schema_version": b"3"}),
        "is not what its schema version 3 says (b'structgrad_manifest'); measure it again",
    ),
}
"""What was done to a table, and what is said of it."""


def versioned(table: pa.Table, version: str) -> pa.Table:
    return table.replace_schema_metadata({**table.schema.metadata, b"structgrad_schema_version": version.encode()})


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_that_is_not_of_this_schema_gets_one_sentence(kind: str, tmp_path: Path) -> None:
    change, message = TABLES[kind]
    path = results.write(examples.rows(), tmp_path, examples.MANIFEST)
    pq.write_table(change(pq.read_table(path)), path)
    with pytest.raises(ValueError, match=re.escape(f"{path} {message}")) as caught:
        results.read(tmp_path)
    assert "\n" not in str(caught.value)


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


def test_threads_may_write_the_same_file(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: results.write_whole(tmp_path / "file", b"%d" % number), range(120)))
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_plan_hash_is_blind_to_what_changes_no_number() -> None:
    plan = {"seed": 0, "batch_size": 1}
    assert results.plan_hash(plan) == results.plan_hash({**plan, "batch_size": 2})
    assert results.plan_hash(plan) != results.plan_hash({**plan, "seed": 1})
    assert len(results.plan_hash(plan)) == 8


def test_commit_is_that_of_the_checkout_of_the_package_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "__file__", str(tmp_path / "results.py"))
    assert results.environment()["commit"] is None
    assert results.environment()["dirty"] is None
