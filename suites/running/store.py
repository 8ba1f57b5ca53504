"""Storage of a run on disk: the frozen plan, finished cells, logs, scratch folders.

A finished cell is a file of its own at first, which is there whole or not at all, so that a killed run loses the cells in flight and
nothing else. Where there are many, they are compacted into parts (`parts`), and an index says which cell lies where.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base import FAILED, SCHEMA_VERSION, Row
from ..frames import COLUMNS
from ..trust import check_identity, json_of, text_of
from .parts import columns, compaction, journal
from .work import Cell, Grid

if TYPE_CHECKING:
    import pyarrow as pa

PLAN = "plan.jsonl"
CELLS = "cells"
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError)
_NUMBERS = ("value", "low", "high")
_UNSET = object()
_DEFAULTS = {field.name: field.default for field in fields(Row) if field.name != "schema_version" and field.default is not MISSING}

_IN_ORDER = [(field.name, _DEFAULTS.get(field.name, _UNSET)) for field in fields(Row)]
"""Every column with what is not written out, which of some is nothing."""

_NEEDED = {field.name for field in fields(Row) if field.default is MISSING}
"""Columns that every row has a value in."""

_CELL_FIELDS = {field.name for field in fields(Cell)}

_AS_FROZEN = re.compile(r'^\{(?:"place": \d+, )?"cell": \{"suite": "([^"\\]*)", .*, "identity": "([^"\\]*)"\}\}$', re.MULTILINE)

_SKIP_AS_FROZEN = re.compile(r'^\{"skip": (\{.*\})\}$', re.MULTILINE)

MANY = 10_000
"""Cells from which on a plan is not parsed for a glance at it."""

LASTING = 0.1
"""Seconds from which on a cell is worth waiting for the disk: of shorter ones, a loss of power takes those of the last seconds."""


def cell_path(directory: Path, cell: Cell) -> Path:
    """Where a cell's rows lie, until they are compacted."""
    return path_of(directory, cell.identity)


def path_of(directory: Path, identity: str) -> Path:
    """The same by its identity."""
    return directory.joinpath(CELLS, identity[:2], f"{identity}.json")


def log_path(directory: Path, cell: Cell) -> Path:
    """What a cell printed."""
    return directory.joinpath("logs", f"{cell.identity}.log")


def scratch_path(directory: Path, cell: Cell) -> Path:
    """Where a suite may keep what it goes on from after a kill."""
    return directory.joinpath("scratch", cell.identity)


def check_writable(directory: Path) -> None:
    """Raise OSError, with one sentence, where a folder cannot be made or written: before anything is measured."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise OSError(f"cannot write results to {directory} ({error.strerror}); choose another folder with --out") from error


def discard(directory: Path) -> None:
    """Forget the cells of an earlier run."""
    for name in (CELLS, journal.FOLDER, "logs", "scratch"):
        shutil.rmtree(directory / name, ignore_errors=True)
    (directory / PLAN).unlink(missing_ok=True)


# Cells.


def encode(cell: Cell, rows: list[Row], seconds: float, *, stamped: bool = False) -> str:
    """The content of a cell's file: strict JSON, in which infinity is a string, and what all rows share stands once.

    ``seconds`` are what the cell took; ``stamped`` says them in each of its rows too.
    """
    packed = [_packed(row) for row in rows]
    if stamped:
        packed = [{**row, "seconds": seconds} for row in packed]
    shared = dict(packed[0]) if packed else {}
    for row in packed[1:]:
        for name in [name for name, value in shared.items() if row.get(name, _UNSET) != value]:
            del shared[name]
    own = [{name: value for name, value in row.items() if name not in shared} for row in packed]
    return json.dumps({"cell": vars(cell), "seconds": seconds, "shared": shared, "rows": own}, allow_nan=False)


def write_cell(directory: Path, cell: Cell, text: str, *, lasting: bool = True) -> None:
    """Write a cell's file, and drop its scratch folder; ``lasting`` waits until it would outlive a loss of power."""
    write_atomically(cell_path(directory, cell), text, lasting=lasting)
    scratch = scratch_path(directory, cell)
    if not _is_empty(scratch):
        shutil.rmtree(scratch, ignore_errors=True)


