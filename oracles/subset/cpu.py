"""Exactly k of n, in compiled steps.

Parts are weighed against the k-th largest score s. A part with score θ below s weighs 1 where it is left out and ``exp(θ − s)`` where it is
taken; one above s weighs ``exp(s − θ)`` where it is left out and 1 where it is taken. So every weight is at most 1, the best subset weighs
exactly 1, and the sum over all subsets lies between 1 and their number: no score can leave the range of a float64, and what underflows
is below 1e-300 of the sum. Only the number of subsets must be representable, which `_representable` certifies.

The sum is a coefficient of ``∏ (skip_i + take_i x)``, an elementary symmetric polynomial (Chen & Liu 1997, section 2). The first factors
give the prefixes; a walk back gives what each of their coefficients is worth in the sum, and a marginal is a sum of products of the two,
without division or subtraction.
"""

from __future__ import annotations

import math

import numpy as np
from numba import uint64

from ..kernels.compilation import compiled, inner, reordered, uncounted
from ..kernels.exponential import exponentials
from ..kernels.parts import mark, no_numbers, no_structures, number
from ..kernels.selection import kth_largest

BLOCK = 8
"""Coefficients are computed in blocks of this many, the width of a vector register; a polynomial starts after one block of zeros."""

REPRESENTABLE = 650.0
"""The largest logarithm of a sum of weights: a float64 ends at 709."""

SKIP, TAKE, SKIP_TANGENT, TAKE_TANGENT = 0, 1, 2, 3
"""Columns of the weights [n, 2], or [n, 4] with their derivatives along a direction."""


def operations(event: tuple[int, ...]) -> int:
    """Inner-loop steps of one log-partition, roughly: exponentials and a few blocks of coefficients."""
    return 20 * event[0]


COMPLETE = frozenset({"argmax", "argmax_indices"})
"""Kernels that compute every row: they write no certificates."""


@compiled
def argmax(rows: np.ndarray, structures: np.ndarray, k: int) -> None:
    """The k largest of each row; of those that tie with the smallest of them, the first. 0 where fewer are allowed."""
    size = rows.shape[1]
    work = np.empty(size)
    for item in range(len(rows)):
        row, structure = rows[item], structures[item]
        last, count = kth_largest(row, k, work), 0
        if last == -math.inf:  # fewer than k are allowed
            last = math.inf
        for part in range(size):
            structure[part] = row[part] >= last
        for part in range(size):
            count += row[part] >= last
        part = size - 1
        while count > k:
            if row[part] == last:
                structure[part] = 0
                count -= 1
            part -= 1


@compiled
def argmax_indices(rows: np.ndarray, parts: np.ndarray, k: int) -> None:
    """The same parts as numbers [b, k]."""
    size = rows.shape[1]
    work = np.empty(size)
    for item in range(len(rows)):
        row, listed = rows[item], parts[item]
        last, above, count = kth_largest(row, k, work), 0, 0
        if last == -math.inf:
            listed[:] = -1
            continue
        for part in range(size):
            above += row[part] > last
        for part in range(size):
            tied = row[part] == last and above < k
            if row[part] > last or tied:
                listed[count] = part
                count += 1
                above += tied


@compiled
def log_partition(rows: np.ndarray, log_partition: np.ndarray, certified: np.ndarray, k: int) -> None:
    """``log Σ_z exp⟨θ, z⟩`` of each row."""
    size = rows.shape[1]
    certified[:] = _representable(size, k)
    weights, work, both = np.empty((size, 2)), np.empty((2, size)), _polynomials(2, k)
    for item in range(len(rows) if _representable(size, k) else 0):
        log_partition[item] = _weigh(rows[item], k, weights, work)
        if log_partition[item] > -math.inf:
            both[0] = 0
            both[0, BLOCK] = 1
            for part in range(size):
                _multiply(both[part % 2], both[1 - part % 2], weights[part])
            log_partition[item] += math.log(both[size % 2, BLOCK + k])


@compiled
def marginals(rows: np.ndarray, marginals: np.ndarray, log_partition: np.ndarray, certified: np.ndarray, k: int) -> None:
    """The probability of each part, and the log-partition."""
    size = rows.shape[1]
    certified[:] = _representable(size, k)
    weights, work = np.empty((size, 2)), np.empty((2, size))
    prefixes, worth = _polynomials(size + 1, k), _polynomials(1, k)[0]
    prefixes[0, BLOCK] = 1
    for item in range(len(rows) if _representable(size, k) else 0):
        log_partition[item] = _weigh(rows[item], k, weights, work)
        if log_partition[item] == -math.inf:
            continue
        for part in range(size):
            _multiply(prefixes[part], prefixes[part + 1], weights[part])
        total = prefixes[size, BLOCK + k]
        log_partition[item] += math.log(total)
        worth[:] = 0
        worth[k] = 1 / total
        for part in range(size - 1, -1, -1):
            marginals[item, part] = weights[part, TAKE] * _walk_back(prefixes[part], worth, weights[part])


