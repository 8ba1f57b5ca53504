"""Notices on kernels: one is being compiled, here or by another process that this one waits for; one does not serve.

Nothing of the compilers is loaded.
"""

from __future__ import annotations

import threading
import warnings
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


class KernelWarning(RuntimeWarning):
    """A kernel of a GPU does not serve where it should: the same comes from plain torch, more slowly."""


_said: set[str] = set()


def say(sentence: str, cause: str) -> None:
    """Warn of a kernel that does not serve; once in this process for all that do not for the same cause."""
    if cause not in _said:
        _said.add(cause)
        warnings.warn(sentence, KernelWarning, stacklevel=2)
