"""Kernels of spanning trees: MAP by contraction, the rest by elimination of words.

Log-partition, marginals and their derivative take items side by side (`vector_elimination`, `vector_marginals`); where scores lie far apart
or forbidden arcs leave a word without heads on the way, the scalar kernels take them one by one (`elimination`, `marginals`,
`marginal_rates`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...active_set import cpu as active_set
from ...kernels.compilation import compiled, uncounted
from ...kernels.parts import allowed, mark, no_numbers, no_structures, number
from . import marginal_rates, vector_marginals
from . import marginals as tree_marginals
from .best_tree import best_parts, workspace
from .elimination import CERTAIN, INFEASIBLE, LARGEST, UNCERTAIN, eliminate, exchange, weigh
from .kbest import list_best, ranking_workspace
from .samples import draw
from .vector_elimination import bounds, conclude, items, take_out
from .vector_elimination import weigh as weigh_items
from .vector_products import LANES

Array = NDArray[Any]

LEAST_TOTAL = 1e-250
"""The least sum of chances of escape: what was lost below 1e-308 on the way is then nothing."""


def operations(event: tuple[int, ...]) -> int:
    """Inner-loop steps of a row: an elimination, and an exponential for each arc."""
    return event[0] ** 3 // 3 + 4 * event[0] ** 2


def argmax(rows: Array, structures: Array, single_root: bool) -> None:
    """The best tree of each row [b, n + 1, n + 1]."""
    _argmax(rows, structures, no_numbers(), single_root)


def argmax_parts(rows: Array, numbers: Array, single_root: bool) -> None:
    """The same structures by the numbers of their parts, [b, n]."""
    _argmax(rows, no_structures(rows), numbers, single_root)


@compiled
def _argmax(rows: Array, structures: Array, numbers: Array, single_root: bool) -> None:
    space, parts = workspace(rows.shape[1]), np.empty(rows.shape[1] - 1, np.int32)
    for b in range(rows.shape[0]):
        count = allowed(rows[b].reshape(-1), parts, best_parts(rows[b], single_root, space, parts))
        if len(numbers) > 0:
            number(parts, count, numbers[b])
        else:
            mark(parts, count, structures[b].reshape(-1))


@compiled
def kbest_parts(rows: Array, numbers: Array, single_root: bool) -> None:
    """The k best trees of each row by the numbers of their parts, [b, k, n]; 0 where fewer are feasible."""
    size, k = rows.shape[1], numbers.shape[1]
    best, space = workspace(size), ranking_workspace(size, k)
    for b in range(rows.shape[0]):
        list_best(rows[b], single_root, best, space, numbers[b])


@compiled
def log_partition(rows: Array, log_partition: Array, certified: Array, single_root: bool) -> None:
    """The log-partition of each row by one elimination."""
    size = rows.shape[1]
    row, table = size * LANES, size * size * LANES
    space, weights = items(size, np.empty(table)), np.empty(table)
    for first in range(0, rows.shape[0], LANES):
        weigh_items(rows, first, single_root, space, weights)
        take_out(weights, None, (0, row, LANES, 0), 0, row, size - 1, 1, not single_root, space.sums)
        for lane in range(LANES, 2 * LANES):
            space.sums[lane] = weights[lane]
        bounds(space.sums, 1, size - 1, space.extent)
        conclude(space, first, log_partition, certified)


@compiled
def marginals(rows: Array, marginals: Array, log_partition: Array, certified: Array, single_root: bool) -> None:
    """Marginals from the chances of escape; every one is right to its own size, and none is a difference."""
    size = rows.shape[1]
    halves, totals, table = vector_marginals.halves(size), np.empty(size * LANES), size * size * LANES
    weights, chances = np.empty(max(halves.starts[-1], 2 * table)), np.zeros(table)
    space = items(size, weights[table : 2 * table])  # where the next level has its weights: before these are made, and after
    for first in range(0, rows.shape[0], LANES):
        weigh_items(rows, first, single_root, space, weights)
        vector_marginals.find(halves, weights, None, chances, None, not single_root, space.sums, space.extent)
        conclude(space, first, log_partition, certified)
        vector_marginals.expect(weights, chances, space.exponents, totals)
        _hand_out(space.exponents, totals, first, marginals, certified)


@compiled
def covariance_product(rows: Array, direction: Array, product: Array, certified: Array, single_root: bool) -> None:
    """The derivative of the marginals along a direction: the same computation on numbers with their rates."""
    size = rows.shape[1]
    halves, totals, ignored, table = vector_marginals.halves(size), np.empty(size * LANES), np.empty(rows.shape[0]), size * size * LANES
    weights, rates = np.empty(max(halves.starts[-1], 2 * table)), np.empty(halves.starts[-1])
    chances, chance_rates, space = np.zeros(table), np.zeros(table), items(size, weights[table : 2 * table])
    for first in range(0, rows.shape[0], LANES):
        weigh_items(rows, first, single_root, space, weights)
        vector_marginals.begin_rates(direction, first, weights, rates)
        vector_marginals.find(halves, weights, rates, chances, chance_rates, not single_root, space.sums, space.extent)
        conclude(space, first, ignored, certified)
        vector_marginals.expect(weights, chances, space.exponents, totals)
        vector_marginals.expect_rates(weights, rates, chances, chance_rates, space.exponents, totals)
        _hand_out(rates, totals, first, product, certified)


@uncounted
def _hand_out(table: Array, totals: Array, first: int, results: Array, certified: Array) -> None:
    """Write the items from ``first`` on that are certain, where what the heads of every word weigh together is in range."""
    size, every = results.shape[1], first + LANES <= len(results)
    for lane in range(min(LANES, len(results) - first)):
        for m in range(1, size):
            if not LEAST_TOTAL < totals[m * LANES + lane] < LARGEST:
                certified[first + lane] = False
        every = every and certified[first + lane]
    if every:
        vector_marginals.hand_out(table, first, results)
        return
    for lane in range(min(LANES, len(results) - first)):
        if certified[first + lane]:
            for h in range(size):
                for m in range(1, size):
                    results[first + lane, h, m] = table[(h * size + m) * LANES + lane]


@compiled
def scalar_log_partition(rows: Array, log_partition: Array, certified: Array, single_root: bool) -> None:
    """The log-partition of each row by one elimination."""
    size = rows.shape[1]
    exponents, weights, shift, totals = np.empty((size, size)), np.empty((size, size)), np.empty(size), np.empty(size)
    for b in range(rows.shape[0]):
        shifted, in_range, dense = weigh(rows[b], single_root, exponents, shift, weights)
        value, _, known = eliminate(weights, single_root, dense, totals)
        log_partition[b] = shifted + value
        certified[b] = in_range and known != UNCERTAIN


@compiled
def scalar_marginals(rows: Array, marginals: Array, log_partition: Array, certified: Array, single_root: bool) -> None:
    """Marginals from the chances of escape; every one is right to its own size, and none is a difference."""
    size = rows.shape[1]
    blocks, exponents, shift, totals = tree_marginals.blocks(size), np.empty((size, size)), np.empty(size), np.empty(size)
    for b in range(rows.shape[0]):
        shifted, in_range, dense = weigh(rows[b], single_root, exponents, shift, blocks.weights[0])
        value, known = tree_marginals.find(blocks, single_root, dense)
        log_partition[b] = shifted + value
        certified[b] = in_range and known != UNCERTAIN
        if not certified[b] or known == INFEASIBLE:
            continue
        weights, chances = blocks.weights[0], blocks.chances[0]
        certified[b] = _add_up(weights, chances, totals)
        for h in range(size):
            for m in range(1, size):
                marginals[b, h, m] = weights[h, m] * chances[h, m] * totals[m]


@uncounted
def _add_up(weights: Array, chances: Array, totals: Array) -> bool:
    """What the heads of each word weigh together, inverted; False where that is out of range."""
    totals[:] = 0.0
    for h in range(len(totals)):
        for m in range(1, len(totals)):
            totals[m] += weights[h, m] * chances[h, m]
    certain = True
    for m in range(1, len(totals)):
        certain = certain and LEAST_TOTAL < totals[m] < LARGEST
        totals[m] = 1.0 / totals[m]
    return certain


@compiled
def scalar_covariance_product(rows: Array, direction: Array, product: Array, certified: Array, single_root: bool) -> None:
    """The derivative of the marginals along a direction: the same computation on numbers with their rates."""
    size = rows.shape[1]
    blocks, rates, exponents = tree_marginals.blocks(size), tree_marginals.blocks(size), np.empty((size, size))
    shift, totals, slopes = np.empty(size), np.empty(size), np.empty(size)
    for b in range(rows.shape[0]):
        weights, weight_rates = blocks.weights[0], rates.weights[0]
        _, in_range, dense = weigh(rows[b], single_root, exponents, shift, weights)
        for h in range(size):
            for m in range(1, size):
                weight_rates[h, m] = weights[h, m] * direction[b, h, m] if weights[h, m] > 0.0 else 0.0
        known = marginal_rates.find(blocks, rates, single_root, dense)
        certified[b] = in_range and known != UNCERTAIN
        if not certified[b] or known == INFEASIBLE:
            continue
        chances, chance_rates = blocks.chances[0], rates.chances[0]
        certified[b] = _add_up(weights, chances, totals)
        slopes[:] = 0.0
        for h in range(size):
            for m in range(1, size):
                rate = weight_rates[h, m] * chances[h, m] + weights[h, m] * chance_rates[h, m]
                exponents[h, m] = rate * totals[m]
                slopes[m] += exponents[h, m]
        for h in range(size):
            for m in range(1, size):
                product[b, h, m] = exponents[h, m] - weights[h, m] * chances[h, m] * totals[m] * slopes[m]


def sample(rows: Array, uniforms: Array, structures: Array, certified: Array, single_root: bool) -> None:
    """Trees of each row from uniforms [b, s, n]."""
    _sample(rows, uniforms, structures, no_numbers(1), certified, single_root)


def sample_parts(rows: Array, uniforms: Array, numbers: Array, certified: Array, single_root: bool) -> None:
    """The same samples by the numbers of their parts, [b, s, n]."""
    _sample(rows, uniforms, no_structures(rows, 1), numbers, certified, single_root)


@compiled
def _sample(rows: Array, uniforms: Array, structures: Array, numbers: Array, certified: Array, single_root: bool) -> None:
    """One elimination for all trees of a row: into structures, or into numbers where there is room for these."""
    size = rows.shape[1]
    exponents, weights, direct = np.empty((size, size)), np.empty((size, size)), np.empty((size, size))
    shift, totals, rest, words = np.empty(size), np.empty(size), np.empty(size), np.empty((4, size), np.int64)
    parts = np.empty(size - 1, np.int64)
    for b in range(rows.shape[0]):
        _, in_range, dense = weigh(rows[b], single_root, exponents, shift, weights)
        for h in range(size):
            for m in range(size):
                direct[h, m] = weights[h, m]
        _, last_word, known = eliminate(weights, single_root, dense, totals)
        certified[b] = in_range and known != UNCERTAIN
        if certified[b] and known == CERTAIN:
            exchange(direct, last_word)
            for s in range(uniforms.shape[1]):
                draw(direct, weights, totals, uniforms[b, s], single_root, rest, words)
                _list(words[0], last_word, parts)
                if len(numbers) > 0:
                    number(parts, size - 1, numbers[b, s])
                else:
                    mark(parts, size - 1, structures[b, s].reshape(-1))


@uncounted
def _list(head: Array, last_word: int, parts: Array) -> None:
    """The arcs of a tree in which word 1 and another one have changed places."""
    for m in range(1, len(head)):
        parts[m - 1] = _place(head[m], last_word) * len(head) + _place(m, last_word)


@uncounted
def _place(position: int, last_word: int) -> int:
    return last_word if position == 1 else 1 if position == last_word else position


@compiled
def project(
    rows: Array, inside: Array, begin: Array, mean: Array, gap: Array, support: Array, atoms: active_set.Atoms, single_root: bool
) -> active_set.Atoms:
    """SparseMAP of rows: mean [b, d], gap and support [b]; gives the parts, sizes and weights of all atoms (see `active_set`)."""
    size = rows.shape[1]
    solver, found, space = active_set.workspace(size * size, size - 1), active_set.nothing_found(), workspace(size)
    residual = solver.residual.reshape((size, size))
    for b in range(rows.shape[0]):
        solver = active_set.start(solver, rows[b].reshape(-1), inside[b], begin[b], atoms)
        count = best_parts(residual, single_root, space, solver.parts)
        while active_set.advance(solver, inside[b], count):
            if active_set.full(solver):
                solver = active_set.with_room(solver)
            count = best_parts(residual, single_root, space, solver.parts)
        found = active_set.record(solver, found, mean[b], gap, support, b)
    return active_set.result(found)
