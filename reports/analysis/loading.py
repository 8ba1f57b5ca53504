"""From a path, the name of a baseline or that of the published table to rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ...suites.base import Row
from ...suites.comparison.columns import COLUMNS as COMPARED
from ...suites.running.remote.objects import is_url
from ...suites.running.remote.snapshot import reading
from .. import published, results
from . import baselines

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


@dataclass(frozen=True, eq=False)
class Loaded:
    """A run, a baseline or the published table.

    Attributes:
        name: as it was given. ``frame``: its table. ``manifest``: what it was.
    """

    name: str
    frame: pd.DataFrame
    manifest: results.Manifest

    @cached_property
    def rows(self) -> list[Row]:
        """All of it."""
        return rows_of(self.frame)

    @property
    def machine(self) -> dict[str, Any]:
        """Where it was measured."""
        found: dict[str, Any] = self.manifest.get("environment", {})
        return found

    @property
    def is_published(self) -> bool:
        """Whether it is the published table."""
        return self.manifest.get("kind") == published.NAME


def load(name: str, folder: Path = baselines.FOLDER) -> Loaded:
    """The rows of the folder of a run, of a table, also under a URL, or of a baseline of this name; ``published`` is that of the package.

    Raises:
        FileNotFoundError: there is neither.
        OtherSchemaError: a table of another schema version.
        ValueError: a file that is no table of structgrad.
    """
    if is_url(name):
        with reading(name) as fetched:
            return Loaded(name, *results.read(fetched))
    path: Path | None = Path(name)
    if not Path(name).exists():
        known = baselines.names(folder)
        if name not in (*known, published.NAME):
            from ...oracles.registry import hint

            more = f"; {hint(name, [*known, published.NAME])}" if known else f", and {folder} holds no baseline"
            raise FileNotFoundError(f"found neither a run nor a baseline {name!r}{more}")
        path = baselines.path_of(name, folder) if name in known else None
    frame, manifest = published.load() if path is None else results.read(path)
    return Loaded(name, frame, manifest)


LARGE = 500_000
"""Rows of a table from which on two runs are compared block by block."""


@dataclass(frozen=True, eq=False)
class Opened:
    """A large run or a baseline beside one, of which nothing but the manifest is read.

    Attributes:
        name: as it was given. ``stored``: its table. ``manifest``: what it was.
    """

    name: str
    stored: StoredTable
    manifest: results.Manifest

    @property
    def machine(self) -> dict[str, Any]:
        """Where it was measured."""
        found: dict[str, Any] = self.manifest.get("environment", {})
        return found


def opened(names: Sequence[str], folder: Path = baselines.FOLDER) -> list[Opened] | None:
    """Runs and baselines, where one of them is large and all have a table of their own; else None, and `load` is the way."""
    with ExitStack() as stack:
        places = [name if is_url(name) or Path(name).exists() else folder / f"{name}.parquet" for name in names]
        paths = [stack.enter_context(reading(place)) for place in places]
        lengths = [results.length(path) for path in paths]
        if 0 in lengths or max(lengths) < LARGE:
            return None
        # A table that is open stays what it is, whatever takes its place.
        stored = [StoredTable.of(path) for path in paths]
        return [Opened(name, table, table.opened[1]) for name, table in zip(names, stored, strict=True)]


def blocks(base: Opened, head: Opened) -> list[ComparedBlock]:
    """What is compared of both, for some problems at a time, each read when it is called."""
    both = base.stored, head.stored
    return [ComparedBlock(both, block) for block in results.blocks([one.opened[0] for one in both])]


@dataclass(frozen=True, eq=False)
class StoredTable:
    """The file of a table, which another process opens for itself.

    Attributes:
        path: a table, or the folder of a run. ``stamp``: by which it is told from what takes its place.
    """

    path: Path
    stamp: tuple[int, ...]

    @classmethod
    def of(cls, path: Path) -> StoredTable:
        """What lies there now."""
        return cls(path, cls._stamp(path))

    @cached_property
    def opened(self) -> tuple[pq.ParquetFile, results.Manifest]:
        """`results.opened`.

        Raises:
            ValueError: something else lies there by now.
        """
        found = results.opened(self.path)
        if self._stamp(self.path) != self.stamp:
            raise ValueError(f"{self.path} was written anew while it was read; do it again")
        return found

    @staticmethod
    def _stamp(path: Path) -> tuple[int, ...]:
        found = (path / results.TABLE if path.is_dir() else path).stat()
        return found.st_ino, found.st_size, found.st_mtime_ns

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "stamp": self.stamp}


@dataclass(frozen=True)
class ComparedBlock:
    """Some rows of two large runs.

    Attributes:
        both: the tables of base and head. ``block``: which of their rows.
    """

    both: tuple[StoredTable, StoredTable]
    block: results.TableBlock

    def __call__(self) -> tuple[pa.Table, pa.Table]:
        """What is compared of them."""
        before, after = self.block.read([one.opened[0] for one in self.both], COMPARED)
        return before, after


def comparable(base: Loaded, head: Loaded) -> tuple[list[Row], list[Row]]:
    """What of two tables is compared: beside a baseline what it keeps; beside the published table what both hold, rounded as it is."""
    if base.is_published or head.is_published:
        old, new = (loaded.frame if loaded.is_published else published.reduced(loaded.frame) for loaded in (base, head))
        # Of the published table a run mostly holds some problems: the others never become rows.
        shared = set(old["problem"].cat.categories) & set(new["problem"].cat.categories)
        first, second = (rows_of(frame[frame["problem"].isin(shared)]) for frame in (old, new))
        known = {_place(row) for row in first} & {_place(row) for row in second}
        if not known:
            names = ", ".join(dict.fromkeys((old if base.is_published else new)["problem"].astype(object)))
            raise ValueError(f"{base.name} and {head.name} have no estimator on an instance in common; the published table holds {names}")
        return [row for row in first if _place(row) in known], [row for row in second if _place(row) in known]
    return base.rows, baselines.needed(head.rows) if "baseline" in base.manifest else head.rows


def _place(row: Row) -> tuple[str, ...]:
    return row.problem, row.stage, row.instance, row.estimator


def rows_of(frame: pd.DataFrame) -> list[Row]:
    """The rows of a table.

    Example:
        >>> from structgrad.suites import frames
        >>> row = Row("c", "bias", "toy", "init", "", "subset[k=3]", "mlp", "ste", "ste", metric="gain", value=1.0)
        >>> rows_of(frames.to_frame([row])) == [row]
        True
    """
    names = [field.name for field in dataclasses.fields(Row)]
    columns = [_values(frame[name]) for name in names]
    return [Row(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]


def _values(column: pd.Series[Any]) -> list[Any]:
    """As Python objects: None where there is nothing, a tuple where there are several."""
    if column.name == "batches":
        return [tuple(map(float, value)) if value is not None else () for value in column]
    objects = column.astype(object)
    return list(objects.where(column.notna(), None))
