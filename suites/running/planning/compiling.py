"""Kernels that a plan needs and this machine has not compiled: how many, and compiled by several processes while the plan is laid out."""

from __future__ import annotations

import ast
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from ....oracles import plugins
from ....oracles.kernels import modules, notices, switch
from ....user_cache import user_cache
from ..scores import fingerprint, stages_by_problem
from .plan import Plan

SECONDS = 0.55
"""CPU seconds that one function takes, on average over all of them."""

ALWAYS = (
    *(f"kernels/{name}" for name in ("bounds", "philox", "unranking", "exponential", "selection")),
    *("active_set/cpu", "active_set/cpu_factor"),
)
"""Modules of kernels that every structure may need."""

_DECORATED = re.compile(r"^@(?:compiled|inner|uncounted|fused|reordered|ordered)\b.*\n(?:@.*\n)*def (\w+)", re.MULTILINE)


def cache_folders() -> list[Path]:
    """Where compiled functions are looked for and kept."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        return [Path(chosen)]
    sources = modules.files("cpu")
    return [*dict.fromkeys(path.parent / "__pycache__" for path in sources), user_cache().parent / "numba"]


def uncompiled(structures: Iterable[str]) -> int:
    """How many functions of kernels of these structures, and of exact gradients, a process would have to compile; none where they are off.

    Args:
        structures: names of kernels.
    """
    if switch.CHOSEN == "off":
        return 0
    sources = {_place(path): path for path in _needed(tuple(sorted(set(structures))))}
    there: set[tuple[str, str]] = set()
    for folder in cache_folders():
        for index in folder.rglob("*.nbi") if folder.is_dir() else ():
            module, _, rest = index.name.partition(".")
            # Beside the sources, or in a folder of the user's that is called after that of the sources, with a digest.
            beside = index.parent.name == "__pycache__"
            place = f"{index.parent.parent.name if beside else index.parent.name.rpartition('_')[0]}/{module}"
            name = rest.partition("-")[0].rpartition(".")[2]
            # The index of a source that has changed since is written anew.
            if place in sources and index.stat().st_mtime >= sources[place].stat().st_mtime:
                there.add((place, name))
    wanted = {(place, name) for place, path in sources.items() for name in _functions(path)}
    return len(wanted - there)


@contextmanager
def shared(plan: Plan, processes: int) -> Iterator[None]:
    """Lay a plan out with the help of other processes, from the moment on when this one begins to compile a kernel.

    To scale the scores of a problem takes log-partitions of its structure, and they are compiled one after the other, since numba holds one
    lock in a process. So the others begin with the last problems; what one compiles the rest load from the cache. They end with the block.

    Args:
        plan: what is laid out in the block.
        processes: how many, this one among them.
    """
    others: list[subprocess.Popen[bytes]] = []

    def hire(begins: bool) -> None:
        if begins and not others:
            others.extend(_hired(plan, place, processes - 1) for place in range(processes - 1))

    try:
        with notices.listening(hire):
            yield
    finally:
        for process in others:
            process.kill()
            process.wait()


def _hired(plan: Plan, place: int, others: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    assert process.stdin is not None, "a pipe was asked for"
    with suppress(BrokenPipeError), process.stdin as pipe:
        pickle.dump((plan, place, others), pipe)
    return process


def _help() -> None:
    """Load every problem that falls to this process, from the last one on; whatever is wrong with one is told by who needs it."""
    plan, place, others = pickle.load(sys.stdin.buffer)
    with suppress(Exception):
        plugins.use(plan.plugins)
        for name, stages in list(stages_by_problem(plan).items())[::-1][place::others]:
            with suppress(Exception):
                fingerprint(plan, name, stages[0])


@cache
def _functions(path: Path) -> tuple[str, ...]:
    return tuple(_DECORATED.findall(path.read_text(encoding="utf-8")))


def _place(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@cache
def _needed(structures: tuple[str, ...]) -> tuple[Path, ...]:
    """The sources of the kernels of structures, and of all that they call."""
    kernels = set(modules.files("cpu"))
    room = Path(modules.__file__).parents[1]
    waiting = [room / f"{name}.py" for name in ALWAYS]
    waiting += [found for name in structures for found in (room / name / "cpu.py", room / name / "cpu" / "__init__.py")]
    found: dict[Path, None] = {}
    while waiting:
        path = waiting.pop()
        if path not in found and path in kernels:
            found[path] = None
            waiting += list(_imports(path))
    return tuple(found)


def _imports(path: Path) -> Iterator[Path]:
    """Where what a source imports relatively at its top may stand."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            yield from (base.with_suffix(".py"), base / "__init__.py", *(base / f"{alias.name}.py" for alias in node.names))


if __name__ == "__main__":
    _help()
