"""Storage of a run: its plan and its finished cells in one SQLite file, next to logs and scratch folders.

Only one process writes (`locked`); others may read at any time. Each finished cell is committed on its own, so a killed process loses only
the cells that it was measuring. A power failure may also take short cells of the last seconds (`DURABLE_SECONDS`).
"""

import json
import os
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from ..base import SCHEMA_VERSION, Row
from ..trust import LARGEST_TEXT, json_of
from .work import FAILED_KIND, ROW, Cell, Grid, StoredCell, as_json, decode, first_error, packed

FILE = "cells.sqlite"  # the name of the database in the folder of a run
DURABLE_SECONDS = 0.1  # cells that took more seconds are written to the disk at once, so that they survive a power failure

_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "beegfs", "gpfs", "ceph", "afs", "9p", "fuse.sshfs", "fuse.s3fs")

_TABLES = f"""
BEGIN;
CREATE TABLE IF NOT EXISTS plan (
  place INTEGER PRIMARY KEY, identity TEXT UNIQUE, suite TEXT, problem TEXT, stage TEXT, estimators TEXT, instances INTEGER
);
CREATE TABLE IF NOT EXISTS skips (problem TEXT, estimator TEXT, row TEXT);
CREATE TABLE IF NOT EXISTS cells (number INTEGER PRIMARY KEY, identity TEXT UNIQUE, kind TEXT, seconds REAL, content BLOB);
PRAGMA user_version={SCHEMA_VERSION};
COMMIT;
"""


class LockedError(ValueError):
    """Another process, or thread, is writing to the folder."""


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


def scratch_path(directory: Path, cell: Cell) -> Path:
    """The folder in which a suite may keep checkpoints, to continue from them after a kill."""
    return directory / "scratch" / cell.identity


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
    for name in (FILE, f"{FILE}-wal", f"{FILE}-shm", f"{FILE}-journal"):
        (directory / name).unlink(missing_ok=True)


