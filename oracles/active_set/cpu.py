"""SparseMAP in compiled steps: Wolfe's min-norm-point algorithm over lists of parts.

Source: Wolfe 1976, "Finding the nearest point in a polytope", for the point ``θ``; Niculae et al. 2018, "SparseMAP", section 3.2. The
``project`` of derivations and of spanning trees is one loop over these steps, because compiled functions cannot be passed to each other;
`solver.solve` is that loop for every other argmax::

    space, found = active_set.workspace(d, most_parts), active_set.nothing_found()
    residual = space.residual.reshape(...)
    for item in range(len(rows)):
        space = active_set.start(space, rows[item].reshape(-1), inside[item], begin[item], atoms)
        count = best_parts(residual, ..., space.parts)
        while active_set.advance(space, inside[item], count):
            if active_set.full(space):
                space = active_set.with_room(space)
            count = best_parts(residual, ..., space.parts)
        found = active_set.record(space, found, mean[item], gap, support, item)
    return active_set.result(found)

Only parts that some atom has used take part in the arithmetic; they are numbered in the order in which they came (their *slots*).
"""

from typing import NamedTuple

import numpy as np

from ..kernels.compilation import Array, compiled, fused, shared, uncounted
from .cpu_factor import (
    ATOMS as ATOMS,
    FREED,
    GAP,
    REFERENCE,
    SLOTS as SLOTS,
    STEPS,
    SWAPS,
    ActiveSetWorkspace,
    affine_optimum,
    append,
    copied as copied,
    drop,
    emptied,
    full as full,
    met,
    move as move,
    product,
    with_room as with_room,
    with_room_for as with_room_for,
    workspace as workspace,
)

Atoms = tuple[Array, Array, Array]
"""Of many items, end to end: the parts of each atom (int32), how many parts it has (int32), and its weight."""

NOTICEABLE = 10.0
"""A gap of more than this much rounding is worth the exchange of a dependent atom."""

MOST_SWAPS = 50
"""They mend rounding, and need not end by themselves."""

MAGNIFIED = 10.0
"""Where a dependent atom is a combination of the others with smaller coefficients than this, rounding gains nothing from it."""

ROUNDING = 1e-15
"""A gap below this much of the sums that it is the difference of is rounding; and a mean this near to 1, times 4, is 1."""


class Found(NamedTuple):
    """The atoms of all items so far, end to end, in arrays that grow; ``counters`` says how many atoms and parts they hold."""

    parts: Array
    sizes: Array
    weights: Array
    counters: Array


@compiled
def nothing_found() -> Found:
    """Where `record` begins."""
    return Found(np.empty(256, np.int32), np.empty(16, np.int32), np.empty(16), np.zeros(2, np.int64))


@compiled
def start(space: ActiveSetWorkspace, row: Array, inside: Array, begin: Array, atoms: Atoms) -> ActiveSetWorkspace:
    """Take up the scores [d] of an item, and the atoms of an earlier solution: the first residual is what their optimum leaves.

    Args:
        space: with room for what comes; the result is it, or a larger one.
        row: scores, -inf where a part is forbidden.
        inside: [d] which parts count; where it is empty, all do.
        begin: int64 [3], the item's first atom, how many atoms it has (0 where there is no earlier solution), and where their parts begin.
        atoms: of all items. Those that use what is forbidden now are left out.
    """
    emptied(space)
    space.values[GAP], space.values[REFERENCE] = 0.0, 0.0
    copied(row, space.residual)
    slots = most = len(space.parts)
    for s in range(begin[0], begin[0] + begin[1]):
        slots, most = slots + atoms[1][s], max(most, atoms[1][s])
    space = with_room_for(space, begin[1] + 1, slots, most)
    if _resume(space, inside, begin, atoms):
        _descend(space)
        _set_residual(space)
    return space


@uncounted
def _resume(space: ActiveSetWorkspace, inside: Array, begin: Array, atoms: Atoms) -> bool:
    """Put in the atoms of an earlier solution, with weights of sum 1; False where none of them is allowed."""
    parts, sizes, weights = atoms
    first, many, at = begin[0], begin[1], begin[2]
    sum_of_weights = 0.0
    for s in range(first, first + many):
        for i in range(sizes[s]):
            space.parts[i] = parts[at + i]
        at += sizes[s]
        size, score = _to_slots(space, inside, sizes[s]), 0.0
        if size < 0 or not weights[s] > 0:
            continue
        for i in range(size):
            score += space.scores[space.parts[i]]
        if space.counters[ATOMS] == 0:
            space.values[REFERENCE] = score
        if append(space, space.parts, size, score - space.values[REFERENCE]):
            space.weights[space.counters[ATOMS] - 1] = weights[s]
            sum_of_weights += weights[s]
    for s in range(space.counters[ATOMS]):
        space.weights[s] /= sum_of_weights
    return sum_of_weights > 0


