"""Kernels of binary trees: rows [b, n, n], of which nothing below the diagonal is read."""

from __future__ import annotations

import numpy as np

from . import active_set
from .compilation import compiled, uncounted
from .lanes import WIDTH
from .span_charts import (
    Array,
    ChartWorkspace,
    evaluate,
    find_best,
    gather,
    go_down,
    go_down_rates,
    go_up_rates,
    scale_rates,
    scatter,
    stride,
    workspace,
)


def operations(event: tuple[int, ...]) -> int:
    """Steps of the inner loops per row."""
    n = event[0]
    return n * n * n // 12 + 3 * n * n


@compiled
def log_partition(rows: Array, log_partition: Array, certified: Array) -> None:
    """Log-partitions [b] of rows."""
    space = workspace(rows.shape[1], 1)
    for b in range(rows.shape[0]):
        log_partition[b], certified[b] = evaluate(space, gather(rows[b], space.starts, space.scores))


@compiled
def marginals(rows: Array, marginals: Array, log_partition: Array, certified: Array) -> None:
    """Marginals [b, n, n] and log-partitions [b] of rows."""
    space = workspace(rows.shape[1], 2)
    for b in range(rows.shape[0]):
        log_partition[b], certified[b] = evaluate(space, gather(rows[b], space.starts, space.scores))
        if certified[b] and log_partition[b] > -np.inf:
            if rows.shape[1] > 1:
                go_down(space)
            scatter(space.results, space.starts, 1.0, marginals[b])


@compiled
def covariance_product(rows: Array, direction: Array, product: Array, certified: Array) -> None:
    """Derivatives of the marginals [b, n, n] of rows along directions: dual numbers through the way up and the way down."""
    space = workspace(rows.shape[1], 4)
    for b in range(rows.shape[0]):
        total, certified[b] = evaluate(space, gather(rows[b], space.starts, space.scores))
        if certified[b] and total > -np.inf and rows.shape[1] > 2:
            gather(direction[b], space.starts, space.rates)
            scale = scale_rates(space)
            if scale > 0.0:
                go_down(space)
                go_up_rates(space)
                go_down_rates(space, scale)
                scatter(space.results, space.starts, 0.0, product[b])


@compiled
def sample(rows: Array, uniforms: Array, structures: Array, certified: Array) -> None:
    """Trees by uniforms [b, s, n − 1], from the sentence down: one way up per row, then all its samples."""
    space = workspace(rows.shape[1], 1)
    for b in range(rows.shape[0]):
        total, certified[b] = evaluate(space, gather(rows[b], space.starts, space.scores))
        if certified[b] and total > -np.inf:
            for s in range(uniforms.shape[1]):
                _draw(space, uniforms[b, s], structures[b, s])


@uncounted
def _draw(space: ChartWorkspace, uniforms: Array, structure: Array) -> None:
    """One tree: every span is cut by the uniform of its place in preorder, in which a span of w + 1 tokens takes w places."""
    n, spans, waiting = structure.shape[0], space.spans, 0
    for i in range(n):
        structure[i, i] = 1
    i, j, place = 0, n - 1, 0
    while True:
        structure[i, j] = 1
        cut = i if j <= i + 1 else _draw_cut(space, uniforms[place], i, j)
        if cut > i:
            if cut + 1 < j:
                spans[waiting, 0], spans[waiting, 1], spans[waiting, 2] = cut + 1, j, place + 1 + cut - i
                waiting += 1
            j, place = cut, place + 1
        elif i + 1 < j:
            i, place = i + 1, place + 1
        elif waiting:
            waiting -= 1
            i, j, place = spans[waiting, 0], spans[waiting, 1], spans[waiting, 2]
        else:
            break


@uncounted
def _draw_cut(space: ChartWorkspace, uniform: float, i: int, j: int) -> int:
    """The last token of the left part, by the inverse of its distribution function; from the nearer end, as most cuts are at the ends."""
    chart, step, total = space.inside, stride(len(space.spans)), space.sums[space.starts[j - i] + i]
    first, end, move, wanted = i, j, 1, uniform * total
    if uniform > 0.5:
        first, end, move, wanted = j - 1, i - 1, -1, total - wanted
    reached, cut, k = 0.0, first, first
    while k != end:
        part = chart[WIDTH + (k - i) * step + i] * chart[WIDTH + (j - k - 1) * step + k + 1]
        if part > 0.0:
            cut = k
            reached += part
            if reached > wanted or (move < 0 and reached == wanted):
                break
        k += move
    return cut


@compiled
def best_parts(row: Array, space: ChartWorkspace, parts: Array) -> int:
    """Write the flat indices of the 2n − 1 spans of the best tree of scores [n, n], and give their number.

    No back-pointers are kept: the way down looks again for the lowest cut of the greatest sum. The scores of single tokens, which are in
    every tree, are not looked at.
    """
    gather(row, space.starts, space.scores)
    find_best(space)
    n, spans, chart, waiting, count = len(space.spans), space.spans, space.best, 1, 0
    step = stride(n)
    spans[0, 0], spans[0, 1] = 0, n - 1
    while waiting:
        waiting -= 1
        i, j = spans[waiting, 0], spans[waiting, 1]
        parts[count] = i * n + j
        count += 1
        if i == j:
            continue
        left, right = WIDTH + i, WIDTH + (j - i - 1) * step + i + 1
        cut, best = i, chart[left] + chart[right]
        for k in range(i + 1, j):
            left, right = left + step, right + 1 - step
            if chart[left] + chart[right] > best:
                cut, best = k, chart[left] + chart[right]
        spans[waiting, 0], spans[waiting, 1] = i, cut
        spans[waiting + 1, 0], spans[waiting + 1, 1] = cut + 1, j
        waiting += 2
    return count


@compiled
def argmax(rows: Array, structures: Array) -> None:
    """Best trees of rows, with the shortest left part among equals."""
    n = rows.shape[1]
    space, parts = workspace(n, 1), np.empty(2 * n - 1, np.int32)
    for b in range(rows.shape[0]):
        flat = structures[b].reshape(n * n)
        for k in range(best_parts(rows[b], space, parts)):
            flat[parts[k]] = 1


@compiled
def project(rows: Array, inside: Array, mean: Array, gap: Array, support: Array) -> tuple[Array, Array, Array]:
    """SparseMAP of rows: mean [b, d], gap and support [b]; gives the parts, sizes and weights of all atoms (see `active_set`)."""
    n = rows.shape[1]
    solver, found, space = active_set.workspace(n * n, 2 * n - 1), active_set.nothing_found(), workspace(n, 1)
    residual = solver.residual.reshape((n, n))
    for b in range(rows.shape[0]):
        active_set.start(solver, rows[b].reshape(-1))
        count = best_parts(residual, space, solver.parts)
        while active_set.advance(solver, inside[b], count):
            solver = active_set.with_room(solver)
            count = best_parts(residual, space, solver.parts)
        found = active_set.record(solver, found, mean[b], gap, support, b)
    parts, sizes, weights = active_set.result(found)
    return parts, sizes, weights
