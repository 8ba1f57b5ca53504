"""From a path or the name of a baseline to rows."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ...suites.base import Row
from .. import results
from . import baselines


@dataclass(frozen=True, eq=False)
class Loaded:
    """A run or a baseline.

    Attributes:
        name: as it was given. ``rows``: all of it. ``manifest``: what it was.
    """

    name: str
    rows: list[Row]
    manifest: results.Manifest

    @property
    def machine(self) -> dict[str, Any]:
        """Where it was measured."""
        found: dict[str, Any] = self.manifest.get("environment", {})
        return found


def load(name: str, folder: Path = baselines.FOLDER) -> Loaded:
    """The rows of the folder of a run, of a table, or of a baseline that has this name.

    Raises:
        FileNotFoundError: there is neither.
        OtherSchemaError: a table of another schema version.
        ValueError: a file that is no table of structgrad.
    """
    path = Path(name)
    if not path.exists():
        known = baselines.names(folder)
        if name not in known:
            from ...oracles.registry import hint

            more = f"; {hint(name, known)}" if known else f", and {folder} holds no baseline"
            raise FileNotFoundError(f"found neither a run nor a baseline {name!r}{more}")
        path = baselines.path_of(name, folder)
    frame, manifest = results.read(path)
    return Loaded(name, rows_of(frame), manifest)


def rows_of(frame: pd.DataFrame) -> list[Row]:
    """The rows of a table.

    Example:
        >>> row = Row("c", "bias", "toy", "init", "", "subset[k=3]", "mlp", "ste", "ste", metric="gain", value=1.0)
        >>> rows_of(results.to_frame([row])) == [row]
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
