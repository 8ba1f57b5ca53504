"""Tables of a whole run, block by block: ten million rows, of which never more than a block is held."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base import FAILED, Row, split_loss
from ...statistics.testing.multiplicity import holm_values
from .. import derived, store
from ..cell_writer import GarbageError, examined
from ..work import Cell, Grid
from . import columns, compaction

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

MOST = 500_000
"""Rows of a run that are held at once, at most; a run of more is read block by block, as for its page and its comparisons."""

BLOCK = 200_000
"""Rows of a block, about."""

_TEST = ("suite", "cell", "estimator", "instance", "setting", "reference")
_FACTS = ("family", "oracle", "estimator", "problem", "stage", "instance", "cell", "status", "verdict")
_UNDERIVED = ("batches", "traceback")


@dataclass
class Facts:
    """What is said of a run beside its rows, in the order of these.

    Attributes:
        families, oracles, estimators: that were measured. ``instances``: with their problems and stages.
        measured, failed, skipped: cells, the last with pairs that do not fit.
    """

    families: dict[str, None] = field(default_factory=dict)
    oracles: dict[str, None] = field(default_factory=dict)
    estimators: dict[str, None] = field(default_factory=dict)
    instances: dict[tuple[str, str, str], None] = field(default_factory=dict)
    measured: int = 0
    failed: int = 0
    skipped: int = 0
    broken: int = 0

    @classmethod
    def of_rows(cls, rows: Iterable[Row]) -> Facts:
        """Of rows that are held anyway; their cells are not counted."""
        found = cls()
        for row in rows:
            if row.status != "skipped":
                found.families[row.family] = found.oracles[row.oracle] = found.estimators[row.estimator] = None
                found.instances[row.problem, row.stage, row.instance] = None
        return found

    def add(self, frame: pd.DataFrame) -> None:
        """Of the cells of a block."""
        some = frame[list(_FACTS)].drop_duplicates()
        measured = some[some["status"] != "skipped"]
        for name, known in (("family", self.families), ("oracle", self.oracles), ("estimator", self.estimators)):
            known |= dict.fromkeys(measured[name].unique())
        places = measured[["problem", "stage", "instance"]].drop_duplicates()
        self.instances |= dict.fromkeys(places.itertuples(index=False, name=None))
        there, failed = set(measured["cell"]), set(some["cell"][some["status"].isin(FAILED)])
        self.measured += len(there)
        self.failed += len(failed)
        self.skipped += len(set(some["cell"]) - there)
        self.broken += some["cell"][some["verdict"] == "broken"].nunique()

    def counts(self) -> dict[str, int]:
        """Numbers of cells that are ok, failed and skipped; and of the failed how many are ``broken``, if any."""
        found = {"ok": self.measured - self.failed, "failed": self.failed, "skipped": self.skipped}
        return found | ({"broken": self.broken} if self.broken else {})


class WholeRun:
    """What lies in the folder of a run, which nobody else writes meanwhile.

    Args:
        directory: of the run. ``work``: the cells of its plan, and the pairs that are skipped.
        block: rows of a block, about.
    """

    def __init__(self, directory: Path, work: Grid, block: int = BLOCK) -> None:
        self.directory, self.work, self.block = directory, work, block
        self.index, self.loose = store.index(directory), store.loose(directory)
        self.spans = {file: part.spans() for file, part in self.index.parts.items()}
        self._tests: list[np.ndarray] = []
        self._adjusted = np.zeros(0)

    @property
    def rows(self) -> int:
        """Rows in parts: what is large has few files of cells beside them."""
        return sum(sum(part.counts) for part in self.index.parts.values())

    def facts(self) -> Facts:
        """What is said of the run beside its rows; `tables` needs that this was asked before."""
        found, p_values, suites = Facts(), list[np.ndarray](), list[np.ndarray]()
        self._tests = []
        for table in self._blocks(tuple(dict.fromkeys((*_TEST, "p_value", *_FACTS)))):
            frame = table.to_pandas()
            found.add(frame)
            tested = frame[frame["p_value"].notna()]
            # A cell lies in one block, and so does each of its tests; one may stand behind several rows.
            numbers = tested.groupby(list(_TEST), sort=False, observed=True).ngroup().to_numpy()
            first = sum(map(len, p_values))
            places = np.full(len(frame), -1, dtype=np.int32)
            places[frame["p_value"].notna().to_numpy()] = numbers + first
            self._tests.append(places)
            own, names = np.zeros(numbers.max(initial=-1) + 1), np.empty(numbers.max(initial=-1) + 1, dtype=object)
            own[numbers], names[numbers] = tested["p_value"].to_numpy(float), tested["suite"].astype(object).to_numpy()
            p_values.append(own)
            suites.append(names)
        every = np.concatenate([np.zeros(0), *p_values])
        suite = np.concatenate([np.zeros(0, dtype=object), *suites])
        self._adjusted = np.zeros(len(every))
        for name in dict.fromkeys(suite):
            self._adjusted[suite == name] = holm_values(every[suite == name])
        found.skipped += len({f"{row.problem}/{row.estimator}" for row in self.work.skips})
        return found

    def tables(self) -> Iterator[pa.Table]:
        """All rows, in the order of `derive`: those of cells with adjusted p-values, skipped pairs, and what follows from several cells."""
        import pyarrow as pa

        last = {split_loss(cell.problem)[0]: cell.identity for cell in self.work.cells}
        waiting: dict[str, list[Row]] = defaultdict(list)
        work, targets = list[pa.Table](), list[pa.Table]()
        for places, table, cells in zip(self._tests, self._blocks(), self._portions(), strict=True):
            adjusted = pa.array(np.append(self._adjusted, 0.0)[places], mask=places < 0)
            at = table.schema.get_field_index("p_adjusted")
            whole = table.set_column(at, table.schema.field("p_adjusted"), adjusted)
            yield whole
            for row in _needed(whole):
                waiting[split_loss(row.problem)[0]].append(row)
            ended = {cell.identity for cell in cells}
            for scores in [scores for scores in waiting if last[scores] in ended]:
                rows = waiting.pop(scores)
                work += _tables(derived.work_rows(rows))
                targets += _tables(derived.target_rows(rows))
        yield from (*_tables(self.work.skips), *work, *targets)

    def _portions(self) -> Iterator[list[Cell]]:
        """The cells that are there, in the order of the plan, as many at a time as have the rows of a block."""
        found: list[Cell] = []
        rows = 0
        for cell in self.work.cells:
            file = self.index.owner.get(cell.identity)
            if cell.identity not in self.loose and file is None:
                continue
            found.append(cell)
            rows += 1 if file is None else self.spans[file][cell.identity][1]
            if rows >= self.block:
                yield found
                found, rows = [], 0
        if found:
            yield found

    def _blocks(self, names: Sequence[str] | None = None) -> Iterator[pa.Table]:
        for cells in self._portions():
            yield self._table(cells, list(names or columns.schema().names))

    def _table(self, cells: Sequence[Cell], names: list[str]) -> pa.Table:
        """The rows of some cells one after the other; none of those that cannot be read, as if they were not measured."""
        import pyarrow as pa

        pieces, at = [columns.schema().empty_table().select(names)], 0
        spans: dict[str, tuple[int, int]] = {}
        by_file: dict[str, list[Cell]] = defaultdict(list)
        for cell in cells:
            if cell.identity not in self.loose:
                by_file[self.index.owner[cell.identity]].append(cell)
        for file, some in by_file.items():
            try:
                table = compaction.read_part(self.directory, file, names)
            except (pa.ArrowException, OSError, ValueError):
                continue
            places = [self.spans[file][cell.identity] for cell in some]
            pieces.append(table.take(_ranges(places)))
            for cell, (_, count) in zip(some, places, strict=True):
                spans[cell.identity] = at, count
                at += count
        contents = [content for cell in cells if cell.identity in self.loose and (content := self._content(cell)) is not None]
        pieces.append(columns.to_table(contents).select(names))
        for content in contents:
            spans[content["cell"]["identity"]] = at, len(content["rows"])
            at += len(content["rows"])
        order = [spans[cell.identity] for cell in cells if cell.identity in spans]
        return pa.concat_tables(pieces).unify_dictionaries().combine_chunks().take(_ranges(order))

    def _content(self, cell: Cell) -> dict[str, Any] | None:
        if store.stored(self.directory, cell) is None:
            return None
        try:
            return examined(cell, store.cell_path(self.directory, cell).read_text(encoding="utf-8"))
        except (OSError, GarbageError):
            return None


def _ranges(spans: Sequence[tuple[int, int]]) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype=np.int64), *(np.arange(start, start + count) for start, count in spans)])


def _needed(table: pa.Table) -> Iterator[Row]:
    """The rows that others are derived from, without what these do not have."""
    import pyarrow as pa
    import pyarrow.compute as pc

    metrics, suites = (table[name].cast(pa.string()) for name in ("metric", "suite"))
    wanted = pc.is_in(metrics, pa.array(derived.NEEDED))
    elsewhere = pc.and_(pc.is_in(metrics, pa.array(derived.OF_BIAS)), pc.not_equal(suites, "bias"))
    some = table.filter(pc.and_not(wanted, elsewhere))
    for name in _UNDERIVED:
        at = some.schema.get_field_index(name)
        kind = some.schema.field(name)
        some = some.set_column(at, kind, pa.array([[] if name == "batches" else ""] * len(some), kind.type))
    return columns.to_rows(some)


def _tables(rows: Iterable[Row]) -> list[pa.Table]:
    listed = [vars(row) for row in rows]
    return [columns.to_table([{"shared": {}, "rows": listed}])] if listed else []
