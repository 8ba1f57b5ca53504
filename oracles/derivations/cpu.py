"""Every operation on derivations, in compiled steps, for `WIDTH` items of a batch at a time.

Inside weights are sums of products of float64 numbers wherever they and the weights of parts keep within limits that no product of three
can leave; scores are shifted for that, by about the log-partition per part, where all structures have the same number of parts. An item
that does not keep within is not certified, and gets its weights as mantissas with exponents of their own (`wide_range`), which scores up
to `LARGEST` cannot leave. Either way the terms of every node are kept: what each of its edges adds to its weight. A term by the sum of
its node is the probability of an edge given the node, and everything else follows from those by products and sums, of numbers up to 1.

An item's numbers do not depend on those beside it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from ..kernels.compilation import compiled, uncounted
from ..kernels.exponential import exponential
from ..kernels.parts import allowed, ascend, mark, number
from ..kernels.vectors import (
    WIDTH,
    add,
    divide,
    greatest,
    least,
    load,
    multiply,
    multiply_add,
    power_of_two,
    spread,
    store,
    subtract,
    where_greater,
)
from ..kernels.wide_range import FARTHEST, LARGEST, NOTHING, ROUNDER, logarithm, normalise, split
from .packing import EACH, JOINS

Array = NDArray[Any]

LIMIT = 1e140
"""Limit of the weights of nodes and their inverses."""

ENOUGH = 512
"""Scores from which a shift is found."""


class DerivationWorkspace(NamedTuple):
    """Numbers of `WIDTH` items for nodes, edges and parts."""

    scores: Array
    weights: Array  # of parts
    nodes: Array  # sums of terms, times the part that all edges take
    inverse: Array  # of the sums of terms
    exponents: Array  # of nodes
    part_exponents: Array
    terms: Array
    outside: Array
    taken: Array
    rates: Array  # tangents of log-weights of nodes
    outside_rates: Array
    taken_rates: Array
    limits: Array


@compiled
def evaluate(packed, rows, directions, wide: bool, marginals, products, log_partition, certified):
    """Log-partitions [b] of rows [b, d]; their marginals [b, d] and covariances times directions [b, d], where there is room for these.

    Rows, directions, marginals and products are `Numbers`.
    """
    deep, twice = size_of(marginals) > 0, size_of(products) > 0
    space = _workspace(packed, wide, twice, deep or twice, twice)
    for start in range(0, size_of(rows), WIDTH):
        count = min(WIDTH, size_of(rows) - start)
        gather(packed, rows, start, count, space.scores)
        _inside(packed, space, wide, twice, log_partition, certified, start, count)
        if twice:
            gather(packed, directions, start, count, space.taken_rates)
            _move_inside(packed, space)
            _outside_rates(packed, space)
            _scatter(packed, space.taken_rates, log_partition, start, count, products)
        elif deep:
            if wide:
                _outside(packed, space)
            else:
                _outside_linear(packed, space)
            _scatter(packed, space.taken, log_partition, start, count, marginals)


@compiled
def sample(packed, rows, uniforms, wide: bool, structures, numbers, certified):
    """Structures [b, s, d] by uniforms [b, s, steps], one for each node of a derivation, in preorder. Rows and structures are `Numbers`.

    Where there is room for them, numbers of parts [b, s, p] take the place of structures.
    """
    parts = np.empty(packed.sizes[1] + 1, np.int64)
    space = _workspace(packed, wide, True, True, False)
    log_partition, waiting = np.empty(size_of(rows)), np.empty(packed.sizes[2] + 2, np.int64)
    for start in range(0, size_of(rows), WIDTH):
        count = min(WIDTH, size_of(rows) - start)
        gather(packed, rows, start, count, space.scores)
        _inside(packed, space, wide, True, log_partition, certified, start, count)
        for lane in range(count):
            if log_partition[start + lane] > -math.inf:
                for draw in range(uniforms.shape[1]):
                    found = _descend(packed, space, lane, uniforms[start + lane, draw], waiting, parts)
                    if numbers.shape[0] > 0:
                        ascend(parts, found)
                        number(parts, found, numbers[start + lane, draw])
                    elif structures.singles.shape[0] > 0:
                        mark(parts, found, structures.singles[start + lane, draw])
                    else:
                        mark(parts, found, structures.doubles[start + lane, draw])


@compiled
def argmax(packed, rows, structures, numbers):
    """The best structure of each row; of edges that tie, the first. Both are `Numbers`; numbers of parts [b, p] as in `sample`."""
    nodes, parts = len(packed.begins) - 1, np.empty(packed.sizes[1] + 1, np.int64)
    scores, best = np.zeros((len(packed.used) + 1) * WIDTH), np.zeros(nodes * WIDTH)
    chosen, waiting = np.zeros(nodes * WIDTH), np.empty(packed.sizes[2] + 2, np.int64)
    for start in range(0, size_of(rows), WIDTH):
        count = min(WIDTH, size_of(rows) - start)
        gather(packed, rows, start, count, scores)
        maximise(packed, scores, best, chosen)
        for lane in range(count):
            found = follow(packed, chosen, lane, waiting, parts)
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
    waiting, places = np.empty(packed.sizes[2] + 2, np.int64), np.empty(packed.sizes[2] + 2, np.int64)
    for row in range(len(ranks)):
        _take_apart(packed, ranking, ranks[row], waiting, places, structures[row])


@compiled
def _workspace(packed, wide: bool, keep: bool, deep: bool, twice: bool):
    nodes, edges, parts = len(packed.begins) - 1, len(packed.first), len(packed.used) + 1
    none, weights = np.zeros(0), np.ones(parts * WIDTH)
    # A score turns into its weight in place, but for tangents; and where a part is taken in one place alone, that into its marginal.
    # Pages that are never written to cost nothing.
    alone = packed.sizes[4] > 0 and not wide
    return DerivationWorkspace(
        np.zeros(parts * WIDTH) if twice else weights,
        weights,
        np.ones(nodes * WIDTH),
        np.empty(nodes * WIDTH),
        np.zeros(nodes * WIDTH) if wide else none,
        np.zeros(parts * WIDTH) if wide else none,
        np.empty(edges * WIDTH) if wide or keep else none,
        np.empty(nodes * WIDTH) if deep else none,
        weights if alone else np.empty(parts * WIDTH) if deep else none,
        np.zeros(nodes * WIDTH) if twice else none,
        np.empty(nodes * WIDTH) if twice else none,
        np.zeros(parts * WIDTH) if twice else none,
        np.zeros(3 * WIDTH),
    )


@uncounted
def size_of(numbers) -> int:
    """How many rows there are."""
    return numbers.doubles.shape[0] + numbers.singles.shape[0]


@uncounted
def gather(packed, rows, start, count, scores):
    """Scores of the parts that are used, side by side for so many rows."""
    if rows.singles.shape[0] > 0:
        _lay(packed, rows.singles, start, count, scores)
    else:
        _lay(packed, rows.doubles, start, count, scores)


@uncounted
def _lay(packed, rows, start, count, scores):
    """Lay items side by side, the last one again in place of missing ones; what is beyond the last part stays as it is."""
    used, last = packed.used, start + count - 1
    if count == WIDTH:
        for part in range(len(used)):
            for lane in range(WIDTH):
                scores[part * WIDTH + lane] = rows[start + lane, used[part]]
    else:
        for part in range(len(used)):
            for lane in range(WIDTH):
                scores[part * WIDTH + lane] = rows[min(start + lane, last), used[part]]


@uncounted
def _scatter(packed, numbers, log_partition, start, count, rows):
    if rows.singles.shape[0] > 0:
        _lay_back(packed, numbers, log_partition, start, count, rows.singles)
    else:
        _lay_back(packed, numbers, log_partition, start, count, rows.doubles)


@uncounted
def _lay_back(packed, numbers, log_partition, start, count, rows):
    """Write the numbers of parts of feasible items."""
    used, feasible = packed.used, 0
    for lane in range(count):
        feasible += log_partition[start + lane] > -math.inf
    if feasible == WIDTH:
        for part in range(len(used)):
            for lane in range(WIDTH):
                rows[start + lane, used[part]] = numbers[part * WIDTH + lane]
        return
    for lane in range(count):
        if log_partition[start + lane] > -math.inf:
            for part in range(len(used)):
                rows[start + lane, used[part]] = numbers[part * WIDTH + lane]


@uncounted
def _inside(packed, space, wide, keep, log_partition, certified, start, count):
    """Sums of terms, log-partitions, and whether they are right; and where they are kept, terms and inverses of their sums."""
    root = len(space.nodes) - WIDTH
    if wide:
        _weigh_wide(packed, space)
        _inside_wide(packed, space)
    else:
        _weigh(packed, space)
        _inside_linear(packed, space, keep)
    for lane in range(count):
        weight = space.nodes[root + lane]
        if wide:
            certified[start + lane] = space.limits[lane] <= LARGEST
            log_partition[start + lane] = logarithm(weight, space.exponents[root + lane])
        else:
            shift, least_weight, greatest_weight = space.limits[lane], space.limits[WIDTH + lane], space.limits[2 * WIDTH + lane]
            certified[start + lane] = abs(shift) < math.inf and least_weight > 1.0 / LIMIT and greatest_weight < LIMIT
            log_partition[start + lane] = (math.log(weight) if weight > 0.0 else -math.inf) + packed.sizes[3] * shift


@uncounted
def _weigh(packed, space):
    """Weights of parts; writes the shifts of scores, -inf where one is beyond its limit.

    Where scores are like independent normal variables, the shift is the log-partition by unit, of which Derrida's random energy model
    (1981) says by part: mean, entropy and half the variance; from where that entropy is used up, the largest score.
    """
    parts, zero, nothing = len(packed.used), spread(0.0), spread(-math.inf)
    total, mean, square = zero, zero, zero
    if packed.sizes[3] > 0:
        for part in range(0, parts, 1 + parts // ENOUGH):
            score, share = load(space.scores, part * WIDTH), spread(packed.shares[part])
            finite = where_greater(score, nothing, score, zero)
            scaled = multiply(share, finite)
            total = add(total, where_greater(score, nothing, share, zero))
            mean, square = add(mean, scaled), multiply_add(scaled, finite, square)
    store(space.limits, 0, total)
    store(space.limits, WIDTH, mean)
    store(space.limits, 2 * WIDTH, square)
    for lane in range(WIDTH):
        space.limits[lane] = _shift(packed, space.limits[lane], space.limits[WIDTH + lane], space.limits[2 * WIDTH + lane])
    shifts, most = load(space.limits, 0), zero
    for part in range(parts):
        place = part * WIDTH
        score = subtract(load(space.scores, place), multiply(spread(packed.units[part]), shifts))
        size = greatest(score, subtract(zero, score))
        # A forbidden part is as far away as can be, and does no harm.
        most = greatest(where_greater(score, nothing, size, zero), most)
        store(space.weights, place, exponential(score))
    store(space.limits, 0, where_greater(spread(packed.scale[2]), most, shifts, nothing))


@uncounted
def _shift(packed, total, mean, square) -> float:
    if not total > 0.0:
        return 0.0
    entropy, mean = packed.scale[0] / (packed.sizes[3] * packed.scale[1]), mean / total
    variance = max(square / total - mean * mean, 0.0)
    by_part = mean + (entropy + 0.5 * variance if variance < 2.0 * entropy else math.sqrt(2.0 * entropy * variance))
    return packed.scale[1] * by_part


@uncounted
def _inside_linear(packed, space, keep):
    nodes, terms, weights = space.nodes, space.terms, space.weights
    zero, one = spread(0.0), spread(1.0)
    lowest, highest = one, one
    for level in range(len(packed.levels)):
        flags = packed.levels[level, 2]
        for node in range(packed.levels[level, 0], packed.levels[level, 1]):
            total, begin, end = zero, packed.begins[node], packed.begins[node + 1]
            if keep:
                for x in range(begin, end):
                    term = _term(packed, nodes, weights, flags, x)
                    store(terms, x * WIDTH, term)
                    total = add(total, term)
                store(space.inverse, node * WIDTH, where_greater(total, zero, divide(one, total), zero))
            elif flags == EACH:
                for x in range(begin, end):
                    total = multiply_add(load(nodes, packed.first[x]), load(weights, packed.edge_parts[x]), total)
            elif flags == JOINS:
                for x in range(begin, end):
                    total = multiply_add(load(nodes, packed.first[x]), load(nodes, packed.second[x]), total)
            else:
                for x in range(begin, end):
                    total = add(total, _term(packed, nodes, weights, flags, x))
            weight = total if flags & EACH else multiply(total, load(weights, packed.node_parts[node]))
            store(nodes, node * WIDTH, weight)
            lowest = least(where_greater(weight, zero, weight, one), lowest)
            lowest = least(where_greater(total, zero, total, one), lowest)
            highest = greatest(greatest(weight, total), highest)
    store(space.limits, WIDTH, lowest)
    store(space.limits, 2 * WIDTH, highest)


@uncounted
def _term(packed, nodes, weights, flags, x):
    """What an edge adds to the sum of its node."""
    term = load(nodes, packed.first[x])
    if flags & JOINS:
        term = multiply(term, load(nodes, packed.second[x]))
    if flags & EACH:
        term = multiply(term, load(weights, packed.edge_parts[x]))
    return term


@uncounted
def _outside_linear(packed, space):
    """Marginals: probabilities of nodes and edges, top down, from weights of nodes and parts."""
    nodes, outside, weights, taken = space.nodes, space.outside, space.weights, space.taken
    alone, zero = packed.sizes[4] > 0, spread(0.0)
    root = len(outside) - WIDTH
    outside[:root], outside[root:] = 0.0, 1.0
    if not alone:
        taken[:] = 0.0
    for level in range(len(packed.levels) - 1, -1, -1):
        flags = packed.levels[level, 2]
        for node in range(packed.levels[level, 1] - 1, packed.levels[level, 0] - 1, -1):
            above, weight = load(outside, node * WIDTH), load(nodes, node * WIDTH)
            scale = where_greater(weight, zero, divide(above, weight), zero)
            begin, end = packed.begins[node], packed.begins[node + 1]
            if not flags & EACH:
                part = packed.node_parts[node]
                scale = multiply(scale, load(weights, part))
                # What is beyond the last part is taken by many, and must stay 1.
                if not alone:
                    store(taken, part, add(load(taken, part), above))
                elif part < len(weights) - WIDTH:
                    store(taken, part, above)
            if flags == JOINS:
                for x in range(begin, end):
                    first, second = packed.first[x], packed.second[x]
                    edge = multiply(multiply(load(nodes, first), load(nodes, second)), scale)
                    store(outside, first, add(load(outside, first), edge))
                    store(outside, second, add(load(outside, second), edge))
                continue
            for x in range(begin, end):
                first, part = packed.first[x], packed.edge_parts[x]
                edge = multiply(_term(packed, nodes, weights, flags, x), scale)
                store(outside, first, add(load(outside, first), edge))
                if flags & JOINS:
                    second = packed.second[x]
                    store(outside, second, add(load(outside, second), edge))
                if flags & EACH:
                    if not alone:
                        store(taken, part, add(load(taken, part), edge))
                    elif part < len(weights) - WIDTH:
                        store(taken, part, edge)


@uncounted
def _weigh_wide(packed, space):
    """Weights of parts as mantissas and exponents; writes the largest size of a score."""
    for lane in range(WIDTH):
        space.limits[lane] = 0.0
    for place in range(len(packed.used) * WIDTH):
        score = space.scores[place]
        space.weights[place], space.part_exponents[place] = split(score)
        if score > -math.inf:
            size = abs(score)
            space.limits[place % WIDTH] = size if size > space.limits[place % WIDTH] else space.limits[place % WIDTH]


@uncounted
def _inside_wide(packed, space):
    nodes, terms, weights, exponents, of_parts = space.nodes, space.terms, space.weights, space.exponents, space.part_exponents
    zero, one, rounder, farthest = spread(0.0), spread(1.0), spread(ROUNDER), spread(FARTHEST)
    for level in range(len(packed.levels)):
        start, stop, each = packed.levels[level, 0], packed.levels[level, 1], packed.levels[level, 2] & EACH
        for node in range(start, stop):
            begin, end = packed.begins[node], packed.begins[node + 1]
            top = spread(4.0 * NOTHING)
            for x in range(begin, end):
                exponent = add(load(exponents, packed.first[x]), load(exponents, packed.second[x]))
                if each:
                    exponent = add(exponent, load(of_parts, packed.edge_parts[x]))
                store(terms, x * WIDTH, exponent)
                top = greatest(exponent, top)
            total = zero
            for x in range(begin, end):
                power = power_of_two(add(greatest(subtract(load(terms, x * WIDTH), top), farthest), rounder))
                term = multiply(multiply(load(nodes, packed.first[x]), load(nodes, packed.second[x])), power)
                if each:
                    term = multiply(term, load(weights, packed.edge_parts[x]))
                store(terms, x * WIDTH, term)
                total = add(total, term)
            store(space.inverse, node * WIDTH, where_greater(total, zero, divide(one, total), zero))
            if not each:
                total = multiply(total, load(weights, packed.node_parts[node]))
                top = add(top, load(of_parts, packed.node_parts[node]))
            store(nodes, node * WIDTH, total)
            # What is nothing stays so: its exponent must not sum up to a number that is none.
            store(exponents, node * WIDTH, where_greater(total, zero, top, spread(NOTHING)))
        normalise(nodes[start * WIDTH : stop * WIDTH], exponents[start * WIDTH : stop * WIDTH])


@uncounted
def _outside(packed, space):
    """The same from terms and inverses."""
    outside, taken, terms, inverse = space.outside, space.taken, space.terms, space.inverse
    root = len(outside) - WIDTH
    outside[:], taken[:] = 0.0, 0.0
    outside[root:] = 1.0
    for level in range(len(packed.levels) - 1, -1, -1):
        flags = packed.levels[level, 2]
        for node in range(packed.levels[level, 1] - 1, packed.levels[level, 0] - 1, -1):
            above, scale = load(outside, node * WIDTH), load(inverse, node * WIDTH)
            begin, end = packed.begins[node], packed.begins[node + 1]
            if flags & EACH:
                for x in range(begin, end):
                    edge = multiply(multiply(load(terms, x * WIDTH), scale), above)
                    first, part = packed.first[x], packed.edge_parts[x]
                    store(outside, first, add(load(outside, first), edge))
                    store(taken, part, add(load(taken, part), edge))
                    if flags & JOINS:
                        second = packed.second[x]
                        store(outside, second, add(load(outside, second), edge))
                continue
            part = packed.node_parts[node]
            store(taken, part, add(load(taken, part), above))
            if flags & JOINS:
                for x in range(begin, end):
                    edge = multiply(multiply(load(terms, x * WIDTH), scale), above)
                    first, second = packed.first[x], packed.second[x]
                    store(outside, first, add(load(outside, first), edge))
                    store(outside, second, add(load(outside, second), edge))
            else:
                for x in range(begin, end):
                    edge = multiply(multiply(load(terms, x * WIDTH), scale), above)
                    store(outside, packed.first[x], add(load(outside, packed.first[x]), edge))


@uncounted
def _move_inside(packed, space):
    """Tangents of the log-weights of nodes, along those of parts in ``taken_rates``, which go to ``scores``.

    A term becomes the probability of its edge given its node. Nothing moves along a forbidden part, whatever its direction.
    """
    rates, along, terms = space.rates, space.scores, space.terms
    zero, nothing = spread(0.0), spread(-math.inf)
    for place in range(0, len(packed.used) * WIDTH, WIDTH):
        moved = load(space.taken_rates, place)
        store(along, place, where_greater(load(along, place), nothing, moved, zero))
    for level in range(len(packed.levels)):
        each = packed.levels[level, 2] & EACH
        for node in range(packed.levels[level, 0], packed.levels[level, 1]):
            scale, mean = load(space.inverse, node * WIDTH), zero
            for x in range(packed.begins[node], packed.begins[node + 1]):
                moved = add(load(rates, packed.first[x]), load(rates, packed.second[x]))
                if each:
                    moved = add(moved, load(along, packed.edge_parts[x]))
                chance = multiply(load(terms, x * WIDTH), scale)
                store(terms, x * WIDTH, chance)
                mean = multiply_add(chance, moved, mean)
            if not each:
                mean = add(mean, load(along, packed.node_parts[node]))
            store(rates, node * WIDTH, mean)


@uncounted
def _outside_rates(packed, space):
    """Tangents of the marginals; see `_outside`."""
    outside, moving, taken, terms, rates = space.outside, space.outside_rates, space.taken_rates, space.terms, space.rates
    root = len(outside) - WIDTH
    outside[:], moving[:], taken[:] = 0.0, 0.0, 0.0
    outside[root:] = 1.0
    for level in range(len(packed.levels) - 1, -1, -1):
        each, joins = packed.levels[level, 2] & EACH, packed.levels[level, 2] & JOINS
        for node in range(packed.levels[level, 1] - 1, packed.levels[level, 0] - 1, -1):
            above, above_rate, mean = load(outside, node * WIDTH), load(moving, node * WIDTH), load(rates, node * WIDTH)
            if not each:
                part = packed.node_parts[node]
                store(taken, part, add(load(taken, part), above_rate))
                mean = subtract(mean, load(space.scores, part))
            for x in range(packed.begins[node], packed.begins[node + 1]):
                first, second = packed.first[x], packed.second[x]
                moved = subtract(add(load(rates, first), load(rates, second)), mean)
                if each:
                    moved = add(moved, load(space.scores, packed.edge_parts[x]))
                chance = load(terms, x * WIDTH)
                edge = multiply(chance, above)
                edge_rate = multiply_add(chance, above_rate, multiply(edge, moved))
                store(outside, first, add(load(outside, first), edge))
                store(moving, first, add(load(moving, first), edge_rate))
                if joins:
                    store(outside, second, add(load(outside, second), edge))
                    store(moving, second, add(load(moving, second), edge_rate))
                if each:
                    part = packed.edge_parts[x]
                    store(taken, part, add(load(taken, part), edge_rate))


@uncounted
def _descend(packed, space, lane, uniforms, waiting, parts):
    """The parts of a sample, and how many there are: the edge of every node, by its probability given the node.

    An item made of nothing in one way takes no uniform.
    """
    none, found = len(packed.used) * WIDTH, 0
    waiting[0], top, step = len(space.nodes) - WIDTH, 0, 0
    if waiting[0] == 0:
        top = -1
    while top >= 0:
        node = waiting[top] // WIDTH
        top -= 1
        begin, end = packed.begins[node], packed.begins[node + 1]
        chosen = begin
        if end > begin + 1 or packed.first[begin] + packed.second[begin] > 0:
            threshold, total = uniforms[step] / space.inverse[node * WIDTH + lane], 0.0
            step += 1
            # Places that are no negative ones, which would be looked for at every edge.
            at = uint64(begin * WIDTH + lane)
            for x in range(begin, end):
                term = space.terms[at]
                at += uint64(WIDTH)
                # Rounding may bring the threshold up to the total: the last edge of positive weight is then meant.
                chosen = x if term > 0.0 else chosen
                total += term
                if total > threshold:
                    break
        if packed.edge_parts[chosen] < none:
            parts[found] = packed.used[packed.edge_parts[chosen] // WIDTH]
            found += 1
        for place in (packed.second[chosen], packed.first[chosen]):
            if place > 0:
                top += 1
                waiting[top] = place
    return found


@uncounted
def maximise(packed, scores, best, chosen):
    """The best value of every node, and the edge that has it; of edges that tie, the first."""
    for level in range(len(packed.levels)):
        flags = packed.levels[level, 2]
        for node in range(packed.levels[level, 0], packed.levels[level, 1]):
            begin, end = packed.begins[node], packed.begins[node + 1]
            top, place = spread(-math.inf), spread(float(begin))
            for x in range(begin, end):
                value = load(best, packed.first[x])
                if flags & JOINS:
                    value = add(value, load(best, packed.second[x]))
                if flags & EACH:
                    value = add(value, load(scores, packed.edge_parts[x]))
                place = where_greater(value, top, spread(float(x)), place)
                top = greatest(value, top)
            if not flags & EACH:
                top = add(top, load(scores, packed.node_parts[node]))
            store(best, node * WIDTH, top)
            store(chosen, node * WIDTH, place)


@uncounted
def follow(packed, chosen, lane, waiting, parts):
    """The parts of the derivation of the chosen edges, and how many there are."""
    none, found = len(packed.used) * WIDTH, 0
    waiting[0], top = len(chosen) - WIDTH, 0
    if waiting[0] == 0:
        top = -1
    while top >= 0:
        node = waiting[top] // WIDTH
        top -= 1
        x = int(chosen[node * WIDTH + lane])
        if packed.edge_parts[x] < none:
            parts[found] = packed.used[packed.edge_parts[x] // WIDTH]
            found += 1
        for place in (packed.second[x], packed.first[x]):
            if place > 0:
                top += 1
                waiting[top] = place
    return found


@uncounted
def _take_apart(packed, ranking, rank, waiting, places, structure):
    """The derivation of a rank: goes on with first nodes, while second ones wait with their ranks."""
    none, node, top = len(packed.used) * WIDTH, len(packed.begins) - 2, 0
    while node > 0:
        x, end = packed.begins[node], packed.begins[node + 1]
        while end - x > 1:
            middle = (x + end) // 2
            if ranking.starts[middle] <= rank:
                x = middle
            else:
                end = middle
        part = packed.edge_parts[x]
        if part < none:
            structure[packed.used[part // WIDTH]] += 1
        node, second, rank = packed.first[x] // WIDTH, packed.second[x] // WIDTH, rank - ranking.starts[x]
        if second > 0:
            behind = ranking.counts[second]
            waiting[top], places[top] = second, rank % behind
            rank //= behind
            top += 1
        if node == 0 and top > 0:
            top -= 1
            node, rank = waiting[top], places[top]
