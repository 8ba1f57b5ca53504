"""Processors that this process may use, work that is spread over them, and other processes of this machine."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def processors() -> int:
    """The number of processors that this process may use.

    Example:
        >>> processors() >= 1
        True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_running(process: int) -> bool:
    """Whether a process of any user runs on this machine.

    Example:
        >>> is_running(os.getpid()), is_running(10**30)
        (True, False)
    """
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


@functools.cache
def slowdown(seconds: float = 0.2) -> float:
    """The slowdown of this process by other work on the machine, measured over so many seconds of its processor time.

    Example:
        >>> slowdown(0.01) >= 1
        True
    """
    start, end = time.perf_counter(), time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return max(1.0, (time.perf_counter() - start) / seconds)


def side_by_side(work: Callable[[Item], Result], items: Sequence[Item], most: int, killed: str) -> Iterator[Result]:
    """The results of a function for each item, in order, by at most so many processes, or by this process for one item.

    Raises:
        ValueError: a process was killed; ``killed`` is the message.

    Example:
        >>> list(side_by_side(abs, [-1], 4, "a process was killed"))
        [1]
    """
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    jobs = min(len(items), most, processors())
    if jobs <= 1:
        yield from map(work, items)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as workers:
        try:
            yield from workers.map(work, items)
        except BrokenProcessPool as error:
            raise ValueError(killed) from error
