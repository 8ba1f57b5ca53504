"""Kernels of assignments: rows [b, n, n].

Sums over permutations are taken in the exponential domain, of the weights ``exp(θ_ij − a_i − b_j)`` with the duals a, b of the best
permutation: no weight exceeds 1, and those of the best permutation are 1. So every sum lies between 1 and n!, and all that can underflow
is, next to it, below 1e-280: no score is too large. What is checked per row is that the duals are what they should be.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..kernels.bounds import all_below
from ..kernels.compilation import compiled, inner, uncounted
from ..kernels.parts import mark, no_numbers, no_structures, number
from .cpu_kbest import list_best, ranking_workspace
from .cpu_matching import load_costs, match, matching_workspace
from .cpu_permanent import LOW, coefficients, collect, count_bits, gather, pair, propagate, reverse, spread, start

SLACK = 1e-3
"""How far rounding may take a weight that is at most 1, before a row is not certified."""

LARGEST = 1e6
"""Greatest size of a score that the matching is certain about."""


def operations(event: tuple[int, ...]) -> int:
    """Steps of the inner loops per row."""
    n = event[0]
    return int(n << n) // 8 + n * n * n if n <= 16 else n * n * n


class AssignmentWorkspace(NamedTuple):
    """Room for one row: of the matching, and for sums over permutations of a matrix that is extended to at least 4 rows."""

    costs: np.ndarray  # [n, n]
    floats: np.ndarray  # [2, n]
    integers: np.ndarray  # [5, n]
    weights: np.ndarray  # [2, m, m] the second with its rows in reverse
    totals: np.ndarray  # [m, m] of each part, the weight of what completes it to permutations
    counts: np.ndarray
    tables: np.ndarray  # [2, 2^m] prefixes and suffixes
    high: np.ndarray
    low: np.ndarray
    found_high: np.ndarray
    found_low: np.ndarray


@compiled
def best_parts(scores, costs, floats, integers, parts):
    """Write the parts of the best permutation of scores [n, n]; gives how many there are, 0 where every permutation is forbidden."""
    n = scores.shape[0]
    load_costs(scores, costs)
    allowed = match(costs, floats, integers)
    for i in range(n):
        parts[i] = i * n + integers[0, i]
    return n if allowed == n else 0


COMPLETE = frozenset({"argmax", "argmax_indices"})
"""What gives whether all numbers are below +inf, and none is NaN, and writes every entry of its results."""


def argmax(rows, structures):
    """Best permutations; 0 where every one is forbidden."""
    return _argmax(rows, structures, np.empty((0, 0), np.int64))


def argmax_indices(rows, columns):
    """The same permutations as the columns of their rows, [b, n]; -1 where every one is forbidden."""
    return _argmax(rows, no_structures(rows), columns)


@compiled
def _argmax(rows, structures, columns):
    n = rows.shape[1]
    costs, floats, integers = matching_workspace(n)
    structures[:] = 0
    for b in range(rows.shape[0]):
        if not all_below(rows[b].reshape(-1)):
            return False
        load_costs(rows[b], costs)
        feasible = match(costs, floats, integers) == n
        for i in range(n):
            if len(columns) > 0:
                columns[b, i] = integers[0, i] if feasible else -1
            elif feasible:
                structures[b, i, integers[0, i]] = 1
    return True


@compiled
def kbest_parts(rows, numbers):
    """The k best permutations by the numbers of their parts, [b, k, n]; 0 where fewer are feasible."""
    n, k = rows.shape[1], numbers.shape[1]
    costs, floats, integers = matching_workspace(n)
    space, matchings = ranking_workspace(n, k), np.empty((2 * k, 2, n))
    for b in range(rows.shape[0]):
        matchings = list_best(rows[b], costs, floats, integers, space, matchings, numbers[b])


@inner
def _workspace(n):
    m = max(n, LOW)
    costs, floats, integers = matching_workspace(n)
    weights = np.zeros((2, m, m))
    for i in range(m):
        weights[0, i, i] = weights[1, m - 1 - i, i] = 1.0
    high, low = coefficients(m)
    return AssignmentWorkspace(
        costs, floats, integers, weights, np.empty((m, m)), count_bits(m), np.empty((2, 1 << m)),
        high, low, np.zeros_like(high), np.zeros_like(low),
    )  # fmt: skip


@inner
def _weigh(space):
    """From costs to weights; gives the score that they are relative to, -inf where nothing is allowed, and whether that is certain."""
    n = space.costs.shape[0]
    costs, v, column_of, last = space.costs, space.floats[0], space.integers[0], space.weights.shape[1] - 1
    allowed = match(costs, space.floats, space.integers)
    certain, top = True, 0.0
    for i in range(n):
        mine = column_of[i]
        u = costs[i, mine] - v[mine]
        top -= u + v[i]
        for j in range(n):
            exponent = u + v[j] - costs[i, j]
            certain = certain and (abs(costs[i, j]) < LARGEST or costs[i, j] == math.inf) and (exponent <= SLACK or allowed < n)
            space.weights[0, i, j] = space.weights[1, last - i, j] = math.exp(exponent)
    return top if allowed == n else -math.inf, certain


@inner
def _sum(space, turns):
    """Fill the table of prefixes, and that of the reversed rows where there are two turns; gives the sum over all permutations."""
    for turn in range(turns):
        spread(space.weights[turn], space.high, space.low, space.counts)
        start(space.tables[turn])
        propagate(space.tables[turn], space.high, space.low, space.counts)
    return space.tables[0, -1]


@compiled
def log_partition(rows, log_partition, certified):
    """Log-partitions [b] of rows."""
    space = _workspace(rows.shape[1])
    for b in range(rows.shape[0]):
        load_costs(rows[b], space.costs)
        log_partition[b], certified[b] = _weigh(space)
        if log_partition[b] > -math.inf:
            log_partition[b] += math.log(_sum(space, 1))


@inner
def _pair(space, prefixes, suffixes):
    """Add up what completes each part, from prefixes and from prefixes of the reversed rows, which are put back in the end."""
    reverse(suffixes)
    pair(prefixes, suffixes, space.counts, space.found_high, space.found_low)
    reverse(suffixes)


@compiled
def marginals(rows, marginals, log_partition, certified):
    """Marginals [b, n, n] and log-partitions [b] of rows."""
    n = rows.shape[1]
    space = _workspace(n)
    for b in range(rows.shape[0]):
        load_costs(rows[b], space.costs)
        log_partition[b], certified[b] = _weigh(space)
        if log_partition[b] > -math.inf:
            total = _sum(space, 2)
            log_partition[b] += math.log(total)
            _pair(space, space.tables[0], space.tables[1])
            collect(space.found_high, space.found_low, space.totals)
            for i in range(n):
                for j in range(n):
                    marginals[b, i, j] = space.weights[0, i, j] * space.totals[i, j] / total


@uncounted
def _tilt(space, direction, total, tilted):
    """The derivative of the weights along a direction, from which its mean in each row is subtracted: that moves no probability."""
    n, last = direction.shape[0], tilted.shape[1] - 1
    for i in range(n):
        mean = 0.0
        for j in range(n):
            weight = space.weights[0, i, j]
            mean += weight * space.totals[i, j] / total * direction[i, j] if weight > 0.0 else 0.0
        for j in range(n):
            weight = space.weights[0, i, j]
            tilted[0, i, j] = tilted[1, last - i, j] = weight * (direction[i, j] - mean) if weight > 0.0 else 0.0


@compiled
def covariance_product(rows, direction, product, certified):
    """Derivatives of the marginals along directions [b, n, n]: tables and their derivatives, paired with each other."""
    n = rows.shape[1]
    space = _workspace(n)
    tilted, moved, weights, tables = np.zeros_like(space.weights), np.empty_like(space.tables), space.weights, space.tables
    rises = np.empty_like(space.totals)
    for b in range(rows.shape[0]):
        load_costs(rows[b], space.costs)
        top, certified[b] = _weigh(space)
        if top == -math.inf:
            continue
        total = _sum(space, 2)
        _pair(space, tables[0], tables[1])
        collect(space.found_high, space.found_low, space.totals)
        _tilt(space, direction[b], total, tilted)
        for turn in range(2):
            spread(tilted[turn], space.high, space.low, space.counts)
            gather(tables[turn], space.high, space.low, space.counts, moved[turn])
            spread(weights[turn], space.high, space.low, space.counts)
            propagate(moved[turn], space.high, space.low, space.counts)
        _pair(space, moved[0], tables[1])
        _pair(space, tables[0], moved[1])
        collect(space.found_high, space.found_low, rises)
        for i in range(n):
            for j in range(n):
                # The sum over all permutations does not grow along a tilt that has mean 0.
                product[b, i, j] = (tilted[0, i, j] * space.totals[i, j] + weights[0, i, j] * rises[i, j]) / total


def sample(rows, uniforms, structures, certified):
    """Permutations by uniforms [b, s, n]."""
    _sample(rows, uniforms, structures, no_numbers(1), certified)


def sample_parts(rows, uniforms, numbers, certified):
    """The same samples by the numbers of their parts, [b, s, n]."""
    _sample(rows, uniforms, no_structures(rows, 1), numbers, certified)


@compiled
def _sample(rows, uniforms, structures, numbers, certified):
    """One table per row, then from the last row of each sample to the first: into structures, or into numbers where there is room."""
    n = rows.shape[1]
    parts = np.empty(n, np.int64)
    space = _workspace(n)
    for b in range(rows.shape[0]):
        load_costs(rows[b], space.costs)
        top, certified[b] = _weigh(space)
        if top > -math.inf:
            _sum(space, 1)
            for s in range(uniforms.shape[1]):
                _walk(space.tables[0], space.weights[0], uniforms[b, s], parts)
                if len(numbers) > 0:
                    number(parts, n, numbers[b, s])
                else:
                    mark(parts, n, structures[b, s].reshape(-1))


@uncounted
def _walk(prefix, weights, uniforms, parts):
    n = len(parts)
    rest = (1 << n) - 1
    for i in range(n - 1, -1, -1):
        total = 0.0
        for j in range(n):
            if rest >> j & 1:
                total += prefix[rest ^ (1 << j)] * weights[i, j]
        threshold, below, chosen = uniforms[i] * total, 0.0, -1
        for j in range(n):
            if rest >> j & 1:
                weight = prefix[rest ^ (1 << j)] * weights[i, j]
                below += weight
                if weight > 0.0:
                    chosen = j
                if below > threshold:
                    break
        parts[i] = i * n + chosen
        rest ^= 1 << chosen
