"""Compaction: finished cells, which are files of their own at first, become parts; kill it anywhere, and every cell is there once.

First the parts are written, then the journal names them, then the files of the cells go. Until the journal names it a part does not count,
and a file that is left over has the digest that the journal keeps, so that it is known to be in a part already.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ...base import SCHEMA_VERSION
from ...trust import check_table, json_of
from . import columns, journal

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP = 16_384
"""Rows whose statistics stand together: what asks for one problem or estimator passes the others by."""

_CELLS = b"structgrad_cells"
"""Where a part says itself what the journal says of it: a journal that is lost is made anew."""

_LISTS = ("cells", "counts", "seconds", "kinds", "digests")

_LONGEST = 100
"""Characters of the name of a folder."""


@dataclass(frozen=True)
class Compacted:
    """A cell that is to be compacted: its place in the plan, the content of its file as JSON has it, and what became of it."""

    order: int
    content: Mapping[str, Any]
    kind: str
    digest: str

    @property
    def identity(self) -> str:
        """Of the cell."""
        return str(self.content["cell"]["identity"])


def folder_name(name: str) -> str:
    """A name as the name of a folder, whoever gave it: no separators, no dots at its beginning, not too long.

    Example:
        >>> folder_name("bias"), folder_name("../a b"), len(folder_name("x" * 999))
        ('bias', '%2E.%2Fa%20b', 117)
    """
    safe = quote(name, safe="")
    safe = f"%2E{safe[1:]}" if safe.startswith(".") else safe
    return safe if safe and len(safe) <= _LONGEST else f"{safe[:_LONGEST]}-{journal.digest(name.encode())}"


def compact(directory: Path, index: journal.Index, cells: Sequence[Compacted]) -> None:
    """Write cells into parts, and let these count. The files of the cells are the caller's matter, afterwards.

    A cell that was measured again replaces what an older part holds of it: that part is written anew without it.

    Raises:
        OSError: a part or the journal cannot be written; whatever counted before counts as before.
    """
    tables: dict[str, list[Piece]] = defaultdict(list)
    for suite, chosen in _by_suite(cells).items():
        tables[suite].append((columns.to_table([cell.content for cell in chosen]), _summed(chosen)))
    replace_cells(directory, index, tables)


Piece = tuple["pa.Table", journal.CellPart]
"""Rows of cells, and what a part says of them."""


def replace_cells(directory: Path, index: journal.Index, tables: dict[str, list[Piece]]) -> None:
    """`compact` of rows that are tables already, by the folders of their suites.

    Raises:
        OSError: as `compact` does.
    """
    replaced = {cell for pieces in tables.values() for _, part in pieces for cell in part.cells}
    old = sorted({index.owner[cell] for cell in replaced if cell in index.owner})
    for file in old:
        kept = without(directory, index.parts[file], replaced)
        if kept is not None:
            tables.setdefault(Path(file).parent.name, []).append(kept)
    _commit(directory, index, tables, old)
    for file in old:
        (directory / journal.FOLDER / file).unlink(missing_ok=True)


def copy_parts(source: Path, directory: Path, index: journal.Index, parts: Sequence[journal.CellPart]) -> None:
    """Let parts of another run count here too, as they are; no cell of them may be in a part here.

    Raises:
        OSError: as `compact` does.
    """
    copied = []
    for number, part in enumerate(parts, index.last + 1):
        name = f"{Path(part.file).parent.name}/{number:06d}.parquet"
        target = directory / journal.FOLDER / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / journal.FOLDER / part.file, target)
        made_lasting(target)
        copied.append(replace(part, file=name))
    if copied:
        journal.append(directory, index, copied, [])


def recover(directory: Path, index: journal.Index, there: Collection[str]) -> None:
    """Take in what lies in parts that the journal does not name and nowhere else, and remove these parts.

    After a kill they hold nothing but copies; where the journal was lost they hold everything. Cells that are ``there`` have files of
    their own.
    """
    tables: dict[str, list[Piece]] = defaultdict(list)
    unnamed = list(_unnamed(directory, index))
    seen = set(there) | set(index.owner)
    for path in unnamed:
        part = described(path, str(path.relative_to(directory / journal.FOLDER)))
        kept = None if part is None or seen.issuperset(part.cells) else without(directory, part, seen)
        if kept is not None:
            tables[path.parent.name].append(kept)
            seen.update(kept[1].cells)
    if tables:
        index.last = max([index.last, *(journal.number_of(path.name) for path in unnamed)])
        _commit(directory, index, tables, ())
    for path in unnamed:
        path.unlink(missing_ok=True)


def _commit(directory: Path, index: journal.Index, tables: Mapping[str, Sequence[Piece]], dropped: Sequence[str]) -> None:
    import pyarrow as pa

    parts, number = [], index.last
    for suite, found in tables.items():
        number += 1
        table = pa.concat_tables([table for table, _ in found]) if len(found) > 1 else found[0][0]
        parts.append(_written(directory, f"{suite}/{number:06d}.parquet", table, [part for _, part in found]))
    journal.append(directory, index, parts, dropped)


def described(path: Path, file: str) -> journal.CellPart | None:
    """What a part says of itself; None where it was not written to its end."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        content = json_of((pq.read_schema(path).metadata or {})[_CELLS])
        return journal.CellPart.unpacked({**content, "file": file, "size": path.stat().st_size})
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError):
        return None


