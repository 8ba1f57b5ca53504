"""Tables for people: cells with a text and a key to sort by."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from ...suites.text import significant, whole
from ..analysis import tables
from ..analysis.tables import Spread

LEVEL = "entropy level"
"""The title of the column of entropy levels."""


@dataclass(frozen=True)
class TableCell:
    """One entry of a table: its text, the key to sort by, a verdict that colours it, and lines in small print below it.

    ``best`` entries are in bold.
    """

    text: str
    key: float | str = ""
    verdict: str = ""
    alarm: bool = False
    notes: tuple[str, ...] = ()
    best: bool = False

    @property
    def order(self) -> str:
        """Sort key of the entry, empty if it is the text. Six digits are more than any interval has."""
        key = significant(self.key, 6) if isinstance(self.key, float) else str(self.key)
        return "" if key == self.text and not self.notes and not self.verdict else key


@dataclass(frozen=True)
class Table:
    """A table: column titles with explanations, and rows of cells.

    Attributes:
        name: unique id in the page.
        note: text above the table.
        filters: (title, first choice) of columns with a menu; "" chooses all entries.
        pinned: whether the first column stays in sight.
    """

    title: str
    columns: tuple[tuple[str, str], ...]
    rows: list[list[TableCell]]
    note: str = ""
    name: str = ""
    filters: tuple[tuple[str, str], ...] = ()
    pinned: bool = False


def plain(value: object) -> TableCell:
    """A word, sorted as it reads."""
    return TableCell(str(value), str(value))


def spread_cell(value: Spread | None, *, of: float = math.nan) -> TableCell:
    """A spread; with the number of its instances, where the metric does not exist on all of them."""
    if value is None:
        return TableCell("", math.nan)
    fewer = f" ({value.instances} of {whole(of)})" if value.instances < of else ""
    return TableCell(str(value) + fewer, value.median)


def verdict_cell(row: Any) -> TableCell:
    """A verdict, with the share of instances that have it."""
    if not row.verdict:
        return TableCell("")
    share = "" if row.sharing == row.instances else f" {whole(row.sharing)}/{whole(row.instances)}"
    return TableCell(row.verdict + share, tables.VERDICTS.index(row.verdict), row.verdict, bool(row.contradicted))


def plain_table(title: str, table: pd.DataFrame, **keywords: Any) -> Table:
    """A data frame of words as it stands."""
    rows = [[plain(value) for value in row] for row in table.itertuples(index=False, name=None)]
    return Table(title, tuple((str(name), "") for name in table.columns), rows, "", title.lower().replace(" ", "-"), **keywords)


def best_in_bold(
    rows: list[list[TableCell]], groups: Sequence[Hashable], costs: Mapping[int, Callable[[float], float]]
) -> list[list[TableCell]]:
    """The rows with the best number of each group in bold, ties included.

    Args:
        rows: cells of a table.
        groups: group of each row. Rows of None, such as the exact gradient, do not compete.
        costs: by column, a function of a cell's key that is smallest at the best.
    """
    least: dict[tuple[Hashable, int], float] = {}

    def cost(cell: TableCell, column: int) -> float:
        known = isinstance(cell.key, float) and not math.isnan(cell.key)
        return costs[column](float(cell.key)) if known else math.inf

    for row, group in zip(rows, groups, strict=True):
        for column in costs:
            least[group, column] = min(least.get((group, column), math.inf), cost(row[column], column))

    def wins(cell: TableCell, column: int, group: Hashable) -> bool:
        return group is not None and column in costs and math.isclose(cost(cell, column), least[group, column], rel_tol=1e-9, abs_tol=1e-9)

    return [
        [replace(cell, best=cell.text != "" and wins(cell, column, group)) for column, cell in enumerate(row)]
        for row, group in zip(rows, groups, strict=True)
    ]
