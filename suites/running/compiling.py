"""How much of what a plan needs is not compiled yet on this machine: known from the cache on disk, without loading a compiler."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from ...oracles import kernels
from ...oracles.kernels import switch
from .. import truth

SECONDS = 0.55
"""CPU seconds that one function takes, on average over all of them."""

ALWAYS = ("philox", "unranking", "active_set", "corral", "exponential", "selection")
"""Modules of kernels that every structure may need."""

_DECORATED = re.compile(r"^@(?:compiled|inner|uncounted|fused|reordered|ordered)\b.*\n(?:@.*\n)*def (\w+)", re.MULTILINE)
_IMPORTED = re.compile(r"^from \.(\w+) import|^from \. import ([\w, ]+)", re.MULTILINE)


def cache_folders() -> list[Path]:
    """Where compiled functions are looked for and kept."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        return [Path(chosen)]
    beside = [Path(str(package.__file__)).parent / "__pycache__" for package in (kernels, truth)]
    return [*beside, Path.home() / ".cache" / "numba"]


def uncompiled(structures: Iterable[str]) -> int:
    """How many functions of kernels of these structures, and of exact gradients, a process would have to compile; none where they are off.

    Args:
        structures: names of modules of kernels.
    """
    if switch.CHOSEN == "off":
        return 0
    sources = {path.stem: path for path in _needed(tuple(sorted(set(structures))))}
    there: set[tuple[str, str]] = set()
    for folder in cache_folders():
        for index in folder.rglob("*.nbi") if folder.is_dir() else ():
            module, _, rest = index.name.partition(".")
            name = rest.partition("-")[0].rpartition(".")[2]
            # The index of a source that has changed since is written anew.
            if module in sources and index.stat().st_mtime >= sources[module].stat().st_mtime:
                there.add((module, name))
    wanted = {(module, name) for module, path in sources.items() for name in _functions(path)}
    return len(wanted - there)


@cache
def _functions(path: Path) -> tuple[str, ...]:
    return tuple(_DECORATED.findall(path.read_text()))


@cache
def _needed(structures: tuple[str, ...]) -> tuple[Path, ...]:
    """The sources of the kernels of structures, and of all that they call."""
    folder = Path(str(kernels.__file__)).parent
    found: dict[str, Path] = {}
    waiting = [*structures, *ALWAYS]
    while waiting:
        name = waiting.pop()
        path = folder / f"{name}.py"
        if name not in found and path.is_file():
            found[name] = path
            waiting += list(_imports(path.read_text()))
    return (*found.values(), Path(str(truth.__file__)).parent / "summation.py")


def _imports(text: str) -> Iterator[str]:
    for one, several in _IMPORTED.findall(text):
        yield from [one] if one else [name.strip() for name in several.split(",")]
