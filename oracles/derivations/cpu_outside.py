"""Probabilities of nodes and edges top down, and the tangents of both passes, compiled: see `cpu`."""

from numba import uint64

from ..kernels import vectors as v
from ..kernels.compilation import inlined, uncounted
from ..kernels.exponential import FARTHEST, ROUNDER
from ..kernels.vectors import WIDTH
from .cpu_rows import add_product, hand_out, is_in_place, joint_sum, kind_of, known, own, segment_of, vectors_of
from .packing import ANYTHING, CHART, PATH, TREE


@uncounted
def outside_pass(packed, lanes, space, wide, start, marginals):
    """Marginals: probabilities of nodes and edges, top down. Those of one item are written as soon as no other segment takes the part."""
    columns, outside, taken, scales = packed.columns, space.outside, space.taken, space.buffers[0]
    _begin_at_root(outside, lanes)
    for x in range(len(packed.segments) - 1, -1, -1):
        segment = segment_of(packed, lanes, x)
        height = segment.height
        _given_node(columns, space, segment, wide)
        for i in range(0, height, WIDTH):
            above = v.load(outside, segment.start + i)
            v.store(scales, i, v.multiply(v.load(scales, i), above))
            if not segment.each:
                _increase_own(taken, columns, segment, i, v.multiply(above, v.load(space.mask, WIDTH * min(height - i, WIDTH))))
        kind, in_place = kind_of(packed, lanes, x), is_in_place(packed, lanes, x)
        if wide or kind == ANYTHING:
            _outside_edges(columns, space, segment, wide)
        elif kind == CHART:
            _outside_edges(columns, space, known(segment, CHART), False)
        elif kind == PATH:
            _outside_edges(columns, space, known(segment, PATH), False)
        elif kind == TREE:
            _outside_edges(columns, space, known(segment, TREE), False)
        elif in_place and marginals.singles.shape[0] > 0:
            _outside_edges_of_chain(columns, space, segment, marginals.singles, 3, start * marginals.singles.shape[1])
        elif in_place:
            _outside_edges_of_chain(columns, space, segment, marginals.doubles, 3, start * marginals.doubles.shape[1])
        else:
            _outside_edges_of_chain(columns, space, segment, taken, 2, 0)
        if lanes == 1 and (wide or not in_place):
            hand_out(packed, taken, start, packed.segments[x - 1, 8] if x > 0 else 0, packed.segments[x, 8], marginals)


@inlined
def _outside_edges(columns, space, segment, wide):
    """Add the probabilities of the edges of a segment to those of the nodes that they lead to and the parts that they take."""
    outside, taken, scales = space.outside, space.taken, space.buffers[0]
    for k in range(segment.begin, segment.end):
        (first, second, part), whole = _places(columns, k, segment), v.spread(0.0)
        for i in range(0, segment.height, WIDTH):
            edges = v.multiply(_edges(columns, space, segment, wide, k, i), v.load(scales, i))
            whole = v.add(whole, edges)
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
        first, at, whole = uint64(columns[k, 0]), row + columns[k, place], v.spread(0.0)
        value = v.spread(space.nodes[first])
        for i in range(0, segment.height, WIDTH):
            edges = v.multiply(v.load(space.weights, columns[k, 2] + i), v.load(space.buffers[0], i))
            whole = v.add(whole, edges)
            v.store(taken, at + i, v.multiply(value, edges) if place == 3 else v.multiply_add(value, edges, v.load(taken, at + i)))
        space.outside[first] += space.nodes[first] * v.total(whole)


@uncounted
def move_inside(packed, lanes, space, wide):
    """Tangents of the log-weights of nodes. Nothing moves along a forbidden part, whatever its direction."""
    columns, rates, along, zero = packed.columns, space.rates, space.along, v.spread(0.0)
    for at in range(0, vectors_of(packed, lanes) * WIDTH, WIDTH):
        v.store(along, at, v.where_greater(v.load(space.weights, at), zero, v.load(along, at), zero))
    for x in range(len(packed.segments)):
        segment = segment_of(packed, lanes, x)
        _given_node(columns, space, segment, wide)
        for i in range(0, segment.height, WIDTH):
            mean, scale = zero, v.load(space.buffers[0], i)
            for k in range(segment.begin, segment.end):
                chance = v.multiply(_edges(columns, space, segment, wide, k, i), scale)
                mean = v.multiply_add(chance, joint_sum(rates, along, columns, k, segment, i), mean)
            v.store(rates, segment.start + i, mean if segment.each else v.add(mean, own(along, columns, segment, i)))


