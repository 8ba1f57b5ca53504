"""Magnitudes that are too much: numbers, times and sizes in memory as people read them, and how much memory there is."""

import math
import os
from decimal import Decimal
from functools import cache
from pathlib import Path

GIB = 2**30

_UNITS = (("years", 365.25 * 86400), ("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0))
_CONTAINER = Path("/sys/fs/cgroup/memory.max")


def counted(number: int) -> str:
    """A whole number, in full where it can be read.

    Example:
        >>> counted(9694845), counted(10**30)
        ('9,694,845', '1.00e+30')
    """
    return f"{number:,}" if number < 10**12 else f"{Decimal(number):.2e}"


def duration(count: int, rate: float) -> str:
    """How long so many things take at a rate, in a unit that suits.

    Example:
        >>> duration(10**7, 1e6), duration(10**9, 1e6), duration(10**400, 1e6)
        ('10 seconds', '17 minutes', '3.2e+386 years')
    """
    seconds = Decimal(count) / Decimal(rate)
    for name, length in _UNITS:
        if seconds >= Decimal(2 * length):
            amount = seconds / Decimal(length)
            return f"{amount:.0f} {name}" if amount < 10**6 else f"{amount:.1e} {name}"
    return f"{max(1, math.ceil(seconds))} seconds"


def gibibytes(size: float) -> str:
    """Bytes for people.

    Example:
        >>> gibibytes(3 * 2**29), gibibytes(2**70)
        ('1.5 GiB', '1,099,511,627,776.0 GiB')
    """
    return f"{size / GIB:,.1f} GiB"


@cache
def machine_memory() -> int | None:
    """Bytes of memory that this machine, or the container on it, has; None where the system does not say."""
    found = []
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    if _CONTAINER.is_file() and (limit := _CONTAINER.read_text(encoding="utf-8").strip()).isdigit():
        found.append(int(limit))
    return min((size for size in found if size > 0), default=None)


def beyond_memory(size: float) -> str:
    """What so many bytes are, and that the machine has fewer; empty where they fit."""
    most = machine_memory()
    return "" if most is None or size <= most else f"{gibibytes(size)} of memory, and this machine has {gibibytes(most)}"
