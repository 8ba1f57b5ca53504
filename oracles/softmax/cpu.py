"""One of n along the last dimension, in compiled steps: its greatest, and the normaliser of a softmax.

Lines of scores are weighed a few thousand numbers at a time, all exponentials of which are one loop over vectors, however short a line is:
``exp(θ − top)``, whose sum lies between 1 and n. An item of several lines has the product of their sums; it has no structure where a line
is -inf alone.
"""

from __future__ import annotations

import math

import numpy as np

from ..kernels.bounds import all_below
from ..kernels.compilation import compiled, inner, reordered, uncounted
from ..kernels.exponential import exponential, exponential_single
from ..kernels.selection import first_place, top
from ..kernels.vectors import WIDTH, high_half, load, load_singles, low_half, store

TOGETHER = 4096
"""Numbers that are weighed together: they stay in the nearest cache."""

LARGE = 1e200
"""A product of sums from which on its logarithm is taken."""


def operations(event: tuple[int, ...]) -> int:
    """Inner-loop steps of one log-partition, roughly: a part takes a third of a nanosecond."""
    return math.prod(event)


COMPLETE = frozenset({"argmax", "argmax_indices", "log_partition"})
"""What gives whether all numbers are below +inf, and none is NaN, and writes every entry of its results."""


@compiled
def argmax(rows: np.ndarray, structures: np.ndarray) -> bool:
    """A one among zeros in each line, at the first of its greatest."""
    lines = _lines(rows)
    places = np.empty(len(lines), np.int64)
    below = _find(lines, places)
    structures[:] = 0
    _mark(places, _lines(structures))
    return bool(below)


@compiled
def argmax_indices(rows: np.ndarray, places: np.ndarray) -> bool:
    """The same places as numbers [b, ...]."""
    return bool(_find(_lines(rows), places.reshape(-1)))


@compiled
def log_partition(rows: np.ndarray, log_partition: np.ndarray) -> bool:
    """``Σ_i log Σ_j exp θ_ij`` of each row."""
    lines, together = _lines(rows), _together(rows)
    room, tops, totals, below = _room(rows), np.empty(len(lines)), np.empty(len(lines)), True
    for first in range(0, len(lines), together):
        below &= _lower(lines[first : first + together], room, tops[first : first + together])
        _exponentials(room, lines[first : first + together].size)
        _add_up(room, lines.shape[1], totals[first : first + together])
    each = len(lines) // max(1, len(rows))
    for item in range(len(rows)):
        log_partition[item] = _logarithm(tops[item * each : (item + 1) * each], totals[item * each : (item + 1) * each])
    return below


@compiled
def are_numbers(probabilities: np.ndarray) -> bool:
    """Whether no line of a softmax [lines, n] is NaN: then its first number is."""
    some = True
    for line in range(len(probabilities)):
        some &= probabilities[line, 0] >= 0
    return some


@inner
def _lines(values: np.ndarray) -> np.ndarray:
    """Values [..., n] as [lines, n]; nothing of nothing."""
    return values.reshape(-1, max(1, values.shape[-1]))


@uncounted
def _together(rows: np.ndarray) -> int:
    """How many lines are weighed together."""
    return max(1, TOGETHER // rows.shape[-1])


@inner
def _room(rows: np.ndarray) -> np.ndarray:
    """Zeros for the lines that are weighed together, in whole vectors."""
    numbers = min(rows.size, _together(rows) * rows.shape[-1])
    return np.zeros(numbers + 2 * WIDTH, rows.dtype)


@uncounted
def _find(lines: np.ndarray, places: np.ndarray) -> bool:
    """Write where the greatest of each line stands first; whether all is below +inf, and none is NaN."""
    below = True
    for k in range(len(lines)):
        places[k] = first_place(lines[k], top(lines[k]))
        below &= all_below(lines[k])
    return below


@uncounted
def _mark(places: np.ndarray, structures: np.ndarray) -> None:
    for k in range(len(places)):
        structures[k, places[k]] = 1


@uncounted
def _lower(lines: np.ndarray, room: np.ndarray, tops: np.ndarray) -> bool:
    """Write ``θ − top`` of lines, and their tops; whether all is below +inf, and none is NaN."""
    size, below = lines.shape[1], True
    for k in range(len(lines)):
        line, weights = lines[k], room[k * size : (k + 1) * size]
        tops[k] = top(line)
        shift = weights.dtype.type(tops[k] if tops[k] > -math.inf else 0.0)
        for i in range(size):
            weights[i] = line[i] - shift
        below &= all_below(line)
    return below


@uncounted
def _exponentials(room: np.ndarray, count: int) -> None:
    """``exp`` of the first numbers of the room, which are up to 0, and of what fills the last vector."""
    if room.itemsize == 4:
        for i in range(0, count, 2 * WIDTH):
            weight = exponential_single(load_singles(room, i))
            store(room, i, low_half(weight))
            store(room, i + WIDTH, high_half(weight))
    else:
        for i in range(0, count, WIDTH):
            store(room, i, exponential(load(room, i)))


@reordered
def _add_up(room: np.ndarray, size: int, totals: np.ndarray) -> None:
    """The sums of the weights of lines."""
    for k in range(len(totals)):
        weights, total = room[k * size : (k + 1) * size], room.dtype.type(0)
        for i in range(size):
            total += weights[i]
        totals[k] = total


@uncounted
def _logarithm(tops: np.ndarray, totals: np.ndarray) -> float:
    """The log-partition of an item; -inf where a line is -inf alone. Of many sums, the logarithm of their product."""
    logarithm, product = 0.0, 1.0
    for k in range(len(tops)):
        if tops[k] == -math.inf:
            return -math.inf
        logarithm += tops[k]
        product *= totals[k]
        if product > LARGE:
            logarithm, product = logarithm + math.log(product), 1.0
    return logarithm + math.log(product)
