"""Cholesky factor of an active set: solves for the weights of its atoms, kept up to date in O(m²) per atom.

The weights solve ``min ½‖Σ w_s a_s − θ‖²`` with ``Σ w`` fixed, through the factor R of ``G + 11ᵀ = RᵀR``, G the Gram matrix of the atoms
(adding 11ᵀ changes nothing where ``Σ w`` is fixed, and makes the matrix positive definite for affinely independent atoms). A new atom
appends a column to R; an atom that leaves takes its column out by Givens rotations (Golub & Van Loan, "Matrix computations", section 6.5).
Nothing is factorised afresh. Wolfe 1976 calls such a set of atoms a corral.

Atoms stay where they are written, their *home*, when others leave. Which of them have a slot stands side by side in one row of a matrix, so
that the overlaps of a new atom with all others are the sum of a few rows.
"""

from typing import NamedTuple

import numpy as np

from ..kernels.compilation import Array, compiled, fused, inner, reordered, uncounted
from ..kernels.vectors import WIDTH, add, load, multiply_add, spread, store

ATOMS, SLOTS, STEPS, SWAPS, HOMES = 0, 1, 2, 3, 4
"""Places in `ActiveSetWorkspace.counters`: active atoms; parts met; calls of the MAP; dependent atoms that took the place of another; homes
that have been written to."""

GAP, REFERENCE, FREED = 0, 1, 2
"""Places in `ActiveSetWorkspace.values`: certified gap; score of the first atom, from which correlations are counted; a weight set free."""

DEPENDENT = 1e-11
"""A squared pivot below this much of the diagonal belongs to an atom in the affine hull of the others."""


class ActiveSetWorkspace(NamedTuple):
    """Arrays for one item at a time: of length d by part or by slot, of length ``capacity`` by atom or by home.

    Those that vectors are loaded from may be read for a vector's width beyond what is meant, so that some have room to spare.
    """

    residual: Array  # [d] θ − μ, what the MAP is called on; -inf at forbidden parts
    parts: Array  # [most] int32, where the MAP writes
    slot: Array  # [d] int32, of a part; -1 before it is met
    part: Array  # [d] int32, of a slot
    scores: Array  # [d] θ by slot
    mean: Array  # [d] μ by slot
    marked: Array  # [d] by slot: how often the new atom has it
    atoms: Array  # [capacity, most] by home: uint32, slots (unsigned, because a negative index would count from the end)
    sizes: Array  # [capacity] int32, by home; 0 in homes that were never written to
    home: Array  # [capacity] int32, of an atom; behind those of the atoms are the free homes
    incidence: Array  # [slots, capacity] float32: how often the atom of a home has a slot; 0 beyond its slots
    weights: Array  # [capacity]
    target: Array  # [capacity] the weights of the affine optimum
    column: Array  # [capacity + WIDTH] scratch, by atom
    common: Array  # [capacity] scratch, by home
    solved: Array  # [capacity, 2] R⁻ᵀ of the correlations ⟨a_s, θ⟩ and of 1
    factor: Array  # [capacity + 1, capacity] R, upper triangular; its diagonal inverted
    counters: Array
    values: Array


@compiled
def workspace(size: int, most: int) -> ActiveSetWorkspace:
    """Room for items of ``size`` parts whose structures have at most ``most`` of them, or more after `with_room_for`."""
    capacity, slots = 16, min(size, 64 + most)
    slot = np.empty(size, np.int32)
    for part in range(size):
        slot[part] = -1
    space = ActiveSetWorkspace(
        np.empty(size), np.empty(most, np.int32), slot, np.empty(size, np.int32), np.empty(size), np.empty(size), np.zeros(size),
        np.empty((capacity, most), np.uint32), np.empty(capacity, np.int32), np.empty(capacity, np.int32),
        np.empty((slots, capacity), np.float32), np.empty(capacity), np.empty(capacity), np.empty(capacity + WIDTH), np.empty(capacity),
        np.empty((capacity, 2)), np.empty((capacity + 1, capacity)), np.zeros(5, np.int64), np.zeros(3),
    )  # fmt: skip
    emptied(space)
    return space


@uncounted
def emptied(space: ActiveSetWorkspace) -> None:
    """Forget all atoms and slots."""
    for place in range(space.counters[SLOTS]):
        space.slot[space.part[place]] = -1
    for i in range(len(space.counters)):
        space.counters[i] = 0
    for s in range(len(space.weights)):
        space.sizes[s], space.home[s] = 0, s


@inner
def copied(array: Array, target: Array) -> Array:
    """The target [m], begun with a copy of the array. A loop: assignment between slices takes seconds to compile."""
    for i in range(len(array)):
        target[i] = array[i]
    return target


@uncounted
def full(space: ActiveSetWorkspace) -> bool:
    """Whether `with_room` has to make room: to ask costs less than to pass all arrays through it."""
    slots = min(space.counters[SLOTS] + len(space.parts), len(space.slot))
    return space.counters[ATOMS] >= len(space.weights) or slots > len(space.incidence)


