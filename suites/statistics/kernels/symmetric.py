"""Products of two matrices that are symmetric, of which half is computed: sums go row by row, in the same order on every processor."""

from __future__ import annotations

import numpy as np

from ....oracles.kernels.compilation import compiled
from ....oracles.kernels.vectors import WIDTH, load, multiply_add, spread, store

SIDE = 6
"""Rows of the result at a time: so many sums of a vector fit into registers, beside what they are made of."""

LEAST = max(SIDE, WIDTH)
"""Columns from which on it serves."""


@compiled  # type: ignore[untyped-decorator]
def product(left: np.ndarray, right: np.ndarray, rows: int, size: int, out: np.ndarray) -> None:
    """Write ``A'B`` to the beginning of ``out``: of a matrix with itself, or with its rows by weight.

    Args:
        left: A, [rows, size] at its beginning.
        right: B, [rows, size] at its beginning.
        rows: of both.
        size: columns of both, at least `LEAST`.
        out: [size, size] at its beginning.
    """
    for group in range(0, size, SIDE):
        first = min(group, size - SIDE)  # the last rows and columns may be computed twice
        for column in range(first, size, WIDTH):
            place = min(column, size - WIDTH)
            one = two = three = four = five = six = spread(0.0)
            for row in range(rows):
                start = row * size
                factor, here = load(right, start + place), start + first
                one = multiply_add(spread(left[here]), factor, one)
                two = multiply_add(spread(left[here + 1]), factor, two)
                three = multiply_add(spread(left[here + 2]), factor, three)
                four = multiply_add(spread(left[here + 3]), factor, four)
                five = multiply_add(spread(left[here + 4]), factor, five)
                six = multiply_add(spread(left[here + 5]), factor, six)
            target = first * size + place
            store(out, target, one)
            store(out, target + size, two)
            store(out, target + 2 * size, three)
            store(out, target + 3 * size, four)
            store(out, target + 4 * size, five)
            store(out, target + 5 * size, six)
    for row in range(1, size):
        for column in range(row):
            out[row * size + column] = out[column * size + row]
