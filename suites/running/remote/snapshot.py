"""Snapshot of a remote run: a folder that holds what lies under its URL, and is read as that of any run.

Objects are numbered in the order in which they were written, and of a cell the latest one counts; so a driver that writes first and
removes afterwards may be killed anywhere. Their names hold the digest of their content: what does not have it is not taken.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...trust import LARGEST_TEXT, check_identity, json_of
from .. import store
from ..parts import compaction, journal
from ..parts.locking import locked
from .objects import ObjectStore, RemoteError, RemoteWarning, cached_folder, digest_of, is_url

MANIFEST, TABLE = "run.json", "results.parquet"
DOCUMENTS = (store.PLAN, MANIFEST, TABLE)
"""What is read of a run beside its cells."""

PART = re.compile(r"parts/(?P<suite>[^/.][^/]*)/(?P<number>\d{8,18})-(?P<digest>[0-9a-f]{32})\.parquet")
BATCH = re.compile(r"cells/(?P<number>\d{8,18})-(?P<digest>[0-9a-f]{32})\.jsonl\.gz")

_LISTING = "listing.json"
_TRIES = 5
_AT_ONCE = 16
"""Parts that are held in memory."""


@dataclass
class RemoteSnapshot:
    """What was found under a URL.

    Attributes:
        parts: names of objects. ``batches``: of each the digests of its cells, by identity; of cells that no later object holds.
        damaged: names of objects that are not what was written. ``last``: the greatest number of an object.
    """

    parts: list[str] = field(default_factory=list)
    batches: dict[str, dict[str, str]] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)
    last: int = 0


def part_name(suite: str, number: int, content: bytes) -> str:
    """Of the object of a part, whose suite is the name of its folder."""
    return f"parts/{suite}/{number:08d}-{digest_of(content)}.parquet"


def batch_name(number: int, content: bytes) -> str:
    """Of the object of some finished cells."""
    return f"cells/{number:08d}-{digest_of(content)}.jsonl.gz"


def packed(texts: Sequence[str]) -> bytes:
    """The contents of the files of some cells as one object."""
    lines = (text.replace("\n", " ") for text in texts)  # in JSON, an end of a line is space between two words
    return gzip.compress("".join(f"{line}\n" for line in lines).encode(), compresslevel=5, mtime=0)


def unpacked(content: bytes) -> dict[str, str]:
    """The same by the identities of the cells.

    Raises:
        ValueError: anything else.
    """
    try:
        with gzip.open(io.BytesIO(content)) as stream:
            plain = stream.read(LARGEST_TEXT + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"no cells ({error})") from error
    if len(plain) > LARGEST_TEXT:
        raise ValueError(f"more than {LARGEST_TEXT} bytes")
    lines = plain.decode().split("\n")[:-1]
    try:
        return {check_identity(json_of(line)["cell"]["identity"]): line for line in lines}
    except (KeyError, TypeError) as error:
        raise ValueError(f"no cells ({error})") from error


@contextmanager
def reading(place: Path | str) -> Iterator[Path]:
    """The folder or table of a run, also under a URL, from which it is fetched; nobody changes the copy meanwhile.

    Raises:
        FileNotFoundError: nothing lies under the URL.
        ValueError, OSError: it cannot be had.
    """
    if not is_url(place):
        yield Path(place)
        return
    url = str(place).rstrip("/")
    table = url.endswith(".parquet")
    place, _, name = url.rpartition("/") if table else (url, "", "")
    folder = cached_folder(place)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, wait=True):
        remote = ObjectStore(place)
        if table:
            _fetch_documents(remote, folder, [name])
        else:
            fetch(remote, folder)
        if not (folder / name).is_file() if table else not any((folder / name).exists() for name in DOCUMENTS):
            raise FileNotFoundError(f"found nothing at {url}; expected the URL of a run, or of its {TABLE}")
        yield folder / name


def fetch(remote: ObjectStore, folder: Path, beside: Path | None = None) -> RemoteSnapshot:
    """Make a folder what lies under a URL.

    Args:
        remote: the URL.
        folder: whoever calls holds its lock.
        beside: the folder of a run whose parts need not be fetched again where they are the same.

    Raises:
        OSError: it cannot be had.
    """
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):  # replaced by its driver since it was listed
            _fetch_documents(remote, folder, DOCUMENTS)
            return _fetch_cells(remote, folder, beside)
    raise RemoteError(f"{remote.url} changes faster than it can be read; try again")


def _fetch_documents(remote: ObjectStore, folder: Path, names: Sequence[str]) -> None:
    kept = _json(folder / "documents.json")
    for name in names:
        try:
            stamp = remote.stamp(name)
            if kept.get(name) != stamp or not (folder / name).is_file():
                _write(folder / name, remote.get(name))
                kept[name] = stamp
        except FileNotFoundError:
            kept.pop(name, None)
            (folder / name).unlink(missing_ok=True)
    _write(folder / "documents.json", json.dumps(kept).encode())


def _fetch_cells(remote: ObjectStore, folder: Path, beside: Path | None) -> RemoteSnapshot:
    names = [name for name in remote.names() if PART.fullmatch(name) or BATCH.fullmatch(name)]
    kept = _json(folder / _LISTING)
    if kept.get("names") == names:
        with suppress(KeyError, TypeError):
            return RemoteSnapshot(**kept["snapshot"])
    (folder / _LISTING).unlink(missing_ok=True)
    _fetch_parts(remote, folder, [name for name in names if PART.fullmatch(name)], beside)
    found = _resolved(folder, names, _texts(remote, [name for name in names if BATCH.fullmatch(name)]))
    found.damaged = [name for name in names if name not in found.batches and name not in found.parts]
    if not found.damaged:
        _write(folder / _LISTING, json.dumps({"names": names, "snapshot": vars(found)}).encode())
    return found


def _fetch_parts(remote: ObjectStore, folder: Path, names: Sequence[str], beside: Path | None) -> None:
    """Those that are not there; what is there and in no name goes."""
    for path in (folder / journal.FOLDER).glob("*/*"):
        if str(path.relative_to(folder)) not in names:
            path.unlink()
    missing = [name for name in names if not (folder / name).is_file()]
    near = digests(beside) if missing and beside is not None else {}
    far = []
    for name in missing:
        source = near.get(digest_in(name))
        if source is None:
            far.append(name)
            continue
        _write(folder / name, source.read_bytes())
    for start in range(0, len(far), _AT_ONCE):
        for name, content in remote.get_all(far[start : start + _AT_ONCE]).items():
            if _is_whole(remote, name, content):
                _write(folder / name, content)


def digests(folder: Path) -> dict[str, Path]:
    """The parts of a run that count, by the digests of their content."""
    files = [folder / journal.FOLDER / file for file in journal.read(folder).parts]
    return {digest_of(file.read_bytes()): file for file in files}


def _texts(remote: ObjectStore, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Of every batch that is whole the contents of its cells' files, by identity."""
    found = {}
    for name, content in remote.get_all(names).items():
        if _is_whole(remote, name, content):
            try:
                found[name] = unpacked(content)
            except ValueError as error:
                _tell_damage(remote, name, str(error))
    return found


