"""Every operation on derivations, in passes over segments (see `packing`): eight nodes of one item, or one node of eight, at a time.

Inside weights are sums of products of float64 numbers wherever they and the weights of parts keep within limits that no product of three
can leave; scores are shifted for that, by about the log-partition per part, where all structures have the same number of parts. An item
that does not keep within is not certified, and gets its weights as mantissas with exponents of their own (`wide_range`), which scores up
to `LARGEST` cannot leave. What an edge adds to its node, by the weight of that, is the probability of the edge given the node, and
everything else follows from those by products and sums, of numbers up to 1.

Where nodes of one item lie side by side, the last vector of a segment goes beyond it: bottom up, that is written over by the next segment;
top down, it counts nothing. An item's numbers do not depend on its neighbours.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from ..kernels.compilation import compiled, inlined, inner, uncounted
from ..kernels.exponential import exponential, exponential_single
from ..kernels.parts import allowed, ascend, mark, number
from ..kernels.vectors import (
    WIDTH,
    add,
    collect,
    divide,
    greatest,
    high_half,
    least,
    load,
    load_singles,
    low_half,
    maximum,
    minimum,
    multiply,
    multiply_add,
    power_of_two,
    spread,
    spread_single,
    store,
    subtract,
    total,
    where_greater,
)
from ..kernels.wide_range import FARTHEST, LARGEST, NOTHING, ROUNDER, logarithm, normalise, split
from . import packing
from .packing import ALIKE, ANYTHING, CHAIN, CHART, EACH, JOINS, PARTS_PER_UNIT, PATH, PLACES, REACH, STEPS, TREE, UNITS, WAITING, WAYS

Array = NDArray[Any]

LIMIT = 1e140
"""Limit of the weights of nodes and their inverses."""

ENOUGH = 512
"""Scores from which a shift is found."""

SHIFT, LOWEST, HIGHEST, LOWEST_SCORE, HIGHEST_SCORE = range(0, 5 * WIDTH, WIDTH)
"""Places in `DerivationWorkspace.limits`."""


class DerivationWorkspace(NamedTuple):
    """Numbers of nodes and parts of the items that are side by side."""

    weights: Array  # of parts
    part_exponents: Array
    nodes: Array  # weights
    exponents: Array  # of nodes
    outside: Array  # probabilities of nodes
    taken: Array  # of parts
    along: Array  # directions of parts
    rates: Array  # tangents of log-weights of nodes
    outside_rates: Array
    taken_rates: Array
    buffers: Array  # [4, tallest segment]
    limits: Array
    mask: Array  # 1 for so many numbers, 0 behind, for every number up to `WIDTH`


class Segment(NamedTuple):
    """A segment, as passes read it; see `packing.Packed`."""

    start: int
    height: int
    begin: int
    end: int
    joins: bool
    each: bool
    first_moves: bool
    second_moves: bool
    part_moves: bool
    lanes: int


# Python passes arrays one by one: numba takes longer to unpack a named tuple of two than eight arrays. `tables` are those of `Packed`, and
# "doubles" and "singles" those of `Numbers`.


@compiled
def evaluate(lanes: int, wide: bool, doubles, singles, along_doubles, along_singles, out_doubles, out_singles, totals, certified, *tables):
    """Log-partitions [b] of rows [b, d]; where there is room, their marginals [b, d], or covariances times directions, if given."""
    packed, rows, directions = packing.Packed(*tables), packing.Numbers(doubles, singles), packing.Numbers(along_doubles, along_singles)
    results, twice = packing.Numbers(out_doubles, out_singles), size_of(directions) > 0
    deep = size_of(results) > 0 and not twice
    space = _workspace(packed, lanes, wide, deep, twice)
    vectors = vectors_of(packed, lanes)
    for start in range(0, size_of(rows), lanes):
        count = min(lanes, size_of(rows) - start)
        if not _inside(packed, lanes, space, rows, wide, start, count, totals, certified):
            continue
        if twice:
            gather(packed, lanes, directions, start, count, 0, vectors, space.along)
            _move_inside(packed, lanes, space, wide)
            _outside_rates(packed, lanes, space, wide)
            _scatter(packed, lanes, space.taken_rates, totals, start, count, results)
        elif deep and lanes > 1:
            _outside(packed, lanes, space, wide, start, results)
            _scatter(packed, lanes, space.taken, totals, start, count, results)
        elif deep and totals[start] > -math.inf:
            _outside(packed, lanes, space, wide, start, results)


@compiled
def sample(lanes: int, wide: bool, doubles, singles, uniforms, out_doubles, out_singles, numbers, certified, *tables):
    """Structures [b, s, d] of rows [b, d] by uniforms [b, s, steps], one for each node of a derivation, in preorder.

    Where there is room for them, numbers of parts [b, s, p] take the place of structures.
    """
    packed, rows, structures = packing.Packed(*tables), packing.Numbers(doubles, singles), packing.Numbers(out_doubles, out_singles)
    parts = np.empty(packed.sizes[STEPS] + 1, np.int64)
    space = _workspace(packed, lanes, wide, False, False)
    log_partition, waiting = np.empty(size_of(rows)), np.empty(packed.sizes[WAITING] + 2, np.int64)
    for start in range(0, size_of(rows), lanes):
        count = min(lanes, size_of(rows) - start)
        _inside(packed, lanes, space, rows, wide, start, count, log_partition, certified)
        for lane in range(count):
            if certified[start + lane] and log_partition[start + lane] > -math.inf:
                for draw in range(uniforms.shape[1]):
                    found = _descend(packed, lanes, space, wide, lane, uniforms[start + lane, draw], waiting, parts)
                    if numbers.shape[0] > 0:
                        ascend(parts, found)
                        number(parts, found, numbers[start + lane, draw])
                    elif structures.singles.shape[0] > 0:
                        mark(parts, found, structures.singles[start + lane, draw])
                    else:
                        mark(parts, found, structures.doubles[start + lane, draw])


@compiled
def argmax(lanes: int, doubles, singles, out_doubles, out_singles, numbers, *tables):
    """The best structure of each row; of edges that tie, the first. Numbers of parts [b, p] as in `sample`."""
    packed, rows, structures = packing.Packed(*tables), packing.Numbers(doubles, singles), packing.Numbers(out_doubles, out_singles)
    parts, waiting = np.empty(packed.sizes[STEPS] + 1, np.int64), np.empty(packed.sizes[WAITING] + 2, np.int64)
    scores, best = scores_and_nodes(packed, lanes)
    for start in range(0, size_of(rows), lanes):
        count = min(lanes, size_of(rows) - start)
        maximise(packed, lanes, rows, start, count, 0, -math.inf, scores, best)
        for lane in range(count):
            found = follow(packed, lanes, rows, start, lanes == 1, scores, best, lane, waiting, parts)
            if rows.singles.shape[0] > 0:
                found = allowed(rows.singles[start + lane], parts, found)
            else:
                found = allowed(rows.doubles[start + lane], parts, found)
            if numbers.shape[0] > 0:
                ascend(parts, found)
                number(parts, found, numbers[start + lane])
            elif structures.singles.shape[0] > 0:
                mark(parts, found, structures.singles[start + lane])
            else:
                mark(parts, found, structures.doubles[start + lane])


@compiled
def unrank(packed, ranking, ranks, structures):
    """The structures of ranks: by the edge of the root, then by its first node, then by its second. Adds their parts to integers [c, d]."""
    waiting, places = np.empty(packed.sizes[WAITING] + 2, np.int64), np.empty(packed.sizes[WAITING] + 2, np.int64)
    for row in range(len(ranks)):
        _take_apart(packed, ranking, ranks[row], waiting, places, structures[row])


@inner
def scores_and_nodes(packed, lanes: int):
    """Room for a pass of maxima: the scores of parts, and the best value of each node, 0 for the empty item."""
    scores = np.empty(packed.sizes[PLACES] * lanes + WIDTH)
    scores[len(packed.straight) * WIDTH * lanes :] = 0.0
    return scores, np.zeros(len(packed.node_parts) * lanes + WIDTH)


@inner
def _workspace(packed, lanes: int, wide: bool, deep: bool, twice: bool):
    tallest, none = 0, np.zeros(0)
    for x in range(len(packed.segments)):
        tallest = max(tallest, packed.segments[x, 1] * lanes)
    nodes, parts = len(packed.node_parts) * lanes + WIDTH, packed.sizes[PLACES] * lanes + WIDTH
    mask = np.zeros((WIDTH + 1) * WIDTH)
    for size in range(1, WIDTH + 1):
        mask[size * WIDTH : size * WIDTH + size] = 1.0
    # Pages that are never written to cost nothing, which is most of what there is in large chains.
    weights, taken, begin = np.empty(parts), np.empty(parts) if deep else none, 0
    weights[len(packed.straight) * WIDTH * lanes :] = 1.0
    for x in range(len(packed.segments) if deep else 0):
        end = packed.segments[x, 8] * WIDTH * lanes if x < len(packed.segments) - 1 else parts
        if wide or not _in_place(packed, lanes, x):
            taken[begin:end] = 0.0
        begin = end
    return DerivationWorkspace(
        weights,
        np.zeros(parts) if wide else none,
        np.ones(nodes),
        np.zeros(nodes) if wide else none,
        np.zeros(nodes) if deep or twice else none,
        taken,
        np.zeros(parts) if twice else none,
        np.zeros(nodes) if twice else none,
        np.zeros(nodes) if twice else none,
        np.zeros(parts) if twice else none,
        np.zeros((5, tallest + WIDTH)),
        np.zeros(5 * WIDTH),
        mask,
    )


@inlined
def size_of(numbers) -> int:
    """The number of rows."""
    return numbers.doubles.shape[0] + numbers.singles.shape[0]


@inlined
def vectors_of(packed, lanes) -> int:
    """The number of vectors of scores of the items side by side."""
    return len(packed.used) if lanes > 1 else len(packed.straight)


@inlined
def gather(packed, lanes, rows, start, count, begin, end, scores):
    """Some vectors of the scores of so many rows."""
    if lanes == 1:
        for vector in range(begin, end):
            store(scores, vector * WIDTH, _vector_of(packed, rows, start, vector, scores))
    elif rows.singles.shape[0] > 0:
        _lay(packed, rows.singles, start, count, begin, end, scores)
    else:
        _lay(packed, rows.doubles, start, count, begin, end, scores)


@inlined
def _vector_of(packed, rows, start, vector, scores):
    """The scores of some parts of one item. The last ones are completed by 0, in their place."""
    if rows.singles.shape[0] > 0:
        return _vector_in(packed, rows.singles, start, vector, scores)
    return _vector_in(packed, rows.doubles, start, vector, scores)


@inlined
def _vector_in(packed, rows, start, vector, scores):
    used, at, row = packed.used, vector * WIDTH, start * rows.shape[1]
    if packed.straight[vector]:
        return load(rows, row + used[at])
    if at + WIDTH <= len(used):
        return collect(rows, row, used, at)
    for place in range(at, at + WIDTH):
        scores[place] = rows[start, used[place]] if place < len(used) else 0.0
    return load(scores, at)


@uncounted
def _lay(packed, rows, start, count, begin, end, scores):
    """Items side by side, the last one again in place of missing ones."""
    used, last = packed.used, start + count - 1
    if count == WIDTH:
        for part in range(begin, end):
            for lane in range(WIDTH):
                scores[part * WIDTH + lane] = rows[start + lane, used[part]]
    else:
        for part in range(begin, end):
            for lane in range(WIDTH):
                scores[part * WIDTH + lane] = rows[min(start + lane, last), used[part]]


@inlined
def _scatter(packed, lanes, numbers, log_partition, start, count, rows):
    """Write all numbers of parts of feasible items."""
    if lanes == 1 and log_partition[start] > -math.inf:
        _hand_out(packed, numbers, start, 0, len(packed.straight), rows)
    elif lanes > 1 and rows.singles.shape[0] > 0:
        _lay_back(packed, numbers, log_partition, start, count, rows.singles)
    elif lanes > 1:
        _lay_back(packed, numbers, log_partition, start, count, rows.doubles)


@inlined
def _hand_out(packed, numbers, start, begin, end, rows):
    """Write some vectors of one item, and leave 0 behind."""
    if rows.singles.shape[0] > 0:
        _hand_to(packed, numbers, start, begin, end, rows.singles)
    else:
        _hand_to(packed, numbers, start, begin, end, rows.doubles)


@inlined
def _hand_to(packed, numbers, start, begin, end, rows):
    used = packed.used
    for vector in range(begin, end):
        at = vector * WIDTH
        if packed.straight[vector]:
            store(rows, start * rows.shape[1] + used[at], load(numbers, at))
        else:
            for place in range(uint64(at), uint64(min(at + WIDTH, len(used)))):
                rows[start, uint64(used[place])] = numbers[place]
        store(numbers, at, spread(0.0))


@uncounted
def _lay_back(packed, numbers, log_partition, start, count, rows):
    """Write the numbers of items side by side, and leave 0 behind."""
    used, feasible = packed.used, 0
    for lane in range(count):
        feasible += log_partition[start + lane] > -math.inf
    if feasible == WIDTH:
        for part in range(len(used)):
            for lane in range(WIDTH):
                rows[start + lane, used[part]] = numbers[part * WIDTH + lane]
    else:
        for lane in range(count):
            if log_partition[start + lane] > -math.inf:
                for part in range(len(used)):
                    rows[start + lane, used[part]] = numbers[part * WIDTH + lane]
    numbers[:] = 0.0


@inlined
def _segment(packed, lanes, x):
    segments = packed.segments
    # Unsigned, because a negative number would count from the end, which would be asked for at every edge.
    begin, flags = uint64(segments[x, 3]), segments[x, 4]
    moves = segments[x, 5] > 0, segments[x, 6] > 0, segments[x, 7] > 0
    return Segment(
        segments[x, 0] * lanes,
        segments[x, 1] * lanes,
        begin,
        begin + uint64(segments[x, 2]),
        flags & JOINS > 0,
        flags & EACH > 0,
        *moves,
        lanes,
    )


@inlined
def _kind(packed, lanes, x):
    """The kind of a segment: passes have a branch for each."""
    kind = packed.segments[x, 9]
    return ANYTHING if kind == CHAIN and lanes > 1 else kind


@inlined
def _in_place(packed, lanes, x):
    """Whether the parts of a segment are read and written where they stand in the event."""
    return lanes == 1 and packed.segments[x, 10] > 0


@inlined
def _known(segment, kind):
    """A segment of a kind, of which the compiler is to know what its edges lead to and take."""
    joins, each = kind in (CHART, TREE), kind in (CHAIN, TREE)
    part_moves, lanes = each or segment.part_moves, segment.lanes
    if kind == CHAIN:
        lanes = 1
    return Segment(segment.start, segment.height, segment.begin, segment.end, joins, each, kind != CHAIN, joins, part_moves, lanes)


@inlined
def _operand(numbers, at, moves, lanes, i):
    """Numbers that nodes i and following of a segment lead to: of nodes or parts that follow each other, or of one."""
    if moves:
        return load(numbers, at + i)
    return load(numbers, at) if lanes > 1 else spread(numbers[uint64(at)])


@inlined
def _product(nodes, parts, columns, k, segment, i):
    """The terms that the k-th edges add to their nodes, without the part that all edges of a node take."""
    value = _operand(nodes, columns[k, 0] * segment.lanes, segment.first_moves, segment.lanes, i)
    if segment.joins:
        value = multiply(value, _operand(nodes, columns[k, 1] * segment.lanes, segment.second_moves, segment.lanes, i))
    if segment.each:
        value = multiply(value, _operand(parts, columns[k, 2] * segment.lanes, segment.part_moves, segment.lanes, i))
    return value


@inlined
def _add_product(nodes, parts, columns, k, segment, i, to):
    """`_product`, added to something."""
    value = _operand(nodes, columns[k, 0] * segment.lanes, segment.first_moves, segment.lanes, i)
    if not segment.joins and not segment.each:
        return add(value, to)
    if segment.joins and segment.each:
        value = multiply(value, _operand(nodes, columns[k, 1] * segment.lanes, segment.second_moves, segment.lanes, i))
    if segment.each:
        return multiply_add(value, _operand(parts, columns[k, 2] * segment.lanes, segment.part_moves, segment.lanes, i), to)
    return multiply_add(value, _operand(nodes, columns[k, 1] * segment.lanes, segment.second_moves, segment.lanes, i), to)


@inlined
def _sum(nodes, parts, columns, k, segment, i):
    """`_product` of logarithms and exponents: a sum."""
    value = _operand(nodes, columns[k, 0] * segment.lanes, segment.first_moves, segment.lanes, i)
    if segment.joins:
        value = add(value, _operand(nodes, columns[k, 1] * segment.lanes, segment.second_moves, segment.lanes, i))
    if segment.each:
        value = add(value, _operand(parts, columns[k, 2] * segment.lanes, segment.part_moves, segment.lanes, i))
    return value


@inlined
def _own(parts, columns, segment, i):
    """Numbers of what all edges of a node take."""
    return _operand(parts, columns[segment.begin, 2] * segment.lanes, segment.part_moves, segment.lanes, i)


@uncounted
def _inside(packed, lanes, space, rows, wide, start, count, log_partition, certified) -> bool:
    """Weights of nodes, log-partitions, and whether they are right; whether some are."""
    vectors, done = vectors_of(packed, lanes), 0
    if wide:
        _weigh_wide(packed, lanes, space, rows, start, count)
        done = vectors
    else:
        _find_shift(packed, lanes, space, rows, start, count)
    for x in range(len(packed.segments)):
        # Parts are weighed right before they are needed, while what is near is in the cache.
        ready = packed.segments[x, 8] if lanes == 1 else vectors
        if ready > done:
            _weigh(packed, lanes, space, rows, start, done, ready)
            done = ready
        segment, kind = _segment(packed, lanes, x), _kind(packed, lanes, x)
        if wide:
            _sum_edges_wide(packed.columns, space, segment)
        elif kind == CHAIN:
            _sum_edges_of_chain(packed.columns, space, segment)
        elif kind == CHART:
            _sum_edges(packed.columns, space, _known(segment, CHART))
        elif kind == PATH:
            _sum_edges(packed.columns, space, _known(segment, PATH))
        elif kind == TREE:
            _sum_edges(packed.columns, space, _known(segment, TREE))
        else:
            _sum_edges(packed.columns, space, segment)
    root, some = len(space.nodes) - WIDTH - lanes, False
    store(space.nodes, root + lanes, spread(1.0))
    if not wide:
        _find_limits(packed, lanes, space)
    for lane in range(count):
        weight = space.nodes[root + lane]
        if wide:
            certified[start + lane] = space.limits[HIGHEST_SCORE + lane] <= LARGEST
            log_partition[start + lane] = logarithm(weight, space.exponents[root + lane])
        else:
            certified[start + lane] = (
                abs(space.limits[SHIFT + lane]) < math.inf
                and space.limits[HIGHEST_SCORE + lane] < packed.scale[REACH]
                and space.limits[LOWEST_SCORE + lane] > -packed.scale[REACH]
                and space.limits[LOWEST + lane] > 1.0 / LIMIT
                and space.limits[HIGHEST + lane] < LIMIT
            )
            shift = packed.sizes[UNITS] * space.limits[SHIFT + lane]
            log_partition[start + lane] = (math.log(weight) if weight > 0.0 else -math.inf) + shift
        some |= certified[start + lane]
    return some


@uncounted
def _find_shift(packed, lanes, space, rows, start, count):
    """The shift of the score of a unit.

    Where scores are like independent normal variables, it is the log-partition by unit, of which Derrida's random energy model (1981) says
    by part: mean, entropy and half the variance; from where that entropy is used up, the largest score.
    """
    vectors, scores, limits = vectors_of(packed, lanes), space.weights, space.limits
    zero, nothing = spread(0.0), spread(-math.inf)
    whole, mean, square = zero, zero, zero
    if lanes > 1:
        gather(packed, lanes, rows, start, count, 0, vectors, scores)
    if packed.sizes[UNITS] > 0:
        for vector in range(0, vectors, 1 + vectors * (WIDTH // lanes) // ENOUGH):
            if lanes == 1:
                gather(packed, lanes, rows, start, count, vector, vector + 1, scores)
                share = load(packed.shares, vector * WIDTH)
            else:
                share = spread(packed.shares[vector])
            score = load(scores, vector * WIDTH)
            finite = where_greater(score, nothing, score, zero)
            scaled = multiply(share, finite)
            whole = add(whole, where_greater(score, nothing, share, zero))
            mean, square = add(mean, scaled), multiply_add(scaled, finite, square)
    if lanes == 1:
        # Of a float32, as scores may be from which it is taken.
        store(limits, SHIFT, spread(float(np.float32(_shift(packed, total(whole), total(mean), total(square))))))
    else:
        store(limits, SHIFT, whole)
        store(limits, LOWEST, mean)
        store(limits, HIGHEST, square)
        for lane in range(WIDTH):
            limits[SHIFT + lane] = _shift(packed, limits[SHIFT + lane], limits[LOWEST + lane], limits[HIGHEST + lane])
    store(limits, LOWEST_SCORE, zero)
    store(limits, HIGHEST_SCORE, zero)


@uncounted
def _shift(packed, whole, mean, square) -> float:
    if not whole > 0.0:
        return 0.0
    entropy, mean = packed.scale[WAYS] / (packed.sizes[UNITS] * packed.scale[PARTS_PER_UNIT]), mean / whole
    variance = max(square / whole - mean * mean, 0.0)
    by_part = mean + (entropy + 0.5 * variance if variance < 2.0 * entropy else math.sqrt(2.0 * entropy * variance))
    return packed.scale[PARTS_PER_UNIT] * by_part


@inlined
def _weigh(packed, lanes, space, rows, start, begin, end):
    """Weights of some vectors of parts, and how far their scores are from the shift."""
    weights, zero, nothing, vector = space.weights, spread(0.0), spread(-math.inf), begin
    minus, highest, lowest = subtract(zero, load(space.limits, SHIFT)), load(space.limits, HIGHEST_SCORE), load(space.limits, LOWEST_SCORE)
    # Float32 scores of neighbours get float32 weights, in half the time.
    still, none = spread_single(np.float32(0)), spread_single(np.float32(-np.inf))
    high, low = still, still
    while lanes == 1 and rows.singles.shape[0] > 0 and packed.sizes[ALIKE] > 0 and vector + 1 < end:
        at = vector * WIDTH
        if not (packed.straight[vector] and packed.straight[vector + 1] and packed.used[at + WIDTH] == packed.used[at] + WIDTH):
            break
        score = load_singles(rows.singles, start * rows.singles.shape[1] + packed.used[at])
        score = subtract(score, spread_single(np.float32(space.limits[SHIFT])))
        high, low = greatest(score, high), least(where_greater(score, none, score, still), low)
        weight = exponential_single(score)
        store(weights, at, low_half(weight))
        store(weights, at + WIDTH, high_half(weight))
        vector += 2
    for half in (low_half(high), high_half(high)):
        highest = greatest(half, highest)
    for half in (low_half(low), high_half(low)):
        lowest = least(half, lowest)
    while vector < end:
        if lanes == 1:
            score = multiply_add(load(packed.units, vector * WIDTH), minus, _vector_of(packed, rows, start, vector, weights))
        else:
            score = multiply_add(spread(packed.units[vector]), minus, load(weights, vector * WIDTH))
        # A forbidden part is as far away as can be, and does no harm.
        highest, lowest = greatest(score, highest), least(where_greater(score, nothing, score, zero), lowest)
        store(weights, vector * WIDTH, exponential(score))
        vector += 1
    # The last vector of a segment reads weights beyond it, which must be numbers.
    if lanes == 1:
        store(weights, end * WIDTH, spread(1.0))
    store(space.limits, HIGHEST_SCORE, highest)
    store(space.limits, LOWEST_SCORE, lowest)


@inlined
def _find_limits(packed, lanes, space):
    """The lowest and the highest weight of a node that has one: no product of three was beyond the range of numbers if these are not."""
    zero, one = spread(0.0), spread(1.0)
    lowest, highest = one, one
    for at in range(packed.levels[0, 0] * lanes, len(space.nodes) - WIDTH, WIDTH):
        weight = load(space.nodes, at)
        lowest, highest = least(where_greater(weight, zero, weight, one), lowest), greatest(weight, highest)
    if lanes == 1:
        lowest, highest = spread(minimum(lowest)), spread(maximum(highest))
        store(space.limits, LOWEST_SCORE, spread(minimum(load(space.limits, LOWEST_SCORE))))
        store(space.limits, HIGHEST_SCORE, spread(maximum(load(space.limits, HIGHEST_SCORE))))
    store(space.limits, LOWEST, lowest)
    store(space.limits, HIGHEST, highest)


@inlined
def _sum_edges(columns, space, segment):
    """Weights of the nodes of a segment."""
    nodes, weights, start = space.nodes, space.weights, segment.start
    for i in range(0, segment.height, WIDTH):
        weight = spread(0.0)
        for k in range(segment.begin, segment.end):
            weight = _add_product(nodes, weights, columns, k, segment, i, weight)
        store(nodes, start + i, weight if segment.each else multiply(weight, _own(weights, columns, segment, i)))


@inlined
def _sum_edges_of_chain(columns, space, segment):
    """Sum edges of four vectors of nodes at a time, none of which waits for the others; the last one may be repeated."""
    nodes, weights, last = space.nodes, space.weights, max(segment.height - 1, 0) // WIDTH * WIDTH
    for i in range(0, segment.height, 4 * WIDTH):
        one, two, three, four = spread(0.0), spread(0.0), spread(0.0), spread(0.0)
        at, bt, ct = min(i + WIDTH, last), min(i + 2 * WIDTH, last), min(i + 3 * WIDTH, last)
        for k in range(segment.begin, segment.end):
            value, part = spread(nodes[uint64(columns[k, 0])]), columns[k, 2]
            one, two = multiply_add(value, load(weights, part + i), one), multiply_add(value, load(weights, part + at), two)
            three = multiply_add(value, load(weights, part + bt), three)
            four = multiply_add(value, load(weights, part + ct), four)
        store(nodes, segment.start + i, one)
        store(nodes, segment.start + at, two)
        store(nodes, segment.start + bt, three)
        store(nodes, segment.start + ct, four)


@uncounted
def _weigh_wide(packed, lanes, space, rows, start, count):
    """Weights of parts as mantissas and exponents; writes the largest size of a score."""
    vectors = vectors_of(packed, lanes)
    gather(packed, lanes, rows, start, count, 0, vectors, space.weights)
    for lane in range(WIDTH):
        space.limits[HIGHEST_SCORE + lane] = 0.0
    for place in range(vectors * WIDTH):
        score = space.weights[place]
        space.weights[place], space.part_exponents[place] = split(score)
        if score > -math.inf:
            at = HIGHEST_SCORE + place % lanes
            space.limits[at] = max(abs(score), space.limits[at])


@inlined
def _sum_edges_wide(columns, space, segment):
    """Weights of the nodes of a segment as mantissas and exponents."""
    nodes, exponents, start, height = space.nodes, space.exponents, segment.start, segment.height
    zero, rounder, farthest = spread(0.0), spread(ROUNDER), spread(FARTHEST)
    for i in range(0, height, WIDTH):
        top = spread(4.0 * NOTHING)
        for k in range(segment.begin, segment.end):
            top = greatest(_sum(exponents, space.part_exponents, columns, k, segment, i), top)
        weight = zero
        for k in range(segment.begin, segment.end):
            behind = subtract(_sum(exponents, space.part_exponents, columns, k, segment, i), top)
            power = power_of_two(add(greatest(behind, farthest), rounder))
            weight = multiply_add(_product(nodes, space.weights, columns, k, segment, i), power, weight)
        if not segment.each:
            weight = multiply(weight, _own(space.weights, columns, segment, i))
            top = add(top, _own(space.part_exponents, columns, segment, i))
        store(nodes, start + i, weight)
        # What is nothing stays so: its exponent must not sum up to a number that is none.
        store(exponents, start + i, where_greater(weight, zero, top, spread(NOTHING)))
    normalise(nodes[start : start + height], exponents[start : start + height])


@inlined
def _given_node(columns, space, segment, wide):
    """Lay down, for every node of a segment, what makes the product of an edge its probability given the node; and exponents, if wide."""
    scales, exponents, zero = space.buffers[0], space.buffers[1], spread(0.0)
    for i in range(0, segment.height, WIDTH):
        weight = load(space.nodes, segment.start + i)
        # What is beyond the segment counts nothing.
        within = load(space.mask, WIDTH * min(segment.height - i, WIDTH))
        scale = where_greater(weight, zero, divide(within, weight), zero)
        scale = scale if segment.each else multiply(scale, _own(space.weights, columns, segment, i))
        store(scales, i, scale)
        if wide:
            exponent = load(space.exponents, segment.start + i)
            store(exponents, i, exponent if segment.each else subtract(exponent, _own(space.part_exponents, columns, segment, i)))


@inlined
def _edges(columns, space, segment, wide, k, i):
    """Products of the k-th edges, by the exponents of their nodes."""
    edges = _product(space.nodes, space.weights, columns, k, segment, i)
    if wide:
        behind = subtract(_sum(space.exponents, space.part_exponents, columns, k, segment, i), load(space.buffers[1], i))
        # Where there is no node, its exponent is anything.
        behind = least(greatest(behind, spread(FARTHEST)), spread(-FARTHEST))
        edges = multiply(edges, power_of_two(add(behind, spread(ROUNDER))))
    return edges


@inlined
def _increase(numbers, at, by):
    store(numbers, at, add(load(numbers, at), by))


@inlined
def _increase_one(numbers, at, lanes, by):
    """Add to the numbers of one node or part what several nodes give it."""
    if lanes > 1:
        store(numbers, at, add(load(numbers, at), by))
    else:
        numbers[at] += total(by)


@inlined
def _increase_own(numbers, columns, segment, i, by):
    """Add to the numbers of what all edges of a node take."""
    part = columns[segment.begin, 2] * segment.lanes
    if segment.part_moves:
        _increase(numbers, part + i, by)
    else:
        _increase_one(numbers, part, segment.lanes, by)


@inlined
def _begin_at_root(numbers, lanes):
    numbers[:] = 0.0
    root = len(numbers) - WIDTH - lanes
    numbers[root : root + lanes] = 1.0


@uncounted
def _outside(packed, lanes, space, wide, start, marginals):
    """Marginals: probabilities of nodes and edges, top down. Those of one item are written as soon as no other segment takes the part."""
    columns, outside, taken, scales = packed.columns, space.outside, space.taken, space.buffers[0]
    _begin_at_root(outside, lanes)
    for x in range(len(packed.segments) - 1, -1, -1):
        segment = _segment(packed, lanes, x)
        height = segment.height
        _given_node(columns, space, segment, wide)
        for i in range(0, height, WIDTH):
            above = load(outside, segment.start + i)
            store(scales, i, multiply(load(scales, i), above))
            if not segment.each:
                _increase_own(taken, columns, segment, i, multiply(above, load(space.mask, WIDTH * min(height - i, WIDTH))))
        kind, in_place = _kind(packed, lanes, x), _in_place(packed, lanes, x)
        if wide or kind == ANYTHING:
            _outside_edges(columns, space, segment, wide)
        elif in_place and marginals.singles.shape[0] > 0:
            _outside_edges_of_chain(columns, space, segment, marginals.singles, 3, start * marginals.singles.shape[1])
        elif in_place:
            _outside_edges_of_chain(columns, space, segment, marginals.doubles, 3, start * marginals.doubles.shape[1])
        elif kind == CHAIN:
            _outside_edges_of_chain(columns, space, segment, taken, 2, 0)
        elif kind == CHART:
            _outside_edges(columns, space, _known(segment, CHART), False)
        elif kind == PATH:
            _outside_edges(columns, space, _known(segment, PATH), False)
        else:
            _outside_edges(columns, space, _known(segment, TREE), False)
        if lanes == 1 and (wide or not in_place):
            _hand_out(packed, taken, start, packed.segments[x - 1, 8] if x > 0 else 0, packed.segments[x, 8], marginals)


@inlined
def _outside_edges(columns, space, segment, wide):
    """Add the probabilities of the edges of a segment to those of the nodes that they lead to and the parts that they take."""
    outside, taken, scales = space.outside, space.taken, space.buffers[0]
    for k in range(segment.begin, segment.end):
        (first, second, part), whole = _places(columns, k, segment), spread(0.0)
        for i in range(0, segment.height, WIDTH):
            edges = multiply(_edges(columns, space, segment, wide, k, i), load(scales, i))
            whole = add(whole, edges)
            if segment.first_moves:
                _increase(outside, first + i, edges)
            if segment.joins and segment.second_moves:
                _increase(outside, second + i, edges)
            if segment.each and segment.part_moves:
                _increase(taken, part + i, edges)
        _increase_still(outside, taken, columns, k, segment, whole)


@inlined
def _outside_edges_of_chain(columns, space, segment, taken, place, row):
    """`_outside_edges` of a chain: adds to the numbers of parts, or writes to the entries of a row (3, where parts are 2)."""
    for k in range(segment.begin, segment.end):
        first, at, whole = uint64(columns[k, 0]), row + columns[k, place], spread(0.0)
        value = spread(space.nodes[first])
        for i in range(0, segment.height, WIDTH):
            edges = multiply(load(space.weights, columns[k, 2] + i), load(space.buffers[0], i))
            whole = add(whole, edges)
            store(taken, at + i, multiply(value, edges) if place == 3 else multiply_add(value, edges, load(taken, at + i)))
        space.outside[first] += space.nodes[first] * total(whole)


@inlined
def _places(columns, k, segment):
    """Places of the nodes and the part of the first of the k-th edges."""
    return columns[k, 0] * segment.lanes, columns[k, 1] * segment.lanes, columns[k, 2] * segment.lanes


@inlined
def _increase_still(outside, taken, columns, k, segment, by):
    """Add to the numbers of what all k-th edges of a segment lead to and take."""
    first, second, part = _places(columns, k, segment)
    if not segment.first_moves:
        _increase_one(outside, first, segment.lanes, by)
    if segment.joins and not segment.second_moves:
        _increase_one(outside, second, segment.lanes, by)
    if segment.each and not segment.part_moves:
        _increase_one(taken, part, segment.lanes, by)


@uncounted
def _move_inside(packed, lanes, space, wide):
    """Tangents of the log-weights of nodes. Nothing moves along a forbidden part, whatever its direction."""
    columns, rates, along, zero = packed.columns, space.rates, space.along, spread(0.0)
    for at in range(0, vectors_of(packed, lanes) * WIDTH, WIDTH):
        store(along, at, where_greater(load(space.weights, at), zero, load(along, at), zero))
    for x in range(len(packed.segments)):
        segment = _segment(packed, lanes, x)
        _given_node(columns, space, segment, wide)
        for i in range(0, segment.height, WIDTH):
            mean, scale = zero, load(space.buffers[0], i)
            for k in range(segment.begin, segment.end):
                chance = multiply(_edges(columns, space, segment, wide, k, i), scale)
                mean = multiply_add(chance, _sum(rates, along, columns, k, segment, i), mean)
            store(rates, segment.start + i, mean if segment.each else add(mean, _own(along, columns, segment, i)))


@uncounted
def _outside_rates(packed, lanes, space, wide):
    """Tangents of the marginals; see `_outside`."""
    columns, outside, moving, taken, along = packed.columns, space.outside, space.outside_rates, space.taken_rates, space.along
    above, above_rates, means = space.buffers[2], space.buffers[3], space.buffers[4]
    _begin_at_root(outside, lanes)
    moving[:] = 0.0
    for x in range(len(packed.segments) - 1, -1, -1):
        segment = _segment(packed, lanes, x)
        _given_node(columns, space, segment, wide)
        for i in range(0, segment.height, WIDTH):
            within = load(space.mask, WIDTH * min(segment.height - i, WIDTH))
            rate, mean = multiply(load(moving, segment.start + i), within), load(space.rates, segment.start + i)
            store(above, i, multiply(load(outside, segment.start + i), within))
            store(above_rates, i, rate)
            store(means, i, mean if segment.each else subtract(mean, _own(along, columns, segment, i)))
            if not segment.each:
                _increase_own(taken, columns, segment, i, rate)
        for k in range(segment.begin, segment.end):
            (first, second, part), whole, whole_rate = _places(columns, k, segment), spread(0.0), spread(0.0)
            for i in range(0, segment.height, WIDTH):
                chance = multiply(_edges(columns, space, segment, wide, k, i), load(space.buffers[0], i))
                moved = subtract(_sum(space.rates, along, columns, k, segment, i), load(means, i))
                edges = multiply(chance, load(above, i))
                rate = multiply_add(chance, load(above_rates, i), multiply(edges, moved))
                whole, whole_rate = add(whole, edges), add(whole_rate, rate)
                if segment.first_moves:
                    _increase(outside, first + i, edges)
                    _increase(moving, first + i, rate)
                if segment.joins and segment.second_moves:
                    _increase(outside, second + i, edges)
                    _increase(moving, second + i, rate)
                if segment.each and segment.part_moves:
                    _increase(taken, part + i, rate)
            _increase_still(moving, taken, columns, k, segment, whole_rate)
            if not segment.first_moves:
                _increase_one(outside, first, segment.lanes, whole)
            if segment.joins and not segment.second_moves:
                _increase_one(outside, second, segment.lanes, whole)


@uncounted
def _descend(packed, lanes, space, wide, lane, uniforms, waiting, parts):
    """The parts of a sample, and how many there are: the edge of every node, by its probability given the node.

    An item made of nothing in one way takes no uniform.
    """
    nodes, weights, found, step = space.nodes, space.weights, 0, 0
    node, top = len(packed.node_parts) - 1, 0
    while node > 0:
        begin, end = packed.begins[node], packed.begins[node + 1]
        chosen = begin
        if end > begin + 1 or packed.first[begin] + packed.second[begin] > 0:
            threshold, running = uniforms[step] * nodes[node * lanes + lane], 0.0
            step += 1
            for x in range(uint64(begin), uint64(end)):
                first = uint64(packed.first[x] * lanes + lane)
                term = nodes[first]
                if packed.second[x] > 0:
                    term *= nodes[uint64(packed.second[x] * lanes + lane)]
                term *= weights[uint64(packed.edge_parts[x] * lanes + lane)]
                if wide:
                    second, part = packed.second[x] * lanes + lane, packed.edge_parts[x] * lanes + lane
                    behind = space.exponents[first] + space.exponents[second] + space.part_exponents[part]
                    term *= 2.0 ** max(behind - space.exponents[node * lanes + lane], FARTHEST)
                # Rounding may bring the threshold up to the total: the last edge of positive weight is then meant.
                chosen = x if term > 0.0 else chosen
                running += term
                if running > threshold:
                    break
        node, top, found = _next(packed, chosen, waiting, top, parts, found)
    return found


@inlined
def _next(packed, chosen, waiting, top, parts, found):
    """Take the part of an edge; gives the node that comes next in preorder, how many others wait, and how many parts are found."""
    chosen = uint64(chosen)
    if packed.edge_entries[chosen] >= 0:
        parts[found] = packed.edge_entries[chosen]
        found += 1
    node, second = packed.first[chosen], packed.second[chosen]
    if second > 0:
        if node > 0:
            waiting[top] = second
            top += 1
        else:
            node = second
    elif node == 0 and top > 0:
        top -= 1
        node = waiting[top]
    return node, top, found


@uncounted
def maximise(packed, lanes, rows, start, count, done, floor, scores, best):
    """Scores of parts, from the first vectors on that are to be gathered and at least so high, and the best value of every node.

    Where an item's scores are gathered from the first one on, and may be as low as they are, those of segments in place are not copied.
    """
    for x in range(len(packed.segments)):
        segment, kind = _segment(packed, lanes, x), _kind(packed, lanes, x)
        in_place = _in_place(packed, lanes, x) and floor == -math.inf
        ready = packed.segments[x, 8] if lanes == 1 else vectors_of(packed, lanes)
        if ready > done:
            if not in_place:
                gather(packed, lanes, rows, start, count, done, ready, scores)
            if floor > -math.inf:
                for at in range(done * WIDTH, ready * WIDTH, WIDTH):
                    store(scores, at, greatest(load(scores, at), spread(floor)))
            done = ready
        else:
            in_place = False
        if in_place and rows.singles.shape[0] > 0:
            _maximise_edges_of_chain(packed.columns, 3, rows.singles, start * rows.singles.shape[1], best, segment)
        elif in_place:
            _maximise_edges_of_chain(packed.columns, 3, rows.doubles, start * rows.doubles.shape[1], best, segment)
        elif kind == CHAIN:
            _maximise_edges_of_chain(packed.columns, 2, scores, 0, best, segment)
        elif kind == CHART:
            _maximise_edges(packed.columns, scores, best, _known(segment, CHART))
        elif kind == PATH:
            _maximise_edges(packed.columns, scores, best, _known(segment, PATH))
        elif kind == TREE:
            _maximise_edges(packed.columns, scores, best, _known(segment, TREE))
        else:
            _maximise_edges(packed.columns, scores, best, segment)


@inlined
def _maximise_edges(columns, scores, best, segment):
    for i in range(0, segment.height, WIDTH):
        top = spread(-math.inf)
        for k in range(segment.begin, segment.end):
            top = greatest(_sum(best, scores, columns, k, segment, i), top)
        # What all edges take is no reason to prefer one, and comes after, where its size could hide what is.
        store(best, segment.start + i, top if segment.each else add(top, _own(scores, columns, segment, i)))


@inlined
def _maximise_edges_of_chain(columns, place, scores, row, best, segment):
    """Maxima for four vectors of nodes at a time, as in `_sum_edges_of_chain`; the last one of a segment may be repeated.

    Scores stand at numbers of parts, or in a row at their entries.
    """
    last = max(segment.height - 1, 0) // WIDTH * WIDTH
    for i in range(0, segment.height, 4 * WIDTH):
        one, two, three, four = spread(-math.inf), spread(-math.inf), spread(-math.inf), spread(-math.inf)
        at, bt, ct = min(i + WIDTH, last), min(i + 2 * WIDTH, last), min(i + 3 * WIDTH, last)
        for k in range(segment.begin, segment.end):
            value, part = spread(best[uint64(columns[k, 0])]), row + columns[k, place]
            one, two = greatest(add(value, load(scores, part + i)), one), greatest(add(value, load(scores, part + at)), two)
            three = greatest(add(value, load(scores, part + bt)), three)
            four = greatest(add(value, load(scores, part + ct)), four)
        store(best, segment.start + i, one)
        store(best, segment.start + at, two)
        store(best, segment.start + bt, three)
        store(best, segment.start + ct, four)


@uncounted
def follow(packed, lanes, rows, start, in_place, scores, best, lane, waiting, parts):
    """The parts of the best derivation, and how many there are: of every node the first of the best edges, looked for again.

    Scores are those of a row, where they stay in place.
    """
    node, top, none, found = len(packed.node_parts) - 1, 0, len(packed.used), 0
    while node > 0:
        chosen, end = packed.begins[node], packed.begins[node + 1]
        if packed.node_parts[node] >= none:
            value = best[node * lanes + lane]
            while chosen < end - 1 and _value(packed, rows, start, in_place, scores, best, chosen, lanes, lane) != value:
                chosen += 1
        else:
            highest = -math.inf
            for x in range(packed.begins[node], end):
                value = best[uint64(packed.first[uint64(x)] * lanes + lane)]
                if packed.second[uint64(x)] > 0:
                    value += best[uint64(packed.second[uint64(x)] * lanes + lane)]
                chosen = x if value > highest else chosen
                highest = max(value, highest)
        node, top, found = _next(packed, chosen, waiting, top, parts, found)
    return found


@inlined
def _value(packed, rows, start, in_place, scores, best, x, lanes, lane) -> float:
    x = uint64(x)
    value = best[uint64(packed.first[x] * lanes + lane)] + best[uint64(packed.second[x] * lanes + lane)]
    if not in_place:
        return value + scores[uint64(packed.edge_parts[x] * lanes + lane)]
    entry = packed.edge_entries[x]
    if entry < 0:
        return value
    return value + (rows.singles[start, uint64(entry)] if rows.singles.shape[0] > 0 else rows.doubles[start, uint64(entry)])


@uncounted
def _take_apart(packed, ranking, rank, waiting, places, structure):
    """The derivation of a rank: goes on with first nodes, while second ones wait with their ranks."""
    node, top = len(packed.node_parts) - 1, 0
    while node > 0:
        x, end = packed.begins[node], packed.begins[node + 1]
        while end - x > 1:
            middle = (x + end) // 2
            if ranking.starts[middle] <= rank:
                x = middle
            else:
                end = middle
        if packed.edge_entries[x] >= 0:
            structure[packed.edge_entries[x]] += 1
        node, second, rank = packed.first[x], packed.second[x], rank - ranking.starts[x]
        if second > 0:
            behind = ranking.counts[second]
            waiting[top], places[top] = second, rank % behind
            rank //= behind
            top += 1
        if node == 0 and top > 0:
            top -= 1
            node, rank = waiting[top], places[top]
