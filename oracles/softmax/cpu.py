"""One of n along the last dimension, in compiled steps: its greatest, its softmax, the normaliser of that, and draws.

Lines of scores are weighed a few thousand numbers at a time, all exponentials of which are one loop over vectors, however short a line is:
``exp(θ − top)``, whose sum lies between 1 and n. An item of several lines has the product of their sums; it has no structure where a line
is -inf alone.
"""

import math

import numpy as np

from ..kernels.compilation import compiled, inner, reordered, uncounted
from ..kernels.exponential import exponentials
from ..kernels.parts import dense_and_parts
from ..kernels.vectors import WIDTH, greatest, load, maximum

TOGETHER = 4096
"""Numbers that are weighed together: they stay in the nearest cache."""

LARGE = 1e200
"""A product of sums from which on its logarithm is taken."""


def operations(event: tuple[int, ...]) -> int:
    """Inner-loop steps of one log-partition, roughly: a part takes a third of a nanosecond."""
    return math.prod(event)


@compiled
def argmax(rows: np.ndarray, structures: np.ndarray) -> None:
    """A one among zeros in each line, at the first of its greatest; none where an item has a line of -inf."""
    lines, ones = _lines(rows), _lines(structures)
    each = len(lines) // max(1, len(rows))
    structures[:] = 0
    for item in range(len(rows)):
        for k in range(item * each, (item + 1) * each):
            best = _top(lines[k])
            if best == -math.inf:
                structures[item] = 0
                break
            ones[k, _first_place(lines[k], best)] = 1


@compiled
def kbest_parts(rows: np.ndarray, numbers: np.ndarray) -> None:
    """1 + the places of the k largest of rows [b, n], the first of equal ones first, [b, k, 1]; none of -inf, where 0 stays."""
    work = np.empty(numbers.shape[1])  # the k largest so far: insertion beats a heap while k is small
    for item in range(len(rows)):
        row, listed = rows[item], numbers[item]
        work[:] = -math.inf
        for part in range(len(row)):
            if row[part] > work[-1]:
                place = len(work) - 1
                while place > 0 and work[place - 1] < row[part]:
                    work[place], listed[place, 0] = work[place - 1], listed[place - 1, 0]
                    place -= 1
                work[place], listed[place, 0] = row[part], 1 + part


@compiled
def log_partition(rows: np.ndarray, log_partition: np.ndarray, certified: np.ndarray) -> None:
    """``Σ_i log Σ_j exp θ_ij`` of each row."""
    certified[:] = True
    _weigh(rows, rows[:0], log_partition)


@compiled
def marginals(rows: np.ndarray, marginals: np.ndarray, log_partition: np.ndarray, certified: np.ndarray) -> None:
    """``exp θ_ij / Σ_k exp θ_ik``, 0 in a row without a structure, and the log-partition of each row."""
    certified[:] = True
    _weigh(rows, marginals, log_partition)
    for item in range(len(rows)):
        if log_partition[item] == -math.inf:
            marginals[item] = 0


@inner
def _lines(values: np.ndarray) -> np.ndarray:
    """Values [..., n] as [lines, n]; nothing of nothing."""
    return values.reshape(-1, max(1, values.shape[-1]))