def _by_suite(cells: Sequence[Compacted]) -> dict[str, list[Compacted]]:
    """By the folders of their suites, in the order of the plan."""
    found: dict[str, list[Compacted]] = defaultdict(list)
    for cell in sorted(cells, key=lambda cell: cell.order):
        found[folder_name(str(cell.content["cell"]["suite"]))].append(cell)
    return found


def _summed(cells: Sequence[Compacted]) -> journal.CellPart:
    return journal.CellPart(
        "",
        0,
        SCHEMA_VERSION,
        [cell.identity for cell in cells],
        [len(cell.content["rows"]) for cell in cells],
        [float(cell.content["seconds"]) for cell in cells],
        [cell.kind for cell in cells],
        [cell.digest for cell in cells],
    )


def without(directory: Path, part: journal.CellPart, replaced: Collection[str]) -> Piece | None:
    """What is left of a part; None where nothing is, or nothing can be read, so that it is measured again."""
    import pyarrow as pa

    kept = [place for place, cell in enumerate(part.cells) if cell not in replaced]
    if not kept:
        return None
    try:
        table, spans = read_part(directory, part.file), list(part.spans().values())
    except (pa.ArrowException, OSError, ValueError):
        return None
    lists = {name: [getattr(part, name)[place] for place in kept] for name in _LISTS}
    left = journal.CellPart(file="", size=0, schema_version=part.schema_version, **lists)
    return pa.concat_tables([table.slice(*spans[place]) for place in kept]), left


def _written(directory: Path, file: str, table: pa.Table, described: Sequence[journal.CellPart]) -> journal.CellPart:
    """A part on the disk, which does not count yet."""
    import pyarrow.parquet as pq

    lists = {name: [value for one in described for value in getattr(one, name)] for name in _LISTS}
    part = journal.CellPart(file=file, size=0, schema_version=SCHEMA_VERSION, **lists)
    words = {_CELLS: json.dumps(part.packed()).encode()}
    path = directory / journal.FOLDER / file
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        whole = table.unify_dictionaries().replace_schema_metadata(words)
        pq.write_table(whole, stream, compression="zstd", row_group_size=ROW_GROUP, write_page_checksum=True)
    made_lasting(path)
    return replace(part, size=path.stat().st_size)


def made_lasting(path: Path) -> None:
    """A new file outlives a loss of power when it is on the disk, and its name in its folder."""
    for place in (path, path.parent):
        handle = os.open(place, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read_part(directory: Path, file: str, names: Sequence[str] | None = None) -> pa.Table:
    """All rows of a part, with all columns or some.

    Raises:
        OSError, pyarrow.ArrowException: a part that is not there, or damaged.
    """
    import pyarrow.parquet as pq

    path = directory / journal.FOLDER / file
    with pq.ParquetFile(path, page_checksum_verification=True) as found:
        check_table(found, path)
    wanted = list(names or columns.schema().names)
    return pq.read_table(path, columns=wanted, page_checksum_verification=True).select(wanted)


def _unnamed(directory: Path, index: journal.Index) -> Iterator[Path]:
    for path in sorted((directory / journal.FOLDER).glob("*/*.parquet")):
        if str(path.relative_to(directory / journal.FOLDER)) not in index.parts:
            yield path
