"""Storage of a run: its plan and its finished cells in one SQLite file, next to logs and scratch folders.

Only one process writes (`locked`); others may read at any time. Each finished cell is committed on its own, so a killed process loses only
the cells that it was measuring. A power failure may also take short cells of the last seconds (`DURABLE_SECONDS`).
"""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import sqlite3
import tempfile
import threading
import warnings
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import ValidationError

from ..base import SCHEMA_VERSION, Row
from ..trust import LARGEST_TEXT, check_identity, json_of
from .work import FAILED_KIND, ROW, Cell, Grid, StoredCell, as_json, decode, first_error, packed

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

FILE = "cells.sqlite"
"""The name of the database in the folder of a run."""

DURABLE_SECONDS = 0.1
"""Seconds. Cells that took longer are written to the disk at once, so that they survive a power failure."""

_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "beegfs", "gpfs", "ceph", "afs", "9p", "fuse.sshfs", "fuse.s3fs")

_TABLES = """
CREATE TABLE IF NOT EXISTS plan (
  place INTEGER PRIMARY KEY, identity TEXT UNIQUE, suite TEXT, problem TEXT, stage TEXT, estimators TEXT, instances INTEGER
);
CREATE TABLE IF NOT EXISTS skips (problem TEXT, estimator TEXT, row TEXT);
CREATE TABLE IF NOT EXISTS cells (number INTEGER PRIMARY KEY, identity TEXT UNIQUE, kind TEXT, seconds REAL, content BLOB);
"""


class LockedError(ValueError):
    """Another process is writing to the folder."""


class DamagedError(ValueError):
    """The database of a run cannot be read."""


class OtherSchemaError(ValueError):
    """A file was written by another version of the package."""

    advice = "measure it again, or read it with the structgrad that wrote it"

    def __init__(self, path: Path, version: object) -> None:
        super().__init__(f"{path} has the schema version {str(version)[:50]}, this structgrad reads {SCHEMA_VERSION}; {self.advice}")


class NewerSchemaError(OtherSchemaError):
    """A file was written by a newer version of the package."""

    advice = "nothing was changed: upgrade structgrad, or name another folder"


EARLIER_PLAN = "plan.jsonl"
"""The plan of a run in the format of earlier versions, whose finished tables are still read."""


class EarlierFormatWarning(UserWarning):
    """The cells of an unfinished run of an earlier version are measured again."""


# The folder.


def scratch_path(directory: Path, cell: Cell) -> Path:
    """The folder in which a suite may keep checkpoints, to continue from them after a kill."""
    return directory / "scratch" / cell.identity


def clear_scratch(directory: Path, cell: Cell | None = None) -> None:
    """Remove the scratch folder of a finished cell, or else all empty ones."""
    if cell is not None:
        if scratch_path(directory, cell).exists():
            shutil.rmtree(scratch_path(directory, cell), ignore_errors=True)
        return
    for path in (directory / "scratch").glob("*"):
        with suppress(OSError):
            path.rmdir()


def check_writable(directory: Path) -> None:
    """Raise OSError with one sentence if a folder cannot be created or written, before anything is measured."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise OSError(f"cannot write results to {directory} ({error.strerror}); choose another folder with --out") from error


def discard(directory: Path) -> None:
    """Remove the cells of earlier runs."""
    for name in ("logs", "scratch"):
        shutil.rmtree(directory / name, ignore_errors=True)
    for name in (EARLIER_PLAN, FILE, f"{FILE}-wal", f"{FILE}-shm", f"{FILE}-journal"):
        (directory / name).unlink(missing_ok=True)


def holds_run(directory: Path) -> bool:
    """Whether a folder has the cells of a run."""
    return (directory / FILE).is_file()


_held: dict[str, int] = {}
"""The folders that this process has locked, each with its thread, which may lock it again."""


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a folder (flock), which the system releases when the process ends.

    Raises:
        LockedError: another process holds it.
    """
    name = os.path.realpath(directory)
    if _held.get(name) == threading.get_ident():
        yield
        return
    handle = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:  # a file system without locks raises other errors, and is not locked
            if error.errno in (errno.EACCES, errno.EAGAIN):
                owner = os.read(handle, 200).decode(errors="replace").strip() or "another process"
                raise LockedError(
                    f"{directory} is being written by {owner}; wait until it has ended, or name another folder with --out"
                ) from None
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {platform.node()}".encode())
        _held[name] = threading.get_ident()
        try:
            yield
        finally:
            del _held[name]
    finally:
        os.close(handle)


# The database.


class KnownCell(NamedTuple):
    """The kind of a finished cell, and the seconds that it took."""

    kind: str
    seconds: float


