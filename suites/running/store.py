"""Storage of a run on disk: the frozen plan, one file per cell, logs, scratch folders.

Every file is there whole or not at all, so that a killed run loses the cells in flight and nothing else.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from ..base import FAILED, SCHEMA_VERSION, Row
from .work import Cell, Grid

PLAN = "plan.jsonl"
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError)
_NUMBERS = ("value", "low", "high")
_UNSET = object()
_DEFAULTS = {field.name: field.default for field in fields(Row) if field.name != "schema_version" and field.default is not MISSING}


def cell_path(directory: Path, cell: Cell) -> Path:
    """Where a cell's rows lie."""
    return directory / "cells" / cell.identity[:2] / f"{cell.identity}.json"


def log_path(directory: Path, cell: Cell) -> Path:
    """What a cell printed."""
    return directory / "logs" / f"{cell.identity}.log"


def scratch_path(directory: Path, cell: Cell) -> Path:
    """Where a suite may keep what it goes on from after a kill."""
    return directory / "scratch" / cell.identity


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
    for name in ("cells", "logs", "scratch"):
        shutil.rmtree(directory / name, ignore_errors=True)
    (directory / PLAN).unlink(missing_ok=True)


# Cells.


def encode(cell: Cell, rows: list[Row], seconds: float) -> str:
    """The content of a cell's file: strict JSON, in which infinity is a string, and what all rows share stands once."""
    packed = [_packed(row) for row in rows]
    shared = {name: value for name, value in packed[0].items() if all(row.get(name, _UNSET) == value for row in packed)} if packed else {}
    own = [{name: value for name, value in row.items() if name not in shared} for row in packed]
    return json.dumps({"cell": asdict(cell), "seconds": seconds, "shared": shared, "rows": own}, allow_nan=False)


def write_cell(directory: Path, cell: Cell, text: str) -> None:
    """Write a cell's file, and drop its scratch folder."""
    write_atomically(cell_path(directory, cell), text)
    shutil.rmtree(scratch_path(directory, cell), ignore_errors=True)


def stored(directory: Path, cell: Cell) -> dict[str, Any] | None:
    """The content of a cell's file with `Row` objects; None where there is none that can be read, so that it is measured again.

    Raises:
        ValueError: a file of a newer schema version.
    """
    path = cell_path(directory, cell)
    try:
        content = json.loads(path.read_text())
        _check_version(path, content)
        return _decoded(content)
    except FileNotFoundError:
        return None
    except NewerSchemaError:
        raise
    except _DAMAGE:
        return None


def decode(text: str) -> dict[str, Any]:
    """The content of a cell's file, with `Row` objects."""
    return _decoded(json.loads(text))


def _decoded(content: dict[str, Any]) -> dict[str, Any]:
    rows = [_unpacked({**content["shared"], **row}) for row in content["rows"]]
    return {**content, "rows": rows, "seconds": float(content["seconds"])}


def damaged(directory: Path, work: Grid) -> list[Path]:
    """The files of cells that are there and cannot be read."""
    return [path for cell in work.cells if (path := cell_path(directory, cell)).is_file() and stored(directory, cell) is None]


def unmeasured(directory: Path, work: Grid) -> list[Cell]:
    """The cells that have no file that can be read."""
    return [cell for cell in work.cells if stored(directory, cell) is None]


class OtherSchemaError(ValueError):
    """What another version of the package wrote."""

    advice = "measure it again, or read it with the structgrad that wrote it"

    def __init__(self, path: Path, version: object) -> None:
        super().__init__(f"{path} has the schema version {version}, this structgrad reads {SCHEMA_VERSION}; {self.advice}")


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
    values = {name: value for name, value in vars(row).items() if _DEFAULTS.get(name, _UNSET) != value}
    infinite = {name: str(values[name]) for name in _NUMBERS if isinstance(values.get(name), float) and math.isinf(values[name])}
    return {**values, **infinite}


def _unpacked(values: dict[str, Any]) -> Row:
    numbers: dict[str, Any] = {name: float(values[name]) for name in _NUMBERS if isinstance(values.get(name), str)}
    return Row(**{**values, **numbers, "batches": tuple(values.get("batches", ()))})


# The plan.


def freeze(directory: Path, work: Grid) -> None:
    """Write the cells and the skipped pairs, one per line: what `planned` reads, whatever becomes of the run."""
    lines = [json.dumps({"cell": asdict(cell)}) for cell in work.cells] + [json.dumps({"skip": _packed(row)}) for row in work.skips]
    write_atomically(directory / PLAN, "".join(f"{line}\n" for line in lines))


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
        found = [json.loads(line) for line in path.read_text().splitlines()]
        cells = tuple(Cell(**{**item["cell"], "estimators": tuple(item["cell"]["estimators"])}) for item in found if "cell" in item)
        skips = tuple(item["skip"] for item in found if "skip" in item)
        for skip in skips:
            _check_version(path, {"shared": skip, "rows": []})
        return Grid(cells, tuple(map(_unpacked, skips)))
    except NewerSchemaError:
        raise
    except _DAMAGE as error:
        raise ValueError(f"{path} is damaged ({error}); finished cells are kept, run the same command again to plan anew") from error


def stored_rows(directory: Path, work: Grid) -> Iterator[Row]:
    """The rows of all cells that are there, in the order of the grid; skipped pairs at the end."""
    for cell in work.cells:
        content = stored(directory, cell)
        yield from content["rows"] if content is not None else ()
    yield from work.skips


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
