"""Notices of compilation: a kernel is being compiled, here or by another process that this one waits for.

Nothing of the compilers is loaded.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Listener = Callable[[bool], None]
"""Called with True when the process begins to compile or to wait, and with False when it ends."""

_listeners: list[Listener] = []
_lock, _depth = threading.RLock(), 0  # a listener may compile too


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell a listener of what is compiled meanwhile."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def step(change: int) -> None:
    """Count a function that is being compiled or waited for (1), or that is there (-1); it may compile others."""
    global _depth  # of the process
    with _lock:
        before, _depth = _depth > 0, _depth + change
        if before != (_depth > 0):
            for listener in _listeners:
                listener(_depth > 0)