def holds_run(directory: Path) -> bool:
    """Whether a folder has the cells of a run."""
    return (directory / FILE).is_file() and (directory / FILE).stat().st_size > 0  # empty until it has tables


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a folder, which the system releases when the process ends; LockedError if another holds it."""
    with closing(sqlite3.connect(directory / ".writer", isolation_level=None, timeout=0)) as base:
        try:
            base.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):  # a file system without locks raises other errors, and is not locked
                said = f"{directory} is being written by another process; wait until it has ended, or name another folder with --out"
                raise LockedError(said) from None
        yield


class Store:
    """The plan and the finished cells of a run; who writes holds the lock.

    Raises FileNotFoundError without a run, OtherSchemaError if another version of the package wrote it, DamagedError if it cannot be read.
    """

    def __init__(self, directory: Path, *, write: bool = False) -> None:
        self.directory, self.path, self.write = directory, directory / FILE, write
        if not write and not holds_run(directory):
            raise FileNotFoundError(f"found no {self.path}; expected the folder of a run, finished or not")
        # A reader may have to roll back the transaction of a killed writer, which needs write access.
        mode = "rwc" if write else "rw" if os.access(self.path, os.W_OK) and os.access(directory, os.W_OK) else "ro"
        self.base = sqlite3.connect(f"{self.path.resolve().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=30)
        try:
            self.base.execute("PRAGMA trusted_schema=OFF")  # the file may come from a stranger
            ((version,),) = self._read("PRAGMA user_version")
            if version > SCHEMA_VERSION or (version < SCHEMA_VERSION and not write):
                raise (NewerSchemaError if version > SCHEMA_VERSION else OtherSchemaError)(self.path, version)
            if write:
                with self._explained():
                    self.base.executescript(_TABLES)
                    self.base.execute(f"PRAGMA journal_mode={'TRUNCATE' if _is_on_network(directory) else 'WAL'}")
        except BaseException:
            self.base.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.write:  # without a log, a finished run can be read in a folder that cannot be written
            with suppress(sqlite3.Error):
                self.base.executescript("PRAGMA busy_timeout=0; PRAGMA journal_mode=DELETE;")
        self.base.close()

    def freeze(self, work: Grid) -> None:
        """Replace the plan; finished cells stay."""
        cells = zip(work.places or range(len(work.cells)), work.cells, strict=True)
        lines = ((place, c.identity, c.suite, c.problem, c.stage, json.dumps(c.estimators), c.instances) for place, c in cells)
        with self._explained(), self.base:
            self.base.executescript("BEGIN; DELETE FROM plan; DELETE FROM skips;")
            self.base.executemany("INSERT INTO plan VALUES (?,?,?,?,?,?,?)", lines)
            skips = ((row.problem, row.estimator, as_json(packed(row))) for row in work.skips)
            self.base.executemany("INSERT INTO skips VALUES (?,?,?)", skips)

    def keep(self, identity: str, text: str) -> StoredCell:
        """Write a finished cell from its rows, as `encode` writes them; ValueError for anything else, OSError if the disk is full."""
        cell = decode(text)
        with self._explained():
            self.base.execute(f"PRAGMA synchronous={'FULL' if cell.seconds >= DURABLE_SECONDS else 'NORMAL'}")
            values = (identity, cell.kind, cell.seconds, zlib.compress(text.encode(), 1))
            self.base.execute("INSERT OR REPLACE INTO cells (identity, kind, seconds, content) VALUES (?,?,?,?)", values)
        return cell

    def take(self, other: Path, *, plan: bool = False) -> None:
        """Add the cells of another folder, where a success replaces a failure, and with `plan` its plan and skips, if no place differs."""
        with Store(other):  # raises if it cannot be read
            pass
        self._read("ATTACH ? AS other", str(other / FILE))
        try:
            differing = "SELECT 1 FROM plan JOIN other.plan AS theirs USING (place) WHERE plan.identity <> theirs.identity LIMIT 1"
            if plan and self._read(differing):
                raise ValueError(f"{other} has another plan than the shards before it; measure all shards of one plan")
            with self._explained(), self.base:
                self.base.execute("BEGIN")
                if plan:
                    self.base.execute("INSERT OR IGNORE INTO plan SELECT * FROM other.plan")
                    self.base.execute("INSERT INTO skips SELECT * FROM other.skips EXCEPT SELECT * FROM skips")
                self.base.execute(
                    "INSERT INTO cells (identity, kind, seconds, content) SELECT identity, kind, seconds, content FROM other.cells "
                    "WHERE true ORDER BY number ON CONFLICT (identity) DO UPDATE SET kind = excluded.kind, seconds = excluded.seconds, "
                    f"content = excluded.content WHERE cells.kind = '{FAILED_KIND}' AND excluded.kind <> '{FAILED_KIND}'"
                )
        finally:
            self.base.execute("DETACH other")

    def copied(self) -> bytes:
        """The whole database as one file, also during a run."""
        with closing(sqlite3.connect(":memory:")) as target:
            self.base.backup(target)
            return target.serialize()

    def planned(self) -> Grid:
        """The cells and skipped pairs of the plan, without its limits."""
        lines = self._read("SELECT place, suite, problem, stage, estimators, instances, identity FROM plan ORDER BY place")
        with self._explained():
            cells = tuple(
                Cell(str(suite), str(problem), str(stage), tuple(map(str, json_of(names))), int(count), str(identity))
                for _, suite, problem, stage, names, count, identity in lines
            )
        return Grid(cells, tuple(self._skips()), places=tuple(line[0] for line in lines))

    def known(self) -> dict[str, tuple[str, float]]:
        """Kind and seconds of the finished cells of the plan, by identity."""
        found = self._read("SELECT identity, kind, seconds FROM plan JOIN cells USING (identity)")
        return {identity: (kind, seconds) for identity, kind, seconds in found}

    def counts(self) -> tuple[dict[tuple[str, str | None], int], int]:
        """Numbers of cells by suite and kind (None: not finished), and the number of skipped pairs."""
        query = "SELECT suite, kind, count(*) FROM plan LEFT JOIN cells USING (identity) GROUP BY suite, kind ORDER BY min(place)"
        ((skipped,),) = self._read("SELECT count(*) FROM (SELECT DISTINCT problem, estimator FROM skips)")
        return {(str(suite), kind): count for suite, kind, count in self._read(query)}, skipped

    def failed(self, most: int) -> Iterator[StoredCell]:
        """Failed cells of the plan, the latest first."""
        query = "SELECT content FROM plan JOIN cells USING (identity) WHERE kind = ? ORDER BY number DESC LIMIT ?"
        return (self._cell(content) for (content,) in self._read(query, FAILED_KIND, most))

    def rows(self) -> Iterator[Row]:
        """The rows of all finished cells in the order of the plan, then skipped pairs."""
        with self._explained():
            for (content,) in self.base.execute("SELECT content FROM plan JOIN cells USING (identity) ORDER BY place"):
                yield from self._cell(content).rows
        yield from self._skips()

    def _skips(self) -> Iterator[Row]:
        for (text,) in self._read("SELECT row FROM skips ORDER BY rowid"):
            with self._explained():
                row = ROW.validate_json(text)
            yield row

    def _cell(self, content: bytes) -> StoredCell:
        with self._explained():
            return decode(zlib.decompressobj().decompress(content, LARGEST_TEXT))

    def _read(self, query: str, *values: object) -> list[Any]:
        with self._explained():
            return self.base.execute(query, values).fetchall()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of the database, and of its content, into one sentence."""
        try:
            yield
        except (sqlite3.Error, zlib.error, ValueError, TypeError, AttributeError, OverflowError) as error:
            if isinstance(error, sqlite3.OperationalError) and self.write:
                raise OSError(f"{self.path}: {error}") from error
            if isinstance(error, DamagedError | OtherSchemaError):
                raise
            reason = first_error(error) if isinstance(error, ValidationError) else str(error)[:200]
            advice = "measure the run again with --fresh, or in another folder"
            raise DamagedError(f"{self.path} cannot be read ({reason}); {advice}") from error


def _is_on_network(directory: Path, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Whether a folder is on a network file system, on which SQLite cannot share memory between processes."""
    here = Path(os.path.realpath(directory))
    lines = [line.split(" ") for line in mounts.read_text(encoding="utf-8").splitlines()] if mounts.is_file() else []
    kinds = [kind for _, place, kind, *_ in sorted(lines, key=lambda line: len(line[1])) if here.is_relative_to(place)]
    return bool(kinds) and kinds[-1] in _NETWORK
