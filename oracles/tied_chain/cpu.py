"""Kernels of the tied chain: rows [b, n + t, t], n lines of tags and the transition matrix.

The exponential domain, as in `structgrad.oracles.linear_chain.cpu`, whose steps these are: the scores of a place, and all transitions, are
scaled by their maximum, and so are prefixes and suffixes. Transitions are weighed once for all places, and the expected numbers of
transitions are one product of two tables. A row is certified where every tag that can be reached keeps a weight above `LIMIT`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.compilation import compiled, inner, uncounted
from ..kernels.exponential import RANGE
from ..kernels.parts import no_numbers, no_structures
from ..kernels.vectors import WIDTH, add, greatest, least, load, minimum, multiply, multiply_add, spread, store, where_greater
from ..linear_chain.cpu_steps import add_up, combine, dot, first_above, scale_down, weigh

Array = NDArray[Any]

LIMIT = 1e-290

FAR = 1e150
"""Beyond this, and below its inverse, a product of scales goes to the logarithm before the next one joins it."""


def operations(event: tuple[int, ...]) -> int:
    """Steps of the inner loops per row."""
    return 2 * (event[0] - event[1]) * event[1] * event[1]


class TiedSpace(NamedTuple):
    """Working memory for one row; tables have lines of ``columns``."""

    length: int
    tags: int
    columns: int
    line: Array  # [columns], scores of one line where the tags do not fill the columns; -inf in the rest
    block: Array  # [t · columns], those of the transitions
    weights: Array  # [n · columns], of the tags at every place, divided by the greatest
    transition: Array  # [columns · columns], weights of transitions, divided by the greatest
    turned: Array  # [columns · columns], the same with the next tag first
    scales: Array  # [n], what the prefixes of a place were divided by
    prefixes: Array  # [n · columns]
    suffixes: Array  # [n · columns]
    after: Array  # [n · columns], weights times suffixes
    before: Array  # [n · columns], prefixes over the partition function, from which the next place is reached
    falls: Array  # [n], what the suffixes of a place were divided by


@inner
def _space(rows):
    tags = rows.shape[2]
    length, columns = rows.shape[1] - tags, (tags + WIDTH - 1) // WIDTH * WIDTH
    size = length * columns
    return TiedSpace(
        length, tags, columns, np.full(columns, -np.inf, rows.dtype), np.full(tags * columns, -np.inf, rows.dtype),
        np.zeros(size), np.zeros(columns * columns), np.zeros(columns * columns), np.ones(length),
        np.zeros(size), np.zeros(size), np.zeros(size), np.zeros(size), np.ones(length),
    )  # fmt: skip


@uncounted
def _weigh_lines(row, start, space, buffer, lines, weights, place):
    """Weights of so many lines of a row, from one maximum; see `weigh`."""
    tags, columns = space.tags, space.columns
    if tags == columns:
        return weigh(row, start, weights, place, lines * columns)
    for p in range(lines):
        for c in range(tags):
            buffer[p * columns + c] = row[start + p * tags + c]
    return weigh(buffer, 0, weights, place, lines * columns)


@uncounted
def _weigh_transitions(row, space):
    """Both tables of a row; gives the maximum, and whether the range sufficed."""
    tags, columns = space.tags, space.columns
    top, deepest = _weigh_lines(row, space.length * tags, space, space.block, tags, space.transition, 0)
    if top == -np.inf:
        space.transition[:] = 0.0
        top, deepest = 0.0, 0.0
    for p in range(tags):
        for c in range(tags):
            space.turned[c * columns + p] = space.transition[p * columns + c]
    return top, deepest > -RANGE


@uncounted
def _forward(row, space):
    """Scaled prefixes and weights of a row; gives the log-partition and whether it is certified."""
    length, tags, columns, prefixes, weights = space.length, space.tags, space.columns, space.prefixes, space.weights
    shift, certified = 0.0, True
    if length > 1:
        shift, certified = _weigh_transitions(row, space)
    logarithm, scale = (length - 1) * shift, 1.0
    for i in range(length):
        here, before = i * columns, (i - 1) * columns
        top, deepest = _weigh_lines(row, i * tags, space, space.line, 1, weights, here)
        if top == -np.inf:
            return top, True
        certified = certified and deepest > -RANGE
        logarithm += top
        if i == 0:
            for c in range(0, columns, WIDTH):
                store(prefixes, c, load(weights, c))
            continue
        combine(prefixes, before, space.transition, 0, tags, columns, prefixes, here)
        for c in range(0, columns, WIDTH):
            store(prefixes, here + c, multiply(load(prefixes, here + c), load(weights, here + c)))
        # Before they are scaled: what is below the range of normal numbers keeps few digits, however large it is made.
        if _some_lost(prefixes, here, weights, here, columns):
            for c in range(tags):
                if prefixes[here + c] < LIMIT and weights[here + c] > 0.0:
                    for p in range(tags):
                        certified = certified and not (prefixes[before + p] > 0.0 and space.transition[p * columns + c] > 0.0)
        space.scales[i] = scale_down(prefixes, here, columns)
        if space.scales[i] == 0.0:
            return -np.inf, certified
        # A logarithm takes as long as a line of tags: one for many scales.
        if not (FAR > scale > 1.0 / FAR and space.scales[i] > 1.0 / FAR):
            logarithm, scale = logarithm + math.log(scale), 1.0
        scale *= space.scales[i]
    return logarithm + math.log(scale) + math.log(add_up(prefixes, (length - 1) * columns, tags)), certified


@uncounted
def _some_lost(values, start, weights, place, columns):
    """Whether some value is below `LIMIT`, of those whose weight is above 0."""
    lowest, most = spread(np.inf), spread(np.inf)
    for c in range(0, columns, WIDTH):
        lowest = least(where_greater(load(weights, place + c), spread(0.0), load(values, start + c), most), lowest)
    return minimum(lowest) < LIMIT


@uncounted
def _backward(space):
    """Scaled suffixes, and what marginals are made of: ``after``, ``before``; gives whether they are certified."""
    length, tags, columns, prefixes, suffixes = space.length, space.tags, space.columns, space.prefixes, space.suffixes
    certified, last = True, (length - 1) * columns
    for c in range(columns):
        suffixes[last + c] = 1.0 if c < tags else 0.0
    for i in range(length - 1, -1, -1):
        here, there = i * columns, (i - 1) * columns
        partition = dot(prefixes, here, suffixes, here, columns)
        certified = certified and partition > LIMIT
        inverse = 1.0 / partition
        for c in range(0, columns, WIDTH):
            store(space.after, here + c, multiply(load(space.weights, here + c), load(suffixes, here + c)))
        if i == 0:
            break
        factor = spread(inverse / space.scales[i])
        for c in range(0, columns, WIDTH):
            store(space.before, there + c, multiply(factor, load(prefixes, there + c)))
        combine(space.after, here, space.turned, 0, tags, columns, suffixes, there)
        for p in range(tags if _some_lost(suffixes, there, prefixes, there, columns) else 0):
            if suffixes[there + p] < LIMIT:
                for c in range(tags):
                    reached = suffixes[here + c] > 0.0 and space.weights[here + c] > 0.0
                    certified = certified and not (reached and space.turned[c * columns + p] > 0.0)
        space.falls[i - 1] = scale_down(suffixes, there, columns)
    return certified


@uncounted
def _expect_tags(space, i, line, marginals):
    """The marginals of place i."""
    columns, here = space.columns, i * space.columns
    inverse = spread(1.0 / dot(space.prefixes, here, space.suffixes, here, columns))
    for c in range(0, columns, WIDTH):
        store(line, c, multiply(inverse, multiply(load(space.prefixes, here + c), load(space.suffixes, here + c))))
    _write_line(line, marginals, i, space.tags, columns)


@uncounted
def _write_line(line, results, i, tags, columns):
    """Copy a line of the tables to line i of the results."""
    if tags == columns:
        for c in range(0, columns, WIDTH):
            store(results, i * tags + c, load(line, c))
    else:
        for c in range(tags):
            results[i * tags + c] = line[c]


@uncounted
def _outer(first, second, size, columns, p, c, one, two, three, four):
    """Four lines of ``Σ_i first[i, p] · second[i, c]`` over a table's lines, from place 0 of the first and 1 of the second."""
    for i in range(size):
        at, value = i * columns + p, load(second, (i + 1) * columns + c)
        one, two = multiply_add(spread(first[at]), value, one), multiply_add(spread(first[at + 1]), value, two)
        three, four = multiply_add(spread(first[at + 2]), value, three), multiply_add(spread(first[at + 3]), value, four)
    return one, two, three, four


