"""Cache of what takes seconds to train, on disk for the next process: decoders, floors and ceilings, runs."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import torch

from ...user_cache import user_cache

try:
    import fcntl
except ImportError:  # no lock: two processes may compute the same
    fcntl = None  # type: ignore[assignment]

_T = TypeVar("_T")


def kept(names: tuple[object, ...], compute: Callable[[], _T]) -> _T:
    """What ``compute`` gives, or gave before, of what torch can write: for the same names, sources of tasks, and version of torch.

    Of processes that want the same, one computes it and the others wait. What cannot be read is computed, and what cannot be written is
    computed again by the next process. Computed on one thread, because sums over several are rounded by their number.
    """
    path = file(names)
    with _turn(path):
        with contextlib.suppress(OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError):
            found: _T = torch.load(path, weights_only=True)
            return found
        computed = _on_one_thread(compute)
        with contextlib.suppress(OSError, RuntimeError):
            write_whole(path, computed)
        return computed


def cache_folder() -> Path:
    """Of the user."""
    return user_cache() / "tasks"


def file(names: tuple[object, ...]) -> Path:
    """Where it is kept."""
    digest = hashlib.blake2b(repr((*names, sources(), torch.__version__)).encode(), digest_size=16)
    return cache_folder() / f"{digest.hexdigest()}.pt"


@functools.cache
def sources() -> str:
    """A hash of the code of all tasks and of their training."""
    found = hashlib.blake2b(digest_size=8)
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


def write_whole(path: Path, state: object) -> None:
    """Write what torch can write so that the file is there whole, or as it was."""
    stream = io.BytesIO()
    torch.save(state, stream)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as stored:
            stored.write(stream.getvalue())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _on_one_thread(compute: Callable[[], _T]) -> _T:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return compute()
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _turn(path: Path) -> Iterator[None]:
    """The lock of a file of the cache, where locks can be had."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(path.with_suffix(".lock").open("wb"))
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield
