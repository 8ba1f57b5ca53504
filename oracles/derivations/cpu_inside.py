"""Inside weights and log-partitions, compiled: see `cpu`."""

from __future__ import annotations

import math

import numpy as np
from numba import uint64

from ..kernels.compilation import inlined, uncounted
from ..kernels.exponential import FARTHEST, LARGEST, NOTHING, ROUNDER, exponential, logarithm, normalise, split
from ..kernels.vectors import (
    WIDTH,
    add,
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
from .cpu_rows import _vector_of, add_product, gather, joint_sum, kind_of, known, own, product, segment_of, vectors_of
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
        weight = exponential(score)
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
            weight = add_product(nodes, weights, columns, k, segment, i, weight)
        store(nodes, start + i, weight if segment.each else multiply(weight, own(weights, columns, segment, i)))


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
            top = greatest(joint_sum(exponents, space.part_exponents, columns, k, segment, i), top)
        weight = zero
        for k in range(segment.begin, segment.end):
            behind = subtract(joint_sum(exponents, space.part_exponents, columns, k, segment, i), top)
            power = power_of_two(add(greatest(behind, farthest), rounder))
            weight = multiply_add(product(nodes, space.weights, columns, k, segment, i), power, weight)
        if not segment.each:
            weight = multiply(weight, own(space.weights, columns, segment, i))
            top = add(top, own(space.part_exponents, columns, segment, i))
        store(nodes, start + i, weight)
        # What is nothing stays so: its exponent must not sum up to a number that is none.
        store(exponents, start + i, where_greater(weight, zero, top, spread(NOTHING)))
    normalise(nodes[start : start + height], exponents[start : start + height])