@uncounted
def _hand_out(space, lines, p, c, results):
    """Copy what belongs to four lines of transitions to where it is read."""
    tags = space.tags
    start = space.length * tags
    if tags == space.columns:
        for q in range(4):
            store(results, start + (p + q) * tags + c, load(lines, q * WIDTH))
        return
    for q in range(p, min(p + 4, tags)):
        for x in range(c, min(c + WIDTH, tags)):
            results[start + q * tags + x] = lines[(q - p) * WIDTH + x - c]


@uncounted
def _expect_transitions(space, marginals, lines):
    """The expected numbers of transitions."""
    columns, zero = space.columns, spread(0.0)
    for p in range(0, space.tags, 4):
        for c in range(0, columns, WIDTH):
            found = _outer(space.before, space.after, space.length - 1, columns, p, c, zero, zero, zero, zero)
            for q in range(4):
                store(lines, q * WIDTH, multiply(found[q], load(space.transition, (p + q) * columns + c)))
            _hand_out(space, lines, p, c, marginals)


@compiled
def log_partition(rows, log_partition, certified):
    """The log-partition [b] of rows."""
    space = _space(rows)
    for b in range(rows.shape[0]):
        log_partition[b], certified[b] = _forward(rows[b].reshape(-1), space)


@compiled
def marginals(rows, marginals, log_partition, certified):
    """Marginals [b, n + t, t] of rows, and their log-partition [b]."""
    space, lines = _space(rows), np.empty(4 * WIDTH)
    line = np.empty(space.columns)
    for b in range(rows.shape[0]):
        log_partition[b], certified[b] = _forward(rows[b].reshape(-1), space)
        if log_partition[b] > -np.inf and certified[b]:
            certified[b] = _backward(space)
            found = marginals[b].reshape(-1)
            for i in range(space.length):
                _expect_tags(space, i, line, found)
            if space.length > 1:
                _expect_transitions(space, found, lines)