@uncounted
def outside_rates(packed, lanes, space, wide):
    """Tangents of the marginals; see `outside_pass`."""
    columns, outside, moving, taken, along = packed.columns, space.outside, space.outside_rates, space.taken_rates, space.along
    above, above_rates, means = space.buffers[2], space.buffers[3], space.buffers[4]
    _begin_at_root(outside, lanes)
    moving[:] = 0.0
    for x in range(len(packed.segments) - 1, -1, -1):
        segment = segment_of(packed, lanes, x)
        _given_node(columns, space, segment, wide)
        for i in range(0, segment.height, WIDTH):
            within = v.load(space.mask, WIDTH * min(segment.height - i, WIDTH))
            rate, mean = v.multiply(v.load(moving, segment.start + i), within), v.load(space.rates, segment.start + i)
            v.store(above, i, v.multiply(v.load(outside, segment.start + i), within))
            v.store(above_rates, i, rate)
            v.store(means, i, mean if segment.each else v.subtract(mean, own(along, columns, segment, i)))
            if not segment.each:
                _increase_own(taken, columns, segment, i, rate)
        for k in range(segment.begin, segment.end):
            (first, second, part), whole, whole_rate = _places(columns, k, segment), v.spread(0.0), v.spread(0.0)
            for i in range(0, segment.height, WIDTH):
                chance = v.multiply(_edges(columns, space, segment, wide, k, i), v.load(space.buffers[0], i))
                moved = v.subtract(joint_sum(space.rates, along, columns, k, segment, i), v.load(means, i))
                edges = v.multiply(chance, v.load(above, i))
                rate = v.multiply_add(chance, v.load(above_rates, i), v.multiply(edges, moved))
                whole, whole_rate = v.add(whole, edges), v.add(whole_rate, rate)
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


@inlined
def _given_node(columns, space, segment, wide):
    """Lay down, for every node of a segment, what makes the product of an edge its probability given the node; and exponents, if wide."""
    scales, exponents, zero = space.buffers[0], space.buffers[1], v.spread(0.0)
    for i in range(0, segment.height, WIDTH):
        weight = v.load(space.nodes, segment.start + i)
        # What is beyond the segment counts nothing.
        within = v.load(space.mask, WIDTH * min(segment.height - i, WIDTH))
        scale = v.where_greater(weight, zero, v.divide(within, weight), zero)
        scale = scale if segment.each else v.multiply(scale, own(space.weights, columns, segment, i))
        v.store(scales, i, scale)
        if wide:
            exponent = v.load(space.exponents, segment.start + i)
            v.store(exponents, i, exponent if segment.each else v.subtract(exponent, own(space.part_exponents, columns, segment, i)))


@inlined
def _edges(columns, space, segment, wide, k, i):
    """Products of the k-th edges, by the exponents of their nodes."""
    edges = add_product(space.nodes, space.weights, columns, k, segment, i, v.spread(0.0))
    if wide:
        behind = v.subtract(joint_sum(space.exponents, space.part_exponents, columns, k, segment, i), v.load(space.buffers[1], i))
        # Where there is no node, its exponent is anything.
        behind = v.least(v.greatest(behind, v.spread(FARTHEST)), v.spread(-FARTHEST))
        edges = v.multiply(edges, v.power_of_two(v.add(behind, v.spread(ROUNDER))))
    return edges


@inlined
def _places(columns, k, segment):
    """Places of the nodes and the part of the first of the k-th edges."""
    return columns[k, 0] * segment.lanes, columns[k, 1] * segment.lanes, columns[k, 2] * segment.lanes


@inlined
def _increase(numbers, at, by):
    v.store(numbers, at, v.add(v.load(numbers, at), by))


@inlined
def _increase_one(numbers, at, lanes, by):
    """Add to the numbers of one node or part what several nodes give it."""
    if lanes > 1:
        v.store(numbers, at, v.add(v.load(numbers, at), by))
    else:
        numbers[at] += v.total(by)


@inlined
def _increase_own(numbers, columns, segment, i, by):
    """Add to the numbers of what all edges of a node take."""
    part = columns[segment.begin, 2] * segment.lanes
    if segment.part_moves:
        _increase(numbers, part + i, by)
    else:
        _increase_one(numbers, part, segment.lanes, by)


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


@inlined
def _begin_at_root(numbers, lanes):
    numbers[:] = 0.0
    root = len(numbers) - WIDTH - lanes
    numbers[root : root + lanes] = 1.0
