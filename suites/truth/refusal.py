"""Saying no to spaces that are too large, with what they would cost."""

from __future__ import annotations

import math
import time
from decimal import Decimal

from ...oracles.base import MAX_RANK
from .space import Space

PROBE = 0.05
"""Seconds for which the rate is measured."""

TYPICAL_RATE = 1e6
"""Structures a second of one core with a cheap loss, where nothing can be measured."""

UNITS = (("years", 365.25 * 86400), ("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0))


def check_cap(call: str, space: Space, cap: int) -> None:
    """Refuse a space of more structures than the cap, or than ranks can count.

    Raises:
        ValueError: too many structures; the message holds their number, the time that they would take, and what to do.
    """
    limit = min(cap, MAX_RANK)
    if space.count <= limit:
        return
    rate, kind = (measured_rate(space), "measured") if space.count <= MAX_RANK else (TYPICAL_RATE, "typical")
    raises = "raise cap=, " if space.count <= MAX_RANK else ""
    raise ValueError(
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


def counted(number: int) -> str:
    """A whole number, in full where it can be read.

    Example:
        >>> counted(9694845), counted(10**30)
        ('9,694,845', '1.00e+30')
    """
    return f"{number:,}" if number < 10**12 else f"{Decimal(number):.2e}"


def duration(count: int, rate: float) -> str:
    """How long so many structures take, in a unit that suits.

    Example:
        >>> duration(10**7, 1e6), duration(10**9, 1e6), duration(10**400, 1e6)
        ('10 seconds', '17 minutes', '3.2e+386 years')
    """
    seconds = Decimal(count) / Decimal(rate)
    for name, length in UNITS:
        if seconds >= Decimal(2 * length):
            amount = seconds / Decimal(length)
            return f"{amount:.0f} {name}" if amount < 10**6 else f"{amount:.1e} {name}"
    return f"{max(1, math.ceil(seconds))} seconds"