class TiedRates(NamedTuple):
    """Working memory for rates along a direction."""

    along: Array  # [n · columns], the direction at every place
    turn: Array  # [columns · columns], that of the transitions
    changes: Array  # [columns · columns], weights of transitions times their direction
    turned: Array  # [columns · columns], the same with the next tag first
    prefixes: Array  # [n · columns]
    suffixes: Array  # [n · columns]
    after: Array  # [n · columns], the rates of `TiedSpace.after`
    before: Array  # [n · columns], those of `TiedSpace.before`
    line: Array  # [columns]


@inner
def _rates(space):
    size, square = space.length * space.columns, space.columns * space.columns
    return TiedRates(
        np.zeros(size), np.zeros(square), np.zeros(square), np.zeros(square), np.zeros(size), np.zeros(size), np.zeros(size),
        np.zeros(size), np.zeros(space.columns),
    )  # fmt: skip


@compiled
def covariance_product(rows, direction, product, certified):
    """Cov(z) · direction [b, n + t, t]: the rates of forward and backward along the direction."""
    space, lines = _space(rows), np.empty(4 * WIDTH)
    rates = _rates(space)
    for b in range(rows.shape[0]):
        logarithm, certified[b] = _forward(rows[b].reshape(-1), space)
        if logarithm > -np.inf and certified[b]:
            certified[b] = _backward(space)
            if certified[b]:
                found = product[b].reshape(-1)
                _take_direction(direction[b].reshape(-1), space, rates)
                mean = _forward_rates(space, rates)
                _backward_rates(space, rates, mean, found)
                if space.length > 1:
                    _expect_transition_rates(space, rates, found, lines)


@uncounted
def _take_direction(direction, space, rates):
    """The direction by columns; weights of transitions times theirs."""
    tags, columns = space.tags, space.columns
    for i in range(space.length):
        for c in range(tags):
            rates.along[i * columns + c] = direction[i * tags + c]
    if space.length > 1:
        for p in range(tags):
            for c in range(tags):
                rate = direction[(space.length + p) * tags + c]
                change = space.transition[p * columns + c] * rate
                rates.turn[p * columns + c], rates.changes[p * columns + c], rates.turned[c * columns + p] = rate, change, change


@uncounted
def _forward_rates(space, rates):
    """The rates of the prefixes, with their scales held fixed; gives the expected direction of a whole chain."""
    tags, columns, prefixes = space.tags, space.columns, space.prefixes
    for c in range(columns):
        rates.prefixes[c] = prefixes[c] * rates.along[c]
    for i in range(1, space.length):
        here, before = i * columns, (i - 1) * columns
        combine(rates.prefixes, before, space.transition, 0, tags, columns, rates.prefixes, here)
        combine(prefixes, before, rates.changes, 0, tags, columns, rates.line, 0)
        factor = spread(1.0 / space.scales[i])
        for c in range(0, columns, WIDTH):
            rate = multiply(multiply(factor, load(space.weights, here + c)), add(load(rates.prefixes, here + c), load(rates.line, c)))
            store(rates.prefixes, here + c, multiply_add(load(prefixes, here + c), load(rates.along, here + c), rate))
    last = (space.length - 1) * columns
    return add_up(rates.prefixes, last, tags) / add_up(prefixes, last, tags)