class Scratch:
    """The scratch folders of one worker's cells. One that stays empty is handed on: to make and to remove folders is slow.

    Args:
        directory: of the run.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.spare: Path | None = None

    def open(self, cell: Cell) -> Path:
        """The folder of a cell, with what an earlier attempt left there."""
        path, spare, self.spare = scratch_path(self.directory, cell), self.spare, None
        if path.is_dir():
            return path
        if spare is not None:
            with suppress(OSError):
                spare.rename(path)
                return path
        path.mkdir(parents=True, exist_ok=True)
        return path

    def close(self, path: Path) -> None:
        """The cell is done."""
        self.spare = path if _is_empty(path) else None


def clear_scratch(directory: Path) -> None:
    """Remove the folders that nothing is kept in, when the workers have ended."""
    for path in (directory / "scratch").glob("*"):
        with suppress(OSError):
            path.rmdir()


def _is_empty(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is None
    except OSError:
        return True


def stored(directory: Path, cell: Cell) -> dict[str, Any] | None:
    """What is stored of a cell with `Row` objects; None where there is nothing that can be read, so that it is measured again.

    Raises:
        ValueError: rows of a newer schema version.
    """
    try:
        content = _content(directory, cell)
    except FileNotFoundError:
        return _compacted(directory, cell)
    return None if content is None else _decoded(content)


def _content(directory: Path, cell: Cell) -> dict[str, Any] | None:
    """The file of a cell as JSON has it, when all of it could be rows; else None.

    Raises:
        FileNotFoundError: the cell has no file of its own.
        ValueError: rows of a newer schema version.
    """
    path = cell_path(directory, cell)
    try:
        content: dict[str, Any] = json_of(text_of(path))
        _check_version(path, content)
        _check_content(content)
    except (FileNotFoundError, NewerSchemaError):
        raise
    except _DAMAGE:
        return None
    return content


def _compacted(directory: Path, cell: Cell) -> dict[str, Any] | None:
    """The same of a cell in a part."""
    found = index(directory)
    file = found.owner.get(cell.identity)
    table = None if file is None else _part(directory, found.parts[file])
    if file is None or table is None:
        return None
    try:
        rows = list(columns.to_rows(table[0].slice(*table[1][cell.identity])))
    except UnicodeDecodeError:
        return None
    return {"cell": asdict(cell), "seconds": found.seconds[cell.identity], "rows": rows}


def index(directory: Path) -> journal.Index:
    """What the parts of a run hold; read again when the journal has changed."""
    path = journal.path_of(directory)
    try:
        stamp = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return journal.Index()
    found = _index(directory, (stamp.st_mtime_ns, stamp.st_size, stamp.st_ino))
    for part in found.parts.values():
        if part.schema_version > SCHEMA_VERSION:
            raise NewerSchemaError(directory / journal.FOLDER / part.file, part.schema_version)
    return found


def _index_now(directory: Path) -> journal.Index:
    """`index` without parts that were damaged since this process read the journal, which has not changed by that."""
    found = index(directory)
    if all(journal.is_there(directory, part) for part in found.parts.values()):
        return found
    _index.cache_clear()
    return index(directory)


@functools.lru_cache(maxsize=4)
def _index(directory: Path, stamp: tuple[int, ...]) -> journal.Index:
    return journal.read(directory)


def _part(directory: Path, part: journal.CellPart) -> tuple[pa.Table, dict[str, tuple[int, int]]] | None:
    """All rows of a part and where its cells lie, kept for the next question; None where it is damaged."""
    import pyarrow as pa

    try:
        # A number may come again where a journal was lost, and the new file may be as long as the old one.
        found = (directory / journal.FOLDER / part.file).stat()
        stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
        return _table(directory, part.file, stamp), _spans(directory, part.file, stamp)
    except (pa.ArrowException, OSError, KeyError, ValueError):
        return None


@functools.lru_cache(maxsize=8)
def _table(directory: Path, file: str, stamp: tuple[int, ...]) -> pa.Table:
    return compaction.read_part(directory, file)


@functools.lru_cache(maxsize=64)
def _spans(directory: Path, file: str, stamp: tuple[int, ...]) -> dict[str, tuple[int, int]]:
    return index(directory).parts[file].spans()


def decode(text: str) -> dict[str, Any]:
    """The content of a cell's file, with `Row` objects."""
    content = json_of(text)
    _check_content(content)
    return _decoded(content)


