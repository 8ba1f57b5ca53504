"""The k best assignments, by Murty's partition: a part is searched only where no matching that is known may be better than its best.

A matching that is listed leaves a part for every row: the matchings that agree with it in the rows before, and not in that row. The best
one of a part is one shortest path away, in the reduced costs of the matching that was listed. That row takes another of the columns that
are left, and another row takes its column: what these two cost at least bounds how good the best one is, before the path is looked for.

Source: Murty 1968, "An algorithm for ranking all the assignments in order of increasing cost"; Miller, Stone & Cox 1997, "Optimizing
Murty's ranked assignment method", which inherits duals and bounds what is still to be searched.
"""

import math
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from ..kernels.compilation import Array, inner, uncounted
from .cpu_matching import augment, load_costs, match

ROUNDING = 1e-14
"""How far bounds may be off, beside the largest score and for n² rows: scores are bounded higher by that."""

UNKNOWN = -1

COLUMNS, DUALS = 0, 1
"""What is kept of a matching."""


class MatchingRankingWorkspace(NamedTuple):
    """Parts of the space of one item, numbered as they are made."""

    values: Array  # [p] the score of the best matching, or a bound of it
    sources: Array  # [p] int32, like the others: the part whose matching was listed
    places: Array  # [p] the row that differs from that matching, and is the first to do so
    matchings: Array  # [p] where the best matching is, `UNKNOWN` before it is looked for


@inner
def ranking_workspace(n: int, k: int) -> MatchingRankingWorkspace:
    """Room for the k best matchings of n rows."""
    integers = np.empty((3, 1 + k * n), np.int32)
    return MatchingRankingWorkspace(np.empty(1 + k * n), integers[0], integers[1], integers[2])


@inner
def list_best(
    row: Array, costs: Array, floats: Array, integers: Array, space: MatchingRankingWorkspace, matchings: Array, numbers: Array
) -> Array:
    """Write the k best matchings of scores [n, n] as 1 + their parts, [k, n].

    Matchings [t, 2, n] are columns of rows, and duals of columns; they come back with more room where that is needed.
    """
    n, largest = len(costs), 0.0
    load_costs(row, costs)
    for i in range(n):
        for j in range(n):
            largest = max(largest, abs(costs[i, j]) if costs[i, j] < math.inf else 0.0)
    rounding = ROUNDING * n * n * largest
    if match(costs, floats, integers) < n:
        return matchings
    space.values[0], space.sources[0], space.places[0], space.matchings[0] = _keep(row, floats, integers, matchings[0]), 0, 0, 0
    # The greatest value leaves first, of equal ones the earliest part.
    queue, parts, known, listed = [(-space.values[0], 0)], 1, 1, 0
    while len(queue) > 0:
        part = heappop(queue)[1]
        if space.matchings[part] == UNKNOWN:
            _start(row, costs, floats, integers, space, matchings, part)
            if augment(costs, floats, integers, space.places[part]):
                if known == len(matchings):
                    more = np.empty((2 * known, 2, n))
                    for m in range(known):
                        for i in range(n):
                            more[m, COLUMNS, i], more[m, DUALS, i] = matchings[m, COLUMNS, i], matchings[m, DUALS, i]
                    matchings = more
                space.values[part], space.matchings[part] = _keep(row, floats, integers, matchings[known]), known
                heappush(queue, (-space.values[part], part))
                known += 1
            _reload(row, costs, space.places[part])
            continue
        matching = matchings[space.matchings[part]]
        for i in range(n):
            numbers[listed, i] = 1 + i * n + np.int64(matching[COLUMNS, i])
        listed += 1
        if listed == len(numbers):
            break
        _ban(costs, space, matchings, part)
        for i in range(space.places[part], n - 1):
            loss = _least_loss(costs, matching[COLUMNS], matching[DUALS], i)
            if loss < math.inf:
                space.values[parts] = space.values[part] - loss + rounding
                space.sources[parts], space.places[parts], space.matchings[parts] = part, i, UNKNOWN
                heappush(queue, (-space.values[parts], parts))
                parts += 1
        _reload(row, costs, space.places[part])
    return matchings


@uncounted
def _reload(row: Array, costs: Array, i: int) -> None:
    for j in range(len(costs)):
        costs[i, j] = -row[i, j]


@uncounted
def _keep(row: Array, floats: Array, integers: Array, matching: Array) -> float:
    """Write down a matching; gives its score. Columns of fixed rows have a dual of -inf by now, which they keep: they stay out."""
    total = 0.0
    for i in range(len(row)):
        matching[COLUMNS, i], matching[DUALS, i] = integers[0, i], floats[0, i]
        total += row[i, integers[0, i]]
    return total


@uncounted
def _ban(costs: Array, space: MatchingRankingWorkspace, matchings: Array, part: int) -> None:
    """Forbid the columns that the row of a part may not have: those of the matchings that were listed from the same rows before it."""
    i = space.places[part]
    while part > 0 and space.places[part] == i:
        part = space.sources[part]
        costs[i, np.int64(matchings[space.matchings[part], COLUMNS, i])] = math.inf


@uncounted
def _start(row: Array, costs: Array, floats: Array, integers: Array, space: MatchingRankingWorkspace, matchings: Array, part: int) -> None:
    """The matching that was listed without the row of a part, whose cost is that of the columns it may have; rows before it are fixed."""
    _ban(costs, space, matchings, part)
    source, place = matchings[space.matchings[space.sources[part]]], space.places[part]
    for i in range(len(row)):
        j = np.int64(source[COLUMNS, i])
        floats[0, j] = source[DUALS, j] if i >= place else -math.inf
        integers[0, i], integers[1, j] = j, i
    integers[1, integers[0, place]], integers[0, place] = -1, -1


@uncounted
def _least_loss(costs: Array, columns: Array, duals: Array, i: int) -> float:
    """At least what a matching loses that has the same columns in the rows before i and another one in that row, inf without one."""
    mine = np.int64(columns[i])
    other, taker = math.inf, math.inf
    for r in range(i + 1, len(costs)):
        j = np.int64(columns[r])
        other = min(other, costs[i, j] - duals[j])
        taker = min(taker, costs[r, mine] - (costs[r, j] - duals[j]))
    # What the duals say of the column of row i cancels: what it had costs nothing in reduced costs.
    return other + taker - costs[i, mine]
