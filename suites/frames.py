"""Rows as a data frame: the columns of the result table and their types."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from .base import Row

if TYPE_CHECKING:
    import pandas as pd

_TEXTS = ("cell", "instance", "reason", "traceback")
_NUMBERS = (
    "log_count",
    "entropy",
    "normalised_entropy",
    "truth_norm",
    "truth_error",
    "value",
    "low",
    "high",
    "size",
    "p_value",
    "p_adjusted",
    "seconds",
)
_DTYPES: dict[str, str] = {
    "batches": "object",
    **dict.fromkeys(_TEXTS, "string"),
    **dict.fromkeys(_NUMBERS, "Float64"),
    **dict.fromkeys(("estimator_version", "oracle_version", "suite_version", "schema_version"), "int16"),
    **dict.fromkeys(("unbiased", "deterministic"), "bool"),
    "vertex_degree": "Int16",
    "offset": "float64",
    "replicates": "Int64",
    "seed": "int64",
}
COLUMNS: dict[str, str] = {field.name: _DTYPES.get(field.name, "category") for field in dataclasses.fields(Row)}
"""The columns of the table in their order, with their pandas types; a name with few values is a category."""


def to_frame(rows: Iterable[Row]) -> pd.DataFrame:
    """The rows as a table with the columns and types of `COLUMNS`; what has no value is NA, never NaN."""
    import pandas as pd

    listed = list(rows)
    columns = {name: pd.Series([getattr(row, name) for row in listed], dtype=_storage(dtype)) for name, dtype in COLUMNS.items()}
    return pd.DataFrame(columns).astype(COLUMNS)


def from_csv(path: Path | str | IO[str]) -> pd.DataFrame:
    """The table that ``structgrad export --to csv`` wrote, with the columns and types of `COLUMNS`.

    Args:
        path: the file, or one that is open.

    Example:
        >>> import io
        >>> len(from_csv(io.StringIO(",".join(COLUMNS))))
        0
    """
    import pandas as pd

    texts = [name for name, dtype in COLUMNS.items() if dtype in ("category", "string", "object")]
    missing = {name: [""] for name in COLUMNS if name not in texts}
    types: dict[Any, Any] = dict.fromkeys(texts, "str")
    found = pd.read_csv(path, dtype=types, keep_default_na=False, na_values=missing)
    found["batches"] = [tuple(map(float, filter(None, values.split(";")))) for values in found["batches"]]
    return found.astype(COLUMNS)


def table(columns: Sequence[str], records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Some columns of the result table, with its types, from records that may lack any of them."""
    import pandas as pd

    listed = list(records)
    empty = {field.name: None if field.default is dataclasses.MISSING else field.default for field in dataclasses.fields(Row)}
    found = {name: pd.Series([record.get(name, empty[name]) for record in listed], dtype=_storage(COLUMNS[name])) for name in columns}
    return pd.DataFrame(found).astype({name: COLUMNS[name] for name in columns})


def _storage(dtype: str) -> Any:
    return "str" if dtype == "category" else dtype