def _is_whole(remote: ObjectStore, name: str, content: bytes) -> bool:
    whole = digest_of(content) == digest_in(name)
    if not whole:
        _tell_damage(remote, name, "it is not what was written")
    return whole


def _tell_damage(remote: ObjectStore, name: str, reason: str) -> None:
    warnings.warn(f"{remote.url}/{name} is damaged, and not taken ({reason}); its cells are measured again", RemoteWarning, stacklevel=2)


def _resolved(folder: Path, names: Sequence[str], texts: Mapping[str, dict[str, str]]) -> RemoteSnapshot:
    """Of every cell the latest object counts: the journal of the folder, and files of cells, say so."""
    shutil.rmtree(folder / store.CELLS, ignore_errors=True)
    journal.path_of(folder).unlink(missing_ok=True)
    found, parts = RemoteSnapshot(last=max(map(number_of, names), default=0)), []
    owned: set[str] = set()
    alone: set[str] = set()
    for name in sorted(names, key=number_of, reverse=True):
        if name in texts:
            fresh = {identity: text for identity, text in texts[name].items() if identity not in owned | alone}
            for identity, text in fresh.items():
                store.write_atomically(store.path_of(folder, identity), text, lasting=False)
            alone |= fresh.keys()
            found.batches[name] = {identity: journal.digest(text.encode()) for identity, text in fresh.items()}
        elif PART.fullmatch(name) and (folder / name).is_file():
            found.parts.append(name)
            part = compaction.described(folder / name, name.partition("/")[2])
            if part is not None and owned.isdisjoint(part.cells):
                parts.append(part)
            owned |= set() if part is None else set(part.cells)
    index = journal.Index()
    if parts:
        journal.append(folder, index, parts[::-1], ())
    compaction.recover(folder, index, alone)  # of parts of which a later one holds some cells
    return found


def number_of(name: str) -> int:
    """Of an object that is a part or a batch."""
    match = PART.fullmatch(name) or BATCH.fullmatch(name)
    return int(match["number"]) if match else 0


def digest_in(name: str) -> str:
    """That the name of a part or a batch holds."""
    match = PART.fullmatch(name) or BATCH.fullmatch(name)
    return match["digest"] if match else ""


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json_of(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)
