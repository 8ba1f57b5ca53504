"""Euclidean projection on ``{x : 0 ≤ x ≤ 1, Σx = k}``, the simplex and the hypersimplex, in compiled steps."""

import math

import numpy as np

from ..kernels.compilation import compiled, reordered, uncounted
from ..kernels.parts import kth_largest


def operations(event: tuple[int, ...]) -> int:
    """Inner-loop steps of one projection, roughly: some five passes."""
    return 5 * event[0]


@compiled
def project(rows: np.ndarray, mean: np.ndarray, gap: np.ndarray, k: int) -> None:
    """Project rows [b, n]: ``mean = clip(θ − τ, 0, 1)``, and the certified gap [b].

    The k-th largest score s is the origin: τ − s lies within [-1, 0], so that parts above s + 1 are 1, parts below s − 1 are 0, and what is
    between is small numbers at every scale of the scores. A row with fewer than k parts above -inf has mean 0 and gap ``inf``.
    """
    size = rows.shape[1]
    near, place, work = np.empty(size + 1), np.empty(size + 1, np.int32), np.empty(size)
    for item in range(len(rows)):
        gap[item] = _project(rows[item], mean[item], k, near, place, work)


@uncounted
def _project(row: np.ndarray, point: np.ndarray, k: int, near: np.ndarray, place: np.ndarray, work: np.ndarray) -> float:
    """One item; gives its gap."""
    size = len(row)
    origin = kth_largest(row, k, work)
    if origin == -math.inf:
        for part in range(size):
            point[part] = 0.0
        return math.inf
    full, count = 0, 0
    for part in range(size):
        point[part] = 1.0 if row[part] - origin >= 1 else 0.0
    for part in range(size):
        full += row[part] - origin >= 1
    for part in range(size):
        score = row[part] - origin
        near[count], place[count] = score, part
        count += (score > -1) & (score < 1)
    threshold = _threshold(near, count, k - full)
    above = 0.0
    for i in range(count):
        value = min(max(near[i] - threshold, 0.0), 1.0)
        point[place[i]] = value
        # ⟨θ − μ, z − μ⟩ ≤ Σ max(r, 0) − rμ with r = θ − μ − τ, for every z of k parts: 0 but for rounding.
        residual = near[i] - value - threshold
        above += max(residual, 0.0) - residual * value
    return max(above, 0.0)


@uncounted
def _threshold(near: np.ndarray, count: int, k: int) -> float:
    """The τ in [-1, 0] with ``Σ clip(x − τ, 0, 1) = k``: Newton's method in a bracket.

    The sum is piecewise affine in τ, and where two steps meet the same piece the second is its exact solution.
    """
    low, high, threshold = -1.0, 0.0, -1.0
    last_above, last_full = -1, -1
    while True:
        total, above, full = _piece(near, count, threshold)
        excess = total - threshold * (above - full) - (k - full)
        if excess == 0 or (above == last_above and full == last_full):
            return threshold
        if excess > 0:
            low = threshold
        else:
            high = threshold
        last_above, last_full = above, full
        threshold = (total - (k - full)) / max(above - full, 1)
        if not low < threshold < high:
            threshold, last_above = (low + high) / 2, -1
            if not low < threshold < high:
                return threshold


@reordered
def _piece(near: np.ndarray, count: int, threshold: float) -> tuple[float, int, int]:
    """The sum of the x with τ < x ≤ τ + 1; how many x are above τ, and above τ + 1."""
    total, above, full = 0.0, 0, 0
    for i in range(count):
        total += near[i] if (near[i] > threshold) & (near[i] <= threshold + 1) else 0.0
    for i in range(count):
        above += near[i] > threshold
        full += near[i] > threshold + 1
    return total, above, full
