"""Cholesky factor of an active set: solves for the weights of its atoms, kept up to date in O(m²) per atom.

The weights solve ``min ½‖Σ w_s a_s − θ‖²`` with ``Σ w`` fixed, through the factor R of ``G + 11ᵀ = RᵀR``, G the Gram matrix of the atoms
(adding 11ᵀ changes nothing where ``Σ w`` is fixed, and makes the matrix positive definite for affinely independent atoms). A new atom
appends a column to R; an atom that leaves takes its column out by Givens rotations (Golub & Van Loan, "Matrix computations", section 6.5).
Nothing is factorised afresh. Wolfe 1976 calls such a set of atoms a corral.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.compilation import compiled, inner, reordered, uncounted

Array = NDArray[Any]

ATOMS, SLOTS, STEPS, SWAPS = 0, 1, 2, 3
"""Places in `ActiveSetWorkspace.counters`: active atoms; parts met; calls of the MAP; dependent atoms that took the place of another."""

GAP, REFERENCE, FREED = 0, 1, 2
"""Places in `ActiveSetWorkspace.values`: certified gap; score of the first atom, from which correlations are counted; a weight set free."""

DEPENDENT = 1e-11
"""A squared pivot below this much of the diagonal belongs to an atom in the affine hull of the others."""


class ActiveSetWorkspace(NamedTuple):
    """Arrays for one item at a time: of length d by part or by slot, of length ``capacity`` by atom."""

    residual: Array  # [d] θ − μ, what the MAP is called on; -inf at forbidden parts
    parts: Array  # [most] int32, where the MAP writes
    slot: Array  # [d] int32, of a part; -1 before it is met
    part: Array  # [d] int32, of a slot
    scores: Array  # [d] θ by slot
    mean: Array  # [d] μ by slot
    marked: Array  # [d] by slot: how often the new atom has it
    atoms: Array  # [capacity, most] uint32, slots (unsigned, because a negative index would count from the end)
    sizes: Array  # [capacity] int32
    weights: Array  # [capacity]
    target: Array  # [capacity] the weights of the affine optimum
    column: Array  # [capacity] scratch
    solved: Array  # [capacity, 2] R⁻ᵀ of the correlations ⟨a_s, θ⟩ and of 1
    factor: Array  # [capacity, capacity] R, upper triangular; its diagonal inverted
    counters: Array
    values: Array


@compiled
def workspace(size: int, most: int) -> ActiveSetWorkspace:
    """Room for items of ``size`` parts whose structures have at most ``most`` of them."""
    capacity = 16
    slot = np.empty(size, np.int32)
    for part in range(size):
        slot[part] = -1
    return ActiveSetWorkspace(
        np.empty(size), np.empty(most, np.int32), slot, np.empty(size, np.int32), np.empty(size), np.empty(size), np.zeros(size),
        np.empty((capacity, most), np.uint32), np.empty(capacity, np.int32), np.empty(capacity), np.empty(capacity), np.empty(capacity),
        np.empty((capacity, 2)), np.empty((capacity, capacity)), np.zeros(4, np.int64), np.zeros(3),
    )  # fmt: skip


@inner
def copied(array: Array, target: Array) -> Array:
    """The target [m], begun with a copy of the array. A loop: assignment between slices takes seconds to compile."""
    for i in range(len(array)):
        target[i] = array[i]
    return target


@compiled
def with_room(space: ActiveSetWorkspace) -> ActiveSetWorkspace:
    """The workspace, with room for one more atom."""
    capacity = len(space.weights)
    if space.counters[ATOMS] < capacity:
        return space
    double = 2 * capacity
    atoms, factor, solved = np.empty((double, space.atoms.shape[1]), np.uint32), np.empty((double, double)), np.empty((double, 2))
    for s in range(capacity):
        copied(space.atoms[s], atoms[s])
        copied(space.factor[s], factor[s])
        copied(space.solved[s], solved[s])
    return ActiveSetWorkspace(
        space.residual, space.parts, space.slot, space.part, space.scores, space.mean, space.marked,
        atoms, copied(space.sizes, np.empty(double, np.int32)), copied(space.weights, np.empty(double)),
        np.empty(double), np.empty(double), solved, factor, space.counters, space.values,
    )  # fmt: skip


@reordered
def append(space: ActiveSetWorkspace, pattern: Array, count: int, correlation: float) -> bool:
    """Put the atom of these slots last, with weight 0; False where it adds no dimension."""
    last, column, factor, solved = space.counters[ATOMS], space.column, space.factor, space.solved
    square = _overlap(space, pattern, count)
    pivot, both, one = square, correlation, 1.0
    for s in range(last):
        value = column[s] * factor[s, s]
        factor[s, last] = value
        rest, row = column[s + 1 : last], factor[s, s + 1 : last]
        for t in range(len(rest)):
            rest[t] -= value * row[t]
        pivot -= value * value
        both -= value * solved[s, 0]
        one -= value * solved[s, 1]
    if pivot <= DEPENDENT * square:
        return False
    inverse = 1.0 / np.sqrt(pivot)
    factor[last, last], solved[last, 0], solved[last, 1] = inverse, both * inverse, one * inverse
    space.sizes[last], space.weights[last] = count, 0.0
    space.counters[ATOMS] = last + 1
    return True


@uncounted
def _overlap(space: ActiveSetWorkspace, pattern: Array, count: int) -> float:
    """Write the new atom down behind the others, and into `ActiveSetWorkspace.column` its inner product with each, plus 1.

    Gives that with itself. A part that an atom lists several times is so large in it.
    """
    atoms, sizes, marked, column, last = space.atoms, space.sizes, space.marked, space.column, space.counters[ATOMS]
    for i in range(count):
        marked[pattern[i]] += 1.0
        atoms[last, i] = pattern[i]
    for s in range(last):
        common, atom = 1.0, atoms[s, : sizes[s]]
        for i in range(len(atom)):
            common += marked[atom[i]]
        column[s] = common
    square = 1.0
    for i in range(count):
        square += marked[pattern[i]]
    for i in range(count):
        marked[pattern[i]] = 0.0
    return square


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
        space.sizes[s] = space.sizes[s + 1]
        for i in range(space.sizes[s]):
            space.atoms[s, i] = space.atoms[s + 1, i]
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
        space.counters[ATOMS] = 0
        at = begin
        for s in range(first, first + count):
            space = with_room(space)
            size = int(sizes[s])
            append(space, parts[at : at + size], size, 0.0)
            at += size
        for k in range(direction.shape[1] if count > 0 else 0):
            _correlate(space, direction[b, k], from_parts)
            affine_optimum(space, 0.0)
            for s in range(space.counters[ATOMS]):
                if to_parts:
                    for i in range(space.sizes[s]):
                        moved[b, k, space.atoms[s, i]] += space.target[s]
                else:
                    moved[b, k, s] = space.target[s]


@uncounted
def _correlate(space: ActiveSetWorkspace, direction: Array, from_parts: bool) -> None:
    """R⁻ᵀ of the correlations of the atoms with a direction, or of the correlations that it holds."""
    count, column, factor = space.counters[ATOMS], space.column, space.factor
    for s in range(count):
        column[s] = 0.0 if from_parts else direction[s]
        if from_parts:
            for i in range(space.sizes[s]):
                column[s] += direction[space.atoms[s, i]]
    for s in range(count):
        value = column[s] * factor[s, s]
        rest, row = column[s + 1 : count], factor[s, s + 1 : count]
        for t in range(len(rest)):
            rest[t] -= value * row[t]
        space.solved[s, 0] = value