def _check_content(content: dict[str, Any]) -> None:
    """Raise one of `_DAMAGE` where the content of a cell's file is none; what all rows share is looked at once."""
    shared = content["shared"]
    float(content["seconds"])
    _check_kinds(shared)
    missing = _NEEDED - shared.keys()
    for row in content["rows"]:
        _check_kinds(row)
        if not missing <= row.keys():
            raise KeyError(*(missing - row.keys()))


def _decoded(content: dict[str, Any]) -> dict[str, Any]:
    """Of content that is known to be some."""
    rows = [_row({**content["shared"], **row}) for row in content["rows"]]
    return {**content, "rows": rows, "seconds": float(content["seconds"])}


@dataclass(frozen=True, slots=True)
class KnownCell:
    """What became of a cell: one of the kinds of `journal`, and the seconds that it took."""

    kind: str
    seconds: float


def kinds(directory: Path) -> dict[str, str]:
    """What became of the cells that are stored, as `known`, without their seconds: for a glance at a run."""
    return seen(directory)[0]


def seen(directory: Path) -> tuple[dict[str, str], list[Path]]:
    """`kinds`, and what is `damaged`: the files of cells are read once for both."""
    alone, found = loose(directory), _index_now(directory)
    some, unread = _of_files(directory, [cell for cell in planned(directory).cells if cell.identity in alone] if alone else ())
    kinds = {identity: kind for identity, kind in found.kinds.items() if identity not in alone} if alone else found.kinds
    return kinds | {name: one.kind for name, one in some.items()}, [*unread, *_broken(directory, found)]


def known(directory: Path, cells: Sequence[Cell]) -> dict[str, KnownCell]:
    """What became of the cells that are stored, by identity: files of cells are read, of parts the index alone."""
    alone, found = loose(directory), _index_now(directory)
    answers, _ = _of_files(directory, [cell for cell in cells if cell.identity in alone])
    there = (cell.identity for cell in cells)
    return {
        identity: answers[identity] if identity in answers else KnownCell(found.kinds[identity], found.seconds[identity])
        for identity in there
        if identity in answers or (identity not in alone and identity in found.kinds)
    }


def _of_files(directory: Path, cells: Iterable[Cell]) -> tuple[dict[str, KnownCell], list[Path]]:
    """What became of cells that have files of their own, and those of the files that cannot be read."""
    answers: dict[str, KnownCell] = {}
    unread = []
    for cell in cells:
        try:
            content = _content(directory, cell)
        except FileNotFoundError:  # it went into a part meanwhile, or is gone
            found = index(directory)
            if cell.identity in found.kinds:
                answers[cell.identity] = KnownCell(found.kinds[cell.identity], found.seconds[cell.identity])
            continue
        if content is None:
            unread.append(cell_path(directory, cell))
        else:
            answers[cell.identity] = KnownCell(kind_of(content), float(content["seconds"]))
    return answers, unread


def kind_of(content: Mapping[str, Any]) -> str:
    """What became of a cell, from the content of its file as JSON has it."""
    shared = content["shared"].get("status", "ok")
    statuses = {row.get("status", shared) for row in content["rows"]}
    if not statuses.isdisjoint(FAILED):
        return journal.FAILED_KIND
    return journal.NONFINITE if "nonfinite" in statuses else journal.DONE