@compiled
def with_room(space: ActiveSetWorkspace) -> ActiveSetWorkspace:
    """The workspace, with room for one more atom."""
    return with_room_for(space, space.counters[ATOMS] + 1, space.counters[SLOTS] + len(space.parts), len(space.parts))


@compiled
def with_room_for(space: ActiveSetWorkspace, atoms: int, slots: int, most: int) -> ActiveSetWorkspace:
    """The workspace, with room for so many atoms of so many parts, and for so many slots or all that there can be."""
    slots = min(slots, len(space.slot))
    if atoms <= len(space.weights) and slots <= len(space.incidence) and most <= len(space.parts):
        return space
    known, capacity, most, met = len(space.weights), len(space.weights), max(most, len(space.parts)), space.counters[SLOTS]
    while capacity < atoms:
        capacity *= 2
    rows = len(space.incidence) if slots <= len(space.incidence) else min(len(space.slot), 2 * slots)
    incidence = np.empty((rows, capacity), np.float32)
    for place in range(met):
        copied(space.incidence[place], incidence[place])
        for s in range(known, capacity):
            incidence[place, s] = 0.0
    lists, factor, solved = np.empty((capacity, most), np.uint32), np.empty((capacity + 1, capacity)), np.empty((capacity, 2))
    sizes, home = copied(space.sizes, np.empty(capacity, np.int32)), copied(space.home, np.empty(capacity, np.int32))
    for s in range(known):
        copied(space.atoms[s], lists[s])
        copied(space.factor[s], factor[s])
        copied(space.solved[s], solved[s])
    for s in range(known, capacity):
        sizes[s], home[s] = 0, s
    return ActiveSetWorkspace(
        space.residual, np.empty(most, np.int32), space.slot, space.part, space.scores, space.mean, space.marked, lists, sizes, home,
        incidence, copied(space.weights, np.empty(capacity)), np.empty(capacity), np.empty(capacity + WIDTH), np.empty(capacity), solved,
        factor, space.counters, space.values,
    )  # fmt: skip


@uncounted
def met(space: ActiveSetWorkspace, part: int) -> int:
    """The slot of a part, a new one where it has none."""
    place = space.slot[part]
    if place < 0:
        place = space.counters[SLOTS]
        space.counters[SLOTS] += 1
        space.slot[part] = place
        space.part[place] = part
        row = space.incidence[place]
        for s in range(len(row)):
            row[s] = 0.0
    return place


@fused
def append(space: ActiveSetWorkspace, pattern: Array, count: int, correlation: float) -> bool:
    """Put the atom of these slots last, with weight 0; False where it adds no dimension."""
    last, column, factor, solved, stride = space.counters[ATOMS], space.column, space.factor, space.solved, len(space.weights)
    square = _overlap(space, pattern, count)
    pivot, both, one = square, correlation, 1.0
    for s in range(last):
        value = column[s] * factor[s, s]
        factor[s, last] = value
        minus, row = spread(-value), s * stride
        for t in range(s + 1, last, WIDTH):
            store(column, t, multiply_add(minus, load(factor, row + t), load(column, t)))
        pivot -= value * value
        both -= value * solved[s, 0]
        one -= value * solved[s, 1]
    if pivot <= DEPENDENT * square:
        return False
    inverse = 1.0 / np.sqrt(pivot)
    factor[last, last], solved[last, 0], solved[last, 1] = inverse, both * inverse, one * inverse
    _write(space, pattern, count)
    space.weights[last] = 0.0
    space.counters[ATOMS] = last + 1
    return True


@uncounted
def _overlap(space: ActiveSetWorkspace, pattern: Array, count: int) -> float:
    """Write into `ActiveSetWorkspace.column` the inner product of a new atom with each of the others, plus 1, and give that with itself.

    A part that an atom lists several times is so large in it.
    """
    marked, incidence, common, stride = space.marked, space.incidence, space.common, len(space.weights)
    for first in range(0, space.counters[HOMES], 2 * WIDTH):
        low = high = spread(1.0)
        for i in range(count):
            at = pattern[i] * stride + first
            low, high = add(load(incidence, at), low), add(load(incidence, at + WIDTH), high)
        store(common, first, low)
        store(common, first + WIDTH, high)
    for s in range(space.counters[ATOMS]):
        space.column[s] = common[space.home[s]]
    square = 1.0
    for i in range(count):
        marked[pattern[i]] += 1.0
    for i in range(count):
        square += marked[pattern[i]]
    for i in range(count):
        marked[pattern[i]] = 0.0
    return square


@uncounted
def _write(space: ActiveSetWorkspace, pattern: Array, count: int) -> None:
    """Put the slots of a new atom into the first free home, from which another may have to be cleared away."""
    home = space.home[space.counters[ATOMS]]
    atom, incidence = space.atoms[home], space.incidence
    for i in range(space.sizes[home]):
        incidence[atom[i], home] = 0.0
    for i in range(count):
        atom[i] = pattern[i]
        incidence[pattern[i], home] += np.float32(1.0)
    space.sizes[home] = count
    space.counters[HOMES] = max(space.counters[HOMES], home + 1)


