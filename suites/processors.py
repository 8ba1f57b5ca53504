"""Processors that this process may use, and work that is spread over them."""

from __future__ import annotations

import os
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
