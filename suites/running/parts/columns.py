"""Rows of cells as Arrow tables, and back: the columns and types that the parts of a run have."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
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
    import numpy as np
    import pyarrow as pa

    filled = [content for content in contents if content["rows"]]
    counts = [len(content["rows"]) for content in filled]
    differing: dict[str, set[int]] = defaultdict(set)
    for place, content in enumerate(filled):
        for name in set().union(*content["rows"]) - content["shared"].keys():
            differing[name].add(place)
    cell_of_row = pa.array(np.repeat(np.arange(len(filled)), counts))
    arrays = []
    for one in schema():
        if one.name in differing:
            arrays.append(_array(one, _of_rows(filled, one.name, differing[one.name])))
        else:
            arrays.append(_array(one, _of_cells(filled, one.name)).take(cell_of_row))
    return pa.table(arrays, schema=schema())


def _array(field: pa.Field, values: list[Any]) -> pa.Array:
    import pyarrow as pa

    if field.name in _NUMBERS:
        values = [float(value) if isinstance(value, str) else value for value in values]
    return pa.array(values, pa.string()).dictionary_encode() if pa.types.is_dictionary(field.type) else pa.array(values, field.type)


def _of_cells(contents: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """One column that the rows of each cell share: a value a cell."""
    default = _DEFAULTS.get(name, MISSING)
    if default is MISSING:
        return [content["shared"][name] for content in contents]
    return [content["shared"].get(name, default) for content in contents]


def _of_rows(contents: Sequence[Mapping[str, Any]], name: str, differing: Set[int]) -> list[Any]:
    """One column that rows of some cells have of their own: a value a row."""
    default = _DEFAULTS.get(name, MISSING)
    values: list[Any] = []
    for place, content in enumerate(contents):
        rows, shared = content["rows"], content["shared"]
        if place not in differing:
            values += [shared[name] if default is MISSING else shared.get(name, default)] * len(rows)
        elif default is MISSING:
            values += [row[name] for row in rows]
        else:
            values += [row.get(name, default) for row in rows]
    return values


def to_rows(table: pa.Table) -> Iterator[Row]:
    """The rows of a table."""
    columns = [table.column(name).to_pylist() for name in COLUMNS]
    place = list(COLUMNS).index("batches")
    columns[place] = [tuple(values or ()) for values in columns[place]]
    return map(Row, *columns)
