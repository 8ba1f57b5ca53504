"""Tables by path, by the name of a baseline, or the published table.

A baseline is a named table that runs are compared with. It is one file with the rows that a gate needs, and the manifest of its run.
"""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ...suites.base import FAILED, Row
from ...suites.comparison.pairs import is_compared
from ...suites.metrics import rule_of
from ...suites.running.remote import is_url, reading
from .. import published, results

FOLDER = Path("baselines")  # default folder of baselines

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, eq=False)
class Loaded:
    """A run, a baseline or the published table, by the given name: its table, and the manifest of its run."""

    name: str
    frame: pd.DataFrame
    manifest: results.Manifest

    @property
    def machine(self) -> dict[str, Any]:
        """The environment of its run."""
        return dict(self.manifest.get("environment", {}))

    @property
    def is_published(self) -> bool:
        """True for the published table."""
        return self.manifest.get("kind") == published.NAME


def load(name: str, folder: Path = FOLDER, columns: Sequence[str] | None = None) -> Loaded:
    """The table of a run folder, a file, a URL, or a baseline. The name ``published`` is that of the table of the package.

    Columns and errors are those of `results.read`.
    """
    if is_url(name):
        with reading(name) as fetched:
            return Loaded(name, *results.read(fetched, columns))
    path: Path | None = Path(name)
    if not Path(name).exists():
        known = baselines_in(folder)
        if name not in (*known, published.NAME):
            from ...oracles.registry import hint

            more = f"; {hint(name, [*known, published.NAME])}" if known else f", and {folder} holds no baseline"
            raise FileNotFoundError(f"found neither a run nor a baseline {name!r}{more}")
        path = path_of(name, folder) if name in known else None
    frame, manifest = published.load() if path is None else results.read(path, columns)
    return Loaded(name, frame, manifest)


def comparable(base: Loaded, head: Loaded) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of two tables that are compared: those that a baseline keeps, or the cells that the published table has too, rounded."""
    if not (base.is_published or head.is_published):
        return base.frame, gated_rows(head.frame) if "baseline" in base.manifest else head.frame
    frames = [loaded.frame if loaded.is_published else published.reduced(loaded.frame) for loaded in (base, head)]
    cells = [pd.MultiIndex.from_frame(frame[["problem", "stage", "instance", "estimator"]].astype(str)) for frame in frames]
    old, new = (frame[own.isin(other)] for frame, own, other in zip(frames, cells, cells[::-1], strict=True))
    if old.empty:
        names = ", ".join(dict.fromkeys(frames[0 if base.is_published else 1]["problem"].astype(str)))
        raise ValueError(f"{base.name} and {head.name} have no estimator on an instance in common; the published table holds {names}")
    return old, new


def rows_of(frame: pd.DataFrame) -> list[Row]:
    """The rows of a table."""
    columns = {field.name: frame[field.name] for field in dataclasses.fields(Row)}
    values: dict[str, Any] = {name: column.astype(object).where(column.notna(), None) for name, column in columns.items()}
    values["batches"] = [tuple(map(float, batches)) if batches is not None else () for batches in frame["batches"]]
    return [Row(**dict(zip(values, row, strict=True))) for row in zip(*values.values(), strict=True)]


def path_of(name: str, folder: Path) -> Path:
    """The file of a baseline, whose name is a plain word, so that nothing is written or removed elsewhere."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"`baseline` got the name {name!r}; expected letters, digits, dots, dashes and underscores")
    return folder / f"{name}.parquet"


def baselines_in(folder: Path) -> list[str]:
    """The names of all baselines of a folder."""
    return sorted(path.stem for path in folder.glob("*.parquet")) if folder.is_dir() else []


def gated_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that a gate needs: gated metrics and failures."""
    gated = frame["metric"].isin([name for name in frame["metric"].unique() if rule_of(name).gated])
    return frame[(is_compared(frame) & gated) | (frame["status"].isin(FAILED) & frame["metric"].eq(""))]
