"""Kernels of assignments that search: rows [b, n, n]. Sums over permutations go by derivations (see `oracle`)."""

import numpy as np

from ..kernels.compilation import compiled, uncounted
from ..kernels.parts import dense_and_parts
from .cpu_kbest import list_best, ranking_workspace
from .cpu_matching import load_costs, match, matching_workspace


def operations(event: tuple[int, ...]) -> int:
    """Inner-loop steps of a row, roughly."""
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


@compiled
def unrank(ranks, structures):
    """Set the parts of the permutations of ranks [c] in zeros [c, n, n], by the digits of the factorial number system.

    The order is lexicographic in the columns of the rows. A permutation whose rank is the next one follows from the one before, in a step
    or two.
    """
    size = structures.shape[1]
    columns, free, weights = np.empty(size, np.int64), np.empty(size, np.int64), np.ones(size, np.int64)
    for i in range(size - 2, -1, -1):
        weights[i] = weights[i + 1] * (size - 1 - i)
    for item in range(len(ranks)):
        if item > 0 and ranks[item] == ranks[item - 1] + 1:
            _permute(columns)
        else:
            rank = ranks[item]
            for column in range(size):
                free[column] = column
            for i in range(size):
                digit = rank // weights[i]
                rank -= digit * weights[i]
                columns[i] = free[digit]
                for place in range(digit, size - 1 - i):
                    free[place] = free[place + 1]
        for i in range(size):
            structures[item, i, columns[i]] = 1


@uncounted
def _permute(columns):
    """The next permutation in lexicographic order: Knuth 2011, "The art of computer programming" 4A, section 7.2.1.2, algorithm L."""
    last = len(columns) - 1
    place = last - 1
    while columns[place] > columns[place + 1]:
        place -= 1
    other = last
    while columns[other] < columns[place]:
        other -= 1
    columns[place], columns[other] = columns[other], columns[place]
    first = place + 1
    while first < last:
        columns[first], columns[last] = columns[last], columns[first]
        first, last = first + 1, last - 1
