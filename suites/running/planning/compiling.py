"""Compiled kernels that a plan needs: how many are missing on this machine, and their compilation by several processes."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing import get_context
from pathlib import Path

from pebble import ProcessPool

from ....oracles import plugins
from ....oracles.kernels import modules, notices, switch
from ....user_cache import user_cache
from ..scores import fingerprint, stages_by_problem
from .plan import Plan

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
    """The number of functions to compile for kernels of these structures.

    Args:
        structures: names of kernels.
    """
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


@contextmanager
def shared(plan: Plan, processes: int) -> Iterator[None]:
    """Plan with the help of other processes, as soon as this one begins to compile a kernel.

    Each problem is scaled by log-partitions of its structure. The others start with the last problems; this process then loads their
    kernels from the cache.

    Args:
        plan: the plan of the block.
        processes: how many, with this one.
    """
    pools: list[ProcessPool] = []

    def begin(compiles: bool) -> None:
        if compiles and not pools and processes > 1:
            pools.append(ProcessPool(max_workers=processes - 1, context=get_context("spawn")))
            for place in range(processes - 1):
                pools[0].schedule(_load, args=(plan, place, processes - 1))

    try:
        with notices.listening(begin):
            yield
    finally:
        for pool in pools:
            pool.stop()
            pool.join()


def _load(plan: Plan, place: int, processes: int) -> None:
    """Load every problem of one of several processes, the last one first; the planning process reports what is wrong with one."""
    plugins.use(plan.plugins)
    for name, stages in list(stages_by_problem(plan).items())[::-1][place::processes]:
        with suppress(Exception):
            fingerprint(plan, name, stages[0])


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
