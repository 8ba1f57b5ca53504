"""Processors that this process may use."""

from __future__ import annotations

import os


def processors() -> int:
    """How many the system lets it run on, of those that there are.

    Example:
        >>> processors() >= 1
        True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
