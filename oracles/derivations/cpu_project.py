"""SparseMAP of structures that state their derivations: the active set, whose best structures come from one pass of maxima."""

import math

import numpy as np
from numba import uint64

from ..active_set import cpu as active_set
from ..active_set.cpu_factor import SLOTS
from ..kernels.compilation import compiled, uncounted
from .cpu_maxima import follow, maximise, scores_and_nodes
from .cpu_rows import vectors_of
from .packing import ENTRIES, PLACES, STEPS, WAITING, WIDTH, Numbers


@compiled
def project(packed, rows, inside, begin, mean, gap, support, atoms):
    """SparseMAP of rows [b, d]: see `structgrad.oracles.active_set.cpu`."""
    solver, found = active_set.workspace(packed.sizes[ENTRIES], packed.sizes[STEPS] + 1), active_set.nothing_found()
    places, waiting = np.full(packed.sizes[ENTRIES], packed.sizes[PLACES] + WIDTH - 1), np.empty(packed.sizes[WAITING] + 2, np.int64)
    for place in range(len(packed.used)):
        places[packed.used[place]] = place
    scores, best = scores_and_nodes(packed, 1)
    given, of_slots = Numbers(rows, np.empty((0, 0), np.float32)), np.empty(packed.sizes[ENTRIES], np.int64)
    for b in range(rows.shape[0]):
        solver, met = active_set.start(solver, rows[b], inside[b], begin[b], atoms), 0
        for place in range(len(packed.used)):
            scores[place] = solver.residual[packed.used[place]]
        count = _best_parts(packed, given, solver, scores, best, waiting)
        while active_set.advance(solver, inside[b], count):
            if active_set.full(solver):
                solver = active_set.with_room(solver)
            # Only where some atom has been, the residual is another.
            for slot in range(met, solver.counters[SLOTS]):
                of_slots[slot] = places[solver.part[slot]]
            met = solver.counters[SLOTS]
            for slot in range(met):
                scores[uint64(of_slots[slot])] = solver.scores[slot] - solver.mean[slot]
            count = _best_parts(packed, given, solver, scores, best, waiting)
        found = active_set.record(solver, found, mean[b], gap, support, b)
    return active_set.result(found)


@uncounted
def _best_parts(packed, given, solver, scores, best, waiting):
    """Write the parts of the best structure along the residual, each as often as it is taken; gives how many, -1 if none is feasible."""
    maximise(packed, 1, given, 0, 1, vectors_of(packed, 1), -math.inf, scores, best)
    return (
        follow(packed, 1, given, 0, False, scores, best, 0, waiting, solver.parts) if best[len(packed.node_parts) - 1] > -math.inf else -1
    )
