"""Kernels of the linear chain: rows [b, n, t, t], of which ``[0, 1:]`` is never read.

The exponential domain: the weights of a step are scaled by their maximum, and so are prefixes and suffixes, so that a chain of any length
fits. A row is certified where every tag that can be reached keeps a weight above `LIMIT`: what underflows is then too small to matter,
and a 0 is a tag that cannot be reached.

Tables hold the tags in ``columns``, a multiple of `WIDTH`, the last of them 0; all are flat, since views of rows take longer than the work.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.compilation import compiled, inner, uncounted
from ..kernels.exponential import RANGE, exponentials
from ..kernels.parts import allowed, mark, no_numbers, no_structures, number
from ..kernels.vectors import WIDTH, add, greatest, load, multiply, multiply_add, spread, store, total
from .cpu_steps import add_up, combine, dot, scale_down, weigh

Array = NDArray[Any]

LIMIT = 1e-290


def operations(event: tuple[int, ...]) -> int:
    """Steps of the inner loops per row."""
    return 2 * event[0] * event[1] * event[2]


class ChainSpace(NamedTuple):
    """Working memory for one row."""

    length: int
    tags: int
    columns: int
    step: Array  # [t · columns], one step's scores or results where the tags do not fill the columns; -inf in the rest
    weights: Array  # [n · t · columns], of all steps, divided by the greatest of the step
    scales: Array  # [n], what the prefixes of a step were divided by
    prefixes: Array  # [n · columns]
    suffixes: Array  # [2 · columns], in rotation


@inner
def _space(rows):
    length, tags = rows.shape[1], rows.shape[2]
    columns = (tags + WIDTH - 1) // WIDTH * WIDTH
    return ChainSpace(
        length, tags, columns, np.full(tags * columns, -np.inf, rows.dtype), np.zeros(length * tags * columns), np.empty(length),
        np.zeros(length * columns), np.zeros(2 * columns),
    )  # fmt: skip


@uncounted
def _weigh_step(row, i, space):
    """Weights of a step, see `weigh`."""
    tags, columns = space.tags, space.columns
    size = tags * columns
    if tags == columns:
        return weigh(row, i * size, space.weights, i * size, size)
    for p in range(tags):
        for c in range(tags):
            space.step[p * columns + c] = row[(i * tags + p) * tags + c]
    return weigh(space.step, 0, space.weights, i * size, size)


@uncounted
def _forward(row, space):
    """Scaled prefixes and weights of a row [n · t · t]; gives the log-partition and whether it is certified."""
    tags, columns, prefixes = space.tags, space.columns, space.prefixes
    certified, shift = True, -np.inf
    for c in range(tags):
        shift = max(shift, row[c])
    if shift == -np.inf:
        return shift, True
    for c in range(tags):
        prefixes[c] = row[c] - shift
        certified = certified and (prefixes[c] > -RANGE or prefixes[c] == -np.inf)
    exponentials(prefixes[:tags], 0.0, prefixes[:tags])
    logarithm = shift
    for i in range(1, space.length):
        place, here = i * tags * columns, i * columns
        top, deepest = _weigh_step(row, i, space)
        if top == -np.inf:
            return top, certified
        combine(prefixes, here - columns, space.weights, place, tags, columns, prefixes, here)
        certified = certified and deepest > -RANGE
        # Before they are scaled: what is below the range of normal numbers keeps few digits, however large it is made.
        for c in range(tags):
            if prefixes[here + c] < LIMIT:
                for p in range(tags):
                    certified = certified and not (prefixes[here - columns + p] > 0.0 and space.weights[place + p * columns + c] > 0.0)
        space.scales[i] = scale_down(prefixes, here, columns)
        if space.scales[i] == 0.0:
            return -np.inf, certified
        logarithm += top + math.log(space.scales[i])
    return logarithm + math.log(add_up(prefixes, (space.length - 1) * columns, tags)), certified


@uncounted
def _retreat(i, space):
    """Scaled suffixes of step i − 1 from those of step i; gives what they were divided by, and whether no reachable tag was lost."""
    tags, columns, suffixes = space.tags, space.columns, space.suffixes
    here, before, place = i % 2 * columns, (i - 1) % 2 * columns, i * tags * columns
    for p in range(tags):
        summed = spread(0.0)
        for c in range(0, columns, WIDTH):
            summed = multiply_add(load(space.weights, place + p * columns + c), load(suffixes, here + c), summed)
        suffixes[before + p] = total(summed)
    kept = True
    for p in range(tags):
        if suffixes[before + p] < LIMIT:
            for c in range(tags):
                kept = kept and not (suffixes[here + c] > 0.0 and space.weights[place + p * columns + c] > 0.0)
    return scale_down(suffixes, before, columns), kept


@uncounted
def _start_suffixes(space):
    last = (space.length - 1) % 2 * space.columns
    for c in range(space.columns):
        space.suffixes[last + c] = 1.0 if c < space.tags else 0.0


@uncounted
def _hand_out(i, space, results):
    """Copy a step's results to where they belong, and leave the step as it was found."""
    tags = space.tags
    for p in range(tags):
        for c in range(tags):
            results[(i * tags + p) * tags + c] = space.step[p * space.columns + c]
    space.step[:] = -np.inf


@compiled
def log_partition(rows, log_partition, certified):
    """The log-partition [b] of rows."""
    space = _space(rows)
    for b in range(rows.shape[0]):
        log_partition[b], certified[b] = _forward(rows[b].reshape(-1), space)


