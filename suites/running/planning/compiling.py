"""Compiled kernels that a plan needs: how many are missing on this machine."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from ....oracles.kernels import modules, switch
from ....user_cache import user_cache

SECONDS = 0.55
"""CPU seconds to compile one function, on average."""

ALWAYS = (
    *(f"kernels/{name}" for name in ("bounds", "philox", "unranking", "exponential", "selection")),
    *("active_set/cpu", "active_set/cpu_factor"),
)
"""Modules of kernels that every structure may need."""

_DECORATED = re.compile(r"^@(?:compiled|inner|uncounted|fused|reordered|ordered)\b.*\n(?:@.*\n)*def (\w+)", re.MULTILINE)


def cache_folders() -> list[Path]:
    """The folders of compiled functions."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        return [Path(chosen)]
    return [*dict.fromkeys(path.parent / "__pycache__" for path in modules.files("cpu")), user_cache().parent / "numba"]


def uncompiled(structures: Iterable[str]) -> int:
    """The number of functions to compile for kernels of structures, which are given by name."""
    if switch.CHOSEN == "off":
        return 0
    sources = {f"{path.parent.name}/{path.stem}": path for path in _needed(tuple(sorted(set(structures))))}
    there: set[tuple[str, str]] = set()
    for folder in cache_folders():
        for index in folder.rglob("*.nbi") if folder.is_dir() else ():
            module, _, rest = index.name.partition(".")
            # Next to the sources, or in a cache folder of the user, named after the folder of the sources and a digest.
            near = index.parent.name == "__pycache__"
            place = f"{index.parent.parent.name if near else index.parent.name.rpartition('_')[0]}/{module}"
            # The index of a source that has changed since is written again.
            if place in sources and index.stat().st_mtime >= sources[place].stat().st_mtime:
                there.add((place, rest.partition("-")[0].rpartition(".")[2]))
    return len({(place, name) for place, path in sources.items() for name in _functions(path)} - there)


@cache
def _functions(path: Path) -> tuple[str, ...]:
    return tuple(_DECORATED.findall(path.read_text(encoding="utf-8")))


@cache
def _needed(structures: tuple[str, ...]) -> tuple[Path, ...]:
    """The sources of the kernels of structures, with their imports."""
    kernels = set(modules.files("cpu"))
    package = Path(modules.__file__).parents[1]
    waiting = [package / f"{name}.py" for name in ALWAYS]
    waiting += [path for name in structures for path in (package / name / "cpu.py", package / name / "cpu" / "__init__.py")]
    found: dict[Path, None] = {}
    while waiting:
        path = waiting.pop()
        if path in found or path not in kernels:
            continue
        found[path] = None
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and node.level:
                base = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
                waiting += [base.with_suffix(".py"), base / "__init__.py", *(base / f"{alias.name}.py" for alias in node.names)]
    return tuple(found)