@shared
def advance(space: ActiveSetWorkspace, inside: Array, count: int) -> bool:
    """Take in the MAP along the residual, its ``count`` parts in `ActiveSetWorkspace.parts`, -1 without one; False when the item is done.

    ``inside`` [d] says which parts count; where it is empty, all do.
    """
    count = _to_slots(space, inside, count)
    if space.counters[ATOMS] == 0:
        return _first(space, count)
    if count < 0:
        return False
    gap, rounding = _gap(space, count)
    space.values[GAP] = max(gap, 0.0)
    space.counters[STEPS] += 1
    # No structure scores better along the residual than the mean: it is the projection. Steps are bounded in case rounding makes it cycle.
    if gap <= rounding or space.counters[STEPS] > 20 * (space.counters[SLOTS] + 1):
        return False
    correlation = -space.values[REFERENCE]
    for i in range(count):
        correlation += space.scores[space.parts[i]]
    if not append(space, space.parts, count, correlation):
        # A combination of the atoms so far, up to rounding: one of them has to go first, if the gap is worth it.
        if gap <= NOTICEABLE * rounding or space.counters[SWAPS] >= MOST_SWAPS or not _make_way(space):
            return False
        space.counters[SWAPS] += 1
        if append(space, space.parts, count, correlation):
            space.weights[space.counters[ATOMS] - 1] = space.values[FREED]
        else:  # still dependent: the atoms that are left share the weight that came free
            for s in range(space.counters[ATOMS]):
                space.weights[s] /= 1.0 - space.values[FREED]
    if not _descend(space):
        return False
    _set_residual(space)
    return True


@fused
def _to_slots(space: ActiveSetWorkspace, inside: Array, count: int) -> int:
    """Replace the parts of the new atom that count by their slots; how many there are, or -1 where one is forbidden."""
    if count < 0:
        return count
    parts, slot, kept = space.parts, space.slot, 0
    for i in range(count):
        part = parts[i]
        if len(inside) > 0 and not inside[part]:
            continue
        if space.residual[part] == -np.inf:
            return -1
        place = slot[part]
        if place < 0:  # no atom had it yet, so that its mean is 0 and its residual is still its score
            place = met(space, part)
            space.scores[place] = space.residual[part]
            space.mean[place] = 0.0
        parts[kept] = place
        kept += 1
    return kept


@uncounted
def _first(space: ActiveSetWorkspace, count: int) -> bool:
    """The best structure alone. An item without a structure gets one that uses a forbidden part, or none."""
    if count < 0:
        space.values[GAP] = np.inf
        return False
    total = 0.0
    for i in range(count):
        total += space.scores[space.parts[i]]
    space.values[REFERENCE] = total
    append(space, space.parts, count, 0.0)
    space.weights[0] = 1.0
    _set_residual(space)
    return True


@uncounted
def _gap(space: ActiveSetWorkspace, count: int) -> tuple[float, float]:
    """``⟨r, a − μ⟩`` for the new atom, and how large it may be by rounding alone."""
    gap, size, mean, marked = 0.0, 0.0, space.mean, space.marked
    for i in range(count):
        marked[space.parts[i]] += 1.0
    for place in range(space.counters[SLOTS]):
        part, expected = marked[place], mean[place]
        if part != expected:  # a part of all atoms adds nothing, however large its score
            value = space.scores[place] - expected
            gap += (part - expected) * value
            size += (part + expected) * abs(value)
    for i in range(count):
        marked[space.parts[i]] = 0.0
    return gap, ROUNDING * size + 1e-15


