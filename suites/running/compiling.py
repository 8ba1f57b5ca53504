"""Kernels that a plan needs and this machine has not compiled: how many, and compiled by several processes while the plan is laid out."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from ...oracles import derivations, kernels, plugins
from ...oracles.kernels import notices, switch
from .. import truth
from .plan import Plan
from .scores import fingerprint, stages_by_problem

SECONDS = 0.55
"""CPU seconds that one function takes, on average over all of them."""

ALWAYS = ("philox", "unranking", "active_set", "corral", "exponential", "selection")
"""Modules of kernels that every structure may need."""

_DECORATED = re.compile(r"^@(?:compiled|inner|uncounted|fused|reordered|ordered)\b.*\n(?:@.*\n)*def (\w+)", re.MULTILINE)
_IMPORTED = re.compile(r"^from \.(?:\.kernels\.)?(\w+) import|^from \. import ([\w, ]+)", re.MULTILINE)


def cache_folders() -> list[Path]:
    """Where compiled functions are looked for and kept."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        return [Path(chosen)]
    beside = [Path(str(package.__file__)).parent / "__pycache__" for package in (kernels, derivations, truth)]
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
    return tuple(_DECORATED.findall(path.read_text()))


@cache
def _needed(structures: tuple[str, ...]) -> tuple[Path, ...]:
    """The sources of the kernels of structures, and of all that they call."""
    folder = Path(str(kernels.__file__)).parent
    found: dict[str, Path] = {}
    waiting = [*structures, *ALWAYS]
    while waiting:
        name = waiting.pop()
        # Structures that state their derivations share the one executor of these.
        path = Path(str(derivations.__file__)).parent / "cpu.py" if name == "derivations" else folder / f"{name}.py"
        if name not in found and path.is_file():
            found[name] = path
            waiting += list(_imports(path.read_text()))
    return (*found.values(), Path(str(truth.__file__)).parent / "summation.py")


def _imports(text: str) -> Iterator[str]:
    for one, several in _IMPORTED.findall(text):
        yield from [one] if one else [name.strip() for name in several.split(",")]


if __name__ == "__main__":
    _help()