@uncounted
def _backward_rates(space, rates, mean, product):
    """The rates of the suffixes and of the tags: by the product rule, minus marginals times the expected direction."""
    length, tags, columns, prefixes, suffixes = space.length, space.tags, space.columns, space.prefixes, space.suffixes
    last = (length - 1) * columns
    rates.suffixes[last : last + columns] = 0.0
    for i in range(length - 1, -1, -1):
        here, there = i * columns, (i - 1) * columns
        inverse = 1.0 / dot(prefixes, here, suffixes, here, columns)
        less, over = spread(-mean), spread(inverse)
        for c in range(0, columns, WIDTH):
            prefix, suffix, rate = load(prefixes, here + c), load(suffixes, here + c), load(rates.suffixes, here + c)
            change = multiply_add(less, prefix, load(rates.prefixes, here + c))
            store(rates.line, c, multiply(over, multiply_add(change, suffix, multiply(prefix, rate))))
            store(rates.after, here + c, multiply(load(space.weights, here + c), multiply_add(load(rates.along, here + c), suffix, rate)))
        _write_line(rates.line, product, i, tags, columns)
        if i == 0:
            break
        factor = spread(inverse / space.scales[i])
        for c in range(0, columns, WIDTH):
            rate = multiply_add(less, load(prefixes, there + c), load(rates.prefixes, there + c))
            store(rates.before, there + c, multiply(factor, rate))
        scaled = spread(1.0 / space.falls[i - 1])
        combine(rates.after, here, space.turned, 0, tags, columns, rates.suffixes, there)
        combine(space.after, here, rates.turned, 0, tags, columns, rates.line, 0)
        for c in range(0, columns, WIDTH):
            store(rates.suffixes, there + c, multiply(scaled, add(load(rates.suffixes, there + c), load(rates.line, c))))


@uncounted
def _expect_transition_rates(space, rates, product, lines):
    """The rates of the expected numbers of transitions."""
    columns, size, zero = space.columns, space.length - 1, spread(0.0)
    for p in range(0, space.tags, 4):
        for c in range(0, columns, WIDTH):
            used = _outer(space.before, space.after, size, columns, p, c, zero, zero, zero, zero)
            moved = _outer(rates.before, space.after, size, columns, p, c, zero, zero, zero, zero)
            moved = _outer(space.before, rates.after, size, columns, p, c, moved[0], moved[1], moved[2], moved[3])
            for q in range(4):
                at = (p + q) * columns + c
                store(lines, q * WIDTH, multiply(load(space.transition, at), multiply_add(load(rates.turn, at), used[q], moved[q])))
            _hand_out(space, lines, p, c, product)


def sample(rows, uniforms, structures, certified):
    """Structures [b, s, n + t, t] from uniforms [b, s, n]."""
    _sample(rows, uniforms, structures, no_numbers(1), certified)


def sample_parts(rows, uniforms, numbers, certified):
    """The same samples by the numbers of their parts, [b, s, n]."""
    _sample(rows, uniforms, no_structures(rows, 1), numbers, certified)


@compiled
def _sample(rows, uniforms, structures, numbers, certified):
    """Forward filtering once, then backward sampling: into structures, or into numbers where there is room for these."""
    space = _space(rows)
    length, tags, columns = space.length, space.tags, space.columns
    tables, known, last = np.empty(length * tags * tags), np.empty(length * tags, np.bool_), np.empty(tags)
    chosen = np.empty(length, np.int64)
    for b in range(rows.shape[0]):
        logarithm, certified[b] = _forward(rows[b].reshape(-1), space)
        if logarithm > -np.inf and certified[b]:
            known[:] = False
            total = 0.0
            for tag in range(tags):
                total += space.prefixes[(length - 1) * columns + tag]
                last[tag] = total
            for s in range(uniforms.shape[1]):
                _draw(uniforms[b, s], space, last, tables, known, chosen)
                if len(numbers) > 0:
                    _number(chosen, tags, numbers[b, s])
                else:
                    _write(chosen, tags, structures[b, s].reshape(-1))


@uncounted
def _draw(uniforms, space, last, tables, known, chosen):
    """One sample, from the last tag backwards; the running sums over what leads to a tag are kept for the next."""
    length, tags, columns = space.length, space.tags, space.columns
    tag = first_above(last, 0, tags, uniforms[length - 1])
    chosen[length - 1] = tag
    for i in range(length - 1, 0, -1):
        table = (i * tags + tag) * tags
        if not known[i * tags + tag]:
            known[i * tags + tag], summed = True, 0.0
            for p in range(tags):
                summed += space.prefixes[(i - 1) * columns + p] * space.turned[tag * columns + p]
                tables[table + p] = summed
        previous = first_above(tables, table, tags, uniforms[i - 1])
        chosen[i - 1] = previous
        tag = previous


