"""Kernels of shift-reduce derivations: one pass over the states from their end gives a policy, from which all follows forwards.

Weights are sums over completions relative to the best one, which is found on the way: they lie between 1 and the number of
completions at any scale of the scores, so that a term is lost only where it is below 1e-300 of the sum that it is part of. Quotients
of weights are probabilities of actions, and products of these are marginals.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import active_set
from .compilation import compiled, inner, uncounted
from .exponential import exponentials

Array = NDArray[Any]

LARGEST = 1e290
"""Weights stay below; more than 480 leaves can have more derivations."""


class Workspace(NamedTuple):
    """What one item needs, in tables over the states [n + 2, n + 2] and lists of those states where there is a choice."""

    values: Array  # the score of the best completion
    leads: Array  # by how much the best completion by SHIFT is better than the best by REDUCE
    lags: Array  # −|leads|
    lower: Array  # exp(−|leads|)
    weights: Array  # Σ exp(score − value) over the completions
    chances: Array  # [n + 1, n + 1, 2], the probability of each action where the state is visited


def operations(event: tuple[int, ...]) -> int:
    """Inner-loop steps of a row: a state costs about six, with its exponential."""
    return 3 * event[0] * event[0]


@inner
def _workspace(size: int) -> Workspace:
    """Arrays for one item of event [size, size, 2]."""
    table, line = np.empty((size, size, 2)), np.empty(size * size)
    return Workspace(np.empty((size + 1, size + 1)), line, np.empty_like(line), np.empty_like(line), np.empty((size + 1, size + 1)), table)


@uncounted
def _compare(row: Array, space: Workspace) -> tuple[float, int]:
    """The best completion from each state, and by how much SHIFT is better there, in the order of the loop.

    Gives the score of the best derivation, and how many states have a choice.
    """
    leaves, values, leads = row.shape[0] - 1, space.values, space.leads
    value, count = 0.0, 0
    values[leaves, 1] = 0.0
    for d in range(2, leaves + 1):
        value += row[leaves, d, 1]
        values[leaves, d] = value
    for i in range(leaves - 1, 0, -1):
        value = row[i, 1, 0] + values[i + 1, 2]
        values[i, 1] = value
        for d in range(2, i + 1):
            shift, reduce = row[i, d, 0] + values[i + 1, d + 1], row[i, d, 1] + value
            value = max(shift, reduce)
            values[i, d] = value
            leads[count] = shift - reduce
            count += 1
    return row[0, 0, 0] + values[1, 1], count


@inner
def _policy(row: Array, space: Workspace) -> tuple[float, float]:
    """Fill `Workspace.chances`; gives the score of the best derivation, and the weight of all of them relative to it.

    At a state that nothing follows, the chances are those of any policy: no derivation comes there.
    """
    leaves, weights, chances = row.shape[0] - 1, space.weights, space.chances
    leads, lags, lower = space.leads, space.lags, space.lower
    value, count = _compare(row, space)
    for k in range(count):
        lags[k] = -abs(leads[k])
    exponentials(lags[:count], 0.0, lower[:count])
    chances[leaves, 1, 0], chances[leaves, 1, 1] = 0.0, 0.0
    weights[leaves, 1] = 1.0
    for d in range(2, leaves + 1):
        weights[leaves, d] = 1.0
        chances[leaves, d, 0], chances[leaves, d, 1] = 0.0, 1.0
    k = 0
    for i in range(leaves - 1, 0, -1):
        weight = weights[i + 1, 2]
        weights[i, 1] = weight
        chances[i, 1, 0], chances[i, 1, 1] = 1.0, 0.0
        for d in range(2, i + 1):
            by_shift = weights[i + 1, d + 1] * (1.0 if leads[k] >= 0 else lower[k])
            by_reduce = weight * (lower[k] if leads[k] >= 0 else 1.0)
            weight = by_shift + by_reduce
            weights[i, d] = weight
            chances[i, d, 0], chances[i, d, 1] = by_shift / weight, by_reduce / weight
            k += 1
    chances[0, 0, 0], chances[0, 0, 1] = 1.0, 0.0
    return value, weights[1, 1]


@compiled
def log_partition(rows: Array, log_partition: Array, certified: Array) -> None:
    """A(θ): [b], from rows [b, n + 1, n + 1, 2]."""
    size = rows.shape[1]
    space = _workspace(size)
    for b in range(rows.shape[0]):
        value, weight = _policy(rows[b], space)
        log_partition[b] = value + math.log(weight)
        certified[b] = weight < LARGEST


@compiled
def marginals(rows: Array, marginals: Array, log_partition: Array, certified: Array) -> None:
    """Probabilities that states are visited, forwards, times those of the actions there."""
    size = rows.shape[1]
    space = _workspace(size)
    chances, arriving = space.chances, np.empty(size + 1)
    for b in range(rows.shape[0]):
        value, weight = _policy(rows[b], space)
        log_partition[b] = value + math.log(weight)
        certified[b] = weight < LARGEST
        if value == -math.inf:
            continue
        marginals[b, 0, 0, 0] = 1.0
        arriving[1] = 1.0
        for i in range(1, size):
            reduced = 0.0
            for d in range(i, 0, -1):
                visited = arriving[d] + reduced
                shifted, reduced = visited * chances[i, d, 0], visited * chances[i, d, 1]
                arriving[d + 1] = shifted
                marginals[b, i, d, 0], marginals[b, i, d, 1] = shifted, reduced
            arriving[1] = 0.0


@compiled
def covariance_product(rows: Array, direction: Array, product: Array, certified: Array) -> None:
    """Cov(z)·v: how marginals move along v.

    The expected sum of v over what follows, backwards, says how the probability of each action moves: by the difference between the two
    actions, which is small wherever the probability of one is. Forwards, these movements add up along the derivations.
    """
    size = rows.shape[1]
    space = _workspace(size)
    expected, difference = np.zeros((size + 1, size + 1)), np.zeros((size, size))
    chances, arriving, moving = space.chances, np.empty(size + 1), np.empty(size + 1)
    for b in range(rows.shape[0]):
        value, weight = _policy(rows[b], space)
        certified[b] = weight < LARGEST
        if value == -math.inf:
            continue
        for d in range(2, size):
            expected[size - 1, d] = expected[size - 1, d - 1] + direction[b, size - 1, d, 1]
        for i in range(size - 2, 0, -1):
            expected[i, 1] = direction[b, i, 1, 0] + expected[i + 1, 2]
            for d in range(2, i + 1):
                by_shift = direction[b, i, d, 0] + expected[i + 1, d + 1]
                by_reduce = direction[b, i, d, 1] + expected[i, d - 1]
                difference[i, d] = by_shift - by_reduce
                expected[i, d] = chances[i, d, 0] * by_shift + chances[i, d, 1] * by_reduce
        arriving[1], moving[1] = 1.0, 0.0
        for i in range(1, size):
            reduced, moved = 0.0, 0.0
            for d in range(i, 0, -1):
                visited, moved = arriving[d] + reduced, moving[d] + moved
                turning = visited * chances[i, d, 0] * chances[i, d, 1] * difference[i, d]
                arriving[d + 1], reduced = visited * chances[i, d, 0], visited * chances[i, d, 1]
                moving[d + 1], moved = moved * chances[i, d, 0] + turning, moved * chances[i, d, 1] - turning
                product[b, i, d, 0], product[b, i, d, 1] = moving[d + 1], moved
            arriving[1], moving[1] = 0.0, 0.0


@compiled
def potentials(rows: Array, potentials: Array) -> None:
    """Log-probabilities of a policy: at each state the log-softmax over the actions that can still complete a derivation."""
    size = rows.shape[1]
    completable = np.zeros((size + 1, size + 1), np.bool_)
    for b in range(rows.shape[0]):
        completable[size - 1, 1] = True
        for i in range(size - 1, -1, -1):
            for d in range(min(i, 1), i + 1):
                shift = completable[i + 1, d + 1] and rows[b, i, d, 0] > -math.inf
                reduce = d > 1 and completable[i, d - 1] and rows[b, i, d, 1] > -math.inf
                completable[i, d] = shift or reduce or (i == size - 1 and d == 1)
                lead = np.float64(rows[b, i, d, 0]) - rows[b, i, d, 1] if shift and reduce else 0.0
                total = math.log1p(math.exp(-abs(lead))) if shift and reduce else 0.0
                if i < size - 1:
                    potentials[b, i, d, 0] = min(lead, 0.0) - total if shift else -math.inf
                if d > 1:
                    potentials[b, i, d, 1] = min(-lead, 0.0) - total if reduce else -math.inf


@compiled
def sample(rows: Array, uniforms: Array, structures: Array, certified: Array) -> None:
    """A walk per sample, all of a row by one table: SHIFT where the uniform is below its probability."""
    size = rows.shape[1]
    space = _workspace(size)
    chances = space.chances.reshape(-1)
    for b in range(rows.shape[0]):
        value, weight = _policy(rows[b], space)
        certified[b] = weight < LARGEST
        if value == -math.inf:
            continue
        for s in range(uniforms.shape[1]):
            draws, flat, state = uniforms[b, s], structures[b, s].reshape(-1), 0
            for step in range(draws.size):
                action = np.int64(draws[step] >= chances[state])
                flat[state + action] = 1.0
                # One shift adds a row and a column of states, one reduction takes a column away.
                state += 2 * (size + 1) - 2 * (size + 2) * action


@uncounted
def best_parts(row: Array, space: Workspace, parts: Array) -> int:
    """Flat indices of the parts of the best derivation, written to ``parts`` (int32, 2n − 1); of equal ones that which shifts first."""
    leaves, values = row.shape[0] - 1, space.values
    _compare(row, space)
    i, d = 0, 0
    for step in range(2 * leaves - 1):
        action = 0
        if d >= 2:
            action = int(i == leaves or row[i, d, 1] + values[i, d - 1] > row[i, d, 0] + values[i + 1, d + 1])
        parts[step] = 2 * (i * (leaves + 1) + d) + action
        i, d = i + 1 - action, d + 1 - 2 * action
    return 2 * leaves - 1


@compiled
def argmax(rows: Array, structures: Array) -> None:
    """The best derivation of each row."""
    space, parts = _workspace(rows.shape[1]), np.empty(2 * rows.shape[1] - 3, np.int32)
    for b in range(rows.shape[0]):
        best_parts(rows[b], space, parts)
        flat = structures[b].reshape(-1)
        for part in parts:
            flat[part] = 1.0


@compiled
def project(rows: Array, inside: Array, mean: Array, gap: Array, support: Array) -> tuple[Array, Array, Array]:
    """SparseMAP of rows: mean [b, d], gap and support [b]; gives the parts, sizes and weights of all atoms (see `active_set`)."""
    size = rows.shape[1]
    solver, found, space = active_set.workspace(2 * size * size, 2 * size - 3), active_set.nothing_found(), _workspace(size)
    residual = solver.residual.reshape((size, size, 2))
    for b in range(rows.shape[0]):
        active_set.start(solver, rows[b].reshape(-1))
        count = best_parts(residual, space, solver.parts)
        while active_set.advance(solver, inside[b], count):
            solver = active_set.with_room(solver)
            count = best_parts(residual, space, solver.parts)
        found = active_set.record(solver, found, mean[b], gap, support, b)
    return active_set.result(found)
