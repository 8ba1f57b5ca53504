"""Writer of finished cells: each at once into a file of its own, many of them now and then into parts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..base import Row
from ..trust import json_of
from . import store
from .parts import journal
from .parts.compaction import Compacted, compact, recover
from .work import Cell

BATCH = 1024
"""Cells with files of their own that make parts; a run of fewer keeps its files."""

HELD = 2**24
"""Characters of the texts whose content is held in memory until it goes into parts, which takes about five times as many bytes."""

_COLUMNS = frozenset(field.name for field in fields(Row))


class GarbageError(ValueError):
    """A text that is not the content of a cell's file."""


def examined(cell: Cell, text: str) -> dict[str, Any]:
    """The content of a cell's file as JSON has it.

    Raises:
        GarbageError: anything that is not that of this cell.
    """
    try:
        content: dict[str, Any] = json_of(text)
        rows, shared = content["rows"], content["shared"]
        right = content["cell"]["identity"] == cell.identity and content["seconds"] >= 0 and _COLUMNS.issuperset(shared)
        if not right or not all(_COLUMNS.issuperset(row) for row in rows):
            raise GarbageError(f"got something else than the rows of {cell.label}")
    except (ValueError, KeyError, TypeError) as error:
        raise GarbageError(f"got no rows for {cell.label} ({type(error).__name__}: {str(error)[:100]})") from error
    return content


class CellWriter:
    """Keeps the finished cells of one run; whoever has one holds the lock of the folder.

    Args:
        directory: of the run. ``cells``: of its plan, whose order parts have.
    """

    def __init__(self, directory: Path, cells: Sequence[Cell]) -> None:
        self.directory, self.cells = directory, {cell.identity: cell for cell in cells}
        self.order = {identity: place for place, identity in enumerate(self.cells)}
        self.index = journal.read(directory)
        self.loose = store.loose(directory)
        self.held: dict[str, tuple[Mapping[str, Any], str]] = {}
        self.holding = 0
        self._clear()

    def _clear(self) -> None:
        """Remove what a killed compaction left: files of cells that lie in parts, and parts that do not count."""
        for identity in [identity for identity in self.loose if identity in self.index.digests]:
            path = store.path_of(self.directory, identity)
            if journal.digest(path.read_bytes()) == self.index.digests[identity]:
                path.unlink()
                self.loose.discard(identity)
        recover(self.directory, self.index, self.loose)

    def keep(self, cell: Cell, text: str, seconds: float, content: Mapping[str, Any] | None = None) -> None:
        """Write a finished cell.

        Args:
            cell: that is finished.
            text: the content of its file.
            seconds: from `store.LASTING` on its file outlives a loss of power.
            content: of the text as JSON has it, where that is known, so that it is not read again when it goes into a part.

        Raises:
            OSError: it cannot be written.
        """
        store.write_cell(self.directory, cell, text, lasting=seconds >= store.LASTING)
        self.loose.add(cell.identity)
        self.held.pop(cell.identity, None)
        if content is not None and self.holding + len(text) <= HELD:
            self.held[cell.identity] = content, journal.digest(text.encode())
            self.holding += len(text)
        if len(self.loose) >= BATCH:
            self.compact()

    def close(self) -> None:
        """At the end of a run; where there are parts, all goes into parts."""
        if self.index.parts and self.loose:
            self.compact()

    def compact(self) -> None:
        """Move the cells of this plan that have files of their own into parts; files that are damaged stay."""
        found = []
        for identity in self.loose & self.cells.keys():
            known = self.held.get(identity) or self._read(identity)
            if known is not None:
                content, digest = known
                found.append(Compacted(self.order[identity], content, store.kind_of(content), digest))
        if found:
            compact(self.directory, self.index, found)
        for cell in found:
            with suppress(FileNotFoundError):
                os.unlink(store.path_of(self.directory, cell.identity))
        self.loose, self.held, self.holding = set(), {}, 0

    def _read(self, identity: str) -> tuple[Mapping[str, Any], str] | None:
        """The content of the file of a cell of this plan, with its digest; None where there is none."""
        try:
            text = store.path_of(self.directory, identity).read_bytes()
            return examined(self.cells[identity], text.decode()), journal.digest(text)
        except (FileNotFoundError, GarbageError, UnicodeDecodeError):
            return None
