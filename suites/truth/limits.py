"""Saying no to spaces that are too large, with what they would cost."""

from __future__ import annotations

import time

from ...oracles.capabilities.enumeration import MAX_RANK
from ...oracles.magnitudes import counted, duration
from .space import Space

PROBE = 0.05
"""Seconds for which the rate is measured."""

TYPICAL_RATE = 1e6
"""Structures a second of one core with a cheap loss, where nothing can be measured."""


class TooManyStructuresError(ValueError):
    """A space that is not enumerated."""


def check_cap(call: str, space: Space, cap: int) -> None:
    """Refuse a space of more structures than the cap, or than ranks can count.

    Raises:
        TooManyStructuresError: the message holds their number, the time that they would take, and what to do.
    """
    limit = min(cap, MAX_RANK)
    if space.count <= limit:
        return
    rate, kind = (measured_rate(space), "measured") if space.count <= MAX_RANK else (TYPICAL_RATE, "typical")
    raises = "raise cap=, " if space.count <= MAX_RANK else ""
    raise TooManyStructuresError(
        f"`{call}` got a space of {counted(space.count)} structures; expected at most {counted(limit)}, because at a {kind} {rate:.2g} "
        f"structures a second they take {duration(space.count, rate)}; choose smaller sizes, {raises}"
        "or a loss whose exact gradient needs no enumeration (linear, low-rank quadratic, a function of a count)"
    )


def measured_rate(space: Space) -> float:
    """Structures a second, over the first ones, once everything is compiled."""
    stop = min(space.chunk, space.count)
    space.sums(0, stop)
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < PROBE:
        space.sums(0, stop)
        done += stop
    return done / (time.perf_counter() - start)
