"""Best perfect matchings of square cost matrices, for the CPU.

Source: Jonker & Volgenant 1987, "A shortest augmenting path algorithm for dense and sparse linear assignment problems": column reduction,
then one shortest path per row that is still unmatched, O(n³). Their further reductions of rows save less than a third at n = 8 to 32.
"""

import math

import numpy as np

from ..kernels.compilation import inner, uncounted


@inner
def matching_workspace(n):
    """Costs [n, n]; duals of the columns and distances [2, n]; columns of rows, rows of columns, and three lists [5, n]."""
    return np.empty((n, n)), np.empty((2, n)), np.empty((5, n), np.int64)


@uncounted
def load_costs(scores, costs):
    """Write the negated scores, in float64."""
    for i in range(scores.shape[0]):
        for j in range(scores.shape[1]):
            costs[i, j] = -scores[i, j]


@inner
def match(costs, floats, integers):
    """Match every row to a column at least cost, and give how many matches are allowed: fewer than n where no whole matching is.

    Afterwards ``integers[0]`` holds the column of each row and ``integers[1]`` the row of each column. ``floats[0]`` holds duals v of the
    columns: with ``u_i = c_{i,j(i)} − v_{j(i)}``, no reduced cost ``c_ij − u_i − v_j`` is below 0 but for rounding. A cost of inf is
    forbidden; rows without an allowed column get one that is left over.
    """
    n, column_of, row_of, free, missing = costs.shape[0], integers[0], integers[1], integers[2], 0
    _reduce_columns(costs, floats[0], column_of, row_of)
    for i in range(n):
        if column_of[i] < 0 and not augment(costs, floats, integers, i):
            free[missing] = i
            missing += 1
    spare = 0
    for k in range(missing):
        while row_of[spare] >= 0:
            spare += 1
        column_of[free[k]], row_of[spare] = spare, free[k]
    return n - missing


@uncounted
def _reduce_columns(costs, v, column_of, row_of):
    """Every column bids its least cost; a row takes the last column that it is cheapest for."""
    n = costs.shape[0]
    for j in range(n):
        v[j], row_of[j], column_of[j] = math.inf, -1, -1
    for i in range(n):
        for j in range(n):
            if costs[i, j] < v[j]:
                v[j], row_of[j] = costs[i, j], i
    for j in range(n - 1, -1, -1):
        i = row_of[j]
        if i < 0:
            v[j] = 0.0
        elif column_of[i] < 0:
            column_of[i] = j
        else:
            row_of[j] = -1


@inner
def augment(costs, floats, integers, first):
    """Match the row ``first`` along a shortest path in reduced costs; False where no path is allowed.

    ``order`` holds the columns: whose distance is final and whose row was followed (below ``low``), those at the least distance (below
    ``high``), and the rest.
    """
    n = costs.shape[0]
    v, distance = floats[0], floats[1]
    column_of, row_of, previous, order = integers[0], integers[1], integers[3], integers[4]
    for j in range(n):
        distance[j], previous[j], order[j] = costs[first, j] - v[j], first, j
    low, high, final, sink, least = 0, 0, 0, -1, 0.0
    while sink < 0:
        if low == high:
            final = low
            high, sink = _nearest(distance, row_of, order, low)
            least = distance[order[low]]
            if least == math.inf:
                return False
        else:
            high, sink = _follow(costs, floats, integers, low, high, least)
            low += 1
    for k in range(final):
        v[order[k]] += distance[order[k]] - least
    while True:
        i = previous[sink]
        row_of[sink] = i
        column_of[i], sink = sink, column_of[i]
        if i == first:
            return True


@uncounted
def _nearest(distance, row_of, order, low):
    """Bring the columns at the least distance, of those from ``low`` on, to the front; gives where they end, and an unmatched one or -1."""
    least, high, sink = distance[order[low]], low + 1, -1
    for k in range(high, len(order)):
        j = order[k]
        if distance[j] <= least:
            if distance[j] < least:
                high, least = low, distance[j]
            order[k], order[high] = order[high], j
            high += 1
    for k in range(low, high):
        if row_of[order[k]] < 0:
            sink = order[k]
    return high, sink


@inner
def _follow(costs, floats, integers, low, high, least):
    """Shorten distances through the row of the column at ``low``; gives the new end of the columns at the least distance, as `_nearest`."""
    v, distance = floats[0], floats[1]
    row_of, previous, order = integers[1], integers[3], integers[4]
    i = row_of[order[low]]
    offset = costs[i, order[low]] - v[order[low]] - least
    for k in range(high, len(order)):
        j = order[k]
        through = costs[i, j] - v[j] - offset
        if through < distance[j]:
            distance[j], previous[j] = through, i
            if through <= least:
                if row_of[j] < 0:
                    return high, j
                order[k], order[high] = order[high], j
                high += 1
    return high, -1
