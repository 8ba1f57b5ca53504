"""The lock of a run: one process at a time writes into its folder; the system takes it from an owner that dies."""

from __future__ import annotations

import errno
import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"

_TAKEN = (errno.EACCES, errno.EAGAIN)

_ours: dict[str, int] = {}
"""The folders that this process has locked, each with the thread that did: it may do so again."""


class LockedError(ValueError):
    """Another process is at work on the folder."""


@contextmanager
def locked(directory: Path, *, wait: bool = False) -> Iterator[None]:
    """Be the only one that writes into the folder of a run; who is already may ask again.

    With ``wait`` it takes its turn, for what others do there is soon done.

    It is a lock of the system (flock), which ends with the process that holds it, however that ends; on a file system that has none,
    nothing is locked.

    Raises:
        LockedError: another process holds it: which one, and on what machine.
    """
    name = os.path.realpath(directory)
    if _ours.get(name) == threading.get_ident():
        yield
        return
    handle = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if fcntl is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError as error:
                if error.errno in _TAKEN:
                    owner = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
                    raise LockedError(
                        f"{directory} is being written by {owner}; wait until it has ended, or name another folder with --out"
                    ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {platform.node()}".encode(), 0)
        _ours[name] = threading.get_ident()
        try:
            yield
        finally:
            del _ours[name]
    finally:
        os.close(handle)
