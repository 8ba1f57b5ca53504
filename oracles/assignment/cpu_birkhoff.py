"""Projection on the Birkhoff polytope of doubly stochastic matrices, for the CPU.

The nearest point to θ is ``X_ij = max(θ_ij − u_i − v_j, 0)`` for the duals u of the rows and v of the columns that make its sums 1. For
given v, each row is a projection on the simplex, so that v alone is sought: where the sums of the columns are 1, the minimum of a convex
function with piecewise linear gradient. Newton's method with the Hessian of the current pieces, damped in proportion to the error, ends in
a few steps (Li, Sun & Toh 2020, "On the efficient computation of a generalized Jacobian of the projector over the Birkhoff polytope").
"""

import math
from typing import NamedTuple

import numpy as np

from ..active_set.cpu_factor import product
from ..kernels.compilation import compiled, uncounted
from .cpu_matching import load_costs, match, matching_workspace

MOST_STEPS = 100
"""Of Newton's method; 5 to 8 are usual, and 35 the most seen at n = 4 to 40 and score scales 0.05 to 50."""

NEGLIGIBLE = 1e-13
"""A cell below this is 0, and a cell this near to 1 is 1."""


def operations(event: tuple[int, ...]) -> int:
    """Inner-loop steps of a row, roughly."""
    return 10 * event[0] ** 3


class BirkhoffSpace(NamedTuple):
    """Room for one row of size n."""

    point: np.ndarray  # [n, n] X
    hessian: np.ndarray  # [n, n], then its Cholesky factor below the diagonal and on it
    v: np.ndarray  # [n]
    trial: np.ndarray  # [n] v after a step
    excess: np.ndarray  # [n] sums of the columns, less 1
    step: np.ndarray  # [n]
    cells: np.ndarray  # [n] the columns of a row that are not 0


@uncounted
def _fill(scores, v, space):
    """The point for given v: every row of ``scores − v`` on the simplex (Michelot 1986). Gives the greatest excess of a column."""
    n, point, excess = scores.shape[0], space.point, space.excess
    excess[:] = -1.0
    for i in range(n):
        top = -math.inf
        for j in range(n):
            point[i, j] = scores[i, j] - v[j]
            top = max(top, point[i, j])
        threshold, before = top - 1.0, n + 1
        while True:
            total, count = 0.0, 0
            for j in range(n):
                if point[i, j] > threshold:
                    total += point[i, j] - top
                    count += 1
            if count == 0 or count >= before:
                break
            threshold, before = top + (total - 1.0) / count, count
        for j in range(n):
            point[i, j] = point[i, j] - threshold if point[i, j] > threshold else 0.0
            excess[j] += point[i, j]
    greatest = 0.0
    for j in range(n):
        greatest = max(greatest, abs(excess[j]))
    return greatest


@uncounted
def _laplacian(point, damping, hessian, cells):
    """``D_c − Mᵀ D_r⁻¹ M`` plus damping, with M the cells above 0 and D their counts by column and by row: below the diagonal and on it."""
    n = point.shape[0]
    for i in range(n):
        hessian[i][:] = 0.0
    for i in range(n):
        count = 0
        for j in range(n):
            if point[i, j] > 0.0:
                cells[count] = j
                count += 1
        for k in range(count):
            hessian[cells[k], cells[k]] += 1.0
            for other in range(k + 1):
                hessian[cells[k], cells[other]] -= 1.0 / count
    for j in range(n):
        hessian[j, j] += damping


@uncounted
def _solve(hessian, right, result):
    """Solve in place by Cholesky's method; where a pivot vanishes, at the last column of a component, the result is 0 there."""
    n = hessian.shape[0]
    for j in range(n):
        whole = hessian[j, j]
        for k in range(j + 1):
            total = hessian[j, k]
            for m in range(k):
                total -= hessian[j, m] * hessian[k, m]
            if k < j:
                hessian[j, k] = total * hessian[k, k]
            else:
                # The diagonal holds inverses, 0 for a pivot that is rounding: what follows then leaves this column out.
                hessian[j, j] = 1.0 / math.sqrt(total) if total > 1e-11 * whole else 0.0
    for j in range(n):
        total = right[j]
        for m in range(j):
            total -= hessian[j, m] * result[m]
        result[j] = total * hessian[j, j]
    for j in range(n - 1, -1, -1):
        total = result[j]
        for m in range(j + 1, n):
            total -= hessian[m, j] * result[m]
        result[j] = total * hessian[j, j]


