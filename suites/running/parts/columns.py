"""Rows of cells as Arrow tables, and back: the columns and types that the parts of a run have."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from ...base import Row
from ...frames import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

_NUMBERS = ("value", "low", "high")
"""Where JSON writes an infinity as a text."""

_DEFAULTS: dict[str, Any] = {one.name: one.default for one in fields(Row) if one.default is not MISSING}


@functools.cache
def schema() -> pa.Schema:
    """Of a part; a name with few values is a dictionary."""
    import pyarrow as pa

    kinds = {
        "category": pa.dictionary(pa.int32(), pa.string()),
        "string": pa.string(),
        "Float64": pa.float64(),
        "float64": pa.float64(),
        "Int16": pa.int16(),
        "int16": pa.int16(),
        "Int64": pa.int64(),
        "int64": pa.int64(),
        "bool": pa.bool_(),
        "object": pa.list_(pa.float64()),
    }
    return pa.schema([pa.field(name, kinds[kind]) for name, kind in COLUMNS.items()])


def to_table(contents: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The rows of the files of cells one after the other, as JSON has them: what all rows of a cell share stands once.

    Raises:
        KeyError, TypeError, ValueError: contents that are no rows.
    """
    import pyarrow as pa

    own = [set().union(*content["rows"]) for content in contents]
    arrays = []
    for one in schema():
        values: list[Any] = []
        for content, differing in zip(contents, own, strict=True):
            values += _column(content, one.name, differing)
        if one.name in _NUMBERS:
            values = [float(value) if isinstance(value, str) else value for value in values]
        if pa.types.is_dictionary(one.type):
            arrays.append(pa.array(values, pa.string()).dictionary_encode())
        else:
            arrays.append(pa.array(values, one.type))
    return pa.table(arrays, schema=schema())


def _column(content: Mapping[str, Any], name: str, differing: set[str]) -> list[Any]:
    """One column of the rows of a cell."""
    rows, shared, default = content["rows"], content["shared"], _DEFAULTS.get(name, MISSING)
    if name in shared:
        return [shared[name]] * len(rows)
    if default is MISSING:
        return [row[name] for row in rows]
    return [row.get(name, default) for row in rows] if name in differing else [default] * len(rows)


def to_rows(table: pa.Table) -> Iterator[Row]:
    """The rows of a table."""
    columns = [table.column(name).to_pylist() for name in COLUMNS]
    place = list(COLUMNS).index("batches")
    columns[place] = [tuple(values or ()) for values in columns[place]]
    return map(Row, *columns)
