"""Stamps that tell that nothing has changed: hashes of files."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from ....user_cache import user_cache
from ... import results

T = TypeVar("T")

_PACKAGE = Path(__file__).parents[3]
_INSTALLED = ("-info", ".pth", ".egg-link")


def kept(name: str, make: Callable[[], T]) -> T:
    """A JSON value that follows from the code alone, made anew where the code has changed, else read from the user's cache."""
    file = user_cache() / f"{name}-{of_lines([str(_PACKAGE)])[:8]}.json"
    code = of_code()
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["code"] == code:
            value: T = found["value"]
            return value
    except (OSError, ValueError, KeyError, TypeError):
        pass
    value = make()
    with contextlib.suppress(OSError):
        results.write_whole(file, json.dumps({"code": code, "value": value}, ensure_ascii=False).encode())
    return value


def of_code() -> str:
    """Of the sources of structgrad, of the interpreter, and of all that is installed beside it."""
    folders = {folder for folder in sys.path if folder and os.path.isdir(folder)}
    installed = (f"{folder}/{name}" for folder in folders for name in os.listdir(folder) if name.endswith(_INSTALLED))
    return of_lines([sys.version, *sorted(installed), *_lines(_PACKAGE, ".py")])


def plugins() -> bool:
    """Whether packages offer classes; they may be changed where no stamp looks."""
    return any(importlib.metadata.entry_points(group=f"structgrad.{kind}") for kind in ("estimators", "oracles"))


def of_folder(folder: Path, *names: str) -> str:
    """Of parts of a folder, by their names: of the content of files, and of what lies in folders by names, sizes and times."""
    return of_lines(line for name in names for line in _lines(folder / name))


def _lines(path: Path, ending: str = "") -> Iterator[str]:
    """A line for a file, or for every file in a folder, in order; none for what is not there."""
    if path.is_dir():
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            if entry.is_dir() and entry.name != "__pycache__":
                yield from _lines(Path(entry.path), ending)
            elif entry.name.endswith(ending) and entry.is_file():
                found = entry.stat()
                yield f"{entry.path} {found.st_size} {found.st_mtime_ns}"
    elif path.is_file():
        yield f"{path} {hashlib.blake2b(path.read_bytes()).hexdigest()}"


def of_lines(lines: Iterable[str]) -> str:
    """Of texts."""
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()
