"""The best k of n, in compiled steps. Sums over subsets go by derivations (see `oracle`)."""

from __future__ import annotations

import math

import numpy as np

from ..kernels.compilation import compiled
from ..kernels.selection import kth_largest


def operations(event: tuple[int, ...]) -> int:
    """Inner-loop steps of one row, roughly."""
    return 20 * event[0]


@compiled
def argmax(rows: np.ndarray, structures: np.ndarray, k: int) -> None:
    """The k largest of each row; of those that tie with the smallest of them, the first. 0 where fewer are allowed."""
    size = rows.shape[1]
    work = np.empty(size)
    for item in range(len(rows)):
        row, structure = rows[item], structures[item]
        last, count = kth_largest(row, k, work), 0
        if last == -math.inf:  # fewer than k are allowed
            last = math.inf
        for part in range(size):
            structure[part] = row[part] >= last
        for part in range(size):
            count += row[part] >= last
        part = size - 1
        while count > k:
            if row[part] == last:
                structure[part] = 0
                count -= 1
            part -= 1


@compiled
def argmax_parts(rows: np.ndarray, numbers: np.ndarray, k: int) -> None:
    """The same parts by their numbers, [b, k]: 1 + part; 0 where fewer are allowed."""
    work = np.empty(rows.shape[1])
    for item in range(len(rows)):
        row, listed = rows[item], numbers[item]
        last, above, count = kth_largest(row, k, work), 0, 0
        if last == -math.inf:
            continue
        for part in range(len(row)):
            above += row[part] > last
        for part in range(len(row)):
            tied = row[part] == last and above < k
            if row[part] > last or tied:
                listed[count] = 1 + part
                count += 1
                above += tied