@uncounted
def _write(chosen, tags, structure):
    """The parts of a sequence of tags: its places, and how often every transition is used."""
    length = len(chosen)
    for i in range(length):
        structure[i * tags + chosen[i]] = 1
        if i > 0:
            structure[(length + chosen[i - 1]) * tags + chosen[i]] += 1


@uncounted
def _allowed(row, chosen, tags):
    """The length of the best sequence of tags; 0 where one of its parts is forbidden: then every sequence has such a part."""
    length = len(chosen)
    for i in range(length):
        if row[i * tags + chosen[i]] == -np.inf or (i > 0 and row[(length + chosen[i - 1]) * tags + chosen[i]] == -np.inf):
            return 0
    return length


@uncounted
def _number(chosen, tags, numbers):
    """The numbers of its places alone, which say the rest."""
    for i in range(len(chosen)):
        numbers[i] = 1 + i * tags + chosen[i]


def argmax(rows, structures):
    """MAP structures [b, n + t, t] of rows."""
    _argmax(rows, structures, no_numbers())


def argmax_parts(rows, numbers):
    """The same structures by the numbers of their parts, [b, n]."""
    _argmax(rows, no_structures(rows), numbers)


@compiled
def _argmax(rows, structures, numbers):
    """Viterbi: into structures, or into numbers where there is room for these."""
    tags = rows.shape[2]
    length, columns = rows.shape[1] - tags, (tags + WIDTH - 1) // WIDTH * WIDTH
    transition, best = np.full(columns * columns, -np.inf), np.full(length * columns, -np.inf)
    reached, chosen = np.empty(length * columns), np.empty(length, np.int64)
    for b in range(rows.shape[0]):
        _viterbi(rows[b].reshape(-1), tags, transition, best, reached, chosen)
        if len(numbers) > 0:
            _number(chosen[: _allowed(rows[b].reshape(-1), chosen, tags)], tags, numbers[b])
        else:
            _write(chosen[: _allowed(rows[b].reshape(-1), chosen, tags)], tags, structures[b].reshape(-1))


@uncounted
def _viterbi(row, tags, transition, best, reached, chosen):
    """The best tags of a row [(n + t) · t].

    Working memory are the transitions, and the sums up to a tag with and without the score of its place; beyond the tags they are -inf.
    Back-pointers are not stored: the way back looks for the lowest previous tag that gives the same sum.
    """
    length, columns = len(chosen), len(best) // len(chosen)
    for p in range(tags):
        for c in range(tags):
            transition[p * columns + c] = row[(length + p) * tags + c]
    for c in range(tags):
        best[c] = row[c]
    for i in range(1, length):
        _reach(transition, best, reached, i, tags, columns)
        for c in range(tags):
            best[i * columns + c] = reached[i * columns + c] + row[i * tags + c]
    tag, last = 0, (length - 1) * columns
    for c in range(1, tags):
        if best[last + c] > best[last + tag]:
            tag = c
    chosen[length - 1] = tag
    for i in range(length - 1, 0, -1):
        previous, before, wanted = 0, (i - 1) * columns, reached[i * columns + tag]
        while previous < tags - 1 and best[before + previous] + transition[previous * columns + tag] != wanted:
            previous += 1
        chosen[i - 1] = previous
        tag = previous


@uncounted
def _reach(transition, best, reached, i, tags, columns):
    """The best sums up to every tag of place i, before its own score: four vectors at once, of which the last ones may be the same."""
    last, before, here = columns - WIDTH, (i - 1) * columns, i * columns
    for c in range(0, columns, 4 * WIDTH):
        d, e, f = min(c + WIDTH, last), min(c + 2 * WIDTH, last), min(c + 3 * WIDTH, last)
        one = two = three = four = spread(-np.inf)
        for p in range(tags):
            prefix, at = spread(best[before + p]), p * columns
            one, two = greatest(add(prefix, load(transition, at + c)), one), greatest(add(prefix, load(transition, at + d)), two)
            three, four = greatest(add(prefix, load(transition, at + e)), three), greatest(add(prefix, load(transition, at + f)), four)
        store(reached, here + c, one)
        store(reached, here + d, two)
        store(reached, here + e, three)
        store(reached, here + f, four)
