"""Mirror of a run: what its folder holds lies under a URL too, at most a second later, and another machine goes on from there.

What is new is written first, and what it takes the place of is removed afterwards. A cell that was measured and not written yet when the
server was lost lies in the working folder, and is written when the run goes on there.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from ...base import SCHEMA_VERSION
from ...trust import json_of
from .. import store
from ..parts import compaction, journal
from ..parts.locking import locked
from . import snapshot
from .lease import Lease, held
from .objects import ObjectStore, cached_folder, working_folder

EVERY = 1.0
"""Seconds between two objects: cells that are finished within one become one."""

_NOT_MIRRORED = "told.json"


class Mirror:
    """A run under a URL, and its driver's folder; whoever has one holds the lock of the folder and the lease of the URL.

    Args:
        remote: where to. ``folder``: of the run. ``lease``: of the URL.
    """

    def __init__(self, remote: ObjectStore, folder: Path, lease: Lease) -> None:
        self.remote, self.folder, self.lease = remote, folder, lease
        self.parts: dict[str, str] = {}
        self.batches: dict[str, dict[str, str]] = {}
        self.pending: dict[str, str] = {}
        self.documents: dict[str, tuple[int, int]] = {}
        self.strange: set[str] = set()
        self.number, self.last = 0, 0.0

    def begin(self) -> None:
        """Take what lies under the URL, and write what does not lie there yet."""
        copy = cached_folder(self.remote.url)
        copy.mkdir(parents=True, exist_ok=True)
        with locked(copy, wait=True):
            found = snapshot.fetch(self.remote, copy, self.folder)
            _check_version(copy, self.remote.url)
            absorb(self.folder, copy)
        self.number, self.batches = found.last, found.batches
        named = {snapshot.digest_in(name): name for name in found.parts}
        near = {str(path.relative_to(self.folder / journal.FOLDER)): digest for digest, path in snapshot.digests(self.folder).items()}
        self.parts = {file: named[digest] for file, digest in near.items() if digest in named}
        self.strange = set(found.parts).difference(self.parts.values()).union(found.damaged)
        index, loose = journal.read(self.folder), store.loose(self.folder)
        self.pending = self._unwritten(index, loose)
        self._write(index, loose)

    def keep(self, identity: str, text: str) -> None:
        """A finished cell, which is to be written."""
        self.pending[identity] = text

    def write(self, index: journal.Index, loose: Set[str], *, now: bool = False) -> None:
        """Write what is finished, if it is time.

        Args:
            index: of the parts of the folder.
            loose: the cells that have files of their own.
            now: whether it is.
        """
        if now or time.monotonic() - self.last >= EVERY:
            self._write(index, loose)

    def close(self, index: journal.Index, loose: Set[str]) -> None:
        """At the end of a run, or of a merge: what is left, and small objects become one."""
        self.pending = self._texts(loose) if len(self.batches) > 1 else self._unwritten(index, loose)
        self._write(index, loose)

    def write_documents(self) -> None:
        """Plan, manifest, table and page, as far as they have changed."""
        self.lease.check()
        for path in sorted(self.folder.iterdir()):
            if path.is_file() and not path.name.startswith(".") and path.name != _NOT_MIRRORED:
                stamp = (path.stat().st_mtime_ns, path.stat().st_size)
                if self.documents.get(path.name) != stamp:
                    self.remote.put(path.name, path.read_bytes())
                    self.documents[path.name] = stamp

    def discard(self) -> None:
        """Forget the cells under the URL."""
        self.lease.confirm()
        self.remote.remove(name for name in self.remote.names() if not name.startswith("."))
        self.parts, self.batches, self.pending, self.documents, self.strange = {}, {}, {}, {}, set()

    def _write(self, index: journal.Index, loose: Set[str]) -> None:
        self.lease.check()
        new = [file for file in index.parts if file not in self.parts]
        for file in new:
            content = (self.folder / journal.FOLDER / file).read_bytes()
            self.number += 1
            name = snapshot.part_name(Path(file).parent.name, self.number, content)
            self.remote.put(name, content)
            self.parts[file] = name
            # A later object counts: a cell that the part holds and that has a newer file of its own follows it.
            self.pending = self._texts(loose & set(index.parts[file].cells)) | self.pending
        texts = {identity: text for identity, text in self.pending.items() if identity in loose}
        if texts:
            content = snapshot.packed(list(texts.values()))
            self.number += 1
            name = snapshot.batch_name(self.number, content)
            self.remote.put(name, content)
            for batch in self.batches.values():
                for identity in texts:
                    batch.pop(identity, None)
            self.batches[name] = {identity: journal.digest(text.encode()) for identity, text in texts.items()}
        self.pending, self.last = {}, time.monotonic()
        self._sweep(index, loose)

    def _sweep(self, index: journal.Index, loose: Set[str]) -> None:
        """Remove what later objects hold."""
        gone = [file for file in self.parts if file not in index.parts]
        empty = [name for name, batch in self.batches.items() if not any(identity in loose for identity in batch)]
        if gone or empty or self.strange:
            self.lease.confirm()
            self.remote.remove([*(self.parts[file] for file in gone), *empty, *self.strange])
            self.strange = set()
            for file in gone:
                del self.parts[file]
            for name in empty:
                del self.batches[name]

    def _unwritten(self, index: journal.Index, loose: Set[str]) -> dict[str, str]:
        """What the files of cells hold that neither a batch nor a part does."""
        there = {identity: digest for batch in self.batches.values() for identity, digest in batch.items()}
        return {
            identity: text
            for identity, text in self._texts(loose).items()
            if journal.digest(text.encode()) not in (there.get(identity), index.digests.get(identity))
        }

    def _texts(self, identities: Collection[str]) -> dict[str, str]:
        """What the files of cells hold, of those that can be read."""
        whole = _kinds(self.folder, identities)
        return {identity: store.path_of(self.folder, identity).read_text(encoding="utf-8") for identity in whole}


@contextmanager
def mirrored(url: str) -> Iterator[Mirror]:
    """The mirror of a run, in whose folder it goes on from what lies under the URL.

    Raises:
        LockedError: another process is at work on it.
        NewerSchemaError: a newer version wrote it.
        ValueError, OSError: the URL cannot be read or written.
    """
    remote, folder = ObjectStore(url), working_folder(url)
    store.check_writable(folder)
    with locked(folder), held(url) as lease:
        mirror = Mirror(remote, folder, lease)
        mirror.begin()
        yield mirror


def absorb(folder: Path, other: Path) -> None:
    """Take into the folder of a run what another one holds, of whatever plan: what is not there, or failed there and not here."""
    ours, theirs = journal.read(folder), store.index(other)
    alone, here = _kinds(other, store.loose(other)), _kinds(folder, store.loose(folder))
    near = {**ours.kinds, **here}

    def wanted(identity: str, kind: str) -> bool:
        return identity not in near or (near[identity] == journal.FAILED_KIND and kind != journal.FAILED_KIND)

    copied: list[journal.CellPart] = []
    tables: dict[str, list[compaction.Piece]] = defaultdict(list)
    taken: set[str] = set()
    for file, part in theirs.parts.items():
        fresh = {identity for identity, kind in zip(part.cells, part.kinds, strict=True) if wanted(identity, kind)}
        taken |= fresh
        if len(fresh) == len(part.cells) and fresh.isdisjoint(ours.owner):
            copied.append(part)
        elif fresh and (piece := compaction.without(other, part, set(part.cells) - fresh)) is not None:
            tables[Path(file).parent.name].append(piece)
    compaction.copy_parts(other, folder, ours, copied)
    if tables:
        compaction.replace_cells(folder, ours, tables)
    for identity in taken & here.keys():
        store.path_of(folder, identity).unlink()
    for identity, kind in alone.items():
        if wanted(identity, kind):
            store.write_atomically(store.path_of(folder, identity), store.path_of(other, identity).read_text(encoding="utf-8"))


def _kinds(folder: Path, identities: Collection[str]) -> dict[str, str]:
    """What became of the cells that have files of their own, as far as they can be read."""
    found = {}
    for identity in identities:
        try:
            content = json_of(store.path_of(folder, identity).read_bytes())
            if content["cell"]["identity"] == identity:
                found[identity] = store.kind_of(content)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return found


def _check_version(folder: Path, url: str) -> None:
    try:
        version = json_of((folder / snapshot.MANIFEST).read_bytes())["schema_version"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise store.NewerSchemaError(Path(f"{url}/{snapshot.MANIFEST}"), version)