def loose(directory: Path) -> set[str]:
    """The identities of the cells that have a file of their own, whole or damaged."""
    try:
        folders = [entry.path for entry in os.scandir(directory / CELLS) if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return set()
    names = (entry.name for folder in folders for entry in os.scandir(folder))
    return {name.removesuffix(".json") for name in names if name.endswith(".json") and not name.startswith(".")}


def damaged(directory: Path, work: Grid | None = None) -> list[Path]:
    """The files of cells, and the parts, that are there and cannot be read."""
    if work is None:
        return seen(directory)[1]
    alone = loose(directory)
    _, unread = _of_files(directory, [cell for cell in work.cells if cell.identity in alone])
    return [*unread, *_broken(directory, _index_now(directory))]


def _broken(directory: Path, found: journal.Index) -> list[Path]:
    return [directory / journal.FOLDER / file for file in found.broken]


def unmeasured(directory: Path, work: Grid) -> list[Cell]:
    """The cells of which nothing is stored that can be read."""
    there = known(directory, work.cells)
    return [cell for cell in work.cells if cell.identity not in there]


class OtherSchemaError(ValueError):
    """What another version of the package wrote."""

    advice = "measure it again, or read it with the structgrad that wrote it"

    def __init__(self, path: Path, version: object) -> None:
        super().__init__(f"{path} has the schema version {str(version)[:50]}, this structgrad reads {SCHEMA_VERSION}; {self.advice}")


class NewerSchemaError(OtherSchemaError):
    """What a newer version of the package wrote."""

    advice = "nothing was changed: upgrade structgrad, or name another folder"


def _check_version(path: Path, content: dict[str, Any]) -> None:
    """Refuse rows of a newer version before they are taken apart: their columns may be others."""
    versions = [rows.get("schema_version", 0) for rows in (content["shared"], *content["rows"])]
    if max(versions) > SCHEMA_VERSION:
        raise NewerSchemaError(path, max(versions))


def finished(content: dict[str, Any] | None) -> bool:
    """Whether a cell is there and did not fail: failures are measured again."""
    return content is not None and all(row.status not in FAILED for row in content["rows"])


def _packed(row: Row) -> dict[str, Any]:
    """Only what differs from the defaults; the rest is filled in again when the row is read."""
    found = vars(row)
    values = {name: value for name, default in _IN_ORDER if (value := found[name]) is not default and value != default}
    for name in _NUMBERS:
        if isinstance(values.get(name), float) and math.isinf(values[name]):
            values[name] = str(values[name])
    return values


_OF_WORDS = (str,)
_OF_NUMBERS = (int, float, type(None))
_KINDS: dict[str, tuple[type, ...]] = {
    name: {"category": _OF_WORDS, "string": _OF_WORDS, "bool": (bool,), "object": (list, tuple)}.get(kind, _OF_NUMBERS)
    for name, kind in COLUMNS.items()
}
_LARGEST = {"int16": 2**15, "Int16": 2**15, "int64": 2**63, "Int64": 2**63}


_RULES = {name: (_KINDS[name], _LARGEST.get(kind), kind in ("int16", "int64", "float64")) for name, kind in COLUMNS.items()}
"""Of each column the types of its values, a bound of its integers, and whether it always has one."""


def _check_kinds(values: dict[str, Any]) -> None:
    """Refuse values that no column can have."""
    for name, value in values.items():
        kinds, most, needed = _RULES[name]
        odd = needed if value is None else most and not (isinstance(value, int) and -most <= value < most)
        if name in _NUMBERS and value in ("inf", "-inf"):
            continue
        if isinstance(value, list):
            odd = not all(isinstance(number, int | float) for number in value)
        if odd or not isinstance(value, kinds):
            raise ValueError(f"got {name}={str(value)[:50]!r}, which no row can have")


def _unpacked(values: dict[str, Any]) -> Row:
    _check_kinds(values)
    return _row(values)


def _row(values: dict[str, Any]) -> Row:
    """Of values that are known to fit."""
    numbers: dict[str, Any] = {name: float(values[name]) for name in _NUMBERS if isinstance(values.get(name), str)}
    return Row(**{**values, **numbers, "batches": tuple(values.get("batches", ()))})


# The plan.


def freeze(directory: Path, work: Grid) -> None:
    """Write the cells and the skipped pairs, one per line: what `planned` reads, whatever becomes of the run."""
    encoded = json.JSONEncoder().encode
    lines = [encoded({"cell": {**vars(cell)}}) for cell in work.cells]
    if work.places:
        lines = [f'{{"place": {place}, {line[1:]}' for place, line in zip(work.places, lines, strict=True)]
    lines += [encoded({"skip": _packed(row)}) for row in work.skips]
    write_atomically(directory / PLAN, "".join(f"{line}\n" for line in lines))


def _cell(values: dict[str, Any]) -> Cell:
    """From a line of the plan. A frozen dataclass is slow to fill field by field, and there may be a hundred thousand."""
    if values.keys() != _CELL_FIELDS:
        raise ValueError(f"a cell has the fields {', '.join(values)}")
    check_identity(values["identity"])
    cell = object.__new__(Cell)
    vars(cell).update(values, estimators=tuple(values["estimators"]))
    return cell


def _frozen(path: Path) -> list[dict[str, Any]]:
    """The lines of a plan, read at once: a hundred thousand of them in half a second."""
    found: list[dict[str, Any]] = json_of(f"[{','.join(text_of(path).splitlines())}]")
    return found


def planned(directory: Path) -> Grid:
    """The grid of a folder's latest run.

    Raises:
        FileNotFoundError: no run was ever started there.
        ValueError: a plan that is damaged, or of a newer schema version.
    """
    path = directory / PLAN
    if not path.is_file():
        raise FileNotFoundError(f"found no plan {path}; expected the folder of a run, finished or not")
    try:
        found = _frozen(path)
        cells = tuple(_cell(item["cell"]) for item in found if "cell" in item)
        skips = tuple(item["skip"] for item in found if "skip" in item)
        for skip in skips:
            _check_version(path, {"shared": skip, "rows": []})
        places = tuple(int(item["place"]) for item in found if "place" in item)
        return Grid(cells, tuple(map(_unpacked, skips)), places=places if len(places) == len(cells) else ())
    except NewerSchemaError:
        raise
    except _DAMAGE as error:
        raise ValueError(
            f"{path} is damaged ({str(error)[:200]}); finished cells are kept, run the same command again to plan anew"
        ) from error


def glance(directory: Path) -> tuple[list[tuple[str, str]], int]:
    """Suite and identity of every planned cell, and how many pairs are skipped: what `planned` says, sooner where there are many.

    Raises:
        FileNotFoundError, ValueError: as `planned` does.
    """
    path = directory / PLAN
    text = text_of(path) if path.is_file() else ""
    found, skips = _AS_FROZEN.findall(text), _SKIP_AS_FROZEN.findall(text)
    if len(found) >= MANY and len(found) + len(skips) == text.count("\n"):
        with contextlib.suppress(*_DAMAGE):  # which `planned` tells
            return found, len({(skip["problem"], skip["estimator"]) for skip in json_of(f"[{','.join(skips)}]")})
    work = planned(directory)
    return [(cell.suite, cell.identity) for cell in work.cells], work.skipped_pairs


def stored_rows(directory: Path, work: Grid) -> Iterator[Row]:
    """The rows of all cells that are there, in the order of the grid; skipped pairs at the end."""
    for cell in work.cells:
        content = stored(directory, cell)
        yield from content["rows"] if content is not None else ()
    yield from work.skips


def write_atomically(path: Path, text: str, *, lasting: bool = True) -> None:
    """Write a file so that it is there whole or not at all; ``lasting`` waits until it would outlive a loss of power."""
    handle, draft = _draft(path)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(text.encode())
            if lasting:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(draft, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(draft)
        raise


_drafts = itertools.count()


def _draft(path: Path) -> tuple[int, str]:
    """A new hidden file beside one that is written, and its name, which nobody else has: `tempfile` asks for chance, and takes longer."""
    folder, name = os.path.split(path)
    while True:
        draft = os.path.join(folder, f".{name}.{os.getpid()}-{next(_drafts)}")
        try:
            return os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), draft
        except FileExistsError:  # of a killed process that had the number, or of one on another machine that has it
            continue
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