@uncounted
def _search(scores, space, error):
    """Move v along the step to where the slope of the convex function has halved, or the error has; gives the error there."""
    v, trial, step, excess = space.v, space.trial, space.step, space.excess
    first = product(step, excess)
    length, low, high, at_low, at_high = 1.0, 0.0, math.inf, first, 0.0
    reached = error
    for _ in range(60):
        for j in range(len(v)):
            trial[j] = v[j] + length * step[j]
        reached = _fill(scores, trial, space)
        slope = product(step, excess)
        if reached <= 0.5 * error or abs(slope) <= 0.5 * first:
            break
        if slope > 0.0:
            low, at_low = length, slope
        else:
            high, at_high = length, slope
        if high == math.inf:
            length *= 2.0
        else:
            length = low + (high - low) * max(0.1, min(0.9, at_low / (at_low - at_high)))
    for j in range(len(v)):
        v[j] = trial[j]
    return reached


@uncounted
def _descend(scores, space):
    """Newton's method on v, from 0."""
    n = scores.shape[0]
    space.v[:] = 0.0
    error = _fill(scores, space.v, space)
    for _ in range(MOST_STEPS):
        if error <= 1e-15 * n:
            return
        # Near the end, the pieces being known, nothing may move that need not: a damped step would drift where the Hessian is singular.
        _laplacian(space.point, 1e-3 * error if error > 1e-8 else 0.0, space.hessian, space.cells)
        _solve(space.hessian, space.excess, space.step)
        before, error = error, _search(scores, space, error)
        if before < 1e-11 and error > 0.5 * before:
            return


@uncounted
def _correct(space):
    """Move the cells above 0 so that all sums are 1: where v is large, its rounding is in them."""
    n, point, excess = space.point.shape[0], space.point, space.excess
    excess[:] = -1.0
    for i in range(n):
        total, count = -1.0, 0
        for j in range(n):
            total += point[i, j]
            count += point[i, j] > 0.0
        for j in range(n):
            if point[i, j] > 0.0:
                point[i, j] = max(point[i, j] - total / count, 0.0)
                excess[j] += point[i, j]
    _laplacian(point, 0.0, space.hessian, space.cells)
    _solve(space.hessian, excess, space.step)
    for i in range(n):
        mean = _mean(point[i], space.step)
        for j in range(n):
            if point[i, j] > 0.0:
                point[i, j] = max(point[i, j] - (space.step[j] - mean), 0.0)


@compiled
def nearest(rows, means, gaps):
    """Nearest points [b, n, n] of float64 rows and certified gaps [b]: inf, and no point, where every permutation is forbidden.

    The search begins at the duals of the best permutation, relative to which scores of any size are near 0 where it matters.
    """
    n = rows.shape[1]
    costs, floats, integers = matching_workspace(n)
    scores, cells = np.empty((n, n)), np.empty(n, np.int64)
    space = BirkhoffSpace(np.empty((n, n)), np.empty((n, n)), np.empty(n), np.empty(n), np.empty(n), np.empty(n), cells)
    for b in range(rows.shape[0]):
        gaps[b] = math.inf
        load_costs(rows[b], costs)
        if match(costs, floats, integers) < n:
            continue
        for i in range(n):
            u = costs[i, integers[0, i]] - floats[0, integers[0, i]]
            for j in range(n):
                scores[i, j] = u + floats[0, j] - costs[i, j]
        _descend(scores, space)
        _correct(space)
        for i in range(n):
            for j in range(n):
                if space.point[i, j] > NEGLIGIBLE:
                    means[b, i, j] = space.point[i, j] if space.point[i, j] < 1.0 - NEGLIGIBLE else 1.0
        gaps[b] = certify(scores, means[b], costs, floats, integers)


