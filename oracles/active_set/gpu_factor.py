"""The atoms of an active set and what solves for their weights, in the memory of one program; every step is a product with a matrix.

With G the Gram matrix of the m atoms, ``K = (G + 11ᵀ)⁻¹`` is kept as ``FᵀF``, F any square root: m rows, a column per atom. The CPU's
triangular factor needs m steps one after the other to solve; here a system takes one pass over F, for all its entries at once. A new atom
with inner products g adds the row ``(−Kg, 1)/ρ``, ``ρ² = ⟨a, a⟩ + 1 − gᵀKg``. An atom that leaves makes a Householder reflection of the
rows put all of its column into the last row, which then is dropped. Neither subtracts anything from K.

Atoms are bits: a word holds a part of 32 atoms. Only parts that some atom has had take part (a part's *place* is its number in the order in
which they came), so that the cost depends on the atoms, not on how many parts there are. An atom's number in the set is its *lane*.
"""

from __future__ import annotations

import triton
import triton.language as tl

DEPENDENT = tl.constexpr(1e-11)
"""A squared pivot below this much of the diagonal belongs to an atom in the affine hull of the others."""

NEAR_ONE = tl.constexpr(4e-15)
"""A mean this near to 1 is that of a part of all atoms."""


@triton.jit
def holds(bits, place, lane, size, asked):
    """Which atoms [lane] have which parts [place]; False where it is not asked for."""
    word = tl.load(bits + (lane // 32)[:, None] * size + place[None, :], mask=asked, other=0)
    return ((word >> (lane % 32)[:, None]) & 1) != 0


@triton.jit
def refresh(row, weights, active, mean, residual, part, bits, places, size, lane, chunk: tl.constexpr):
    """The mean of the atoms by place and the residual θ − μ by part; ``⟨a_s − μ, θ − μ⟩`` of each atom, 0 at the optimum of the weights.

    Sums of differences, so that parts which all atoms have in common cost no precision, however large their scores are.
    """
    correlations = tl.zeros_like(weights)
    # Nobody writes before all have read what was there.
    tl.debug_barrier()
    for first in range(0, places, chunk):
        place = first + tl.arange(0, chunk)
        met = place < places
        at = tl.load(part + place, mask=met, other=0)
        score = tl.load(row + at, mask=met, other=0.0)
        held = holds(bits, place, lane, size, (active > 0)[:, None] & met[None, :])
        expected = tl.sum(tl.where(held, weights[:, None], 0.0), 0)
        # Its score may be so large that the rounding of a sum of weights would drown every other part.
        expected = tl.where(tl.abs(expected - 1.0) < NEAR_ONE, 1.0, expected)
        rest = score - expected
        correlations += tl.sum(tl.where(held, 1.0 - expected[None, :], -expected[None, :]) * rest[None, :], 1)
        tl.store(mean + place, expected, mask=met)
        tl.store(residual + at, rest, mask=met)
    tl.debug_barrier()
    return tl.where(active > 0, correlations, 0.0)


@triton.jit
def compare(structure, active, mean, residual, part, bits, places, size, lane, chunk: tl.constexpr):
    """For a new atom a: ``⟨a − μ, θ − μ⟩``, the sum of the magnitudes in it, and ``⟨a, a_s⟩`` for each atom."""
    gain = tl.full((), 0.0, tl.float64)
    magnitude = gain
    common = tl.zeros_like(active)
    for first in range(0, places, chunk):
        place = first + tl.arange(0, chunk)
        met = place < places
        at = tl.load(part + place, mask=met, other=0)
        chosen = tl.load(structure + at, mask=met, other=0) != 0
        expected = tl.load(mean + place, mask=met, other=0.0)
        rest = tl.load(residual + at, mask=met, other=0.0)
        held = holds(bits, place, lane, size, (active > 0)[:, None] & met[None, :])
        common += tl.sum((held & chosen[None, :]).to(tl.int32), 1)
        one = chosen.to(tl.float64)
        different = one != expected
        gain += tl.sum(tl.where(different, (one - expected) * rest, 0.0), 0)
        magnitude += tl.sum(tl.where(different, (one + expected) * tl.abs(rest), 0.0), 0)
    return gain, magnitude, common.to(tl.float64)


@triton.jit
def solve(factor, one, other, rows, lane, capacity: tl.constexpr, tall: tl.constexpr, both: tl.constexpr):
    """``K`` times one vector [lane], ``K`` times another (where asked for ``both``), and the quadratic form of the one."""
    line = tl.arange(0, tall)
    first_sum = tl.zeros([capacity], tl.float64)
    second_sum = tl.zeros([capacity], tl.float64)
    form = tl.full((), 0.0, tl.float64)
    for first in range(0, rows, tall):
        at = first + line
        tile = tl.load(factor + at[:, None] * capacity + lane[None, :], mask=(at < rows)[:, None], other=0.0)
        along = tl.sum(tile * one[None, :], 1)
        first_sum += tl.sum(tile * along[:, None], 0)
        form += tl.sum(along * along, 0)
        if both:
            second_sum += tl.sum(tile * tl.sum(tile * other[None, :], 1)[:, None], 0)
    return first_sum, second_sum, form


@triton.jit
def products(bits, newest, active, places, size, lane, chunk: tl.constexpr):
    """``⟨a, a_s⟩`` for each atom a_s, with a one of them."""
    common = tl.zeros_like(active)
    for first in range(0, places, chunk):
        place = first + tl.arange(0, chunk)
        met = place < places
        word = tl.load(bits + (newest // 32) * size + place, mask=met, other=0)
        chosen = ((word >> (newest % 32)) & 1) != 0
        held = holds(bits, place, lane, size, (active > 0)[:, None] & met[None, :])
        common += tl.sum((held & chosen[None, :]).to(tl.int32), 1)
    return common.to(tl.float64)


@triton.jit
def extend(factor, combination, pivot, rows, newest, lane, capacity: tl.constexpr):
    """Give F the row of an atom in the lane ``newest``; ``combination`` is K times its inner products with the others, 0 for free lanes."""
    inverse = 1.0 / tl.sqrt(pivot)
    tl.debug_barrier()
    tl.store(factor + rows * capacity + lane, tl.where(lane == newest, inverse, -combination * inverse))


@triton.jit
def append(factor, bits, structure, part, combination, pivot, rows, places, size, newest, lane, capacity: tl.constexpr, wide: tl.constexpr):
    """Put a structure into the lane ``newest``, see `extend`."""
    extend(factor, combination, pivot, rows, newest, lane, capacity)
    words = bits + (newest // 32) * size
    flag = tl.full((), 1, tl.int32) << (newest % 32)
    for first in range(0, places, wide):
        place = first + tl.arange(0, wide)
        met = place < places
        at = tl.load(part + place, mask=met, other=0)
        chosen = tl.load(structure + at, mask=met, other=0) != 0
        word = tl.load(words + place, mask=met, other=0)
        tl.store(words + place, tl.where(chosen, word | flag, word & ~flag), mask=met)
    tl.debug_barrier()


@triton.jit
def drop(factor, leaving, rows, lane, capacity: tl.constexpr, tall: tl.constexpr):
    """Take the atom in a lane out of F, which has one row less then and 0 in that column."""
    line = tl.arange(0, tall)
    column = tl.load(factor + lane * capacity + leaving, mask=lane < rows, other=0.0)
    length = tl.sqrt(tl.sum(column * column, 0))
    last = tl.sum(tl.where(lane == rows - 1, column, 0.0), 0)
    # The reflection that takes the column to ∓length in the last row, without cancellation.
    shift = tl.where(last < 0.0, -length, length)
    total = tl.zeros([tall, capacity], tl.float64)
    for first in range(0, rows, tall):
        at = first + line
        tile = tl.load(factor + at[:, None] * capacity + lane[None, :], mask=(at < rows)[:, None], other=0.0)
        normal = tl.sum(tl.where(lane[None, :] == leaving, tile, 0.0), 1) + tl.where(at == rows - 1, shift, 0.0)
        total += tile * normal[:, None]
    reflected = tl.sum(total, 0) / (length * (length + tl.abs(last)))
    tl.debug_barrier()
    for first in range(0, rows - 1, tall):
        at = first + line
        kept = (at < rows - 1)[:, None]
        target = factor + at[:, None] * capacity + lane[None, :]
        tile = tl.load(target, mask=kept, other=0.0)
        normal = tl.sum(tl.where(lane[None, :] == leaving, tile, 0.0), 1)
        tl.store(target, tl.where(lane[None, :] == leaving, 0.0, tile - normal[:, None] * reflected[None, :]), mask=kept)
    tl.debug_barrier()
