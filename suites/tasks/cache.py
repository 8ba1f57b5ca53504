"""Cache on disk of trained decoders, floors, ceilings and runs."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import torch

from ...user_cache import user_cache
from ..statistics.adaptive import write_whole

try:
    import fcntl
except ImportError:  # no lock: two processes may compute the same
    fcntl = None  # type: ignore[assignment]

_T = TypeVar("_T")


def cached(names: tuple[object, ...], compute: Callable[[], _T]) -> _T:
    """The result of ``compute``, cached on disk by names, sources of tasks, and version of torch.

    Only one process computes an entry, and the others wait. If an entry cannot be read or written, it is computed again. ``compute`` runs
    on one thread, because the number of threads changes the rounding of sums.
    """
    path = cache_file(names)
    with _locked(path):
        with contextlib.suppress(OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError):
            found: _T = torch.load(path, weights_only=True)
            return found
        computed = _on_one_thread(compute)
        with contextlib.suppress(OSError, RuntimeError):
            write_whole(path, computed)
        return computed


def cache_folder() -> Path:
    """The folder of the user's cache."""
    return user_cache() / "tasks"


def cache_file(names: tuple[object, ...]) -> Path:
    """The file of an entry."""
    digest = hashlib.blake2b(repr((*names, sources(), torch.__version__)).encode(), digest_size=16)
    return cache_folder() / f"{digest.hexdigest()}.pt"


@functools.cache
def sources() -> str:
    """A hash of the code of all tasks and of their training."""
    found = hashlib.blake2b(digest_size=8)
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


def _on_one_thread(compute: Callable[[], _T]) -> _T:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return compute()
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file of the cache, if the file system has locks."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(path.with_suffix(".lock").open("wb"))
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield
