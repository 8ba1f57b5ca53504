"""Stages with a number in their name: ``h=0.7`` for a normalised entropy, ``gamma=0.1`` for a temperature."""

from __future__ import annotations

import math


def number_of(stage: str, key: str, most: float = math.inf) -> float | None:
    """The number of a stage ``key=<number>`` with 0 < number < most; None where it is no such stage.

    Example:
        >>> number_of("h=0.7", "h", 1), number_of("h=7", "h", 1), number_of("init", "h", 1)
        (0.7, None, None)
    """
    name, equals, text = stage.partition("=")
    if name != key or not equals:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number < most else None
