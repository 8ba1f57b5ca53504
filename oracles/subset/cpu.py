"""The best k of n and samples, in compiled steps. Other sums over subsets go by derivations (see `oracle`)."""

import math

import numpy as np
from numba import uint64

from ..kernels.compilation import compiled, uncounted
from ..kernels.exponential import exponentials
from ..kernels.parts import dense_and_parts, kth_largest, mark, number
from ..kernels.vectors import WIDTH, add, load, multiply, spread, store


def operations(event: tuple[int, ...]) -> int:
    """Inner-loop steps of a row, roughly."""
    return 20 * event[0]


@compiled
def _argmax(rows: np.ndarray, structures: np.ndarray, numbers: np.ndarray, k: int) -> None:
    """The k largest of each row, or their parts [b, k]; of those that tie with the smallest, the first. 0 where fewer are allowed."""
    work, parts = np.empty(rows.shape[1]), np.empty(k, np.int64)
    for item in range(len(rows)):
        row = rows[item]
        last, above, count = kth_largest(row, k, work), 0, 0
        if last == -math.inf:
            continue
        for part in range(len(row)):
            above += row[part] > last
        for part in range(len(row)):
            tied = row[part] == last and above < k
            if row[part] > last or tied:
                parts[count] = part
                count += 1
                above += tied
        if len(numbers) > 0:
            number(parts, count, numbers[item])
        else:
            mark(parts, count, structures[item])


argmax, argmax_parts = dense_and_parts(_argmax)


@compiled
def _sample(rows: np.ndarray, uniforms: np.ndarray, structures: np.ndarray, numbers: np.ndarray, certified: np.ndarray, k: int) -> None:
    """Samples [b, s, n], or their parts [b, s, k], by uniforms [b, s, n].

    Polynomials ``∏_{i ≥ part} (skip_i + take_i x)`` once for each row, and a walk along the parts for each sample.

    With s the k-th largest score, a part with a score θ below s weighs 1 if it is left out and ``exp(θ − s)`` if it is taken; one above s
    weighs ``exp(s − θ)`` if it is left out and 1 if it is taken. So no weight is above 1, and the best subset weighs exactly 1: scores of
    any size fit, and what underflows is below 1e-300 of the sum.
    """
    size, columns = rows.shape[1], WIDTH * (2 + k // WIDTH)
    parts, takes, skips, suffixes = np.empty(k, np.int64), np.empty(size), np.empty(size), np.zeros((size + 1, columns))
    suffixes[size, WIDTH] = 1
    certified[:] = True
    for item in range(len(rows)):
        row = rows[item]
        origin = kth_largest(row, k, takes)
        if origin == -math.inf:
            continue
        for part in range(size):
            takes[part] = -abs(row[part] - origin)
        exponentials(takes, takes)
        for part in range(size):
            above = row[part] > origin
            skips[part] = takes[part] if above else 1.0
            takes[part] = 1.0 if above else takes[part]
        for part in range(size - 1, -1, -1):
            skip, take, before = spread(skips[part]), spread(takes[part]), suffixes[part + 1]
            for at in range(WIDTH, columns, WIDTH):
                store(suffixes[part], at, add(multiply(skip, load(before, at)), multiply(take, load(before, at - 1))))
        for draw in range(uniforms.shape[1]):
            count = _walk(uniforms[item, draw], suffixes.reshape(-1), takes, skips, columns, parts)
            if len(numbers) > 0:
                number(parts, count, numbers[item, draw])
            else:
                mark(parts, count, structures[item, draw])


sample, sample_parts = dense_and_parts(_sample, draws=1)


@uncounted
def _walk(uniform: np.ndarray, suffixes: np.ndarray, takes: np.ndarray, skips: np.ndarray, columns: int, parts: np.ndarray) -> int:
    """The parts of one sample, and their number, from flat suffixes. Their places are unsigned, since negative ones would be looked for."""
    count, wanted, at, step = 0, len(parts), uint64(WIDTH + len(parts)), uint64(columns)
    for part in range(len(takes)):
        left = uniform[uint64(part)] * suffixes[at]
        at += step
        take = takes[uint64(part)] * suffixes[at - uint64(1)]
        # Where nothing can be without this part, rounding must not pass over it.
        if left < take or (suffixes[at] * skips[uint64(part)] == 0 and take > 0):
            at -= uint64(1)
            parts[count] = part
            count += 1
            if count == wanted:
                break
    return count