class Store:
    """The plan and the finished cells of a run.

    Args:
        directory: the folder of the run.
        write: whether to write; the caller holds the lock.

    Raises:
        FileNotFoundError: there is no run.
        OtherSchemaError: the run was written by another version of the package.
        DamagedError: the file cannot be read.
        ValueError: the run is unfinished and in an earlier format.
    """

    def __init__(self, directory: Path, *, write: bool = False) -> None:
        self.directory, self.path, self.write = directory, directory / FILE, write
        if (directory / EARLIER_PLAN).is_file() and not self.path.is_file():
            if not write:
                raise ValueError(f"{directory} holds a run in an earlier format; run its command again, which measures all cells again")
            warnings.warn(f"{directory} holds a run in an earlier format; its cells are measured again", EarlierFormatWarning, stacklevel=2)
        if not write and not self.path.is_file():
            raise FileNotFoundError(f"found no {self.path}; expected the folder of a run, finished or not")
        if write and not self.path.exists():
            # The file appears with its tables and version: a reader that comes at once must not take it for another version.
            new = directory / f".{FILE}-new"
            new.unlink(missing_ok=True)
            with self._writing():
                with closing(sqlite3.connect(new, isolation_level=None)) as base:
                    base.executescript(f"{_TABLES} PRAGMA user_version={SCHEMA_VERSION};")
                os.replace(new, self.path)
        # A reader may have to roll back the transaction of a killed writer, which needs write access.
        mode = "rwc" if write else "rw" if os.access(self.path, os.W_OK) and os.access(directory, os.W_OK) else "ro"
        self.base = sqlite3.connect(f"{self.path.resolve().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=30)
        try:
            self.base.execute("PRAGMA trusted_schema=OFF")  # the file may come from a stranger
            ((version,),) = self._read("PRAGMA user_version")
            if version > SCHEMA_VERSION or (version < SCHEMA_VERSION and not write):
                raise (NewerSchemaError if version > SCHEMA_VERSION else OtherSchemaError)(self.path, version)
            if write:
                with self._writing():
                    self.base.execute(f"PRAGMA journal_mode={'TRUNCATE' if _is_on_network(directory) else 'WAL'}")
                    self.base.executescript(f"{_TABLES} PRAGMA user_version={SCHEMA_VERSION};")
        except BaseException:
            self.base.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Without a log, a finished run can be read in a folder that cannot be written."""
        if self.write:
            with suppress(sqlite3.Error):
                self.base.executescript("PRAGMA busy_timeout=0; PRAGMA journal_mode=DELETE;")
        self.base.close()

    def freeze(self, work: Grid) -> None:
        """Replace the plan; finished cells stay."""
        with self._writing(), self.base:
            self.base.execute("BEGIN")
            self.base.execute("DELETE FROM plan")
            self.base.execute("DELETE FROM skips")
            cells = zip(work.places or range(len(work.cells)), work.cells, strict=True)
            lines = ((place, c.identity, c.suite, c.problem, c.stage, json.dumps(c.estimators), c.instances) for place, c in cells)
            self.base.executemany("INSERT INTO plan VALUES (?,?,?,?,?,?,?)", lines)
            skips = ((row.problem, row.estimator, as_json(packed(row))) for row in work.skips)
            self.base.executemany("INSERT INTO skips VALUES (?,?,?)", skips)

    def keep(self, identity: str, text: str) -> StoredCell:
        """Write a finished cell from its rows, as `encode` writes them.

        Raises:
            WrongRowsError: the text is anything but the rows of the cell.
            OSError: it cannot be written.
        """
        cell = decode(text, identity)
        with self._writing():
            self.base.execute(f"PRAGMA synchronous={'FULL' if cell.seconds >= DURABLE_SECONDS else 'NORMAL'}")
            values = (identity, cell.kind, cell.seconds, zlib.compress(text.encode(), 1))
            self.base.execute("INSERT OR REPLACE INTO cells (identity, kind, seconds, content) VALUES (?,?,?,?)", values)
        return cell

    def take(self, other: Path, *, plan: bool = False) -> None:
        """Add the cells of another run. A cell that did not fail replaces one that failed.

        Args:
            other: its folder.
            plan: whether to add its plan and its skipped pairs too.

        Raises:
            ValueError: its plan has another cell at some place.
        """
        with Store(other):  # raises if it cannot be read
            pass
        with self._writing(), closing(self.base.cursor()) as cursor:
            cursor.execute("ATTACH ? AS other", (str(other / FILE),))
            try:
                differing = "SELECT 1 FROM plan JOIN other.plan AS theirs USING (place) WHERE plan.identity <> theirs.identity LIMIT 1"
                if plan and self._read(differing):
                    raise ValueError(f"{other} has another plan than the shards before it; measure all shards of one plan")
                with self.base:
                    cursor.execute("BEGIN")
                    if plan:
                        cursor.execute("INSERT OR IGNORE INTO plan SELECT * FROM other.plan")
                        cursor.execute("INSERT INTO skips SELECT * FROM other.skips EXCEPT SELECT * FROM skips")
                    cursor.execute(
                        "INSERT INTO cells (identity, kind, seconds, content) SELECT identity, kind, seconds, content FROM other.cells "
                        "WHERE true ORDER BY number ON CONFLICT (identity) DO UPDATE SET kind = excluded.kind, seconds = excluded.seconds, "
                        f"content = excluded.content WHERE cells.kind = '{FAILED_KIND}' AND excluded.kind <> '{FAILED_KIND}'"
                    )
            finally:
                cursor.execute("DETACH other")

    def copied(self) -> bytes:
        """The whole database as one file, also during a run."""
        with closing(sqlite3.connect(":memory:")) as target:
            self.base.backup(target)
            return target.serialize()

    # Reading.

    def planned(self) -> Grid:
        """The cells and skipped pairs of the plan, without its limits."""
        lines = self._read("SELECT place, suite, problem, stage, estimators, instances, identity FROM plan ORDER BY place")
        try:
            cells = tuple(
                Cell(str(suite), str(problem), str(stage), tuple(map(str, json_of(names))), int(count), check_identity(identity))
                for _, suite, problem, stage, names, count, identity in lines
            )
            return Grid(cells, tuple(self._skips()), places=tuple(line[0] for line in lines))
        except (TypeError, AttributeError) as error:
            raise self._damaged(error) from error

    def known(self) -> dict[str, KnownCell]:
        """The finished cells of the plan by identity."""
        found = self._read("SELECT identity, kind, seconds FROM plan JOIN cells USING (identity)")
        return {identity: KnownCell(*rest) for identity, *rest in found}

    def counts(self) -> tuple[dict[tuple[str, str | None], int], int]:
        """Numbers of cells by suite and kind (None: not finished), and the number of skipped pairs."""
        query = "SELECT suite, kind, count(*) FROM plan LEFT JOIN cells USING (identity) GROUP BY suite, kind ORDER BY min(place)"
        ((skipped,),) = self._read("SELECT count(*) FROM (SELECT DISTINCT problem, estimator FROM skips)")
        return {(str(suite), kind): count for suite, kind, count in self._read(query)}, skipped

    def failed(self, most: int) -> Iterator[StoredCell]:
        """Failed cells of the plan, the latest first."""
        query = "SELECT content FROM plan JOIN cells USING (identity) WHERE kind = ? ORDER BY number DESC LIMIT ?"
        return (self._cell(content) for (content,) in self._read(query, FAILED_KIND, most))

    def stored(self, identity: str) -> StoredCell | None:
        """A cell with its rows; None if it is not finished."""
        found = self._read("SELECT content FROM cells WHERE identity = ?", identity)
        return self._cell(found[0][0]) if found else None

    def rows(self) -> Iterator[Row]:
        """The rows of all finished cells in the order of the plan, then skipped pairs."""
        with self._reading():
            for (content,) in self.base.execute("SELECT content FROM plan JOIN cells USING (identity) ORDER BY place"):
                yield from self._cell(content).rows
        yield from self._skips()

    def _skips(self) -> Iterator[Row]:
        for (text,) in self._read("SELECT row FROM skips ORDER BY rowid"):
            try:
                yield ROW.validate_json(text)
            except ValidationError as error:
                raise self._damaged(ValueError(first_error(error))) from None

    def _cell(self, content: bytes) -> StoredCell:
        try:
            return decode(zlib.decompressobj().decompress(content, LARGEST_TEXT))
        except (zlib.error, ValueError, TypeError) as error:
            raise self._damaged(error) from error

    def _read(self, query: str, *values: object) -> list[Any]:
        with self._reading():
            return self.base.execute(query, values).fetchall()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeError, OverflowError) as error:
            raise self._damaged(error) from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise OSError(f"{self.path}: {error}") from error
        except sqlite3.Error as error:
            raise self._damaged(error) from error

    def _damaged(self, error: BaseException) -> DamagedError:
        return DamagedError(f"{self.path} cannot be read ({str(error)[:200]}); measure the run again with --fresh, or in another folder")


def _is_on_network(directory: Path, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Whether a folder is on a network file system, on which SQLite cannot share memory between processes."""
    found, kind = "", ""
    with suppress(OSError):
        for line in mounts.read_text(encoding="utf-8").splitlines():
            _, place, system, *_ = line.split(" ")
            if Path(os.path.realpath(directory)).is_relative_to(place) and len(place) >= len(found):
                found, kind = place, system
    return kind in _NETWORK
