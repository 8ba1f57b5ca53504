"""Inside weights and log-partitions, compiled: see `cpu`."""

import math

import numpy as np
from numba import uint64

from ..kernels import vectors as v
from ..kernels.compilation import inlined, uncounted
from ..kernels.exponential import FARTHEST, LARGEST, NOTHING, ROUNDER, exponential, logarithm, normalise, split
from ..kernels.vectors import WIDTH
from .cpu_rows import _vector_of, add_product, gather, joint_sum, kind_of, known, own, segment_of, vectors_of
from .packing import ALIKE, CHAIN, CHART, PARTS_PER_UNIT, REACH, TREE, UNITS, WAYS

LIMIT = 1e140
"""Limit of the weights of nodes and their inverses."""

ENOUGH = 512
"""Scores from which a shift is found."""

SHIFT, LOWEST, HIGHEST, LOWEST_SCORE, HIGHEST_SCORE = range(0, 5 * WIDTH, WIDTH)
"""Places in `DerivationWorkspace.limits`."""


@uncounted
def inside(packed, lanes, space, rows, wide, start, count, log_partition, certified) -> bool:
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
        segment, kind = segment_of(packed, lanes, x), kind_of(packed, lanes, x)
        if wide:
            _sum_edges_wide(packed.columns, space, segment)
        elif kind == CHAIN:
            _sum_edges_of_chain(packed.columns, space, segment)
        elif kind == CHART:
            _sum_edges(packed.columns, space, known(segment, CHART))
        elif kind == TREE:
            _sum_edges(packed.columns, space, known(segment, TREE))
        else:
            _sum_edges(packed.columns, space, segment)
    root, some = len(space.nodes) - WIDTH - lanes, False
    v.store(space.nodes, root + lanes, v.spread(1.0))
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
    zero, nothing = v.spread(0.0), v.spread(-math.inf)
    whole, mean, square = zero, zero, zero
    if lanes > 1:
        gather(packed, lanes, rows, start, count, 0, vectors, scores)
    if packed.sizes[UNITS] > 0:
        for vector in range(0, vectors, 1 + vectors * (WIDTH // lanes) // ENOUGH):
            if lanes == 1:
                gather(packed, lanes, rows, start, count, vector, vector + 1, scores)
                share = v.load(packed.shares, vector * WIDTH)
            else:
                share = v.spread(packed.shares[vector])
            score = v.load(scores, vector * WIDTH)
            finite = v.where_greater(score, nothing, score, zero)
            scaled = v.multiply(share, finite)
            whole = v.add(whole, v.where_greater(score, nothing, share, zero))
            mean, square = v.add(mean, scaled), v.multiply_add(scaled, finite, square)
    if lanes == 1:
        # Of a float32, as scores may be from which it is taken.
        v.store(limits, SHIFT, v.spread(float(np.float32(_shift(packed, v.total(whole), v.total(mean), v.total(square))))))
    else:
        v.store(limits, SHIFT, whole)
        v.store(limits, LOWEST, mean)
        v.store(limits, HIGHEST, square)
        for lane in range(WIDTH):
            limits[SHIFT + lane] = _shift(packed, limits[SHIFT + lane], limits[LOWEST + lane], limits[HIGHEST + lane])
    v.store(limits, LOWEST_SCORE, zero)
    v.store(limits, HIGHEST_SCORE, zero)


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
    weights, zero, nothing, vector = space.weights, v.spread(0.0), v.spread(-math.inf), begin
    minus = v.subtract(zero, v.load(space.limits, SHIFT))
    highest, lowest = v.load(space.limits, HIGHEST_SCORE), v.load(space.limits, LOWEST_SCORE)
    # Float32 scores of neighbours get float32 weights, in half the time.
    still, none = v.spread_single(np.float32(0)), v.spread_single(np.float32(-np.inf))
    high, low = still, still
    while lanes == 1 and rows.singles.shape[0] > 0 and packed.sizes[ALIKE] > 0 and vector + 1 < end:
        at = vector * WIDTH
        if not (packed.straight[vector] and packed.straight[vector + 1] and packed.used[at + WIDTH] == packed.used[at] + WIDTH):
            break
        score = v.load_singles(rows.singles, start * rows.singles.shape[1] + packed.used[at])
        score = v.subtract(score, v.spread_single(np.float32(space.limits[SHIFT])))
        high, low = v.greatest(score, high), v.least(v.where_greater(score, none, score, still), low)
        weight = exponential(score)
        v.store(weights, at, v.low_half(weight))
        v.store(weights, at + WIDTH, v.high_half(weight))
        vector += 2
    for half in (v.low_half(high), v.high_half(high)):
        highest = v.greatest(half, highest)
    for half in (v.low_half(low), v.high_half(low)):
        lowest = v.least(half, lowest)
    while vector < end:
        if lanes == 1:
            score = v.multiply_add(v.load(packed.units, vector * WIDTH), minus, _vector_of(packed, rows, start, vector, weights))
        else:
            score = v.multiply_add(v.spread(packed.units[vector]), minus, v.load(weights, vector * WIDTH))
        # A forbidden part is as far away as can be, and does no harm.
        highest, lowest = v.greatest(score, highest), v.least(v.where_greater(score, nothing, score, zero), lowest)
        v.store(weights, vector * WIDTH, exponential(score))
        vector += 1
    # The last vector of a segment reads weights beyond it, which must be numbers.
    if lanes == 1:
        v.store(weights, end * WIDTH, v.spread(1.0))
    v.store(space.limits, HIGHEST_SCORE, highest)
    v.store(space.limits, LOWEST_SCORE, lowest)


@inlined
def _find_limits(packed, lanes, space):
    """The lowest and the highest weight of a node that has one: no product of three was beyond the range of numbers if these are not."""
    zero, one = v.spread(0.0), v.spread(1.0)
    lowest, highest = one, one
    for at in range(packed.levels[0, 0] * lanes, len(space.nodes) - WIDTH, WIDTH):
        weight = v.load(space.nodes, at)
        lowest, highest = v.least(v.where_greater(weight, zero, weight, one), lowest), v.greatest(weight, highest)
    if lanes == 1:
        lowest, highest = v.spread(v.minimum(lowest)), v.spread(v.maximum(highest))
        v.store(space.limits, LOWEST_SCORE, v.spread(v.minimum(v.load(space.limits, LOWEST_SCORE))))
        v.store(space.limits, HIGHEST_SCORE, v.spread(v.maximum(v.load(space.limits, HIGHEST_SCORE))))
    v.store(space.limits, LOWEST, lowest)
    v.store(space.limits, HIGHEST, highest)


@inlined
def _sum_edges(columns, space, segment):
    """Weights of the nodes of a segment."""
    nodes, weights, start = space.nodes, space.weights, segment.start
    for i in range(0, segment.height, WIDTH):
        weight = v.spread(0.0)
        for k in range(segment.begin, segment.end):
            weight = add_product(nodes, weights, columns, k, segment, i, weight)
        v.store(nodes, start + i, weight if segment.each else v.multiply(weight, own(weights, columns, segment, i)))


@inlined
def _sum_edges_of_chain(columns, space, segment):
    """Sum edges of four vectors of nodes at a time, none of which waits for the others; the last one may be repeated."""
    nodes, weights, last = space.nodes, space.weights, max(segment.height - 1, 0) // WIDTH * WIDTH
    for i in range(0, segment.height, 4 * WIDTH):
        one, two, three, four = v.spread(0.0), v.spread(0.0), v.spread(0.0), v.spread(0.0)
        at, bt, ct = min(i + WIDTH, last), min(i + 2 * WIDTH, last), min(i + 3 * WIDTH, last)
        for k in range(segment.begin, segment.end):
            value, part = v.spread(nodes[uint64(columns[k, 0])]), columns[k, 2]
            one, two = v.multiply_add(value, v.load(weights, part + i), one), v.multiply_add(value, v.load(weights, part + at), two)
            three = v.multiply_add(value, v.load(weights, part + bt), three)
            four = v.multiply_add(value, v.load(weights, part + ct), four)
        v.store(nodes, segment.start + i, one)
        v.store(nodes, segment.start + at, two)
        v.store(nodes, segment.start + bt, three)
        v.store(nodes, segment.start + ct, four)


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
    zero, rounder, farthest = v.spread(0.0), v.spread(ROUNDER), v.spread(FARTHEST)
    for i in range(0, height, WIDTH):
        top = v.spread(4.0 * NOTHING)
        for k in range(segment.begin, segment.end):
            top = v.greatest(joint_sum(exponents, space.part_exponents, columns, k, segment, i), top)
        weight = zero
        for k in range(segment.begin, segment.end):
            behind = v.subtract(joint_sum(exponents, space.part_exponents, columns, k, segment, i), top)
            power = v.power_of_two(v.add(v.greatest(behind, farthest), rounder))
            weight = v.multiply_add(add_product(nodes, space.weights, columns, k, segment, i, zero), power, weight)
        if not segment.each:
            weight = v.multiply(weight, own(space.weights, columns, segment, i))
            top = v.add(top, own(space.part_exponents, columns, segment, i))
        v.store(nodes, start + i, weight)
        # What is nothing stays so: its exponent must not sum up to a number that is none.
        v.store(exponents, start + i, v.where_greater(weight, zero, top, v.spread(NOTHING)))
    normalise(nodes[start : start + height], exponents[start : start + height])
