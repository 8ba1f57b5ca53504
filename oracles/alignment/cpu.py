"""Kernels of monotone alignments: rows [b, n, m], computed antidiagonal by antidiagonal, all cells of one at once.

Scores are first *skewed*: laid out so that the cells of one antidiagonal lie side by side, by row, each antidiagonal filled up with -inf
to a multiple of `LANES`, and one place between two of them. The sum over all paths to a cell is a number with an exponent of its own
(`wide_range`), so that scores of any scale up to `LARGEST` are certified. The pass forward keeps, for every cell, the chances that a path
through it came from each of its three neighbours; everything else follows from these by products and sums alone.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from ..active_set import cpu as active_set
from ..kernels.compilation import compiled, fused, inner, uncounted
from ..kernels.parts import allowed, mark, no_numbers, no_structures, number
from ..kernels.wide_range import LARGEST, NOTHING, logarithm, normalise, reference, relative, split

Array = NDArray[Any]

LANES = 8
"""Cells that one vector instruction may hold."""

OFTEN = 16
"""Antidiagonals from one normalisation of the mantissas to the next: they grow at most 4.3-fold each."""

TOGETHER = 8
"""Walks that are taken side by side."""

FORBIDDEN = -1e250
"""Stands for -inf where a best path is sought, so that one leads to every cell."""


class AlignmentGrid(NamedTuple):
    """How skewed arrays are laid out."""

    rows: int
    columns: int
    places: Array  # [n + m − 1] for each antidiagonal where row 0 is, or would be
    size: int


class Chances(NamedTuple):
    """Skewed, for every cell: how likely a path through it came from the cell diagonally before, above, to the left."""

    diagonal: Array
    above: Array
    left: Array


class AlignmentLines(NamedTuple):
    """One or two numbers by row for three antidiagonals, which take turns; row i is at place i + 1."""

    first: tuple[Array, Array, Array]
    second: tuple[Array, Array, Array]


def operations(event: tuple[int, ...]) -> int:
    """Inner-loop steps of a row: a cell costs about three, with its exponential."""
    return 3 * event[0] * event[1]


@inner
def _grid(n: int, m: int) -> AlignmentGrid:
    """The layout of skewed arrays for rows [n, m]."""
    places, end = np.empty(n + m - 1, np.int64), 1
    for d in range(n + m - 1):
        first = max(0, d - m + 1)
        places[d] = end - first
        end += (min(d, n - 1) - first + LANES) // LANES * LANES + 1
    return AlignmentGrid(n, m, places, end + LANES)


@inner
def _skew(row, grid, skewed):
    """Lay a row [n, m] out."""
    n, m, places = grid.rows, grid.columns, grid.places
    for i in range(n):
        for j in range(m):
            skewed[uint64(places[i + j] + i)] = row[i, j]


@uncounted
def _moderate(scores) -> bool:
    """Whether all finite scores are within `LARGEST`."""
    beyond = 0
    for x in range(len(scores)):
        beyond |= (abs(scores[x]) > LARGEST) & (scores[x] > -math.inf)
    return beyond == 0


@inner
def _unskew(skewed, grid, row):
    n, m, places = grid.rows, grid.columns, grid.places
    for i in range(n):
        for j in range(m):
            row[i, j] = skewed[uint64(places[i + j] + i)]


@inner
def _lines(n: int) -> AlignmentLines:
    size = n + LANES + 2
    return AlignmentLines((np.zeros(size), np.zeros(size), np.zeros(size)), (np.zeros(size), np.zeros(size), np.zeros(size)))


@fused
def _forward(grid, scores, lines, chances):
    """The log-partition of skewed scores; fills the chances, unless they are None."""
    n, m, places = grid.rows, grid.columns, grid.places
    m2, m1, m0 = lines.first
    e2, e1, e0 = lines.second
    m2[:], m1[:], m0[:], e2[:], e1[:], e0[:] = 0.0, 0.0, 0.0, NOTHING, NOTHING, NOTHING
    # The first cell is reached diagonally from nowhere.
    m2[0], e2[0] = 1.0, 0.0
    for d in range(n + m - 1):
        first = max(0, d - m + 1)
        here, at, up = uint64(places[d] + first), uint64(first + 1), uint64(first)
        for lane in range((min(d, n - 1) - first + LANES) // LANES * LANES):
            k = uint64(lane)
            mantissa, exponent = split(scores[here + k])
            top = max(max(e2[up + k], e1[up + k]), e1[at + k])
            base = reference(top)
            diagonal = m2[up + k] * relative(e2[up + k], base)
            above = m1[up + k] * relative(e1[up + k], base)
            left = m1[at + k] * relative(e1[at + k], base)
            total = diagonal + above + left
            m0[at + k] = total * mantissa
            e0[at + k] = top + exponent
            if chances is not None:
                # A cell that no path leads to has three chances of 0.
                scale = 1.0 / (total + 1e-300)
                chances.diagonal[here + k] = diagonal * scale
                chances.above[here + k] = above * scale
                chances.left[here + k] = left * scale
        m0[first], e0[first] = 0.0, NOTHING
        if d % OFTEN == 0:
            normalise(m1, e1)
            normalise(m0, e0)
        m2, m1, m0, e2, e1, e0 = m1, m0, m2, e1, e0, e2
    return logarithm(m1[n], e1[n])


@fused
def _backward(grid, chances, lines, marginals):
    """Skewed marginals, from the last cell back: a path that passes a cell came from each neighbour by its chance.

    What the lines hold outside the grid meets a chance of 0.
    """
    n, m, places = grid.rows, grid.columns, grid.places
    p2, p1, p0 = lines.first
    p2[:], p1[:], p0[:] = 0.0, 0.0, 0.0
    p1[n] = 1.0
    marginals[places[n + m - 2] + n - 1] = 1.0
    for d in range(n + m - 3, -1, -1):
        first = max(0, d - m + 1)
        here, at, down = uint64(places[d] + first), uint64(first + 1), uint64(first + 2)
        right = uint64(places[d + 1] + first)
        below = right + uint64(1)
        beyond = uint64(places[d + 2 if d + 2 < n + m - 1 else d + 1] + first + 1)
        for lane in range((min(d, n - 1) - first + LANES) // LANES * LANES):
            k = uint64(lane)
            value = p1[at + k] * chances.left[right + k] + p1[down + k] * chances.above[below + k]
            value += p2[down + k] * chances.diagonal[beyond + k]
            p0[at + k] = value
            marginals[here + k] = value
        p2, p1, p0 = p1, p0, p2


@fused
def _tangents(grid, chances, lines, direction, averages):
    """Skewed derivatives along a direction of the log-partition of the paths to each cell, without the cell itself."""
    n, m, places = grid.rows, grid.columns, grid.places
    t2, t1, t0 = lines.first
    t2[:], t1[:], t0[:] = 0.0, 0.0, 0.0
    for d in range(n + m - 1):
        first = max(0, d - m + 1)
        here, at, up = uint64(places[d] + first), uint64(first + 1), uint64(first)
        for lane in range((min(d, n - 1) - first + LANES) // LANES * LANES):
            k = uint64(lane)
            value = t2[up + k] * chances.diagonal[here + k] + t1[up + k] * chances.above[here + k] + t1[at + k] * chances.left[here + k]
            averages[here + k] = value
            t0[at + k] = value + direction[here + k]
        t2, t1, t0 = t1, t0, t2


@fused
def _backward_tangents(grid, chances, lines, tangents, product):
    """Skewed derivatives along a direction of the marginals.

    With T what `_tangents` gives with the cell itself and A without it, chances p of a step from there to a cell c change at the rate
    ``p (T − A_c)``. So ``μ' = Σ p (μ'_c + μ_c (T − A_c)) = r + μ T`` with ``r = Σ p (μ'_c − μ_c A_c)``, and what goes on is
    ``μ' − μ A = r + μ v``, for v the direction.
    """
    n, m, places = grid.rows, grid.columns, grid.places
    direction, averages = tangents
    p2, p1, p0 = lines.first
    r2, r1, r0 = lines.second
    p2[:], p1[:], p0[:], r2[:], r1[:], r0[:] = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    last = places[n + m - 2] + n - 1
    p1[n], r1[n], product[last] = 1.0, -averages[last], 0.0
    for d in range(n + m - 3, -1, -1):
        first = max(0, d - m + 1)
        here, at, down = uint64(places[d] + first), uint64(first + 1), uint64(first + 2)
        right = uint64(places[d + 1] + first)
        below = right + uint64(1)
        beyond = uint64(places[d + 2 if d + 2 < n + m - 1 else d + 1] + first + 1)
        for lane in range((min(d, n - 1) - first + LANES) // LANES * LANES):
            k = uint64(lane)
            left, above, diagonal = chances.left[right + k], chances.above[below + k], chances.diagonal[beyond + k]
            value = p1[at + k] * left + p1[down + k] * above + p2[down + k] * diagonal
            rest = r1[at + k] * left + r1[down + k] * above + r2[down + k] * diagonal + value * direction[here + k]
            p0[at + k] = value
            r0[at + k] = rest
            product[here + k] = rest + value * averages[here + k]
        p2, p1, p0, r2, r1, r0 = p1, p0, p2, r1, r0, r2


class AlignmentWorkspace(NamedTuple):
    """What the passes over one row need: skewed arrays, and lines."""

    grid: AlignmentGrid
    scores: Array
    results: Array
    chances: Chances
    lines: AlignmentLines


@inner
def _workspace(n: int, m: int) -> AlignmentWorkspace:
    grid = _grid(n, m)
    chances = Chances(np.zeros(grid.size), np.zeros(grid.size), np.zeros(grid.size))
    return AlignmentWorkspace(grid, np.full(grid.size, -math.inf), np.zeros(grid.size), chances, _lines(n))


@compiled
def log_partition(rows, log_partition, certified):
    """Log-partitions [b] of rows."""
    grid, lines = _grid(rows.shape[1], rows.shape[2]), _lines(rows.shape[1])
    scores = np.full(grid.size, -math.inf)
    for b in range(rows.shape[0]):
        _skew(rows[b], grid, scores)
        certified[b] = _moderate(scores)
        log_partition[b] = _forward(grid, scores, lines, None)


@inner
def _load(row, space):
    """Skew a row and find its chances; gives its log-partition, and whether that is certified."""
    _skew(row, space.grid, space.scores)
    return _forward(space.grid, space.scores, space.lines, space.chances), _moderate(space.scores)


@compiled
def marginals(rows, marginals, log_partition, certified):
    """Marginals and log-partitions of rows."""
    space = _workspace(rows.shape[1], rows.shape[2])
    for b in range(rows.shape[0]):
        log_partition[b], certified[b] = _load(rows[b], space)
        if certified[b] and log_partition[b] > -math.inf:
            _backward(space.grid, space.chances, space.lines, space.results)
            _unskew(space.results, space.grid, marginals[b])


@compiled
def covariance_product(rows, direction, product, certified):
    """The covariance of the parts times a direction, for each row."""
    space = _workspace(rows.shape[1], rows.shape[2])
    along, averages = np.zeros_like(space.scores), np.zeros_like(space.scores)
    for b in range(rows.shape[0]):
        log_partition, certified[b] = _load(rows[b], space)
        if certified[b] and log_partition > -math.inf:
            _skew(direction[b], space.grid, along)
            _tangents(space.grid, space.chances, space.lines, along, averages)
            _backward_tangents(space.grid, space.chances, space.lines, (along, averages), space.results)
            _unskew(space.results, space.grid, product[b])


def sample(rows, uniforms, structures, certified):
    """Structures [b, s, n, m] from uniforms [b, s, n + m − 1]."""
    _sample(rows, uniforms, structures, no_numbers(1), certified)


def sample_parts(rows, uniforms, numbers, certified):
    """The same samples by the numbers of their parts, [b, s, n + m − 1]."""
    _sample(rows, uniforms, no_structures(rows, 1), numbers, certified)


@compiled
def _sample(rows, uniforms, structures, numbers, certified):
    """Walks from the last cell back, one uniform a step: into structures, or into numbers where there is room for these."""
    n, m = rows.shape[1:]
    space, positions = _workspace(n, m), np.empty((3, TOGETHER), np.int64)
    parts = np.empty((TOGETHER, n + m - 1), np.int64)
    for b in range(rows.shape[0]):
        log_partition, certified[b] = _load(rows[b], space)
        if certified[b] and log_partition > -math.inf:
            for first in range(0, uniforms.shape[1], TOGETHER):
                together = uniforms[b, first : first + TOGETHER]
                _walk(space.grid, space.chances, positions, together, parts)
                for s in range(len(together)):
                    count = positions[2, s]
                    if len(numbers) > 0:
                        number(parts[s, n + m - 1 - count :], count, numbers[b, first + s])
                    else:
                        mark(parts[s, n + m - 1 - count :], count, structures[b, first + s].reshape(-1))


@inner
def _walk(grid, chances, positions, uniforms, parts):
    """Walks side by side, because the steps of one wait for each other, and without branches, because none could be foreseen.

    Their parts are written from the end of the lists on, so that they ascend; how many there are is the third line of the positions.
    """
    rows, columns, counts = positions
    last = grid.rows + grid.columns - 2
    rows[:], columns[:], counts[:] = grid.rows - 1, grid.columns - 1, 1
    parts[:, last] = grid.rows * grid.columns - 1
    for step in range(grid.rows + grid.columns - 2):
        for s in range(len(uniforms)):
            i, j, uniform = rows[s], columns[s], uniforms[s, step]
            here = grid.places[uint64(i + j)] + i
            diagonal, above = chances.diagonal[here], chances.above[here]
            # What has chance 0 is never chosen, however the chances round.
            left = np.int64((uniform >= diagonal + above) & (chances.left[here] > 0.0))
            up = (1 - left) * np.int64((uniform >= diagonal) & (above > 0.0))
            going = np.int64(i + j > 0)
            i, j = i - going * (1 - left), j - going * (1 - up)
            rows[s], columns[s], counts[s] = i, j, counts[s] + going
            # From the first cell a walk goes nowhere, and writes it again in the same place.
            parts[s, last + 1 - counts[s]] = i * grid.columns + j


@inner
def _best_values(grid, scores, lines, values):
    """The score of the best path to every cell, skewed."""
    n, m, places = grid.rows, grid.columns, grid.places
    v2, v1, v0 = lines.first
    v2[:], v1[:], v0[:] = -math.inf, -math.inf, -math.inf
    v2[0] = 0.0
    for d in range(n + m - 1):
        first = max(0, d - m + 1)
        here, at, up = uint64(places[d] + first), uint64(first + 1), uint64(first)
        for lane in range((min(d, n - 1) - first + LANES) // LANES * LANES):
            k = uint64(lane)
            value = max(scores[here + k], FORBIDDEN) + max(max(v2[up + k], v1[up + k]), v1[at + k])
            v0[at + k] = value
            values[here + k] = value
        v0[first] = -math.inf
        v2, v1, v0 = v1, v0, v2


@inner
def best_parts(row, space, parts):
    """Write the cells i·m + j of the best path, from the last to the first, into ``parts`` (int32, n + m − 1); gives how many there are."""
    n, m, places, values = space.grid.rows, space.grid.columns, space.grid.places, space.results
    _skew(row, space.grid, space.scores)
    _best_values(space.grid, space.scores, space.lines, values)
    i, j, count = n - 1, m - 1, 1
    parts[0] = n * m - 1
    while i + j > 0:
        above = values[places[i + j - 1] + i - 1] if i > 0 else -math.inf
        left = values[places[i + j - 1] + i] if j > 0 else -math.inf
        diagonal = values[places[i + j - 2] + i - 1] if i > 0 and j > 0 else -math.inf
        if diagonal >= above and diagonal >= left:
            i, j = i - 1, j - 1
        elif above >= left:
            i -= 1
        else:
            j -= 1
        parts[count] = i * m + j
        count += 1
    return count


def argmax(rows, structures):
    """The best path of each row."""
    _argmax(rows, structures, no_numbers())


def argmax_parts(rows, numbers):
    """The same structures by the numbers of their parts, [b, n + m − 1]."""
    _argmax(rows, no_structures(rows), numbers)


@compiled
def _argmax(rows, structures, numbers):
    n, m = rows.shape[1:]
    space, parts = _workspace(n, m), np.empty(n + m - 1, np.int32)
    for b in range(rows.shape[0]):
        count = allowed(rows[b].reshape(-1), parts, best_parts(rows[b], space, parts))
        if len(numbers) > 0:
            number(parts[:count][::-1], count, numbers[b])
        else:
            mark(parts, count, structures[b].reshape(-1))


@compiled
def project(rows, inside, begin, mean, gap, support, atoms):
    """SparseMAP of rows: mean [b, d], gap and support [b]; gives the parts, sizes and weights of all atoms (see `active_set`)."""
    n, m = rows.shape[1:]
    solver, found = active_set.workspace(n * m, n + m - 1), active_set.nothing_found()
    residual, space = solver.residual.reshape((n, m)), _workspace(n, m)
    for b in range(rows.shape[0]):
        solver = active_set.start(solver, rows[b].reshape(-1), inside[b], begin[b], atoms)
        count = best_parts(residual, space, solver.parts)
        while active_set.advance(solver, inside[b], count):
            if active_set.full(solver):
                solver = active_set.with_room(solver)
            count = best_parts(residual, space, solver.parts)
        found = active_set.record(solver, found, mean[b], gap, support, b)
    return active_set.result(found)
