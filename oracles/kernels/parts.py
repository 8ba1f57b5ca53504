"""Structures as lists of their parts, written into a dense event, or numbered for compact results."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .compilation import uncounted

Array = NDArray[Any]


def no_structures(rows: Array, draws: int = 0) -> Array:
    """In place of dense structures of these rows, by so many more dimensions, where their parts are wanted."""
    return np.empty((0,) * (draws + 1) + rows.shape[1:], rows.dtype)


def no_numbers(draws: int = 0) -> Array:
    """In place of numbered parts, where dense structures are wanted."""
    return np.empty((0,) * (draws + 2), np.int64)


@uncounted
def mark(parts: Array, count: int, structure: Array) -> None:
    """Add the first parts of a list to a flat structure: 1 for each, and as often as it comes for one that is counted."""
    for k in range(count):
        structure[parts[k]] += 1


@uncounted
def number(parts: Array, count: int, numbers: Array) -> None:
    """Write 1 + part for each of them: numbers are 0 before, and stay so where there is no part."""
    for k in range(count):
        numbers[k] = 1 + parts[k]


@uncounted
def allowed(row: Array, parts: Array, count: int) -> int:
    """The number of parts of the best structure of a flat row; 0 where one of them is forbidden: then every structure has such a part."""
    for k in range(count):
        if row[parts[k]] == -math.inf:
            return 0
    return count


@uncounted
def ascend(parts: Array, count: int) -> None:
    """Sort the first parts of a list, of which there are few."""
    for k in range(1, count):
        part, at = parts[k], k
        while at > 0 and parts[at - 1] > part:
            parts[at] = parts[at - 1]
            at -= 1
        parts[at] = part
