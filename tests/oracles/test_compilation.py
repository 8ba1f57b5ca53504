"""Which of several processes compiles a kernel, and that it does not matter to what the kernel computes."""

import ast
import errno
import importlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core import caching

from structgrad.oracles.kernels import compilation
from structgrad.user_cache import user_cache

pytest.importorskip("fcntl", reason="there are no such locks on Windows")

KERNEL = """
from structgrad.oracles.kernels.compilation import compiled, inner

@inner
def twice(value):
    return 2 * value

@compiled
def fourfold(value):
    return twice(twice(value))
"""

COPIES = """
from structgrad.oracles.kernels.compilation import compiled, inner

FACTOR = 1.0

@inner
def scaled(values, times):  # too long to be inlined
    total = 0.0
    for k in range(times):
        for i in range(1, len(values) - 1):
            values[i] = (values[i - 1] + values[i] * values[i + 1]) % 3.0
            total += FACTOR * values[i]
        for i in range(len(values) - 2, 0, -1):
            values[i] = (values[i + 1] + values[i] * values[i - 1]) % 5.0
            total -= FACTOR * values[i]
    return total

@compiled
def first(values):
    return scaled(values, len(values)) + scaled(values, len(values) - 3)

@compiled
def second(values):
    return scaled(values, len(values)) + scaled(values, len(values) - 3)
"""
"""Copies of `scaled` differ as much as one could wish, when the factor is another one while the second kernel is compiled."""


def test_of_processes_that_want_a_kernel_one_compiles_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = _fresh(tmp_path, monkeypatch, "fresh_kernel")
    children = [_in_a_child(lambda: (module.fourfold(1.5), sum(module.fourfold.stats.cache_misses.values()))) for _ in range(3)]
    assert sorted(map(_result, children)) == [(6.0, 0), (6.0, 0), (6.0, 1)]


def test_a_kernel_calls_its_own_copies_whatever_else_the_process_compiled_or_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of one function are compiled apart, and round apart."""
    module = _fresh(tmp_path, monkeypatch, "copied_kernel", COPIES)

    def call(*names: str) -> list[float]:
        return _result(_in_a_child(lambda: [getattr(module, name)(np.arange(9.0)) for name in names]))

    (one,) = call("first")
    for file in Path(module.scaled.stats.cache_path).glob("copied_kernel.scaled*"):
        file.unlink()
    module.FACTOR = 2.0
    assert call("second", "first") == [2 * one, one]  # compiled, then loaded
    assert call("first", "second") == [one, 2 * one]  # both loaded
    assert one != 0


def test_the_turn_of_a_process_ends_with_it(tmp_path: Path) -> None:
    reading, writing = os.pipe()

    def hold() -> None:
        with compilation._turn(tmp_path, "kernel"):
            os.write(writing, b"held")
            signal.pause()

    holder = _in_a_child(hold)
    try:
        assert os.read(reading, 4) == b"held"
        waiting = _in_a_child(lambda: _take(tmp_path, "kernel"))
        assert _result(_in_a_child(lambda: _take(tmp_path, "another"))) == "taken"
        assert not select.select([waiting[1]], [], [], 0.2)[0]
    finally:
        os.kill(holder[0], signal.SIGKILL)
        os.waitpid(holder[0], 0)
    assert _result(waiting) == "taken"
    for file in (reading, writing, holder[1]):
        os.close(file)


def _take(folder: Path, name: str) -> str:
    with compilation._turn(folder, name):
        return "taken"


def _in_a_child(work: Callable[[], Any]) -> tuple[int, int]:
    """Do work in a forked process; returns its number, and where its result can be read."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, repr(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    return child, reading


def _result(child: tuple[int, int]) -> Any:
    with os.fdopen(child[1]) as results:
        text = results.read()
    os.waitpid(child[0], 0)
    return ast.literal_eval(text)


WHOLE = """
from typing import NamedTuple
from structgrad.oracles.kernels.compilation import compiled
from mine.part import times

class {name}(NamedTuple):
    value: float

@compiled
def result(pair):
    return times(pair.value)

print(result({name}(2.0)))
"""
PART = "from structgrad.oracles.kernels.compilation import inlined\n\n@inlined\ndef times(value):\n    return {factor} * value\n"


def test_a_renamed_class_costs_a_compilation_and_an_inlined_function_that_changes_too(tmp_path: Path) -> None:
    """Though that one is in another file; neither is an error, and the results are the new ones."""
    (tmp_path / "mine").mkdir()
    for name, factor in (("Before", 3), ("After", 3), ("After", 5)):
        (tmp_path / "mine/whole.py").write_text(WHOLE.format(name=name))
        (tmp_path / "mine/part.py").write_text(PART.format(factor=factor))
        told = subprocess.run([sys.executable, "-c", "import mine.whole"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert told.stdout == f"{factor * 2.0}\n", told.stderr


def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str = KERNEL) -> Any:
    """A module of kernels that no process has compiled, while nothing was said of the cache yet."""
    (tmp_path / f"{name}.py").write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    compilation._warn_uncached.cache_clear()
    return importlib.import_module(name)


def test_without_a_folder_for_the_cache_kernels_are_compiled_with_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    for kind in (caching._CacheLocator, *caching._CacheLocator.__subclasses__()):
        if "ensure_cache_path" in vars(kind):
            monkeypatch.setattr(kind, "ensure_cache_path", refuse)
    with pytest.warns(compilation.UncachedKernelWarning, match="no folder can be written.*set NUMBA_CACHE_DIR") as said:
        assert _fresh(tmp_path, monkeypatch, "kernel_without_folder").fourfold(1.5) == 6.0
    assert len(said) == 1


def test_a_full_disk_costs_the_cache_and_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(caching.IndexDataCacheFile, "save", refuse)
    module = _fresh(tmp_path, monkeypatch, "kernel_on_a_full_disk")
    with pytest.warns(compilation.UncachedKernelWarning, match=r"\(No space left on device\)") as said:
        assert module.fourfold(1.5) == 6.0
    assert len(said) == 1


def test_a_user_without_a_home_has_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(Path, "home", refuse)
    assert tmp_path in user_cache().parents
