"""Tangents of sparse solutions: means and weights as their scores move, at fixed atoms.

The factor that solves for weights is too large to keep: it is made anew from the atoms, one after the other, by a program that takes one
row after the other in the same workspace, and all directions of a row at once. Rows that are not crowded are one launch, the others a
second one; see `active_set`.

What bounds it: for m atoms, m passes over their bits and m over a part of the factor, which is what as many steps of the solution took.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..kernels.gpu.launching import rows_at_once
from .gpu import Atoms, capacities, cells, wide
from .gpu_factor import extend, holds, products, solve

WARPS = (1, 4)
"""Of a program with room for few atoms, and of one with room for many."""


def move(direction: Tensor, moved: Tensor, atoms: Atoms, from_parts: bool, to_parts: bool) -> None:
    """How means, or weights, move with scores, or with correlations: see `structgrad.oracles.active_set.atoms.AtomLists.move`.

    Args:
        direction: float64 [b, r, d] of the scores where ``from_parts``, else [b, r, capacity] of the correlations ``⟨a_s, θ⟩``.
        moved: float64 [b, r, d] of the mean where ``to_parts``, else [b, r, capacity] of the weights.
        atoms: of the b rows.
        from_parts: what is moved.
        to_parts: what is asked for.
    """
    count, repeats, given = direction.shape
    asked, size, most = moved.shape[2], atoms.part.shape[1], atoms.weights.shape[1]
    for again, (capacity, warps) in enumerate(zip(capacities(size), WARPS, strict=False)):
        at_once = rows_at_once(8 * capacity**2)
        # Of few rows, directions are divided between programs too.
        shares = max(min(repeats, at_once // max(count, 1)), 1)
        programs = min(count * shares, at_once)
        factors = torch.empty(programs, capacity, capacity, dtype=torch.float64, device=direction.device)
        _move[(programs,)](
            direction, moved, *atoms, factors, count, repeats, shares, given, asked, size, from_parts, to_parts, again, capacity, most,
            cells(capacity, warps), wide(size, warps), num_warps=warps,
        )  # fmt: skip


@triton.jit(do_not_specialize=["count", "repeats", "shares"])
def _move(
    direction, moved, weights, counts, part, bits, crowded, factors, count, repeats, shares, given, asked, size, from_parts: tl.constexpr,
    to_parts: tl.constexpr, again: tl.constexpr, capacity: tl.constexpr, most: tl.constexpr, cells: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    factor = factors + program.to(tl.int64) * capacity * capacity
    lane = tl.arange(0, capacity)
    total = tl.load(crowded) if again else count
    line = program
    while line < total * shares:
        turn = line // shares
        item = (tl.load(crowded + 1 + turn) if again else turn).to(tl.int64)
        if tl.load(counts + 2 * item + 1) == again:
            places = tl.load(counts + 2 * item)
            active = (tl.load(weights + item * most + lane) > 0.0).to(tl.int32)
            own_part = part + item * size
            own_bits = bits + item * size * (most // 32)
            rows = _factorise(factor, own_bits, active, places, size, lane, capacity, cells)
            ones = active.to(tl.float64)
            repeat = line % shares
            while repeat < repeats:
                source = direction + (item * repeats + repeat) * given
                target = moved + (item * repeats + repeat) * asked
                if from_parts:
                    correlations = _correlate(source, own_part, own_bits, active, places, size, lane, cells)
                else:
                    correlations = tl.load(source + lane, mask=active > 0, other=0.0)
                shifted, even, _ = solve(factor, correlations, ones, rows, lane, capacity, cells, True)
                change = tl.where(active > 0, shifted - tl.sum(shifted, 0) / tl.maximum(tl.sum(even, 0), 1e-300) * even, 0.0)
                if to_parts:
                    _mix(target, change, own_part, own_bits, places, size, asked, lane, cells, wide)
                else:
                    tl.store(target + lane, change)
                    for beyond in tl.static_range(capacity, most, capacity):
                        tl.store(target + beyond + lane, tl.zeros_like(change))
                repeat += shares
        line += tl.num_programs(0)


@triton.jit
def _factorise(factor, bits, active, places, size, lane, capacity: tl.constexpr, tall: tl.constexpr):
    """The factor of the atoms that are active; gives how many rows it has."""
    rows = tl.full((), 0, tl.int32)
    known = tl.zeros_like(active)
    newest = tl.min(tl.where(active > 0, lane, capacity), 0)
    while newest < capacity:
        common = products(bits, newest, active, places, size, lane, tall)
        square = tl.sum(tl.where(lane == newest, common, 0.0), 0) + 1.0
        column = tl.where(known > 0, common + 1.0, 0.0)
        combination, _, form = solve(factor, column, column, rows, lane, capacity, tall, False)
        # In the order of lanes a pivot may be smaller than it was when its atom came, but not below rounding.
        extend(factor, combination, tl.maximum(square - form, square * 1e-15), rows, newest, lane, capacity)
        tl.debug_barrier()
        rows += 1
        known = tl.where(lane == newest, 1, known)
        newest = tl.min(tl.where((active > 0) & (lane > newest), lane, capacity), 0)
    return rows


@triton.jit
def _correlate(direction, part, bits, active, places, size, lane, chunk: tl.constexpr):
    """The inner product of each atom with a direction of the scores."""
    correlations = tl.zeros(active.shape, tl.float64)
    for first in range(0, places, chunk):
        place = first + tl.arange(0, chunk)
        met = place < places
        value = tl.load(direction + tl.load(part + place, mask=met, other=0), mask=met, other=0.0)
        held = holds(bits, place, lane, size, (active > 0)[:, None] & met[None, :])
        correlations += tl.sum(tl.where(held, value[None, :], 0.0), 1)
    return correlations


@triton.jit
def _mix(moved, change, part, bits, places, size, asked, lane, chunk: tl.constexpr, wide: tl.constexpr):
    """Write the sum of the atoms by a change of their weights."""
    for first in range(0, asked, wide):
        at = first + tl.arange(0, wide)
        tl.store(moved + at, tl.zeros([wide], tl.float64), mask=at < asked)
    tl.debug_barrier()
    for first in range(0, places, chunk):
        place = first + tl.arange(0, chunk)
        met = place < places
        # What other lanes hold does not matter: their weights do not change.
        held = holds(bits, place, lane, size, met[None, :])
        value = tl.sum(tl.where(held, change[:, None], 0.0), 0)
        tl.store(moved + tl.load(part + place, mask=met, other=0), value, mask=met)
