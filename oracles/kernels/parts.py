"""Lists of parts in compiled steps: written into a dense event or numbered, and the k-th largest of a row."""

import math
from typing import Any

import numpy as np

from .compilation import Array, compiled, uncounted

FEW = 32
"""Up to this k a sorted list of the k largest is quicker than partitioning: most numbers are below its end, and take one comparison."""


def dense_and_parts(function: Any, draws: int = 0) -> tuple[Any, Any]:
    """Two kernels of one compiled function, which writes structures, or numbers of their parts where there is room for these.

    It takes rows, uniforms if there are ``draws``, structures, numbers, and other arguments; each kernel leaves one of both out.
    """
    place, name = 1 + draws, function.__name__.strip("_")
    no_numbers = np.empty((0,) * (place + 1), np.int64)

    def dense(*arguments: Any) -> None:
        function(*arguments[: place + 1], no_numbers, *arguments[place + 1 :])

    def parts(*arguments: Any) -> None:
        function(*arguments[:place], arguments[0][:0, None] if draws else arguments[0][:0], *arguments[place:])

    for kernel, known in ((dense, name), (parts, f"{name}_parts")):
        kernel.__name__, kernel.__module__ = known, function.__module__
    return dense, parts


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


@compiled
def kth_largest(row: Array, k: int, work: Array) -> float:
    """The k-th largest of a row; ``work`` holds at least as many numbers."""
    if k > FEW:
        return _partitioned(row, len(row) - k, work)
    work[:k] = -math.inf
    for i in range(len(row)):
        number = row[i]
        if number > work[k - 1]:
            place = k - 1
            while place > 0 and work[place - 1] < number:
                work[place] = work[place - 1]
                place -= 1
            work[place] = number
    return float(work[k - 1])


@uncounted
def _partitioned(row: Array, target: int, work: Array) -> float:
    """The number at place ``target`` in ascending order, by partitioning (Hoare 1961)."""
    for i in range(row.size):
        work[i] = row[i]
    first, last = 0, len(row) - 1
    while first < last:
        pivot, left, right = work[target], first, last
        while left <= right:
            while work[left] < pivot:
                left += 1
            while work[right] > pivot:
                right -= 1
            if left <= right:
                work[left], work[right] = work[right], work[left]
                left, right = left + 1, right - 1
        if right < target:
            first = left
        if target < left:
            last = right
    return float(work[target])
