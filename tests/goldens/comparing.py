"""Comparison of a stored golden with what the code gives now."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any


def differences(
    old: Any, new: Any, place: str = "", *, relative: float = 1e-9, absolute: float = 1e-12, of_list: float = 0.0
) -> Iterator[str]:
    """Places in which two trees of JSON differ; numbers up to a tolerance, to which ``of_list`` adds a share of the largest of a list."""
    limits: dict[str, float] = {"relative": relative, "absolute": absolute, "of_list": of_list}
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from differences(old.get(key), new.get(key), f"{place}/{key}", **limits)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        largest = max((abs(one) for one in old if isinstance(one, float) and math.isfinite(one)), default=0.0)
        numbers = {**limits, "absolute": max(absolute, of_list * largest)}
        for position, pair in enumerate(zip(old, new, strict=True)):
            yield from differences(*pair, f"{place}/{position}", **(numbers if isinstance(pair[0], float) else limits))
    elif isinstance(old, float) and isinstance(new, float):
        if not math.isclose(old, new, rel_tol=relative, abs_tol=absolute) and not (math.isnan(old) and math.isnan(new)):
            yield f"{place}: {old!r} -> {new!r}"
    elif old != new:
        yield f"{place}: {old!r} -> {new!r}"
