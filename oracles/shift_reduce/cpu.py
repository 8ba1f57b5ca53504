"""Kernels of shift-reduce derivations beside those that their hypergraph gives: policies, and projections."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..active_set import cpu as active_set
from ..kernels.compilation import compiled, uncounted

Array = NDArray[Any]


def operations(event: tuple[int, ...]) -> int:
    """Inner-loop steps of a row: a state costs about six, with its exponential."""
    return 3 * event[0] * event[0]


@uncounted
def _complete(row: Array, values: Array) -> None:
    """The score of the best completion from each state, [n + 2, n + 2]."""
    leaves, value = row.shape[0] - 1, 0.0
    values[leaves, 1] = 0.0
    for d in range(2, leaves + 1):
        value += row[leaves, d, 1]
        values[leaves, d] = value
    for i in range(leaves - 1, 0, -1):
        value = row[i, 1, 0] + values[i + 1, 2]
        values[i, 1] = value
        for d in range(2, i + 1):
            value = max(row[i, d, 0] + values[i + 1, d + 1], row[i, d, 1] + value)
            values[i, d] = value


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


@uncounted
def _best_parts(row: Array, values: Array, parts: Array) -> int:
    """Flat indices of the parts of the best derivation, written to ``parts`` (int32, 2n − 1); of equal ones that which shifts first."""
    leaves = row.shape[0] - 1
    _complete(row, values)
    i, d = 0, 0
    for step in range(2 * leaves - 1):
        action = 0
        if d >= 2:
            action = int(i == leaves or row[i, d, 1] + values[i, d - 1] > row[i, d, 0] + values[i + 1, d + 1])
        parts[step] = 2 * (i * (leaves + 1) + d) + action
        i, d = i + 1 - action, d + 1 - 2 * action
    return 2 * leaves - 1


@compiled
def project(rows: Array, inside: Array, begin: Array, mean: Array, gap: Array, support: Array, atoms: active_set.Atoms) -> active_set.Atoms:
    """SparseMAP of rows: mean [b, d], gap and support [b]; gives the parts, sizes and weights of all atoms (see `active_set`)."""
    size = rows.shape[1]
    solver, found, values = active_set.workspace(2 * size * size, 2 * size - 3), active_set.nothing_found(), np.empty((size + 1, size + 1))
    residual = solver.residual.reshape((size, size, 2))
    for b in range(rows.shape[0]):
        solver = active_set.start(solver, rows[b].reshape(-1), inside[b], begin[b], atoms)
        count = _best_parts(residual, values, solver.parts)
        while active_set.advance(solver, inside[b], count):
            if active_set.full(solver):
                solver = active_set.with_room(solver)
            count = _best_parts(residual, values, solver.parts)
        found = active_set.record(solver, found, mean[b], gap, support, b)
    return active_set.result(found)