@compiled
def covariance_product(rows: np.ndarray, direction: np.ndarray, product: np.ndarray, certified: np.ndarray, k: int) -> None:
    """The derivative of the marginals along a direction: every number of `marginals` with its tangent."""
    size = rows.shape[1]
    certified[:] = _representable(size, k)
    weights, work = np.empty((size, 4)), np.empty((2, size))
    prefixes, tangents = _polynomials(size + 1, k), _polynomials(size + 1, k)
    worth, worth_tangent = _polynomials(1, k)[0], _polynomials(1, k)[0]
    prefixes[0, BLOCK] = 1
    for item in range(len(rows) if _representable(size, k) else 0):
        if _weigh(rows[item], k, weights, work) == -math.inf:
            continue
        length = _weigh_tangents(direction[item], weights)
        for part in range(size):
            _multiply(prefixes[part], prefixes[part + 1], weights[part])
            _multiply_tangent(prefixes[part], tangents[part], tangents[part + 1], weights[part])
        total = prefixes[size, BLOCK + k]
        worth[:], worth_tangent[:] = 0, 0
        worth[k], worth_tangent[k] = 1 / total, -tangents[size, BLOCK + k] / total / total
        for part in range(size - 1, -1, -1):
            value, tangent = _walk_back_tangent(prefixes[part], tangents[part], worth, worth_tangent, weights[part])
            product[item, part] = length * (weights[part, TAKE_TANGENT] * value + weights[part, TAKE] * tangent)


def sample(rows: np.ndarray, uniforms: np.ndarray, structures: np.ndarray, certified: np.ndarray, k: int) -> None:
    """Exact samples."""
    _sample(rows, uniforms, structures, no_numbers(1), certified, k)


def sample_parts(rows: np.ndarray, uniforms: np.ndarray, numbers: np.ndarray, certified: np.ndarray, k: int) -> None:
    """The same samples by the numbers of their parts, [b, s, k]."""
    _sample(rows, uniforms, no_structures(rows, 1), numbers, certified, k)


@compiled
def _sample(rows: np.ndarray, uniforms: np.ndarray, structures: np.ndarray, numbers: np.ndarray, certified: np.ndarray, k: int) -> None:
    """Part by part, taken with its probability given how many are still to be taken: into structures, or numbers where there is room."""
    parts = np.empty(k, np.int64)
    size = rows.shape[1]
    certified[:] = _representable(size, k)
    weights, work, suffixes = np.empty((size, 2)), np.empty((2, size)), _polynomials(size + 1, k)
    suffixes[size, BLOCK] = 1
    leaps = uniforms.shape[2] < size  # one uniform for each part that is taken
    for item in range(len(rows) if _representable(size, k) else 0):
        if _weigh(rows[item], k, weights, work) == -math.inf:
            continue
        for part in range(size - 1, -1, -1):
            _multiply(suffixes[part + 1], suffixes[part], weights[part])
        for part in range(size):
            work[0, part], work[1, part] = weights[part, TAKE], weights[part, SKIP]
        for draw in range(uniforms.shape[1]):
            if leaps:
                count = _leap(uniforms[item, draw], suffixes.reshape(-1), work[0], work[1], suffixes.shape[1], parts)
            else:
                count = _walk(uniforms[item, draw], suffixes.reshape(-1), work[0], suffixes.shape[1], parts)
            if len(numbers) > 0:
                number(parts, count, numbers[item, draw])
            else:
                mark(parts, count, structures[item, draw])


@uncounted
def _walk(uniform: np.ndarray, suffixes: np.ndarray, takes: np.ndarray, columns: int, parts: np.ndarray) -> int:
    """The parts of one sample, and their number; from flat suffixes, at places that are no negative ones, which would be looked for."""
    count, wanted, at, step = 0, len(parts), uint64(BLOCK + len(parts)), uint64(columns)
    for part in range(len(takes)):
        if uniform[uint64(part)] * suffixes[at] < takes[uint64(part)] * suffixes[at + step - uint64(1)]:
            parts[count] = part
            count += 1
            at -= uint64(1)
            if count == wanted:
                break
        at += step
    return count


@uncounted
def _leap(uniform: np.ndarray, suffixes: np.ndarray, takes: np.ndarray, skips: np.ndarray, columns: int, parts: np.ndarray) -> int:
    """`_walk` with one uniform for each part that is taken: the first to be taken next is found by the inverse of its distribution.

    What the uniform leaves of the sum is less by each part that is passed over, and is counted against what these leave out.
    """
    count, wanted, at, step = 0, len(parts), uint64(BLOCK + len(parts)), uint64(columns)
    left = uniform[0] * suffixes[at]
    for part in range(len(takes)):
        at += step
        take = takes[uint64(part)] * suffixes[at - uint64(1)]
        # Where nothing can be without this part, rounding must not pass over it.
        if left < take or (suffixes[at] * skips[uint64(part)] == 0 and take > 0):
            at -= uint64(1)
            parts[count] = part
            count += 1
            if count == wanted:
                break
            left = uniform[count] * suffixes[at]
        else:
            left -= take
            if skips[uint64(part)] < 1:
                left /= skips[uint64(part)]
    return count


