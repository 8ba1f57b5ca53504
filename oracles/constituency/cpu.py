"""Projections on binary trees, rows [b, n, n] of which nothing below the diagonal is read; all else their hypergraph gives.

Charts are kept *by width*: row w holds the spans of w + 1 tokens by their first token, so that the cuts of many spans of one width are
compared side by side, all from contiguous memory. The innermost loop ends at a place, not after a number of steps: the compiler unrolls the
latter until its places no longer fit the registers, which doubles the time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..active_set import cpu as active_set
from ..kernels.compilation import compiled, uncounted
from ..kernels.vectors import WIDTH, add, greatest, load, spread, store

Array = NDArray[Any]


class BestSpansWorkspace(NamedTuple):
    """Room for one row of n tokens."""

    starts: Array  # [n + 1] where the spans of w + 1 tokens begin among the scores
    scores: Array  # of spans of two tokens and more, by width; padded to whole vectors with -inf
    best: Array  # the chart of greatest sums, with `WIDTH` entries of -inf before and after each row; single tokens have 0
    spans: Array  # [n, 2] those still to be cut: first and last token


def operations(event: tuple[int, ...]) -> int:
    """Steps of the inner loops per row."""
    n = event[0]
    return n * n * n // 12 + 3 * n * n


@uncounted
def _stride(n: int) -> int:
    """From one row of a chart to the next."""
    return (n + WIDTH - 1) // WIDTH * WIDTH + WIDTH


@compiled
def _workspace(n: int) -> BestSpansWorkspace:
    starts = np.zeros(n + 1, np.int64)
    for w in range(1, n):
        starts[w + 1] = starts[w] + (n - w + WIDTH - 1) // WIDTH * WIDTH
    best = np.full(WIDTH + n * _stride(n), -np.inf)
    best[WIDTH : WIDTH + n] = 0.0
    return BestSpansWorkspace(starts, np.full(starts[n], -np.inf), best, np.empty((n, 2), np.int64))


@uncounted
def _find_best(row: Array, space: BestSpansWorkspace) -> None:
    """Fill the chart."""
    n, chart, step, nothing = len(space.spans), space.best, _stride(len(space.spans)), spread(-np.inf)
    for i in range(n):
        for w in range(1, n - i):
            space.scores[space.starts[w] + i] = row[i, i + w]
    for w in range(1, n):
        for i in range(0, n - w, WIDTH):
            left, right, stop, total = WIDTH + i, WIDTH + (w - 1) * step + i + 1, WIDTH + w * step + i, nothing
            while left != stop:
                total = greatest(total, add(load(chart, left), load(chart, right)))
                left, right = left + step, right + 1 - step
            store(chart, WIDTH + w * step + i, add(total, load(space.scores, space.starts[w] + i)))


@compiled
def best_parts(row: Array, space: BestSpansWorkspace, parts: Array) -> int:
    """Write the flat indices of the 2n − 1 spans of the best tree of scores [n, n], and give their number.

    No back-pointers are kept: the way down looks again for the lowest cut of the greatest sum. The scores of single tokens, which are in
    every tree, are not looked at.
    """
    _find_best(row, space)
    n, spans, chart, waiting, count = len(space.spans), space.spans, space.best, 1, 0
    step = _stride(n)
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
def project(rows: Array, inside: Array, begin: Array, mean: Array, gap: Array, support: Array, atoms: active_set.Atoms) -> active_set.Atoms:
    """SparseMAP of rows: mean [b, d], gap and support [b]; gives the parts, sizes and weights of all atoms (see `active_set`)."""
    n = rows.shape[1]
    solver, found, space = active_set.workspace(n * n, 2 * n - 1), active_set.nothing_found(), _workspace(n)
    residual = solver.residual.reshape((n, n))
    for b in range(rows.shape[0]):
        solver = active_set.start(solver, rows[b].reshape(-1), inside[b], begin[b], atoms)
        count = best_parts(residual, space, solver.parts)
        while active_set.advance(solver, inside[b], count):
            if active_set.full(solver):
                solver = active_set.with_room(solver)
            count = best_parts(residual, space, solver.parts)
        found = active_set.record(solver, found, mean[b], gap, support, b)
    parts, sizes, weights = active_set.result(found)
    return parts, sizes, weights
