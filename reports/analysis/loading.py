"""Tables by path, by the name of a baseline, or the published table."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ...suites.base import Row
from ...suites.running.remote import is_url, reading
from .. import published, results
from . import baselines


@dataclass(frozen=True, eq=False)
class Loaded:
    """A run, a baseline or the published table.

    Attributes:
        name: the given name. ``frame``: its table. ``manifest``: that of its run.
    """

    name: str
    frame: pd.DataFrame
    manifest: results.Manifest

    @property
    def machine(self) -> dict[str, Any]:
        """The environment of its run."""
        found: dict[str, Any] = self.manifest.get("environment", {})
        return found

    @property
    def is_published(self) -> bool:
        """True for the published table."""
        return self.manifest.get("kind") == published.NAME


def load(name: str, folder: Path = baselines.FOLDER, columns: Sequence[str] | None = None) -> Loaded:
    """The table of a run folder, a file, a URL, or a baseline of this name; ``published`` is the table of the package.

    Args:
        name: path, URL, name of a baseline, or ``published``.
        folder: folder of the baselines.
        columns: some columns, as in `results.read`.

    Raises:
        FileNotFoundError: there is neither.
        OtherSchemaError: a table of another schema version.
        ValueError: a file that is no table of structgrad.
    """
    if is_url(name):
        with reading(name) as fetched:
            return Loaded(name, *results.read(fetched, columns))
    path: Path | None = Path(name)
    if not Path(name).exists():
        known = baselines.names(folder)
        if name not in (*known, published.NAME):
            from ...oracles.registry import hint

            more = f"; {hint(name, [*known, published.NAME])}" if known else f", and {folder} holds no baseline"
            raise FileNotFoundError(f"found neither a run nor a baseline {name!r}{more}")
        path = baselines.path_of(name, folder) if name in known else None
    frame, manifest = published.load() if path is None else results.read(path, columns)
    return Loaded(name, frame, manifest)


def comparable(base: Loaded, head: Loaded) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of two tables that are compared.

    A baseline is compared with the rows that a baseline keeps. The published table is compared with the cells that both hold,
    equally rounded.
    """
    if not (base.is_published or head.is_published):
        return base.frame, baselines.needed(head.frame) if "baseline" in base.manifest else head.frame
    frames = [loaded.frame if loaded.is_published else published.reduced(loaded.frame) for loaded in (base, head)]
    cells = [pd.MultiIndex.from_frame(frame[["problem", "stage", "instance", "estimator"]].astype(str)) for frame in frames]
    old, new = (frame[own.isin(other)] for frame, own, other in zip(frames, cells, cells[::-1], strict=True))
    if old.empty:
        names = ", ".join(dict.fromkeys(frames[0 if base.is_published else 1]["problem"].astype(str)))
        raise ValueError(f"{base.name} and {head.name} have no estimator on an instance in common; the published table holds {names}")
    return old, new


def rows_of(frame: pd.DataFrame) -> list[Row]:
    """The rows of a table.

    Example:
        >>> from structgrad.suites import base
        >>> row = Row("c", "bias", "toy", "init", "", "subset[k=3]", "mlp", "ste", "ste", metric="gain", value=1.0)
        >>> rows_of(base.to_frame([row])) == [row]
        True
    """
    columns = {field.name: frame[field.name] for field in dataclasses.fields(Row)}
    values: dict[str, Any] = {name: column.astype(object).where(column.notna(), None) for name, column in columns.items()}
    values["batches"] = [tuple(map(float, batches)) if batches is not None else () for batches in frame["batches"]]
    return [Row(**dict(zip(values, row, strict=True))) for row in zip(*values.values(), strict=True)]
