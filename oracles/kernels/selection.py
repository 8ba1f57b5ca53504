"""The k-th largest number of a row, and the places of the k largest, in compiled steps."""

from __future__ import annotations

import math

import numpy as np

from .compilation import compiled, uncounted
from .vectors import WIDTH, greatest, load, maximum

FEW = 32
"""Up to this k a sorted list of the k largest is quicker than partitioning: most numbers are below its end, and take one comparison."""

DENSE = 4
"""Of the first so many times k numbers a good part enters the list: they pass through all of it, without a branch that none can foresee."""


@compiled
def kth_largest(row: np.ndarray, k: int, work: np.ndarray) -> float:
    """The k-th largest of a row; ``work`` holds at least as many numbers."""
    if k > FEW:
        return _partitioned(row, len(row) - k, work)
    work[:k] = -math.inf
    many = min(len(row), DENSE * k)
    for i in range(many):
        number = float(row[i])
        for place in range(k):
            kept = work[place]
            work[place], number = max(kept, number), min(kept, number)
    for i in range(many, len(row)):
        number = row[i]
        if number > work[k - 1]:
            place = k - 1
            while place > 0 and work[place - 1] < number:
                work[place] = work[place - 1]
                place -= 1
            work[place] = number
    return float(work[k - 1])


@uncounted
def _partitioned(row: np.ndarray, target: int, work: np.ndarray) -> float:
    """What stands at place ``target`` in ascending order, by partitioning around the number that stands there (Hoare 1961)."""
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


@uncounted
def top(row: np.ndarray) -> float:
    """The greatest of a row without NaN; of one with NaN, anything. The compiler takes numbers one by one, vectors a tenth of the time."""
    size = row.size
    if size >= WIDTH:
        tops = load(row, size - WIDTH)
        for i in range(0, size - WIDTH, WIDTH):
            tops = greatest(load(row, i), tops)
        return float(maximum(tops))
    best = float(row[0])
    for i in range(size):
        best = max(best, float(row[i]))
    return best


@uncounted
def first_place(row: np.ndarray, number: float) -> int:
    """Where the number stands first; the last place where it does not. Without a branch: how soon it comes, none could foresee."""
    last = np.int32(row.size - 1)
    place = last
    for i in range(row.size):
        place = min(place, np.int32(i) if row[i] == number else last)
    return int(place)
