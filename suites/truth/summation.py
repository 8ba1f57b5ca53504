"""Sums over chunks in compiled steps: what `CoMoments.of` computes, without a tensor of deviations in float64, and `merge`."""

from __future__ import annotations

import math

import numpy as np

from ...oracles.kernels.compilation import compiled, inner, reordered, uncounted
from ...oracles.kernels.vectors import add, load_four, load_word, store_four, store_word

TOP, WEIGHT, SUPPORT, SCORE, LOSS, REST, SQUARE, WEIGHT_ERROR, LOSS_ERROR = range(9)
"""Places in ``scalars``; named as the attributes of `structgrad.suites.truth.comoments.CoMoments`."""

FLIPS, COMOMENT, FLIPS_ERROR, COMOMENT_ERROR = range(4)
"""Rows of ``vectors``."""

SIDE = 4
"""Structures that are added side by side."""

TOGETHER = 4 * SIDE
"""Structures whose sums are read and written together: a divisor of the terms of a block."""

_TINY = float(np.finfo(np.float64).tiny)


@compiled  # type: ignore[untyped-decorator]
def sum_chunk(  # noqa: PLR0913, PLR0917 - arrays cannot be bundled without a cost
    structures: np.ndarray,
    losses: np.ndarray,
    pivot: np.ndarray,
    places: np.ndarray,
    columns: np.ndarray,
    scalars: np.ndarray,
    vectors: np.ndarray,
    block: int,
    limit: float,
) -> None:
    """Fill scalars [9] and vectors [4, p], where p parts of a structure are read.

    Args:
        structures: uint8 [c, parts].
        losses: [c].
        pivot: uint8 [p].
        places: int64 [p], where the parts lie that are read.
        columns: [2, p], what a deviation adds to the score, and to the sizes of its terms.
        scalars: the results that have no parts.
        vectors: the others.
        block: deviations that are summed one after the other.
        limit: the least size of terms that forbids a structure.
    """
    number, parts = len(structures), len(places)
    # Rows of `sides`: what a structure adds to each of the vectors; 0 beyond the last one.
    scores, sides = np.empty(number), np.zeros((-(-number // TOGETHER) * TOGETHER, 4))
    masks, rows, opposite = np.zeros((len(sides) // SIDE, parts), np.uint8), np.zeros((SIDE, parts), np.uint8), np.empty(parts, np.uint8)
    for part in range(parts):
        opposite[part] = 15 * pivot[part]
    top, support, whole = -math.inf, 0, parts == structures.shape[1]
    for first in range(0, number, SIDE):
        sharing = min(SIDE, number - first)
        if not whole or sharing < SIDE:
            for side in range(sharing):
                _read(structures[first + side], places, rows[side])
        four = structures[first : first + SIDE] if whole and sharing == SIDE else rows
        for side in range(sharing):
            scores[first + side], size, terms = _deviation(four[side], pivot, columns[0], columns[1])
            sides[first + side, 2] = (terms + 5.0) * (size + 4.0)
            if size >= limit:
                scores[first + side] = -math.inf
            else:
                support += 1
                top = max(top, scores[first + side])
        _mask(four, opposite, masks[first // SIDE])
    scalars[TOP], scalars[SUPPORT] = top, support
    _weigh(scores, losses, sides, scalars, min(number, block) + -(-number // block) + 3)
    vectors[:] = 0.0
    _add(masks, sides, vectors, block)
    scale = max(scalars[WEIGHT], _TINY)
    rest = scalars[REST] * scale
    for part in range(len(pivot)):
        mean = vectors[FLIPS, part] / scale
        vectors[FLIPS, part] = mean
        vectors[COMOMENT, part] -= rest * mean
        vectors[FLIPS_ERROR, part] = (vectors[FLIPS_ERROR, part] + scalars[WEIGHT_ERROR] * mean) / scale
        vectors[COMOMENT_ERROR, part] += scalars[LOSS_ERROR] * scale * mean


@uncounted
def _read(structure, places, row):  # type: ignore[no-untyped-def]
    """The parts that are read."""
    for part in range(len(places)):
        row[part] = structure[places[part]]


@uncounted
def _mask(four, opposite, mask):  # type: ignore[no-untyped-def]
    """Which of four structures differ from the pivot in a part, as the bits of a number; ``opposite`` is 15 where the pivot has it."""
    parts = len(mask)
    whole = parts // 8 * 8
    # Word by word: the compiler would take so many bytes at a time that most of a structure was left, to be taken one by one.
    for part in range(0, whole, 8):
        low = load_word(four, part) | (load_word(four, parts + part) << 1)
        high = (load_word(four, 2 * parts + part) << 2) | (load_word(four, 3 * parts + part) << 3)
        store_word(mask, part, (low | high) ^ load_word(opposite, part))
    for part in range(whole, parts):
        mask[part] = (four[0, part] | (four[1, part] << 1) | (four[2, part] << 2) | (four[3, part] << 3)) ^ opposite[part]


@reordered
def _deviation(structure, pivot, terms, sizes):  # type: ignore[no-untyped-def]
    """The score of a structure relative to the pivot, the size of its terms, and their number."""
    score, size, number = 0.0, 0.0, 0.0
    for part in range(len(pivot)):
        flip = np.float64(np.int32(structure[part] ^ pivot[part]))
        score += flip * terms[part]
        size += flip * sizes[part]
        number += flip
    return score, size, number


@inner
def _weigh(scores, losses, sides, scalars, terms):  # type: ignore[no-untyped-def]
    """Turn the bounds in column 2 of ``sides`` to weights, weighted errors of the loss, and the bounds on both; sum what has no parts."""
    top, number = scalars[TOP], len(scores)
    weight, total, score = 0.0, 0.0, 0.0
    for c in range(number):
        sides[c, 0] = math.exp(scores[c] - top) if scores[c] > -math.inf else 0.0
        if sides[c, 0] > 0.0:
            weight += sides[c, 0]
            total += sides[c, 0] * losses[c]
            score += sides[c, 0] * scores[c]
    scale = max(weight, _TINY)
    loss = total / scale
    rest, square, weight_error, loss_error = 0.0, 0.0, 0.0, 0.0
    for c in range(number):
        error = losses[c] - loss if sides[c, 0] > 0.0 else 0.0
        sides[c, 1] = sides[c, 0] * error
        sides[c, 2] = sides[c, 0] * (sides[c, 2] + terms)
        sides[c, 3] = sides[c, 2] * abs(error)
        rest += sides[c, 1]
        square += sides[c, 1] * error
        weight_error += sides[c, 2]
        loss_error += sides[c, 3]
    scalars[WEIGHT], scalars[SCORE], scalars[LOSS], scalars[REST] = weight, score / scale, loss, rest / scale
    scalars[SQUARE], scalars[WEIGHT_ERROR], scalars[LOSS_ERROR] = square - rest * rest / scale, weight_error, loss_error / scale


@inner
def _add(masks, sides, vectors, block):  # type: ignore[no-untyped-def]
    """Add the deviations, weighted by the rows of ``sides``, block by block.

    What four structures add to a part depends on its mask alone: it is one of 16 sums.
    """
    number, parts = len(sides), masks.shape[1]
    sums, tables = np.zeros((parts, 4)), np.zeros((TOGETHER // SIDE, 1 << SIDE, 4))
    for start in range(0, number, block):
        sums[:] = 0.0
        for first in range(start, min(start + block, number), TOGETHER):
            for group in range(TOGETHER // SIDE):
                _tabulate(sides[first + SIDE * group : first + SIDE * (group + 1)], tables[group])
            _add_masked(masks[first // SIDE : (first + TOGETHER) // SIDE], tables, sums)
        for part in range(parts):
            for k in range(4):
                vectors[k, part] += sums[part, k]


@uncounted
def _tabulate(sides, table):  # type: ignore[no-untyped-def]
    """[16, 4]: the sum of those of four rows that a mask names, the first two and the last two first; its row 0 is 0 already."""
    first, second, third, fourth = load_four(sides, 0), load_four(sides, 4), load_four(sides, 8), load_four(sides, 12)
    zero = load_four(table, 0)
    for low in range(4):
        one = zero if low == 0 else first if low == 1 else second if low == 2 else add(first, second)
        for high in range(4):
            other = zero if high == 0 else third if high == 1 else fourth if high == 2 else add(third, fourth)
            store_four(table, 4 * (4 * high + low), add(one, other))


@uncounted
def _add_masked(masks, tables, sums):  # type: ignore[no-untyped-def]
    """Four groups one after the other, so that sums are read and written once."""
    size = 4 << SIDE
    for part in range(masks.shape[1]):
        total = load_four(sums, 4 * part)
        for group in range(TOGETHER // SIDE):
            total = add(total, load_four(tables, size * group + 4 * masks[group, part]))
        store_four(sums, 4 * part, total)


@compiled  # type: ignore[untyped-decorator]
def level_distances(tops: np.ndarray, distances: np.ndarray) -> None:
    """By how much the greatest score of a pair exceeds each of the two, for all pairs of `merge_levels` in their order.

    Args:
        tops: [n], of the parts; overwritten.
        distances: the result [n − 1, 2].
    """
    number, done = len(tops), 0
    while number > 1:
        pairs = number // 2
        for pair in range(pairs):
            first, second = tops[2 * pair], tops[2 * pair + 1]
            top = max(first, second)
            distances[done + pair, 0] = top - first if first > -math.inf else 0.0
            distances[done + pair, 1] = top - second if second > -math.inf else 0.0
            tops[pair] = top
        if number % 2:
            tops[pairs] = tops[number - 1]
        done, number = done + pairs, number - pairs


@compiled  # type: ignore[untyped-decorator]
def merge_levels(scalars: np.ndarray, vectors: np.ndarray, distances: np.ndarray, factors: np.ndarray) -> None:
    """Merge neighbours, then their neighbours, and so on, into the first part: what `CoMoments.merged` computes, in its order.

    Args:
        scalars: [n, 9], as `sum_chunk` gives them; overwritten.
        vectors: [n, 4, p], likewise.
        distances: [n − 1, 2], see `level_distances`.
        factors: [n − 1, 2], exp(−distance).
    """
    number, done = len(scalars), 0
    while number > 1:
        pairs = number // 2
        for pair in range(pairs):
            for side in range(2):
                _lower(scalars[2 * pair + side], vectors[2 * pair + side], distances[done + pair, side], factors[done + pair, side])
            _merge(scalars[2 * pair], scalars[2 * pair + 1], vectors[2 * pair], vectors[2 * pair + 1], scalars[pair], vectors[pair])
        if number % 2:
            _copy(scalars[number - 1], vectors[number - 1].reshape(-1), scalars[pairs], vectors[pairs].reshape(-1))
        done, number = done + pairs, number - pairs


@uncounted
def _copy(scalars, vectors, to_scalars, to_vectors):  # type: ignore[no-untyped-def]
    """Copy the sums of a part."""
    for k in range(len(scalars)):
        to_scalars[k] = scalars[k]
    for k in range(len(vectors)):
        to_vectors[k] = vectors[k]


@uncounted
def _lower(scalars, vectors, distance, factor):  # type: ignore[no-untyped-def]
    """Make weights relative to a greater score."""
    more = distance + 3.0
    scalars[WEIGHT_ERROR] = (scalars[WEIGHT_ERROR] + more * scalars[WEIGHT]) * factor
    scalars[WEIGHT] *= factor
    scalars[SQUARE] *= factor
    for part in range(vectors.shape[1]):
        vectors[COMOMENT_ERROR, part] = (vectors[COMOMENT_ERROR, part] + more * abs(vectors[COMOMENT, part])) * factor
        vectors[COMOMENT, part] *= factor


@uncounted
def _merge(a, b, first, second, scalars, vectors):  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    """The sums over both ranges; the result may lie where the first part lay."""
    weight = a[WEIGHT] + b[WEIGHT]
    scale = max(weight, _TINY)
    keep, share = a[WEIGHT] / scale, b[WEIGHT] / scale
    cross = a[WEIGHT] * share
    step = (b[LOSS] - a[LOSS]) + (b[REST] - a[REST])
    doubt = a[WEIGHT_ERROR] / max(a[WEIGHT], _TINY) + b[WEIGHT_ERROR] / max(b[WEIGHT], _TINY) + 8.0
    crossing, size, spread = step * cross, cross * abs(step), share * keep * doubt
    doubtful = cross * (a[LOSS_ERROR] + b[LOSS_ERROR])
    for part in range(vectors.shape[1]):
        shift = second[FLIPS, part] - first[FLIPS, part]
        flips = keep * first[FLIPS, part] + share * second[FLIPS, part]
        crossed = shift * crossing
        error = abs(shift) * doubtful
        error = error + (first[FLIPS_ERROR, part] + second[FLIPS_ERROR, part]) * size + abs(crossed) * doubt
        sizes = abs(first[COMOMENT, part]) + abs(second[COMOMENT, part])
        comoment = first[COMOMENT, part] + second[COMOMENT, part] + crossed
        flips_error = keep * first[FLIPS_ERROR, part] + share * second[FLIPS_ERROR, part] + abs(shift) * spread + 4.0 * flips
        comoment_error = first[COMOMENT_ERROR, part] + second[COMOMENT_ERROR, part] + error + 2.0 * sizes
        vectors[FLIPS, part], vectors[COMOMENT, part] = flips, comoment
        vectors[FLIPS_ERROR, part], vectors[COMOMENT_ERROR, part] = flips_error, comoment_error
    heavier = b[WEIGHT] > a[WEIGHT]
    loss, rest = (b[LOSS], b[REST] - step * keep) if heavier else (a[LOSS], a[REST] + step * share)
    scalars[TOP], scalars[SUPPORT] = max(a[TOP], b[TOP]), a[SUPPORT] + b[SUPPORT]
    scalars[SCORE] = keep * a[SCORE] + share * b[SCORE]
    scalars[LOSS], scalars[REST] = loss, rest
    scalars[SQUARE] = a[SQUARE] + b[SQUARE] + step * step * cross
    scalars[LOSS_ERROR] = keep * a[LOSS_ERROR] + share * b[LOSS_ERROR] + abs(step) * share * keep * doubt
    scalars[WEIGHT_ERROR] = a[WEIGHT_ERROR] + b[WEIGHT_ERROR] + weight
    scalars[WEIGHT] = weight
