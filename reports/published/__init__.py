"""The published table: the numbers of a standard run that a recommendation needs, in float32, so that it ships with the package."""

import io
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ...suites import base
from ...suites.base import SCHEMA_VERSION, Row
from ...suites.running.store import OtherSchemaError
from .. import results

NAME = "published"  # name of the table in commands such as `compare`

FOLDER = Path(__file__).resolve().parent
TABLE, ABOUT, PREDICTORS = "standard.parquet", "standard.json", "predictors.json"

LARGEST = 3_000_000  # bytes that the table may have
REFERENCE_FAMILIES = ("exact",)  # families that compute the truth itself; they take part in every table, but not in the answers

METRICS = (
    *("relative_bias", "relative_bias_squared", "relative_variance", "gain"),
    *("zero_gradient_rate", "seconds_per_estimate", "time_ratio", "loss_evaluations"),
)
"""The metrics that a recommendation needs."""

LEFT_OUT = (
    *("cell", "vertex_degree", "offset", "entropy", "truth_method", "truth_error", "setting", "size", "batches", "sampling", "p_value"),
    *("p_adjusted", "status", "reason", "error_type", "traceback", "seconds", "schema_version"),
)
"""The columns of a result table that are not kept; they get the defaults of `Row`."""

COLUMNS = tuple(name for name in base.COLUMNS if name not in LEFT_OUT)

_ROUNDED = ("normalised_entropy", "truth_norm", "value", "low", "high")
_ENVIRONMENT = ("python", "packages", "commit", "dirty", "cpu", "cores", "os", "threads", "device", "device_name")


def reduced(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of a run that the published table keeps: `METRICS` against the expected loss, rounded to float32.

    A run is reduced before it is compared with the table, so that both sides are rounded.
    """
    kept = frame["metric"].isin(METRICS) & (frame["status"] == "ok") & frame["value"].notna() & (frame["setting"] == "")
    kept &= frame["reference"].isin(["", "expected"]) & ~frame["family"].isin(REFERENCE_FAMILIES)
    rows = frame[kept]
    # A share of zeros is counted by two suites; that of the replicates behind bias and variance is the one that belongs to them.
    rows = rows.assign(later=rows["suite"] != "bias").sort_values("later", kind="stable")
    rows = rows.drop_duplicates(["problem", "stage", "estimator", "instance", "metric"]).sort_index()
    numbers = {name: rows[name].astype("Float32").astype("Float64") for name in _ROUNDED}
    return _with_all_columns(rows[list(COLUMNS)].assign(**numbers))


def _with_all_columns(rows: pd.DataFrame) -> pd.DataFrame:
    blank, again = base.to_frame([Row("", "", "", "", "", "", "", "", "")]), [0] * len(rows)
    frame = rows.reset_index(drop=True).assign(**{name: blank[name].array.take(again) for name in LEFT_OUT})
    return frame[list(base.COLUMNS)].astype(base.COLUMNS)


def write(*runs: Path, folder: Path = FOLDER) -> Path:
    """Make the published table of finished runs, no two of one problem, into a folder; return its path."""
    read = []
    for run in runs:
        frame, manifest = results.read(run)
        if manifest.get("status", "finished") != "finished":
            raise ValueError(f"{run} is a run that is {manifest['status']}; expected a finished one, resume it first")
        rows = reduced(frame)
        missing = [name for name in METRICS if not (rows["metric"] == name).any()]
        if missing:
            raise ValueError(f"{run} holds no {', '.join(missing)}; expected a run of the suites bias and wall_clock")
        read.append((rows, manifest))
    problems = [problem for part, _ in read for problem in part["problem"].unique()]
    several = {problem for problem in problems if problems.count(problem) > 1}
    if several:
        raise ValueError(f"two of the runs hold {', '.join(sorted(several))}; expected every problem in one of them")
    rows = pd.concat([part.astype({name: object for name in part if part[name].dtype == "category"}) for part, _ in read])
    rows = rows.reset_index(drop=True).astype(base.COLUMNS)
    content = _parquet(rows)
    if len(content) > LARGEST:
        raise ValueError(f"the published table has {len(content)} bytes; expected at most {LARGEST}, of fewer problems or instances")
    results.write_whole(folder / TABLE, content)
    about = _about([manifest for _, manifest in read], rows)
    results.write_whole(folder / ABOUT, (json.dumps(about, indent=2, ensure_ascii=False) + "\n").encode())
    return folder / TABLE


def _parquet(rows: pd.DataFrame) -> bytes:
    # Rows of one metric lie together: their columns repeat themselves, and their numbers have the same leading bytes.
    ordered = rows[list(COLUMNS)].sort_values("metric", kind="stable", key=lambda names: names.astype(object).map(METRICS.index))
    narrow = ordered.astype(dict.fromkeys(_ROUNDED, "Float32")).astype({"instance": "category", "replicates": "Int32", "seed": "int32"})
    unused = {name: narrow[name].cat.remove_unused_categories() for name in COLUMNS if narrow[name].dtype == "category"}
    table = pa.Table.from_pandas(narrow.assign(**unused), preserve_index=False)
    texts = [name for name in COLUMNS if name not in _ROUNDED]
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", compression_level=19, use_dictionary=texts, use_byte_stream_split=list(_ROUNDED))
    return buffer.getvalue()


def _about(manifests: Sequence[Mapping[str, Any]], rows: pd.DataFrame) -> dict[str, Any]:
    """The part of the manifests that readers need, without folders. Seed and environment are those of the first run."""
    first, environments = manifests[0], [manifest.get("environment", {}) for manifest in manifests]
    times = {name: [str(manifest[name]) for manifest in manifests if manifest.get(name)] for name in ("started", "finished")}
    return {
        "kind": NAME,
        "schema_version": SCHEMA_VERSION,
        "command": " && ".join(command_of(str(manifest.get("command", ""))) for manifest in manifests),
        "seed": first.get("seed"),
        "started": min(times["started"], default=None),
        "finished": max(times["finished"], default=None),
        "rows": len(rows),
        "problems": [str(name) for name in rows["problem"].astype(object).drop_duplicates()],
        "catalogue": {
            "values_only": first.get("catalogue", {}).get("values_only"),
            "sizes": {name: size for known in manifests for name, size in known.get("catalogue", {}).get("sizes", {}).items()},
        },
        "commits": list(dict.fromkeys(environment.get("commit") for environment in environments)),
        "environment": {name: environments[0].get(name) for name in _ENVIRONMENT},
    }


def command_of(line: str) -> str:
    """A command without the folder that it wrote to, and the program's own; of the folder of score files its name alone."""
    words = shlex.split(line)
    kept = [
        Path(word).name if before == "--data" else word
        for word, before in zip(words, ["", *words], strict=False)
        if not {word, before} & {"-o", "--out"}
    ]
    return shlex.join(["structgrad", *kept[1:]] if kept else [])


def load(folder: Path = FOLDER) -> tuple[pd.DataFrame, results.Manifest]:
    """The table, with all columns of a result table, and the manifest of its run."""
    about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    if about["schema_version"] != SCHEMA_VERSION:
        raise OtherSchemaError(folder / TABLE, str(about["schema_version"]))
    rows = pd.read_parquet(folder / TABLE)
    return _with_all_columns(rows.astype(dict.fromkeys(_ROUNDED, "Float64"))), about


def predictors(folder: Path = FOLDER) -> dict[str, Any]:
    """Correlations between metrics of gradients and the accuracy of trained models: figures of ``docs/results/learning.md``."""
    return dict(json.loads((folder / PREDICTORS).read_text(encoding="utf-8")))