@uncounted
def affine_optimum(space: ActiveSetWorkspace, total: float) -> None:
    """``R w = R⁻ᵀ(c − λ1)`` with λ such that the weights sum to ``total``."""
    count, solved, factor, target = space.counters[ATOMS], space.solved, space.factor, space.target
    top, bottom = -total, 0.0
    for s in range(count):
        top += solved[s, 0] * solved[s, 1]
        bottom += solved[s, 1] * solved[s, 1]
    multiplier = top / bottom
    for s in range(count - 1, -1, -1):
        known = product(factor[s, s + 1 : count], target[s + 1 : count])
        target[s] = (solved[s, 0] - multiplier * solved[s, 1] - known) * factor[s, s]


@reordered
def product(values: Array, others: Array) -> float:
    """Their inner product."""
    total = 0.0
    for t in range(len(values)):
        total += values[t] * others[t]
    return total


@uncounted
def drop(space: ActiveSetWorkspace, leaving: int) -> None:
    """Take an atom out, and its column out of R, by Givens rotations of neighbouring rows."""
    count, factor, solved, carried = space.counters[ATOMS], space.factor, space.solved, space.column
    freed = space.home[leaving]
    for s in range(leaving):
        row = factor[s]
        for t in range(leaving, count - 1):
            row[t] = row[t + 1]
    for t in range(leaving + 1, count):
        carried[t] = factor[leaving, t]
    both, one = solved[leaving, 0], solved[leaving, 1]
    for s in range(leaving, count - 1):
        first, second = carried[s + 1], 1.0 / factor[s + 1, s + 1]
        inverse = 1.0 / np.sqrt(first * first + second * second)
        cosine, sine = first * inverse, second * inverse
        _rotate(cosine, sine, (carried[s + 2 : count], factor[s + 1, s + 2 : count], factor[s, s + 1 : count - 1]))
        factor[s, s] = inverse
        solved[s, 0], both = cosine * both + sine * solved[s + 1, 0], cosine * solved[s + 1, 0] - sine * both
        solved[s, 1], one = cosine * one + sine * solved[s + 1, 1], cosine * solved[s + 1, 1] - sine * one
        space.weights[s] = space.weights[s + 1]
        space.target[s] = space.target[s + 1]
        space.home[s] = space.home[s + 1]
    space.home[count - 1] = freed
    space.counters[ATOMS] = count - 1


@reordered
def _rotate(cosine: float, sine: float, rows: tuple[Array, Array, Array]) -> None:
    """One Givens rotation of two rows: the first is carried on, the second is read, and the third takes the result."""
    carried, below, row = rows
    for t in range(len(carried)):
        above = carried[t]
        row[t] = cosine * above + sine * below[t]
        carried[t] = cosine * below[t] - sine * above


@compiled
def move(bounds: Array, direction: Array, moved: Array, parts: Array, sizes: Array, from_parts: bool, to_parts: bool) -> None:
    """How weights, or the mean, move with correlations, or scores, at fixed atoms.

    Args:
        bounds: int64 [b, 3], for each row its first atom, how many atoms it has, and where their parts begin.
        direction: [b, r, d] of the scores where ``from_parts``, else [b, r, m] of the correlations ``⟨a_s, θ⟩``.
        moved: [b, r, d] of the mean where ``to_parts``, else [b, r, m] of the weights.
        parts: the parts of all atoms, end to end.
        sizes: of each atom, how many parts it has.
        from_parts: what is moved.
        to_parts: what is asked for.
    """
    most = 1
    for s in range(len(sizes)):
        most = max(most, sizes[s])
    space = workspace(max(direction.shape[2], moved.shape[2]), most)
    for b in range(len(bounds)):
        first, count, begin = bounds[b]
        emptied(space)
        at = begin
        for s in range(first, first + count):
            if full(space):
                space = with_room(space)
            for i in range(sizes[s]):
                space.parts[i] = met(space, parts[at + i])
            append(space, space.parts, sizes[s], 0.0)
            at += sizes[s]
        for k in range(direction.shape[1] if count > 0 else 0):
            _correlate(space, direction[b, k], from_parts)
            affine_optimum(space, 0.0)
            for s in range(space.counters[ATOMS]):
                if to_parts:
                    home = space.home[s]
                    for i in range(space.sizes[home]):
                        moved[b, k, space.part[space.atoms[home, i]]] += space.target[s]
                else:
                    moved[b, k, s] = space.target[s]


@uncounted
def _correlate(space: ActiveSetWorkspace, direction: Array, from_parts: bool) -> None:
    """R⁻ᵀ of the correlations of the atoms with a direction, or of the correlations that it holds."""
    count, column, factor, part = space.counters[ATOMS], space.column, space.factor, space.part
    for s in range(count):
        column[s] = 0.0 if from_parts else direction[s]
        if from_parts:
            home = space.home[s]
            atom = space.atoms[home, : space.sizes[home]]
            for i in range(len(atom)):
                column[s] += direction[part[atom[i]]]
    for s in range(count):
        value = column[s] * factor[s, s]
        rest, row = column[s + 1 : count], factor[s, s + 1 : count]
        for t in range(len(rest)):
            rest[t] -= value * row[t]
        space.solved[s, 0] = value
