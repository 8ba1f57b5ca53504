"""Blocks of a large table: all rows of the same scores, with the columns that a report looks at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ....suites.base import TASK, split_loss
from ....suites.frames import COLUMNS
from ... import results
from ...analysis import tables
from ...results import TableBlock

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

READ = (
    *("cell", "suite", "problem", "stage", "oracle", "loss", "estimator", "family", "objective", "unbiased", "deterministic", "instance"),
    *("log_count", "metric", "value", "low", "high", "setting", "size", "reference", "replicates", "verdict", "seed", "status", "reason"),
    "traceback",
)
"""The columns that a report of gradients looks at."""


def blocks(table: pq.ParquetFile, most: int | None = None) -> list[TableBlock]:
    """Blocks of a table with all rows of the scores that they are of: with all losses at all stages, whose times serve each other.

    Args:
        table: as `results.opened` gives it.
        most: rows of a block; more only where one structure has more.
    """
    return list(results.blocks([table], most, together=scores_of))


def structures(table: pq.ParquetFile, block: TableBlock) -> Iterator[tuple[str, pd.DataFrame]]:
    """The scores of a block by name, each with its rows."""
    (some,) = block.read([table], READ)
    frame = _frame(some)
    names = frame["problem"].cat.categories
    of_names, scores = pd.factorize(np.array([scores_of(name) for name in names], dtype=object))
    group = of_names[frame["problem"].cat.codes]
    for number in pd.unique(group):
        yield str(scores[number]), frame[group == number].reset_index(drop=True)


def scores_of(problem: str) -> str:
    """The name of the scores of a problem."""
    return split_loss(problem)[0]


def trains(table: pq.ParquetFile) -> bool:
    """Whether a table holds training, whose section needs all of its rows."""
    return any(name.startswith(TASK) for group in range(table.num_row_groups) for name in results.problems_of(table, group))


def _frame(some: pa.Table) -> pd.DataFrame:
    """Words as categories, all else as in `results.read`."""
    import pyarrow as pa

    for position, kind in enumerate(some.schema.types):
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            some = some.set_column(position, some.schema.names[position], some.column(position).dictionary_encode())
    found = some.unify_dictionaries().to_pandas()
    found = found.astype({name: kind for name, kind in COLUMNS.items() if name in found and found[name].dtype != "category"})
    return tables.by_loss(results.with_visible_names(found[list(READ)]))
