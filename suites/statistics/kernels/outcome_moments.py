"""Weighted moments of outcomes in compiled steps: what `ExactMoments.add` computes, without a tensor for every intermediate."""

from __future__ import annotations

import math

import numpy as np

from ....oracles.kernels.compilation import compiled, reordered


@compiled  # type: ignore[untyped-decorator]
def add_outcomes(  # noqa: PLR0913, PLR0917 - arrays cannot be bundled without a cost
    estimates: np.ndarray,
    weights: np.ndarray,
    rows: np.ndarray,
    centre: np.ndarray,
    moving: np.ndarray,
    error: np.ndarray,
    sums: np.ndarray,
    centred: np.ndarray,
    weighted: np.ndarray,
) -> None:
    """Add outcomes to the sums, but for those that take products of parts; and give what these are made of.

    Args:
        estimates: [r, d].
        weights: [r].
        rows: [3, d], the exact gradient, which parts count (0 or 1), and the signs that they should have.
        centre: [p], about which products are taken.
        moving: int64 [p], the parts that are not 0 in every outcome and in the gradient.
        error: [d], weighted.
        sums: [9], as `structgrad.suites.statistics.exact_moments.ExactMoments.sums` begins.
        centred: the result [r, p], less the centre.
        weighted: the result [r, p], the same by weight.
    """
    parts, norm = len(moving), max(math.sqrt((rows[0] * rows[0]).sum()), 1e-300)
    exact, counted, expected, total = np.empty(parts), np.empty(parts), np.empty(parts), np.zeros(parts)
    for place in range(parts):
        exact[place], counted[place], expected[place] = rows[0, moving[place]], rows[1, moving[place]], rows[2, moving[place]]
    for row in range(len(estimates)):
        weight = weights[row]
        for place in range(parts):
            centred[row, place] = estimates[row, moving[place]]
        along, square, number, signed, agreed = _look(centred[row], exact, counted, expected)
        distance = _move(centred[row], weighted[row], exact, centre, weight, total)
        sums[0] += weight
        sums[1] += weight * distance
        sums[2] += weight * (number == 0.0)
        sums[3] += weight * number
        sums[4] += weight * (along > 0.0)
        if square > 0.0:
            sums[5] += weight * (along / (math.sqrt(square) * norm))
        sums[6] += weight * (square * square)
        sums[7] += weight * ((signed + agreed) / 2.0)
        sums[8] += weight * signed
    for place in range(parts):
        error[moving[place]] += total[place]


@reordered
def _look(estimate, exact, counted, expected):  # type: ignore[no-untyped-def]
    """Along the gradient, the square norm, the parts that are not 0, those of them that count, and how their signs agree."""
    along, square, number, signed, agreed = 0.0, 0.0, 0.0, 0.0, 0.0
    for place in range(len(exact)):
        value = estimate[place]
        sign = np.float64(value > 0.0) - np.float64(value < 0.0)
        along += value * exact[place]
        square += value * value
        number += abs(sign)
        signed += abs(sign) * counted[place]
        agreed += sign * expected[place]
    return along, square, number, signed, agreed


@reordered
def _move(estimate, weighted, exact, centre, weight, total):  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    """Centre an estimate, weigh it, sum its error by weight; the square norm of the error."""
    square = 0.0
    for place in range(len(exact)):
        error, distance = estimate[place] - exact[place], estimate[place] - centre[place]
        estimate[place] = distance
        weighted[place] = weight * distance
        total[place] += weight * error
        square += error * error
    return square