@compiled
def marginals(rows, marginals, log_partition, certified):
    """Marginals [b, n, t, t] of rows, and their log-partition [b]."""
    space = _space(rows)
    for b in range(rows.shape[0]):
        log_partition[b], certified[b] = _forward(rows[b].reshape(-1), space)
        if log_partition[b] > -np.inf and certified[b]:
            certified[b] = _backward(space, marginals[b].reshape(-1))


@uncounted
def _backward(space, marginals):
    """Marginals of a row from its prefixes and weights; gives whether they are certified."""
    tags, columns, prefixes, suffixes = space.tags, space.columns, space.prefixes, space.suffixes
    _start_suffixes(space)
    certified, size = True, tags * columns
    for i in range(space.length - 1, 0, -1):
        scale, kept = _retreat(i, space)
        partition = scale * dot(prefixes, (i - 1) * columns, suffixes, (i - 1) % 2 * columns, columns)
        certified = certified and kept and partition > LIMIT
        if tags == columns:
            _expect(i, partition, space, marginals, i * size)
        else:
            _expect(i, partition, space, space.step, 0)
            _hand_out(i, space, marginals)
    partition = dot(prefixes, 0, suffixes, 0, columns)
    for c in range(tags):
        marginals[c] = prefixes[c] * suffixes[c] / partition
    return certified and partition > LIMIT


@uncounted
def _expect(i, partition, space, out, start):
    """The marginals of step i."""
    columns, place, here = space.columns, i * space.tags * space.columns, i % 2 * space.columns
    for p in range(space.tags):
        factor = spread(space.prefixes[(i - 1) * columns + p] / partition)
        for c in range(0, columns, WIDTH):
            weight = multiply(load(space.weights, place + p * columns + c), load(space.suffixes, here + c))
            store(out, start + p * columns + c, multiply(factor, weight))


def argmax(rows, structures):
    """MAP structures [b, n, t, t] of rows."""
    _argmax(rows, structures, no_numbers())


def argmax_parts(rows, numbers):
    """The same structures by the numbers of their parts, [b, n]."""
    _argmax(rows, no_structures(rows), numbers)


@compiled
def _argmax(rows, structures, numbers):
    length, tags = rows.shape[1], rows.shape[2]
    best, parts = np.empty(length * tags), np.empty(length, np.int32)
    for b in range(rows.shape[0]):
        count = allowed(rows[b].reshape(-1), parts, best_parts(rows[b].reshape(-1), best, parts, length, tags))
        if len(numbers) > 0:
            number(parts, count, numbers[b])
        else:
            mark(parts, count, structures[b].reshape(length * tags * tags))


@uncounted
def best_parts(row, best, parts, length, tags):
    """Viterbi: the n part indices of the best structure of a row [n · t · t], with best [n · t] as working memory; gives n.

    Back-pointers are not stored: the way back looks for the lowest previous tag that gives the same sum.
    """
    for c in range(tags):
        best[c] = row[c]
    for i in range(1, length):
        if tags < WIDTH:
            _reach_few(row, best, i, tags)
        else:
            _reach(row, best, i, tags)
    tag, last = 0, (length - 1) * tags
    for c in range(1, tags):
        if best[last + c] > best[last + tag]:
            tag = c
    for i in range(length - 1, 0, -1):
        previous, here, before = 0, i * tags, (i - 1) * tags
        while previous < tags - 1 and best[before + previous] + row[(here + previous) * tags + tag] != best[here + tag]:
            previous += 1
        parts[i] = (here + previous) * tags + tag
        tag = previous
    parts[0] = tag
    return length


@uncounted
def _reach(row, best, i, tags):
    """The best sums up to every tag of step i: so many vectors at once as are left, up to four, of which the last one may overlap."""
    last, before, here, first = tags - WIDTH, (i - 1) * tags, i * tags, 0
    while first + 2 * WIDTH < tags:
        c, d, e, f = first, first + WIDTH, min(first + 2 * WIDTH, last), min(first + 3 * WIDTH, last)
        one = two = three = four = spread(-np.inf)
        for p in range(tags):
            prefix, at = spread(best[before + p]), (here + p) * tags
            one, two = greatest(add(prefix, load(row, at + c)), one), greatest(add(prefix, load(row, at + d)), two)
            three, four = greatest(add(prefix, load(row, at + e)), three), greatest(add(prefix, load(row, at + f)), four)
        store(best, here + c, one)
        store(best, here + d, two)
        store(best, here + e, three)
        store(best, here + f, four)
        first += 4 * WIDTH
    if first + WIDTH < tags:
        c, d = first, min(first + WIDTH, last)
        one = two = spread(-np.inf)
        for p in range(tags):
            prefix, at = spread(best[before + p]), (here + p) * tags
            one, two = greatest(add(prefix, load(row, at + c)), one), greatest(add(prefix, load(row, at + d)), two)
        store(best, here + c, one)
        store(best, here + d, two)
    elif first < tags:
        c, one = min(first, last), spread(-np.inf)
        for p in range(tags):
            one = greatest(add(spread(best[before + p]), load(row, (here + p) * tags + c)), one)
        store(best, here + c, one)


@uncounted
def _reach_few(row, best, i, tags):
    """The same for tags that do not fill a vector."""
    before, here = (i - 1) * tags, i * tags
    for c in range(tags):
        best[here + c] = -np.inf
    for p in range(tags):
        for c in range(tags):
            total_score = best[before + p] + row[(here + p) * tags + c]
            best[here + c] = total_score if total_score > best[here + c] else best[here + c]
