"""Baselines: named tables that runs are held against, each one file.

A baseline holds the rows that a gate needs, and the manifest of its run: version of the code, seed, machine, command. You save it by a
command; no run saves one.
"""

from __future__ import annotations

import os
import re
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from ...suites.base import COLUMNS, FAILED
from ...suites.comparison.pairs import is_compared
from ...suites.metrics import rule_of
from .. import results

FOLDER = Path("baselines")
"""Default folder of baselines."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def path_of(name: str, folder: Path) -> Path:
    """The file of a baseline.

    Raises:
        ValueError: a name that is no plain word, so that nothing is written or removed elsewhere.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"`baseline` got the name {name!r}; expected letters, digits, dots, dashes and underscores")
    return folder / f"{name}.parquet"


def names(folder: Path) -> list[str]:
    """The names of all baselines of a folder."""
    return sorted(path.stem for path in folder.glob("*.parquet")) if folder.is_dir() else []


def needed(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that a gate needs: gated metrics and failures."""
    gated = frame["metric"].isin([name for name in frame["metric"].unique() if rule_of(name).gated])
    return frame[(is_compared(frame) & gated) | (frame["status"].isin(FAILED) & frame["metric"].eq(""))]


def save(path: Path, frame: pd.DataFrame, manifest: results.Manifest, **about: Any) -> int:
    """Write a baseline, as a whole or not at all.

    Args:
        path: the file.
        frame: the table of a run.
        manifest: of that run.
        **about: also stored: the name, and why it was saved although the gate fails.

    Returns:
        The number of its rows.
    """
    kept = needed(frame).assign(traceback="", seconds=np.nan, source="").astype(COLUMNS).reset_index(drop=True)
    kept = kept.assign(**{str(name): kept[name].cat.remove_unused_categories() for name in kept.select_dtypes("category")})
    note = {"saved": datetime.now(UTC).isoformat(timespec="seconds"), "rows": len(kept), **about}
    with tempfile.TemporaryDirectory() as folder:
        written = results.write(kept, Path(folder), {**manifest, "baseline": note})
        pq.write_table(pq.read_table(written), written, compression="zstd", use_dictionary=True)
        results.write_whole(path, written.read_bytes())
    return len(kept)


def describe(path: Path) -> dict[str, Any]:
    """The facts on a baseline: name, rows, size, code, seed, machine, reason."""
    _, manifest = results.read(path)
    environment, note = manifest.get("environment", {}), manifest.get("baseline", {})
    return {
        **{"name": note.get("name", path.stem), "file": str(path), "bytes": os.path.getsize(path)},
        **{name: note.get(name) for name in ("rows", "saved", "reason")},
        **{name: environment.get(name) for name in ("commit", "dirty", "packages")},
        **{"seed": manifest.get("seed"), "cpu": environment.get("cpu"), "command": manifest.get("command")},
    }