@inner
def _weigh(rows: np.ndarray, marginals: np.ndarray, log_partition: np.ndarray) -> None:
    """Write log-partitions, and marginals where there is room for them.

    Of the many sums of an item the logarithm of their product is taken.
    """
    lines, chances = _lines(rows), _lines(marginals)
    size, each = lines.shape[1], len(lines) // max(1, len(rows))
    together = max(1, TOGETHER // size)  # short lines share one call of the vectorised exponential
    room, tops = np.empty(min(together, len(lines)) * size), np.empty(together)
    item, inside, logarithm, product = 0, 0, 0.0, 1.0
    for first in range(0, len(lines), together):
        many = lines[first : first + together]
        weights = room[: many.size]
        _lower(many, weights, tops)
        exponentials(weights, weights)
        for k in range(len(many)):
            total = _total(weights[k * size : (k + 1) * size])
            for i in range(size if len(chances) > 0 else 0):
                chances[first + k, i] = weights[k * size + i] / total
            inside += 1
            logarithm += tops[k]
            product *= total
            # A logarithm costs as much as many products: one is taken before the product leaves the range of a float64.
            if product > LARGE or inside == each:
                logarithm, product = logarithm + (math.log(product) if product > 0 else -math.inf), 1.0
            if inside == each:
                log_partition[item] = logarithm
                item, inside, logarithm = item + 1, 0, 0.0
    if each == 0:
        log_partition[:] = 0


@uncounted
def _lower(lines: np.ndarray, weights: np.ndarray, tops: np.ndarray) -> None:
    """Write ``θ − top`` of lines, and their tops."""
    size = lines.shape[1]
    for k in range(len(lines)):
        line, lowered = lines[k], weights[k * size : (k + 1) * size]
        tops[k] = _top(line)
        # Of -inf alone nothing is taken off: the difference would be NaN.
        shift = tops[k] if tops[k] > -math.inf else 0.0
        for i in range(size):
            lowered[i] = line[i] - shift


@reordered
def _total(weights: np.ndarray) -> float:
    total = 0.0
    for i in range(len(weights)):
        total += weights[i]
    return total


@compiled
def _sample(rows: np.ndarray, uniforms: np.ndarray, structures: np.ndarray, numbers: np.ndarray, certified: np.ndarray) -> None:
    """Sample a part of each line by inverting its distribution function at uniforms [b, s, lines].

    A one among zeros in structures, or a part in numbers [b, s, lines].
    """
    certified[:] = True
    size, lines, draws = rows.shape[-1], uniforms.shape[2], uniforms.shape[1]
    sums, tops, shares, places = np.empty(lines * size), np.empty(lines), np.empty(draws), np.empty((lines, draws), np.int64)
    dense = structures.reshape(-1, max(1, lines * size))
    for item in range(len(rows) if size else 0):
        _lower(_lines(rows[item]), sums, tops)
        if not tops.min() > -math.inf:  # no structure, or NaN
            continue
        exponentials(sums, sums)
        for line in range(lines):
            for i in range(line * size + 1, (line + 1) * size):
                sums[i] += sums[i - 1]
            for draw in range(draws):
                shares[draw] = uniforms[item, draw, line]
            _search(sums[line * size : (line + 1) * size], shares, places[line])
        for draw in range(draws):
            for line in range(lines):
                part = line * size + places[line, draw]
                if len(numbers) > 0:
                    numbers[item, draw, line] = 1 + part
                else:
                    dense[item * draws + draw, part] = 1


sample, sample_parts = dense_and_parts(_sample, draws=1)


@uncounted
def _search(sums: np.ndarray, shares: np.ndarray, places: np.ndarray) -> None:
    """The first place whose sum exceeds each share of the whole. All halve what is left together, without a branch."""
    places[:] = 0
    whole, left = sums[-1], len(sums)
    while left > 1:
        half = left // 2
        for draw in range(len(places)):
            places[draw] += half * (sums[np.uint64(places[draw] + half - 1)] <= shares[draw] * whole)
        left -= half


@uncounted
def _top(row: np.ndarray) -> float:
    """The greatest of a row without NaN; of one with NaN, anything. The compiler takes numbers one by one, vectors a tenth of the time."""
    size = row.size
    if size >= WIDTH:
        tops = load(row, size - WIDTH)
        for i in range(0, size - WIDTH, WIDTH):
            tops = greatest(load(row, i), tops)
        return float(maximum(tops))
    best = float(row[0])
    for i in range(size):
        best = max(best, float(row[i]))
    return best


@uncounted
def _first_place(row: np.ndarray, number: float) -> int:
    """The first place of a number in a row, the last place if it is absent. Without a branch, because it would be hard to predict."""
    last = np.int32(row.size - 1)
    place = last
    for i in range(row.size):
        place = min(place, np.int32(i) if row[i] == number else last)
    return int(place)
