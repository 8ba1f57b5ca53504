"""Kernels of spanning trees: MAP by contraction, the rest by elimination of words, `LANES` items side by side."""

import numpy as np

from ...active_set import cpu as active_set
from ...kernels.compilation import Array, compiled, uncounted
from ...kernels.parts import allowed, dense_and_parts, mark, number
from ...kernels.vectors import load_four, store
from . import marginals as tree_marginals
from .best_tree import best_parts, workspace
from .elimination import LANES, ItemVectors, certain, conclude, items, take_in, take_out, weigh
from .kbest import list_best, ranking_workspace
from .ranks import unrank as unrank
from .samples import draw


def operations(event: tuple[int, ...]) -> int:
    """Inner-loop steps of a row: an elimination, and an exponential for each arc."""
    return event[0] ** 3 // 3 + 4 * event[0] ** 2


@compiled
def _argmax(rows: Array, structures: Array, numbers: Array, single_root: bool) -> None:
    """The best tree of each row [b, n + 1, n + 1]: into structures, or into numbers [b, n]."""
    space, parts = workspace(rows.shape[1]), np.empty(rows.shape[1] - 1, np.int32)
    for b in range(rows.shape[0]):
        count = allowed(rows[b].reshape(-1), parts, best_parts(rows[b], single_root, space, parts))
        if len(numbers) > 0:
            number(parts, count, numbers[b])
        else:
            mark(parts, count, structures[b].reshape(-1))


argmax, argmax_parts = dense_and_parts(_argmax)


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
    table, rooted, ends = size * size * LANES, np.empty(LANES), np.empty(LANES, np.int64)
    space, weights = items(size, np.empty(table)), np.empty(table)
    for first in range(0, rows.shape[0], LANES):
        weigh(rows, first, single_root, space, weights)
        _eliminate(weights, size, single_root, rooted, ends, space)
        conclude(space, first, log_partition, certified)


@uncounted
def _eliminate(weights: Array, size: int, single_root: bool, rooted: Array, ends: Array, space: ItemVectors) -> None:
    """Take out all words of a table; their columns then hold the chances of their heads, and ``ends`` the words in the root's place."""
    for lane in range(LANES):
        rooted[lane] = 0.0 if single_root else 1.0
    row = size * LANES
    take_out(weights, None, (0, row, LANES, 0), 0, row, size - 1, 1, rooted, ends, 0, space.sums, space)
    store(space.sums, LANES, load_four(weights, LANES))
    take_in(load_four(weights, LANES), space.extent)


@compiled
def marginals(rows: Array, marginals: Array, log_partition: Array, certified: Array, single_root: bool) -> None:
    """Marginals from the chances of escape; every one is right to its own size, and none is a difference."""
    size = rows.shape[1]
    halves, totals, table = tree_marginals.halves(size), np.empty(size * LANES), size * size * LANES
    weights, chances = np.empty(max(halves.starts[-1], 2 * table)), np.zeros(table)
    space = items(size, weights[table : 2 * table])  # where the next level has its weights: before these are made, and after
    for first in range(0, rows.shape[0], LANES):
        weigh(rows, first, single_root, space, weights)
        tree_marginals.find(halves, weights, None, chances, None, single_root, space)
        conclude(space, first, log_partition, certified)
        tree_marginals.expect(weights, chances, space.exponents, totals)
        tree_marginals.hand_out(space.exponents, totals, space.extent, first, marginals, certified)


@compiled
def covariance_product(rows: Array, direction: Array, product: Array, certified: Array, single_root: bool) -> None:
    """The derivative of the marginals along a direction: the same computation on numbers with their rates."""
    size = rows.shape[1]
    halves, totals, ignored, table = tree_marginals.halves(size), np.empty(size * LANES), np.empty(rows.shape[0]), size * size * LANES
    weights, rates = np.empty(max(halves.starts[-1], 2 * table)), np.empty(halves.starts[-1])
    chances, chance_rates, space = np.zeros(table), np.zeros(table), items(size, weights[table : 2 * table])
    for first in range(0, rows.shape[0], LANES):
        weigh(rows, first, single_root, space, weights)
        tree_marginals.begin_rates(direction, first, weights, rates)
        tree_marginals.find(halves, weights, rates, chances, chance_rates, single_root, space)
        conclude(space, first, ignored, certified)
        tree_marginals.expect(weights, chances, space.exponents, totals)
        tree_marginals.expect_rates(weights, rates, chances, chance_rates, space.exponents, totals)
        tree_marginals.hand_out(rates, totals, space.extent, first, product, certified)


@compiled
def _sample(rows: Array, uniforms: Array, structures: Array, numbers: Array, certified: Array, single_root: bool) -> None:
    """Trees from uniforms [b, s, n], one elimination for all of a row: into structures, or into numbers [b, s, n]."""
    size = rows.shape[1]
    table, rooted, ends = size * size * LANES, np.empty(LANES), np.empty(LANES, np.int64)
    space, weights, direct = items(size, np.empty(table)), np.empty(table), np.empty(table)
    rest, words, parts, last = np.empty(size), np.empty((4, size), np.int64), np.empty(size - 1, np.int64), np.empty(LANES, np.int64)
    for first in range(0, rows.shape[0], LANES):
        weigh(rows, first, single_root, space, weights)
        active_set.copied(weights, direct)
        _eliminate(weights, size, single_root, rooted, ends, space)
        if _exchange(direct, size, ends, last):
            active_set.copied(direct, weights)
            _eliminate(weights, size, single_root, rooted, ends, space)
        for lane in range(min(LANES, len(rows) - first)):
            certified[first + lane] = certain(space, lane)
            if not certified[first + lane] or space.extent[lane] == 0.0:
                continue
            weights[LANES + lane] = 1.0  # the root heads the last word
            for s in range(uniforms.shape[1]):
                draw(direct, weights, space.sums, lane, uniforms[first + lane, s], single_root, rest, words)
                for m in range(1, size):  # word 1 and the last one have changed places
                    h, one = words[0, m], last[lane]
                    parts[m - 1] = (one if h == 1 else 1 if h == one else h) * size + (one if m == 1 else 1 if m == one else m)
                if len(numbers) > 0:
                    number(parts, size - 1, numbers[first + lane, s])
                else:
                    mark(parts, size - 1, structures[first + lane, s].reshape(-1))


sample, sample_parts = dense_and_parts(_sample, draws=1)


@uncounted
def _exchange(table: Array, size: int, ends: Array, last: Array) -> bool:
    """Let words that no other word is left to head come last: in the place of word 1. Gives whether there is one."""
    some = False
    for lane in range(LANES):
        last[lane] = max(ends[lane], 1)
        if last[lane] > 1:
            some = True
            for step, between in ((1, size), (size, 1)):  # rows, then columns
                one, other = between * LANES + lane, last[lane] * between * LANES + lane
                for _ in range(size):
                    table[one], table[other] = table[other], table[one]
                    one, other = one + step * LANES, other + step * LANES
    return some


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
