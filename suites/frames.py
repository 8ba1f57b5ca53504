"""Rows as a data frame: the columns of the result table and their types."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .base import Row

if TYPE_CHECKING:
    import pandas as pd

TYPES: dict[str, str] = {
    "Label": "category",
    "Status": "category",
    "str": "string",
    "bool": "bool",
    "Small": "int16",
    "Small | None": "Int16",
    "Large": "int64",
    "Large | None": "Int64",
    "float": "float64",
    "float | None": "Float64",
    "tuple[float, ...]": "object",
}
"""The pandas type of each annotation in `Row`."""

COLUMNS: dict[str, str] = {field.name: TYPES[str(field.type)] for field in dataclasses.fields(Row)}
"""The columns of the table in their order, with their pandas types."""


def to_frame(rows: Iterable[Row]) -> pd.DataFrame:
    """The rows as a table with the columns and types of `COLUMNS`; missing values are NA, never NaN."""
    return table(tuple(COLUMNS), map(vars, rows))


def table(columns: Sequence[str], records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Some columns of the result table, with its types, from records that may lack any of them."""
    import pandas as pd

    listed = list(records)
    defaults = {field.name: None if field.default is dataclasses.MISSING else field.default for field in dataclasses.fields(Row)}
    made: dict[str, Any] = {}
    for name in columns:
        values = [record.get(name, defaults[name]) for record in listed]
        if COLUMNS[name] == "category":  # faster than the conversion of a column of text
            names = sorted({value for value in values if value is not None})
            codes = {None: -1, **{value: code for code, value in enumerate(names)}}
            made[name] = pd.Categorical.from_codes([codes[value] for value in values], pd.Index(names, dtype="str"))
        else:
            made[name] = pd.Series(values, dtype=COLUMNS[name])
    return pd.DataFrame(made)