@uncounted
def _representable(size: int, k: int) -> bool:
    """Whether sums over all subsets are certainly float64 numbers, in every coefficient that is computed."""
    most = min(k + BLOCK, size // 2)
    return math.lgamma(size + 1) - math.lgamma(most + 1) - math.lgamma(size - most + 1) < REPRESENTABLE


@inner
def _polynomials(count: int, k: int) -> np.ndarray:
    """Zeros; column ``BLOCK + j`` of a prefix is its coefficient j, and column j of a worth is what that is worth."""
    return np.zeros((count, BLOCK * (2 + k // BLOCK)))


@inner
def _weigh(row: np.ndarray, k: int, weights: np.ndarray, work: np.ndarray) -> float:
    """Write the weights of a row, and return the score of its best subset: -inf where there is none."""
    origin = kth_largest(row, k, work[0])
    if origin == -math.inf:
        return origin
    best = k * origin
    for part in range(len(row)):
        score = row[part] - origin
        work[0, part] = -abs(score)
        best += max(score, 0.0)
    exponentials(work[0], 0.0, work[1])
    for part in range(len(row)):
        above = row[part] > origin
        weights[part, SKIP] = work[1, part] if above else 1.0
        weights[part, TAKE] = 1.0 if above else work[1, part]
    return best


@uncounted
def _weigh_tangents(direction: np.ndarray, weights: np.ndarray) -> float:
    """Write the derivatives of the weights along the direction, shortened to a largest entry of 1, and return its length."""
    length = 0.0
    for part in range(len(direction)):
        if weights[part, TAKE] > 0:
            length = max(length, abs(direction[part]))
    for part in range(len(direction)):
        slope = direction[part] / length if weights[part, TAKE] > 0 and length > 0 else 0.0
        # A part above the origin weighs 1 where it is taken, whatever its score; another where it is left out.
        above = weights[part, SKIP] < 1
        weights[part, SKIP_TANGENT] = -slope * weights[part, SKIP] if above else 0.0
        weights[part, TAKE_TANGENT] = 0.0 if above else slope * weights[part, TAKE]
    return length


@uncounted
def _multiply(before: np.ndarray, after: np.ndarray, weight: np.ndarray) -> None:
    """``after = before · (skip + take·x)``."""
    skip, take = weight[SKIP], weight[TAKE]
    for block in range(BLOCK, len(before), BLOCK):
        for lane in range(BLOCK):
            after[block + lane] = skip * before[block + lane] + take * before[block + lane - 1]


@uncounted
def _multiply_tangent(before: np.ndarray, tangent: np.ndarray, after_tangent: np.ndarray, weight: np.ndarray) -> None:
    """The tangent of `_multiply`."""
    skip, take, skip_tangent, take_tangent = weight[SKIP], weight[TAKE], weight[SKIP_TANGENT], weight[TAKE_TANGENT]
    for block in range(BLOCK, len(before), BLOCK):
        for lane in range(BLOCK):
            moved = skip * tangent[block + lane] + take * tangent[block + lane - 1]
            after_tangent[block + lane] = moved + (skip_tangent * before[block + lane] + take_tangent * before[block + lane - 1])


@reordered
def _walk_back(prefix: np.ndarray, worth: np.ndarray, weight: np.ndarray) -> float:
    """Put one more part on the right of the worths, in place; return ``Σ_j prefix_j · worth_{j+1}``, what taking that part is worth."""
    skip, take = weight[SKIP], weight[TAKE]
    value = 0.0
    for i in range(len(worth) - BLOCK):
        value += prefix[BLOCK + i] * worth[i + 1]
    for i in range(len(worth) - BLOCK):
        worth[i] = skip * worth[i] + take * worth[i + 1]
    return value


@reordered
def _walk_back_tangent(
    prefix: np.ndarray, prefix_tangent: np.ndarray, worth: np.ndarray, worth_tangent: np.ndarray, weight: np.ndarray
) -> tuple[float, float]:
    """`_walk_back` with its tangent."""
    skip, take, skip_tangent, take_tangent = weight[SKIP], weight[TAKE], weight[SKIP_TANGENT], weight[TAKE_TANGENT]
    value, tangent = 0.0, 0.0
    for i in range(len(worth) - BLOCK):
        value += prefix[BLOCK + i] * worth[i + 1]
        tangent += prefix[BLOCK + i] * worth_tangent[i + 1] + prefix_tangent[BLOCK + i] * worth[i + 1]
    for i in range(len(worth) - BLOCK):
        moved = skip * worth_tangent[i] + take * worth_tangent[i + 1]
        worth_tangent[i] = moved + (skip_tangent * worth[i] + take_tangent * worth[i + 1])
    for i in range(len(worth) - BLOCK):
        worth[i] = skip * worth[i] + take * worth[i + 1]
    return value, tangent
