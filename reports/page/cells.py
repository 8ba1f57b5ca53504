"""Tables for people: columns, and cells with a text and a key to sort by."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from ...suites.statistics.interval import Interval
from ...suites.text import estimate, significant, whole
from ..analysis.tables import Spread

LEVEL = "entropy level"  # the title of the column of entropy levels

_CHOSEN = ("problem", LEVEL, "estimator", "verdict", "axis")
_MANY = 12


@dataclass(frozen=True)
class TableCell:
    """One entry of a table, with the key to sort by. A verdict colours it, notes are in small print, and the best is in bold."""

    text: str
    key: float | str = ""
    verdict: str = ""
    alarm: bool = False
    notes: tuple[str, ...] = ()
    best: bool = False

    @property
    def is_number(self) -> bool:
        """True if it is sorted by a number that is known."""
        return isinstance(self.key, float) and not math.isnan(self.key)

    @property
    def order(self) -> str:
        """Sort key of the entry, empty if it is the text. Six digits are more than any interval has."""
        key = significant(self.key, 6) if isinstance(self.key, float) else str(self.key)
        return "" if key == self.text and not self.notes and not self.verdict else key


@dataclass(frozen=True)
class Table:
    """A table of a page."""

    title: str
    columns: tuple[tuple[str, str], ...]  # title and explanation
    rows: list[list[TableCell]]
    note: str = ""
    name: str = ""  # its id in the page
    filters: tuple[tuple[str, str], ...] = ()  # title and first choice of columns with a menu; "" chooses all
    pinned: bool = False  # whether the first column stays in sight


EMPTY = TableCell("", math.nan)  # the entry of a number that does not exist


def tabulate(
    title: str,
    rows: Sequence[Mapping[str, TableCell | str]],
    hints: Mapping[str, str],
    *,
    costs: Mapping[str, Callable[[float], float]] | None = None,
    groups: Sequence[Hashable] = (),
    **keywords: Any,
) -> Table:
    """A table of rows by the titles of their columns, with the best number of each group in bold, ties included.

    The best has the smallest of ``costs``, functions of a cell's key by title. Rows of the group None, such as the exact gradient, do not
    compete. A table of many rows has filters of its columns that have several words, unless the keywords are other fields of `Table`.
    """
    titles = list(dict.fromkeys(name for row in rows for name in row))
    cells = [
        [cell if isinstance(cell := row.get(name, EMPTY), TableCell) else TableCell(str(cell), str(cell)) for name in titles]
        for row in rows
    ]
    for name, cost in (costs or {}).items() if rows else ():
        place, least = titles.index(name), dict[Hashable, float]()
        paid = [cost(float(row[place].key)) if row[place].is_number else math.inf for row in cells]
        for group, one in zip(groups, paid, strict=True):
            least[group] = min(one, least.get(group, math.inf))
        for row, group, one in zip(cells, groups, paid, strict=True):
            best = group is not None and row[place].text != "" and math.isclose(one, least[group], rel_tol=1e-9, abs_tol=1e-9)
            row[place] = replace(row[place], best=best)
    several = [name for place, name in enumerate(titles) if name in _CHOSEN and len({row[place].text for row in cells}) > 1]
    filters = tuple((name, "") for name in _CHOSEN if name in several and len(rows) > _MANY)
    return Table(title, tuple((name, hints.get(name, "")) for name in titles), cells, **{"filters": filters, **keywords})


def estimate_cell(found: Interval) -> TableCell:
    """A value with its interval; empty without a value."""
    return EMPTY if found.value is None else TableCell(estimate(found), found.value)


def spread_cell(value: Spread | None, *, of: float = math.nan) -> TableCell:
    """A spread; with the number of its instances, where the metric does not exist on all of them."""
    if value is None:
        return EMPTY
    fewer = f" ({value.instances} of {whole(of)})" if value.instances < of else ""
    return TableCell(str(value) + fewer, value.median)


def plain_table(title: str, table: pd.DataFrame, **keywords: Any) -> Table:
    """A data frame of words as it stands."""
    rows = [dict(zip(table.columns, map(str, row), strict=True)) for row in table.itertuples(index=False, name=None)]
    return tabulate(title, rows, {}, name=title.lower().replace(" ", "-"), **keywords)