@uncounted
def _make_way(space: ActiveSetWorkspace) -> bool:
    """Take out the atom that the new one, ``a = Σ λ_s a_s`` with ``Σ λ = 1``, can stand for at the same mean; False where there is none.

    Only ill-conditioned atoms get here: such an ``a`` can have no gap but by rounding that large ``λ`` magnify.
    """
    count, factor, weights, combination = space.counters[ATOMS], space.factor, space.weights, space.target
    greatest = 0.0
    # λ solves a triangular system; the diagonal of the factor holds reciprocals.
    for s in range(count - 1, -1, -1):
        known = product(factor[s, s + 1 : count], combination[s + 1 : count])
        combination[s] = (factor[s, count] - known) * factor[s, s]
        greatest = max(greatest, abs(combination[s]))
    leaving, most = -1, 1.0
    # The first weight to reach 0 while the new atom takes over, as in the ratio test of the simplex method.
    for s in range(count if greatest > MAGNIFIED else 0):
        if combination[s] > 1e-6 * greatest and weights[s] < most * combination[s]:
            leaving, most = s, weights[s] / combination[s]
    if leaving < 0:
        return False
    for s in range(count):
        weights[s] = max(weights[s] - most * combination[s], 0.0)
    space.values[FREED] = most
    drop(space, leaving)
    return True


@shared
def _descend(space: ActiveSetWorkspace) -> bool:
    """Move the weights to the optimum of a face; atoms whose weight reaches 0 on the way leave. False where rounding blocks the way."""
    weights, target = space.weights, space.target
    newest = weights[space.counters[ATOMS] - 1] == 0.0
    while True:
        affine_optimum(space, 1.0)
        count = space.counters[ATOMS]
        if newest and target[count - 1] <= 0:  # the new atom does not help: its gap was rounding
            space.counters[ATOMS] -= 1
            return False
        newest = False
        length, blocked = 1.0, False
        for s in range(count):
            if target[s] <= 0:
                length, blocked = min(length, weights[s] / max(weights[s] - target[s], 1e-300)), True
        # Go towards the optimum of the affine hull until the first weight is 0, and look again in the smaller face.
        if not blocked:
            for s in range(count):
                weights[s] = target[s]
            return True
        for s in range(count - 1, -1, -1):
            weights[s] = max(weights[s] + length * (target[s] - weights[s]), 0.0)
            if target[s] <= 0 and weights[s] <= 1e-15:
                drop(space, s)


@uncounted
def _set_residual(space: ActiveSetWorkspace) -> None:
    """The mean of the atoms, and the residual where some atom has been."""
    mean, slots = space.mean, space.counters[SLOTS]
    for place in range(slots):
        mean[place] = 0.0
    for s in range(space.counters[ATOMS]):
        weight, home = space.weights[s], space.home[s]
        atom = space.atoms[home, : space.sizes[home]]
        for i in range(len(atom)):
            mean[atom[i]] += weight
    for place in range(slots):
        # A part of all atoms, whose score may be so large that the rounding of a sum of weights would drown every other part.
        mean[place] = 1.0 if abs(mean[place] - 1.0) < 4 * ROUNDING else mean[place]
        space.residual[space.part[place]] = space.scores[place] - mean[place]


@compiled
def record(space: ActiveSetWorkspace, found: Found, mean: Array, gap: Array, support: Array, item: int) -> Found:
    """Write down the mean [d], gap and number of atoms of an item, and put its atoms behind those of the items before."""
    count = space.counters[ATOMS]
    gap[item], support[item] = space.values[GAP], count
    for place in range(space.counters[SLOTS]):
        if count > 0:
            mean[space.part[place]] = space.mean[place]
    first, at = found.counters[0], found.counters[1]
    total = at
    for s in range(count):
        total += space.sizes[space.home[s]]
    parts, sizes, weights = found.parts, found.sizes, found.weights
    if total > len(parts):
        parts = copied(parts, np.empty(2 * total, np.int32))
    if first + count > len(sizes):
        sizes = copied(sizes, np.empty(2 * (first + count), np.int32))
        weights = copied(weights, np.empty(2 * (first + count)))
    for s in range(count):
        home = space.home[s]
        sizes[first + s], weights[first + s] = space.sizes[home], space.weights[s]
        for i in range(space.sizes[home]):
            parts[at] = space.part[space.atoms[home, i]]
            at += 1
    found.counters[0], found.counters[1] = first + count, at
    return Found(parts, sizes, weights, found.counters)


@compiled
def result(found: Found) -> tuple[Array, Array, Array]:
    """What was found, cut to its length: parts, sizes and weights of the atoms."""
    atoms, parts = found.counters
    return found.parts[:parts], found.sizes[:atoms], found.weights[:atoms]
