"""Kernels of projective dependency trees: rows [b, n + 1, n + 1], of which column 0 and the diagonal are never read.

The exponential domain. Every word has one head, so that any constant may be taken off the scores of the arcs into a word: first the
greatest of them; where that does not suffice, the one in the best tree, whose weight is then 1. A row is certified where no item of the
tables fell below `LEAST` or rose beyond `MOST`. Where some did fall (a forbidden arc is enough), the tables are filled again with what was
lost raised to `LEAST`: the exact sum lies between the two, and where they agree, what was lost does not matter; nor does it to marginals
and samples, which are shares of that sum. A row without a feasible tree is told by its best tree.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..active_set import cpu as active_set
from ..kernels.compilation import compiled, inner, uncounted
from ..kernels.exponential import exponentials
from ..kernels.parts import allowed, mark, no_numbers, no_structures, number
from .cpu_best import Best, best_parts, best_workspace
from .cpu_charts import LEFT_ARC, RIGHT, RIGHT_ARC, inside, outside

__all__ = ["argmax", "argmax_parts", "best_parts", "log_partition", "marginals", "operations", "project"]

Array = np.ndarray[Any, Any]

LEAST, MOST = 1e-290, 1e280
"""Between these, products of two items relative to the whole neither underflow to what matters nor overflow."""

HIGHEST = 690.0
"""A row with a greater exponent is not certified."""

AGREEMENT = 1e-14
"""How much of the sum may be lost."""

ROOM = 14_000
"""Entries of a table, for all lanes together, that leave the tables of a group in a processor's cache."""


def operations(event: tuple[int, ...]) -> int:
    """Steps of the inner loops per row."""
    return event[0] ** 3 // 4 + 4 * event[0] ** 2


class ItemGroup(NamedTuple):
    """Room for the items that are computed together."""

    best: Best
    scores: np.ndarray  # [2, n + 1, (n + 1) · lanes] of rightward and leftward arcs, by width and by position · lanes + lane
    weights: np.ndarray  # [2, n + 1, (n + 1) · lanes]
    tables: np.ndarray  # [5, n + 1, (n + 1) · lanes] inside
    outer: np.ndarray  # [5, n + 1, (n + 1) · lanes] outside
    extremes: np.ndarray  # [2, (n + 1) · lanes] least and greatest of the items that begin at a position
    shifts: np.ndarray  # [lanes, n + 1] taken off the scores of the arcs into a word
    parts: np.ndarray  # [n] int32
    items: np.ndarray  # [lanes] int64, which rows they are
    state: np.ndarray  # [lanes] int64, LOST to INFEASIBLE
    totals: np.ndarray  # [lanes] log-partition


LOST, CERTIFIED, DOUBTFUL, INFEASIBLE = 0, 1, 2, 3
"""Where an item stands: its tables do not fit; they do; something in them was lost; it has no tree, and its log-partition is -inf."""


@inner
def group_of(rows):
    """Room for as many items as share a cache, and not more than there are."""
    count, size = rows.shape[0], rows.shape[1]
    most = ROOM // (size * size)
    most = 1 if most < 1 else (min(most, 16))
    groups = (count + most - 1) // most
    lanes = (count + groups - 1) // groups if groups > 0 else 1
    length = size * lanes
    return ItemGroup(
        best_workspace(size), np.empty((2, size, length)), np.empty((2, size, length)), np.empty((5, size, length)),
        np.empty((5, size, length)), np.empty((2, length)), np.empty((lanes, size)), np.empty(size - 1, np.int32),
        np.empty(lanes, np.int64), np.empty(lanes, np.int64), np.empty(lanes),
    )  # fmt: skip


def argmax(rows: Array, structures: Array, single_root: bool) -> None:
    """The best structures [b, n + 1, n + 1]."""
    _argmax(rows, structures, no_numbers(), single_root)


def argmax_parts(rows: Array, numbers: Array, single_root: bool) -> None:
    """The same structures by the numbers of their parts, [b, n]."""
    _argmax(rows, no_structures(rows), numbers, single_root)


@compiled
def _argmax(rows, structures, numbers, single_root):
    size, parts = rows.shape[1], np.empty(rows.shape[1] - 1, np.int32)
    space = best_workspace(size)
    for b in range(len(rows)):
        count = allowed(rows[b].reshape(size * size), parts, best_parts(rows[b].reshape(size * size), space, parts, single_root))
        if len(numbers) > 0:
            number(parts, count, numbers[b])
        else:
            mark(parts, count, structures[b].reshape(size * size))


