"""Kernels of assignments that search: rows [b, n, n]. Sums over permutations go by derivations (see `oracle`)."""

import numpy as np

from ..kernels.compilation import compiled
from ..kernels.parts import dense_and_parts
from .cpu_kbest import list_best, ranking_workspace
from .cpu_matching import load_costs, match, matching_workspace


def operations(event: tuple[int, ...]) -> int:
    """Steps of the inner loops per row."""
    return int(event[0] ** 3)


@compiled
def _argmax(rows, structures, numbers):
    """Best permutations, or their parts [b, n]; 0 where every one is forbidden."""
    n = rows.shape[1]
    costs, floats, integers = matching_workspace(n)
    structures[:] = 0
    for b in range(rows.shape[0]):
        load_costs(rows[b], costs)
        feasible = match(costs, floats, integers) == n
        for i in range(n):
            if feasible and len(numbers) > 0:
                numbers[b, i] = 1 + i * n + integers[0, i]
            elif feasible:
                structures[b, i, integers[0, i]] = 1


argmax, argmax_parts = dense_and_parts(_argmax)


@compiled
def kbest_parts(rows, numbers):
    """The k best permutations by the numbers of their parts, [b, k, n]; 0 where fewer are feasible."""
    n, k = rows.shape[1], numbers.shape[1]
    costs, floats, integers = matching_workspace(n)
    space, matchings = ranking_workspace(n, k), np.empty((2 * k, 2, n))
    for b in range(rows.shape[0]):
        matchings = list_best(rows[b], costs, floats, integers, space, matchings, numbers[b])
