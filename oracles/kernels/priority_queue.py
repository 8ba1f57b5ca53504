"""A priority queue of numbered entries, in compiled steps: a binary heap (Williams 1964, "Algorithm 232: Heapsort")."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from .compilation import uncounted

Array = NDArray[Any]


@uncounted
def push(queue: Array, count: int, values: Array, entry: int) -> None:
    """Put an entry to the ``count`` that the queue has: the greatest value leaves first, of equal ones the lowest entry."""
    at = count
    while at > 0:
        above = queue[(at - 1) // 2]
        if _precedes(values, above, entry):
            break
        queue[at] = above
        at = (at - 1) // 2
    queue[at] = entry


@uncounted
def pop(queue: Array, count: int, values: Array) -> int:
    """Take the first entry of the ``count`` that the queue has."""
    first, entry = queue[0], queue[count - 1]
    at, below = 0, 1
    while below < count - 1:
        other = below + 1
        if other < count - 1 and _precedes(values, queue[other], queue[below]):
            below = other
        if _precedes(values, entry, queue[below]):
            break
        queue[at] = queue[below]
        at, below = below, 2 * below + 1
    queue[at] = entry
    return int(first)


@uncounted
def _precedes(values: Array, entry: int, other: int) -> bool:
    return bool(values[entry] > values[other] or (values[entry] == values[other] and entry < other))