@compiled
def certify(scores, point, costs, floats, integers):
    """How much better than the point the best permutation is along the residual: no point is nearer by more (half squared distances)."""
    n, gap = scores.shape[0], 0.0
    for i in range(n):
        for j in range(n):
            costs[i, j] = point[i, j] - scores[i, j]
            if point[i, j] > 0.0:
                gap += point[i, j] * costs[i, j]
    match(costs, floats, integers)
    for i in range(n):
        gap -= costs[i, integers[0, i]]
    return max(gap, 0.0)


@compiled
def tangents(points, directions, moved):
    """Project directions [b, n, n] on the matrices that are 0 where a point is, and whose rows and columns sum to 0."""
    n = points.shape[1]
    hessian, sums, v, cells = np.empty((n, n)), np.empty(n), np.empty(n), np.empty(n, np.int64)
    for b in range(points.shape[0]):
        _laplacian(points[b], 0.0, hessian, cells)
        sums[:] = 0.0
        for i in range(n):
            mean = _mean(points[b, i], directions[b, i])
            for j in range(n):
                if points[b, i, j] > 0.0:
                    sums[j] += directions[b, i, j] - mean
        _solve(hessian, sums, v)
        for i in range(n):
            for j in range(n):
                if points[b, i, j] > 0.0:
                    moved[b, i, j] = directions[b, i, j] - v[j]
            mean = _mean(points[b, i], moved[b, i])
            for j in range(n):
                if points[b, i, j] > 0.0:
                    moved[b, i, j] -= mean


@uncounted
def _mean(point, values):
    """Of the values where the point is not 0."""
    total, count = 0.0, 0
    for j in range(len(point)):
        if point[j] > 0.0:
            total += values[j]
            count += 1
    return total / max(count, 1)


@compiled
def decompose(points, columns, weights):
    """Write points as mixtures of permutations (Birkhoff 1946): int32 columns [b, m, n] and weights [b, m].

    Each step takes from the point as much as it can of a permutation that is allowed by its cells, until one of them is 0. What is left
    lies on a face without that permutation, so that the permutations are affinely independent.
    """
    n = points.shape[1]
    rest, integers = np.empty((n, n)), np.empty((5, n), np.int64)
    column_of, row_of = integers[0], integers[1]
    for b in range(points.shape[0]):
        for i in range(n):
            column_of[i] = row_of[i] = -1
            for j in range(n):
                rest[i, j] = points[b, i, j]
        total = 0.0
        for k in range(weights.shape[1]):
            if not _complete(rest, integers):
                break
            for i in range(n):
                columns[b, k, i] = column_of[i]
            weights[b, k] = _take(rest, column_of, row_of)
            total += weights[b, k]
        if total > 0.0:
            for k in range(weights.shape[1]):
                weights[b, k] /= total


@uncounted
def _take(rest, column_of, row_of):
    """Take as much as there is of a permutation, and unmatch the cells that are 0 then; gives how much."""
    share = math.inf
    for i in range(len(rest)):
        share = min(share, rest[i, column_of[i]])
    for i in range(len(rest)):
        j = column_of[i]
        rest[i, j] -= share
        if rest[i, j] <= NEGLIGIBLE:
            rest[i, j] = 0.0
            column_of[i] = row_of[j] = -1
    return share


@uncounted
def _complete(rest, integers):
    """Match all rows by cells above 0, with a search in breadth for each that is not matched; False where that cannot be."""
    n = rest.shape[0]
    column_of, row_of, previous, queue = integers[0], integers[1], integers[2], integers[3]
    for first in range(n):
        if column_of[first] >= 0:
            continue
        previous[:] = -1
        queue[0], front, back, sink = first, 0, 1, -1
        while front < back and sink < 0:
            i, front = queue[front], front + 1
            for j in range(n):
                if rest[i, j] > 0.0 and previous[j] < 0:
                    previous[j] = i
                    if row_of[j] < 0:
                        sink = j
                        break
                    queue[back], back = row_of[j], back + 1
        if sink < 0:
            return False
        while sink >= 0:
            i = previous[sink]
            row_of[sink], column_of[i], sink = i, sink, column_of[i]
    return True
