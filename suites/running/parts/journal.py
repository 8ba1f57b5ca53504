"""Journal of the compacted cells of a run: which parts count, which cells lie in each, and where.

It is appended to and never rewritten. A line is there whole, with the digest of its content, or it does not count: a part that no line
names does not exist, whatever became of the process that wrote it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from ...trust import json_of

FOLDER = "parts"
JOURNAL = "journal.jsonl"

DONE, FAILED_KIND, NONFINITE = "done", "failed", "nonfinite"
KINDS = {"d": DONE, "f": FAILED_KIND, "n": NONFINITE}
"""What became of a cell, by its letter in the journal."""

_LETTERS = {kind: letter for letter, kind in KINDS.items()}
_OPENING, _BETWEEN = '{"digest": "', '", "content": '
_DIGEST = 16
"""Hexadecimal digits of a digest."""


def digest(content: bytes) -> str:
    """Of a line, or of the file of a cell."""
    return hashlib.blake2b(content, digest_size=_DIGEST // 2).hexdigest()


@dataclass(frozen=True)
class CellPart:
    """One Parquet file of compacted cells.

    Attributes:
        file: its path below the folder of the parts. ``size``: in bytes. ``schema_version``: of its rows.
        cells: identities, in the order of its rows. ``counts``: rows of each. ``seconds``: that each took. ``kinds``: what became of each.
        digests: of the files that the cells had, so that a file that was left over is told from one that is newer.
    """

    file: str
    size: int
    schema_version: int
    cells: Sequence[str]
    counts: Sequence[int]
    seconds: Sequence[float]
    kinds: Sequence[str]
    digests: Sequence[str]

    def spans(self) -> dict[str, tuple[int, int]]:
        """First row and number of rows of every cell."""
        starts = accumulate(self.counts, initial=0)
        return {cell: (start, count) for cell, start, count in zip(self.cells, starts, self.counts, strict=False)}

    def packed(self) -> dict[str, Any]:
        """As the journal holds it."""
        return {**vars(self), "kinds": "".join(_LETTERS[kind] for kind in self.kinds)}

    @classmethod
    def unpacked(cls, content: Mapping[str, Any]) -> CellPart:
        """From the journal; anything that is no part raises KeyError, TypeError or ValueError."""
        found = cls(**{**content, "kinds": [KINDS[letter] for letter in content["kinds"]]})
        lengths = {len(found.cells), len(found.counts), len(found.seconds), len(found.kinds), len(found.digests)}
        if len(lengths) != 1 or ".." in Path(found.file).parts or Path(found.file).is_absolute():
            raise ValueError("no part")
        return found


@dataclass
class Index:
    """The parts that count.

    Attributes:
        parts: by file. ``owner``: of every cell the file that it lies in.
        kinds: what became of every cell. ``seconds``: that it took. ``digests``: of the file that it had.
        broken: parts that are not there as they were written; their cells are not in the index.
        whole: bytes of the journal up to the end of its last line that counts. ``last``: the greatest number that a part ever had.
    """

    parts: dict[str, CellPart] = field(default_factory=dict)
    owner: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    broken: tuple[str, ...] = ()
    whole: int = 0
    last: int = 0

    def take(self, parts: Iterable[CellPart], dropped: Iterable[str]) -> None:
        """A line of the journal."""
        for file in dropped:
            part = self.parts.pop(file, None)
            for cell in part.cells if part is not None else ():
                self._forget(cell, file)
        for part in parts:
            self.parts[part.file] = part
            self.owner.update(dict.fromkeys(part.cells, part.file))
            self.kinds.update(zip(part.cells, part.kinds, strict=True))
            self.seconds.update(zip(part.cells, part.seconds, strict=True))
            self.digests.update(zip(part.cells, part.digests, strict=True))
            self.last = max(self.last, number_of(part.file))

    def _forget(self, cell: str, file: str) -> None:
        if self.owner.get(cell) == file:
            for table in (self.owner, self.kinds, self.seconds, self.digests):
                table.pop(cell, None)


def number_of(file: str) -> int:
    """Of a part, by its name, which may have more behind a dash."""
    stem = Path(file).stem.partition("-")[0]
    return int(stem) if stem.isdecimal() else 0


def path_of(directory: Path) -> Path:
    """Of the journal of a run."""
    return directory / FOLDER / JOURNAL


def read(directory: Path) -> Index:
    """What the journal says, nothing where there is none; the cells of a part that is not there in its size are measured again."""
    found = _told(directory)
    found.broken = tuple(file for file, part in found.parts.items() if not is_there(directory, part))
    found.take((), found.broken)
    return found


def _told(directory: Path) -> Index:
    """By all lines that are whole."""
    found = Index()
    try:
        content = path_of(directory).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return found
    for entry in filter(None, map(_entry, content.splitlines(keepends=True))):
        found.take(*entry)
    found.whole = content.rfind(b"\n") + 1
    return found


def is_there(directory: Path, part: CellPart) -> bool:
    """Whether a part has the size that it was written with."""
    try:
        return (directory / FOLDER / part.file).stat().st_size == part.size
    except OSError:
        return False


def _entry(line: bytes) -> tuple[list[CellPart], list[str]] | None:
    """Parts that came and files that went; None for a line that does not count."""
    head = len(_OPENING) + _DIGEST
    if not line.endswith(b"}\n") or line[: len(_OPENING)] != _OPENING.encode():
        return None
    text = line[head + len(_BETWEEN) : -2]
    if digest(text).encode() != line[len(_OPENING) : head]:
        return None
    try:
        content = json_of(text)
        return [CellPart.unpacked(part) for part in content["parts"]], [str(file) for file in content["dropped"]]
    except (ValueError, KeyError, TypeError):
        return None


def append(directory: Path, index: Index, parts: Sequence[CellPart], dropped: Sequence[str]) -> None:
    """Let parts count from now on, and others no more: one line, of which a half does nothing."""
    text = json.dumps({"parts": [part.packed() for part in parts], "dropped": list(dropped)}).encode()
    line = f"{_OPENING}{digest(text)}{_BETWEEN}".encode() + text + b"}\n"
    path = path_of(directory)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.ftruncate(handle, index.whole)  # what a killed process left of a line
        for piece in _pieces(handle, line, index.whole):
            assert piece > 0, "a write that writes nothing raises"
        os.fsync(handle)
    finally:
        os.close(handle)
    index.whole += len(line)
    index.take(parts, dropped)


def _pieces(handle: int, content: bytes, at: int) -> Iterator[int]:
    """Write all of it; a system may take it in several."""
    while content:
        written = os.pwrite(handle, content, at)
        yield written
        content, at = content[written:], at + written
