"""Durations as people write them: ``90s``, ``2m``, ``1h30m``, or a plain number of seconds."""

from __future__ import annotations

import math
import re

_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_PIECE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|min|s|m|h|d)")


def seconds_of(text: str, option: str) -> float:
    """The seconds that a text means.

    Args:
        text: such as ``45``, ``90s``, ``2m`` or ``1h30m``.
        option: who got it, for the message.

    Raises:
        ValueError: a text that is no duration, or one that is not positive.

    Example:
        >>> [seconds_of(text, "--timeout") for text in ("45", "90s", "2m", "1h30m", "0.5 h")]
        [45.0, 90.0, 120.0, 5400.0, 1800.0]
    """
    try:
        seconds = float(text)
    except ValueError:
        pieces = _PIECE.findall(text)
        whole = "".join(f"{number}{unit}" for number, unit in pieces) == text.replace(" ", "")
        seconds = math.fsum(float(number) * _UNITS[unit] for number, unit in pieces) if pieces and whole else math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(f"{option} got {text!r}; expected a positive duration such as 90s, 2m or 1h30m, or a number of seconds")
    return seconds


def optional_seconds(text: str | None, option: str) -> float | None:
    """The same of an option that may be left out."""
    return None if text is None else seconds_of(text, option)
