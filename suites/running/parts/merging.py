"""Merging: the shards of a plan become one run, whose cells are in the order of the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...base import Row
from .. import store
from ..cell_writer import CellWriter
from ..work import Cell, Grid
from . import compaction, journal
from .locking import locked


@dataclass(frozen=True)
class Merged:
    """What came of a merge.

    Attributes:
        work: cells of all shards that were there. ``missing``: cells of the plan that no shard holds. ``unmeasured``: that one holds, and
            nobody has measured.
    """

    work: Grid
    missing: int
    unmeasured: int


def merge(shards: Sequence[Path], directory: Path, total: int) -> Merged:
    """Join the folders of shards of one plan into one; what is in the folder already stays, so that a merge that was killed goes on.

    Args:
        shards: folders; the caller has seen that they are of one plan.
        directory: of the whole run.
        total: cells of the plan.

    Raises:
        ValueError: a place of the plan that two shards give to different cells.
        OSError: what cannot be read or written.
    """
    by_place: dict[int, Cell] = {}
    skips: dict[Row, None] = {}
    for folder in shards:
        work = store.planned(folder)
        for place, cell in zip(work.places, work.cells, strict=True):
            if by_place.setdefault(place, cell) != cell:
                raise ValueError(f"{folder} holds {cell.label} where another shard holds {by_place[place].label}; plan and measure it anew")
        skips |= dict.fromkeys(work.skips)
    cells = tuple(by_place[place] for place in sorted(by_place))
    work = Grid(cells, tuple(skips), places=tuple(sorted(by_place)))
    store.check_writable(directory)
    with locked(directory):
        store.freeze(directory, work)
        writer = CellWriter(directory, cells)
        for folder in shards:
            _take(folder, directory, writer)
        writer.close()
    there = store.known(directory, cells)
    return Merged(work, total - len(cells), sum(cell.identity not in there for cell in cells))


def _take(folder: Path, directory: Path, writer: CellWriter) -> None:
    """The finished cells of a shard that the whole does not hold yet."""
    there = store.known(directory, list(writer.cells.values()))
    wanted = {identity for identity in writer.cells if identity not in there or there[identity].kind == journal.FAILED_KIND}
    found = store.index(folder)
    # A part is taken as it is, or cell by cell where the whole holds some of it.
    copied = [part for part in found.parts.values() if wanted.issuperset(part.cells) and not writer.index.owner.keys() & set(part.cells)]
    compaction.copy_parts(folder, directory, writer.index, copied)
    taken = {cell for part in copied for cell in part.cells}
    for identity, known in store.known(folder, list(writer.cells.values())).items():
        better = identity not in there or known.kind != journal.FAILED_KIND
        if identity in wanted and identity not in taken and better:
            cell = writer.cells[identity]
            content = store.stored(folder, cell)
            if content is not None:
                writer.keep(cell, store.encode(cell, content["rows"], content["seconds"]), 0.0)
