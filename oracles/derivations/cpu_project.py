"""SparseMAP of structures that state their derivations: the active set, whose best structures come from one pass of maxima."""

from __future__ import annotations

import math

import numpy as np

from ..active_set import cpu as active_set
from ..kernels.compilation import compiled, uncounted
from .cpu import follow
from .packing import EACH, WIDTH


@compiled
def project(packed, rows, inside, begin, mean, gap, support, atoms):
    """SparseMAP of rows [b, d]: see `structgrad.oracles.active_set.cpu`. Having no part must be no structure."""
    nodes = len(packed.begins) - 1
    solver, found = active_set.workspace(packed.sizes[0], packed.sizes[1] + 1), active_set.nothing_found()
    scores, best = np.zeros(len(packed.used) + 1), np.zeros(nodes)
    chosen, waiting = np.zeros(nodes * WIDTH), np.empty(packed.sizes[2] + 2, np.int64)
    for b in range(rows.shape[0]):
        solver = active_set.start(solver, rows[b], inside[b], begin[b], atoms)
        count = _best_parts(packed, solver, scores, best, chosen, waiting)
        while active_set.advance(solver, inside[b], count):
            if active_set.full(solver):
                solver = active_set.with_room(solver)
            count = _best_parts(packed, solver, scores, best, chosen, waiting)
        found = active_set.record(solver, found, mean[b], gap, support, b)
    parts, sizes, weights = active_set.result(found)
    return parts, sizes, weights


@uncounted
def _best_parts(packed, solver, scores, best, chosen, waiting):
    """Write the parts of the best structure along the residual, a part as often as it is taken; gives how many, 0 where none is feasible.

    Ties go to the first edge, as in `cpu.maximise`, which does the same for `WIDTH` items: here they take steps of their own.
    """
    for part in range(len(packed.used)):
        scores[part] = solver.residual[packed.used[part]]
    for level in range(len(packed.levels)):
        each = packed.levels[level, 2] & EACH
        for node in range(packed.levels[level, 0], packed.levels[level, 1]):
            top, place = -math.inf, packed.begins[node]
            for x in range(packed.begins[node], packed.begins[node + 1]):
                value = best[packed.first[x] // WIDTH] + best[packed.second[x] // WIDTH]
                if each:
                    value += scores[packed.edge_parts[x] // WIDTH]
                if value > top:
                    top, place = value, x
            best[node] = top if each else top + scores[packed.node_parts[node] // WIDTH]
            chosen[node * WIDTH] = place
    return follow(packed, chosen, 0, waiting, solver.parts) if best[-1] > -math.inf else 0