@uncounted
def _take_greatest(row, shift):
    """The greatest score of the arcs into every word; 0 where all are forbidden."""
    size = len(shift)
    for modifier in range(size):
        shift[modifier] = row[0, modifier] if modifier > 0 else 0.0
    for head in range(1, size):
        for modifier in range(1, size):
            if modifier != head:
                value = row[head, modifier]
                shift[modifier] = max(shift[modifier], value)
    for modifier in range(size):
        shift[modifier] = shift[modifier] if shift[modifier] > -np.inf else 0.0


@inner
def _take_best(row, group, shift, single_root):
    """The scores of the arcs of the best tree; False, and 0, where none is feasible."""
    size, feasible = len(row), True
    best_parts(row.reshape(size * size), group.best, group.parts, single_root)
    for k in range(size - 1):
        part = group.parts[k]
        value = row[part // size, part % size]
        feasible = feasible and value > -np.inf
        shift[part % size] = value
    shift[0] = 0.0
    for modifier in range(0 if feasible else size):
        shift[modifier] = 0.0
    return feasible


@uncounted
def _load_scores(row, scores, lane, lanes):
    """Put the flat scores of one item into a lane; arcs into the root are not read, and get 0."""
    size = scores.shape[1]
    for head in range(size):
        for modifier in range(head + 1, size):
            scores[0, modifier - head, head * lanes + lane] = row[head * size + modifier]
        scores[1, head, lane] = 0.0
        for modifier in range(1, head):
            scores[1, head - modifier, modifier * lanes + lane] = row[head * size + modifier]


@inner
def _weigh(rows, group, lanes):
    """The weights of the arcs of the items; one whose exponents are too great is lost."""
    size, scores = rows.shape[1], group.scores
    for lane in range(lanes):
        _load_scores(rows[group.items[lane]].reshape(size * size), scores, lane, lanes)
        shift, fits = group.shifts[lane], True
        for w in range(1, size):
            for i in range(size - w):
                at = i * lanes + lane
                over, under = scores[0, w, at] - shift[i + w], scores[1, w, at] - shift[i]
                fits = fits and over <= HIGHEST and under <= HIGHEST
                scores[0, w, at] = min(HIGHEST, over)
                scores[1, w, at] = min(HIGHEST, under)
        group.state[lane] = group.state[lane] if fits or group.state[lane] == INFEASIBLE else LOST
    for w in range(1, size):
        count = (size - w) * lanes
        for side in range(2):
            exponentials(scores[side, w, :count], 0.0, group.weights[side, w, :count])


@uncounted
def _measure(group, lanes, lane):
    """The least and the greatest of the items of one lane."""
    least, most = np.inf, 0.0
    for x in range(lane, group.extremes.shape[1] // len(group.totals) * lanes, lanes):
        least = min(least, group.extremes[0, x])
        most = max(most, group.extremes[1, x])
    return least, most


@inner
def _shift(rows, group, lanes, attempt, single_root):
    """Choose what is taken off the scores, and tell infeasible items from the others."""
    for lane in range(lanes):
        row, shift = rows[group.items[lane]], group.shifts[lane]
        group.state[lane] = CERTIFIED
        if attempt == 0:
            _take_greatest(row, shift)
        elif not _take_best(row, group, shift, single_root):
            group.state[lane] = INFEASIBLE


@uncounted
def _bound(group, lanes, single_root):
    """Keep those doubtful items whose sum with everything lost raised to `LEAST` is the same; ``outer`` is scratch."""
    size = group.shifts.shape[1]
    inside(group.weights, group.outer, group.extremes, lanes, single_root, LEAST)
    for lane in range(lanes):
        if group.state[lane] == DOUBTFUL:
            _, most = _measure(group, lanes, lane)
            agree = group.outer[RIGHT, size - 1, lane] <= group.tables[RIGHT, size - 1, lane] * (1.0 + AGREEMENT)
            group.state[lane] = CERTIFIED if most <= MOST and agree else LOST


@inner
def fill(rows, group, lanes, attempt, single_root):
    """The inside tables of the group's items, their state and log-partition; returns whether any is certified."""
    size, state, doubtful, some = rows.shape[1], group.state, False, False
    _shift(rows, group, lanes, attempt, single_root)
    _weigh(rows, group, lanes)
    inside(group.weights, group.tables, group.extremes, lanes, single_root, 0.0)
    for lane in range(lanes):
        whole = group.tables[RIGHT, size - 1, lane]
        total = np.log(whole)
        for modifier in range(1, size):
            total += group.shifts[lane, modifier]
        group.totals[lane] = -np.inf if state[lane] == INFEASIBLE else total
        least, most = _measure(group, lanes, lane)
        if state[lane] == CERTIFIED and not (most <= MOST and whole >= LEAST):
            state[lane] = LOST
        elif state[lane] == CERTIFIED and not least >= LEAST:
            state[lane], doubtful = DOUBTFUL, True
    if doubtful:
        _bound(group, lanes, single_root)
    for lane in range(lanes):
        some = some or state[lane] == CERTIFIED
    return some


@uncounted
def _next_group(group, waiting, first):
    """Take up the rows that wait from ``first`` on; returns how many."""
    lanes = len(group.items)
    count = lanes if first + lanes <= len(waiting) else len(waiting) - first
    for lane in range(count):
        group.items[lane] = waiting[first + lane]
    return count


@inner
def _settle(group, lanes, waiting, failed, certified):
    """Say which rows are certified, and put the others behind the ``failed`` ones that wait for another attempt."""
    for lane in range(lanes):
        certified[group.items[lane]] = group.state[lane] != LOST
        if group.state[lane] == LOST:
            waiting[failed] = group.items[lane]
            failed += 1
    return failed


def log_partition(rows: Array, log_partition: Array, certified: Array, single_root: bool) -> None:
    """The log-partition [b] of rows."""
    _evaluate(rows, rows[:0], log_partition, certified, single_root)


def marginals(rows: Array, marginals: Array, log_partition: Array, certified: Array, single_root: bool) -> None:
    """Marginals [b, n + 1, n + 1] of rows, and their log-partition [b]."""
    _evaluate(rows, marginals, log_partition, certified, single_root)


@compiled
def _evaluate(rows, marginals, log_partition, certified, single_root):
    """Log-partition, and marginals where there is room for them: one function, which is compiled once."""
    group, waiting = group_of(rows), np.arange(len(rows))
    for attempt in range(2):
        failed = np.int64(0)
        for first in range(0, len(waiting), len(group.items)):
            lanes = _next_group(group, waiting, first)
            if fill(rows, group, lanes, attempt, single_root) and len(marginals) > 0:
                outside(group.weights, group.tables, group.outer, lanes, single_root)
            for lane in range(lanes):
                b = group.items[lane]
                log_partition[b] = group.totals[lane]
                if group.state[lane] == CERTIFIED and len(marginals) > 0:
                    _write(group, lane, lanes, marginals[b])
            failed = _settle(group, lanes, waiting, failed, certified)
        waiting = waiting[:failed]


@uncounted
def _write(group, lane, lanes, marginals):
    """The marginals of one item: how the log-partition rises with the score of every arc."""
    size, tables, outer = marginals.shape[0], group.tables, group.outer
    for w in range(1, size):
        for i in range(size - w):
            at = i * lanes + lane
            marginals[i, i + w] = tables[RIGHT_ARC, w, at] * outer[RIGHT_ARC, w, at]
            if i > 0:
                marginals[i + w, i] = tables[LEFT_ARC, w, at] * outer[LEFT_ARC, w, at]


@compiled
def project(rows, covered, begin, mean, gap, support, atoms, single_root):
    """SparseMAP of rows: mean [b, d], gap and support [b]; gives the parts, sizes and weights of all atoms (see `active_set`)."""
    size = rows.shape[1]
    solver, found, space = active_set.workspace(size * size, size - 1), active_set.nothing_found(), best_workspace(size)
    for b in range(len(rows)):
        solver = active_set.start(solver, rows[b].reshape(size * size), covered[b], begin[b], atoms)
        count = best_parts(solver.residual, space, solver.parts, single_root)
        while active_set.advance(solver, covered[b], count):
            if active_set.full(solver):
                solver = active_set.with_room(solver)
            count = best_parts(solver.residual, space, solver.parts, single_root)
        found = active_set.record(solver, found, mean[b], gap, support, b)
    return active_set.result(found)
