"""The sums over one chunk in compiled steps: what `CoMoments.of` computes, without a tensor of deviations in float64."""

from __future__ import annotations

import math

import numpy as np

from ...oracles.kernels.compilation import compiled, fused, inner, reordered

TOP, WEIGHT, SUPPORT, SCORE, LOSS, REST, SQUARE, WEIGHT_ERROR, LOSS_ERROR = range(9)
"""Places in ``scalars``; named as the attributes of `structgrad.suites.truth.comoments.CoMoments`."""

FLIPS, COMOMENT, FLIPS_ERROR, COMOMENT_ERROR = range(4)
"""Rows of ``vectors``."""

SIDE = 4
"""Structures that are added side by side."""

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
    number = len(structures)
    flips = _flipped(structures, pivot, places)
    # Rows of `sides`: what a structure adds to each of the vectors.
    scores, sides = np.empty(number), np.zeros((-(-number // SIDE) * SIDE, 4))
    top, support = -math.inf, 0
    for c in range(number):
        scores[c], size, terms = _deviation(flips[c], columns[0], columns[1])
        sides[c, 2] = (terms + 5.0) * (size + 4.0)
        if size >= limit:
            scores[c] = -math.inf
        else:
            support += 1
            top = max(top, scores[c])
    scalars[TOP], scalars[SUPPORT] = top, support
    _weigh(scores, losses, sides, scalars, min(number, block) + -(-number // block) + 3)
    vectors[:] = 0.0
    _add(flips, sides, vectors, block)
    scale = max(scalars[WEIGHT], _TINY)
    rest = scalars[REST] * scale
    for part in range(len(pivot)):
        mean = vectors[FLIPS, part] / scale
        vectors[FLIPS, part] = mean
        vectors[COMOMENT, part] -= rest * mean
        vectors[FLIPS_ERROR, part] = (vectors[FLIPS_ERROR, part] + scalars[WEIGHT_ERROR] * mean) / scale
        vectors[COMOMENT_ERROR, part] += scalars[LOSS_ERROR] * scale * mean


@inner
def _flipped(structures, pivot, places):  # type: ignore[no-untyped-def]
    """uint8 [c, p]: 1 where a structure differs from the pivot."""
    flips = np.empty((len(structures), len(places)), np.uint8)
    if len(places) == structures.shape[1]:
        for c in range(len(structures)):
            for part in range(len(places)):
                flips[c, part] = structures[c, part] ^ pivot[part]
    else:
        for c in range(len(structures)):
            for part in range(len(places)):
                flips[c, part] = structures[c, places[part]] ^ pivot[part]
    return flips


@reordered
def _deviation(flips, terms, sizes):  # type: ignore[no-untyped-def]
    """The score of a structure relative to the pivot, the size of its terms, and their number."""
    score, size, number = 0.0, 0.0, 0.0
    for part in range(len(flips)):
        flip = np.float64(np.int32(flips[part]))
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
def _add(small, sides, vectors, block):  # type: ignore[no-untyped-def]
    """Add the deviations, weighted by the rows of ``sides``, block by block."""
    number, parts = small.shape
    flips, sums = np.zeros((SIDE, parts)), np.zeros((4, parts))
    for first in range(0, number, block):
        sums[:] = 0.0
        for c in range(first, min(first + block, number), SIDE):
            for side in range(min(SIDE, number - c)):
                _widen(small[c + side], flips[side])
            for k in range(4):
                _add_side(flips[0], flips[1], flips[2], flips[3], sides[c, k], sides[c + 1, k], sides[c + 2, k], sides[c + 3, k], sums[k])
        vectors += sums


@fused
def _widen(small, flips):  # type: ignore[no-untyped-def]
    for part in range(len(flips)):
        flips[part] = np.float64(np.int32(small[part]))


@fused
def _add_side(first, second, third, fourth, a, b, c, d, sums):  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    for part in range(len(sums)):
        sums[part] += (a * first[part] + b * second[part]) + (c * third[part] + d * fourth[part])
