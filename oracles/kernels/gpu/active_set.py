"""SparseMAP: Wolfe's min-norm-point algorithm, the whole loop in one program per problem, MAP included.

Source: Wolfe 1976, "Finding the nearest point in a polytope", for the point ``θ``; Niculae et al. 2018, "SparseMAP", section 3.2. The steps
and their safeguards are those of the CPU's `structgrad.oracles.kernels.active_set`; how weights are solved for is in `corral`. They are
solved for from the residual at hand, not from the scores: every step is one of iterative refinement too, so that errors in the factor
correct themselves, and an atom that rounding makes look dependent is answered by another such step.

What bounds it: the longest chain of steps of any problem, each one MAP, two passes over the atoms' bits (m atoms by the parts that some of
them has) and four to six over m² numbers; a problem waits for nothing on the host, and none waits for another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .corral import DEPENDENT, append, compare, drop, holds, refresh, solve
from .launching import WARP, lanes

MOST_ATOMS = 256
"""Room for atoms. A problem whose answer has d parts in play needs d + 1 at most, and in practice few: trees of 20 words have some 40 atoms
at scores of standard deviation 1, 100 at 0.3 and 220 at 0.1. Where there is no room for another, the gap says how far the answer is."""

ROUNDING = tl.constexpr(1e-15)
"""A gap below this much of the sums that it is the difference of is rounding."""

NOTICEABLE = tl.constexpr(10.0)
"""A gap of more than this much rounding is worth another solution for the weights where the new atom adds no dimension."""

MOST_REPEATS = tl.constexpr(50)
"""Such solutions mend rounding, and need not end by themselves."""

WARPS = 4
CELLS = 8
"""Numbers that a thread holds of a block of two dimensions; the sums over such blocks must stay in registers beside it."""

WIDE = 1024
"""Parts in a block of one dimension."""


class Atoms(NamedTuple):
    """The atoms of b rows in the memory of the device, each with room for the same number of them.

    Attributes:
        weights: float64 [b, capacity], 0 in a free lane.
        counts: int32 [b, 2], how many places and how many rows of the factor are in use.
        slot: int32 [b, d], the place of each part, -1 where it has none.
        part: int32 [b, d], the part of each place.
        bits: int32 [b, capacity / 32, d], the atoms by place.
        factor: float64 [b, capacity, capacity]; see `corral`.
    """

    weights: Tensor
    counts: Tensor
    slot: Tensor
    part: Tensor
    bits: Tensor
    factor: Tensor


class Map(NamedTuple):
    """A structure's MAP of one problem, for events of one shape, as ``best(scores, structure, workspace, *sizes, *options)``.

    Attributes:
        best: the function; scores are float64, structures bytes.
        room: how many numbers its workspace has.
        dtype: of the workspace.
        sizes: its arguments at run time.
        options: its arguments at compile time.
        warps: of the program.
    """

    best: Any
    room: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    options: tuple[Any, ...]
    warps: int = WARPS


Launcher = Callable[..., Atoms]
"""What a module has as ``project``: called with rows [b, *event], inside, mean [b, d] and gap [b]; see `launcher`."""


def launcher(describe: Callable[..., Map]) -> Launcher:
    """The ``project`` of a structure.

    Args:
        describe: gives the MAP for an event shape and the oracle's options.
    """

    def project(rows: Tensor, inside: Tensor, mean: Tensor, gap: Tensor, *options: Any) -> Atoms:
        """Project float64 rows [b, *event]: write means [b, d] and gaps [b].

        ``inside`` [b, d] says which parts count, [b, 0] that all do; see `structgrad.oracles.kernels.active_set`.
        """
        return project_with(describe(tuple(rows.shape[1:]), *options), rows, inside, mean, gap)

    return project


def project_with(task: Map, rows: Tensor, inside: Tensor, mean: Tensor, gap: Tensor) -> Atoms:
    """See `launcher`."""
    count, size = mean.shape
    capacity = lanes(min(size + 1, MOST_ATOMS), 32)

    def room(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.empty(count, *shape, dtype=dtype, device=rows.device)

    atoms = Atoms(
        room(capacity), room(2, dtype=torch.int32), room(size, dtype=torch.int32), room(size, dtype=torch.int32),
        room(capacity // 32, size, dtype=torch.int32), room(capacity, capacity),
    )  # fmt: skip
    residual, structure, means, space = room(size), room(size, dtype=torch.uint8), room(size), room(task.room, dtype=task.dtype)
    _project[(count,)](
        rows, inside, mean, gap, *atoms, residual, structure, means, space, size, task.room, task.sizes,
        task.best, task.options, len(task.options), inside.shape[1] == 0, capacity, _cells(capacity, task.warps),
        _wide(size, task.warps), num_warps=task.warps,
    )  # fmt: skip
    return atoms


def _cells(capacity: int, warps: int) -> int:
    """The other extent of blocks that are ``capacity`` long."""
    return max(CELLS * WARP * warps // capacity, 1)


def _wide(size: int, warps: int) -> int:
    """The extent of blocks of parts.

    At least one for each thread: a number with two threads might be written by one while the other has yet to read it.
    """
    return min(WIDE, lanes(size, WARP * warps))


@triton.jit
def _ask(best: tl.constexpr, scores, structure, space, sizes, constants: tl.constexpr, many: tl.constexpr):
    """MAP; a tuple of constants cannot be unpacked in a call."""
    if many == 0:
        best(scores, structure, space, *sizes)
    elif many == 1:
        best(scores, structure, space, *sizes, constants[0])
    elif many == 2:
        best(scores, structure, space, *sizes, constants[0], constants[1])
    elif many == 3:
        best(scores, structure, space, *sizes, constants[0], constants[1], constants[2])
    elif many == 4:
        best(scores, structure, space, *sizes, constants[0], constants[1], constants[2], constants[3])
    else:
        tl.static_assert(many == 5, "more constants than `_ask` passes on")
        best(scores, structure, space, *sizes, constants[0], constants[1], constants[2], constants[3], constants[4])


@triton.jit
def _meet(row, inside, structure, means, slot, part, bits, places, size, everything: tl.constexpr, words: tl.constexpr, wide: tl.constexpr):
    """Give places to the parts of a structure that count and had none; how many places there are, its parts, and how many are forbidden."""
    used = tl.full((), 0, tl.int32)
    forbidden = used
    for first in range(0, size, wide):
        at = first + tl.arange(0, wide)
        chosen = tl.load(structure + at, mask=at < size, other=0) != 0
        if not everything:
            chosen = chosen & (tl.load(inside + at, mask=at < size, other=0) != 0)
        score = tl.load(row + at, mask=chosen, other=0.0)
        new = chosen & (tl.load(slot + at, mask=chosen, other=0) < 0)
        place = places + tl.cumsum(new.to(tl.int32), 0) - 1
        tl.store(slot + at, place, mask=new)
        tl.store(part + place, at, mask=new)
        tl.store(means + place, tl.zeros([wide], tl.float64), mask=new)
        for word in tl.static_range(words):
            tl.store(bits + word * size + place, tl.zeros_like(place), mask=new)
        used += tl.sum(chosen.to(tl.int32), 0)
        forbidden += tl.sum((chosen & (score == -float("inf"))).to(tl.int32), 0)
        places += tl.sum(new.to(tl.int32), 0)
    tl.debug_barrier()
    return places, used, forbidden


@triton.jit
def _optimum(factor, weights, correlations, active, rows, lane, capacity: tl.constexpr, tall: tl.constexpr):
    """The weights of sum 1 that are best on the affine hull of the atoms."""
    ones = (active > 0).to(tl.float64)
    moved, even, _ = solve(factor, correlations, ones, rows, lane, capacity, tall, True)
    target = weights + moved - tl.sum(moved, 0) / tl.sum(even, 0) * even
    # So that the weight of an atom alone is 1 to the last bit.
    target += (1.0 - tl.sum(tl.where(active > 0, target, 0.0), 0)) / tl.sum(ones, 0)
    return tl.where(active > 0, target, 0.0)


@triton.jit
def _project(  # noqa: PLR0915 (one program)
    row, inside, mean, gap, weights, counts, slot, part, bits, factor, residual, structure, means, space, size, room, sizes,
    best: tl.constexpr, constants: tl.constexpr, many: tl.constexpr, everything: tl.constexpr, capacity: tl.constexpr, cells: tl.constexpr,
    wide: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0).to(tl.int64)
    words: tl.constexpr = capacity // 32
    row += item * size
    inside += item * size
    mean += item * size
    slot += item * size
    part += item * size
    bits += item * size * words
    factor += item * capacity * capacity
    residual += item * size
    structure += item * size
    means += item * size
    space += item * room
    lane = tl.arange(0, capacity)
    for first in range(0, size, wide):
        at = first + tl.arange(0, wide)
        tl.store(residual + at, tl.load(row + at, mask=at < size, other=0.0), mask=at < size)
        tl.store(slot + at, tl.full([wide], -1, tl.int32), mask=at < size)
        tl.store(mean + at, tl.zeros([wide], tl.float64), mask=at < size)
    tl.debug_barrier()
    places = tl.full((), 0, tl.int32)
    rows = places
    steps = places
    repeats = places
    current = tl.zeros([capacity], tl.float64)
    active = tl.zeros([capacity], tl.int32)
    certified = tl.full((), float("inf"), tl.float64)
    settled = tl.full((), 1, tl.int32)
    going = settled
    while going > 0:
        correlations = refresh(row, current, active, means, residual, part, bits, places, size, lane, cells)
        newest = tl.full((), -1, tl.int32)
        if settled > 0:
            _ask(best, residual, structure, space, sizes, constants, many)
            places, used, forbidden = _meet(row, inside, structure, means, slot, part, bits, places, size, everything, words, wide)
            gain, magnitude, common = compare(structure, active, means, residual, part, bits, places, size, lane, cells)
            # The best structure alone comes first. A problem without one gets one that uses a forbidden part, or no part at all.
            begins = rows == 0
            certified = tl.where(begins, float("inf"), tl.maximum(gain, 0.0))
            rounding = magnitude * ROUNDING + 1e-15
            steps += 1
            better = begins | ((gain > rounding) & (steps <= 20 * (places + 1)))
            going = (better & (forbidden == 0) & (used > 0)).to(tl.int32)
            if going > 0:
                square = used.to(tl.float64) + 1.0
                products = tl.where(active > 0, common + 1.0, 0.0)
                combination, _, form = solve(factor, products, products, rows, lane, capacity, cells, False)
                if square - form > square * DEPENDENT:
                    newest = tl.min(tl.where(active > 0, capacity, lane), 0)
                    if newest < capacity:
                        append(factor, bits, structure, part, combination, square - form, rows, places, size, newest, lane, capacity, wide)
                        rows += 1
                        active = tl.where(lane == newest, 1, active)
                        correlations = tl.where(lane == newest, tl.where(begins, 0.0, gain), correlations)
                    else:
                        going = tl.full((), 0, tl.int32)
                else:
                    repeats += 1
                    going = ((gain > rounding * NOTICEABLE) & (repeats <= MOST_REPEATS)).to(tl.int32)
        if going > 0:
            target = _optimum(factor, current, correlations, active, rows, lane, capacity, cells)
            if tl.sum(((lane == newest) & (target <= 0.0)).to(tl.int32), 0) > 0:
                # It has a gap, and yet would get no weight: this is rounding, and all that can be had is had.
                rows -= 1
                active = tl.where(lane == newest, 0, active)
                going = tl.full((), 0, tl.int32)
            else:
                # Towards the optimum until the first weight reaches zero.
                negative = (active > 0) & (target <= 0.0)
                length = tl.min(tl.where(negative, current / tl.maximum(current - target, 1e-300), 1.0), 0)
                settled = (tl.sum(negative.to(tl.int32), 0) == 0).to(tl.int32)
                moved = tl.where(settled > 0, target, tl.maximum(current + length * (target - current), 0.0))
                least = tl.min(tl.where(negative, moved, float("inf")), 0)
                leaving = (negative & (moved <= 1e-15 + least)).to(tl.int32)
                current = tl.where((active > 0) & (leaving == 0), moved, 0.0)
                while tl.sum(leaving, 0) > 0:
                    gone = tl.min(tl.where(leaving > 0, lane, capacity), 0)
                    drop(factor, gone, rows, lane, capacity, cells)
                    rows -= 1
                    active = tl.where(lane == gone, 0, active)
                    leaving = tl.where(lane == gone, 0, leaving)
    tl.store(weights + item * capacity + lane, tl.where(active > 0, current, 0.0))
    tl.store(counts + 2 * item, places)
    tl.store(counts + 2 * item + 1, rows)
    tl.store(gap + item, certified)
    if rows > 0:
        for first in range(0, places, wide):
            place = first + tl.arange(0, wide)
            at = tl.load(part + place, mask=place < places, other=0)
            tl.store(mean + at, tl.load(means + place, mask=place < places, other=0.0), mask=place < places)


def move(direction: Tensor, moved: Tensor, atoms: Atoms, from_parts: bool, to_parts: bool) -> None:
    """How means, or weights, move with scores, or with correlations: see `structgrad.oracles.atom_lists.AtomLists.move`.

    Args:
        direction: float64 [b, r, d] of the scores where ``from_parts``, else [b, r, capacity] of the correlations ``⟨a_s, θ⟩``.
        moved: float64 [b, r, d] of the mean where ``to_parts``, else [b, r, capacity] of the weights.
        atoms: of the b rows.
        from_parts: what is moved.
        to_parts: what is asked for.
    """
    count, repeats, _ = direction.shape
    capacity, size = atoms.weights.shape[1], atoms.part.shape[1]
    _move[(count * repeats,)](
        direction, moved, *atoms, repeats, direction.shape[2], moved.shape[2], size, from_parts, to_parts, capacity,
        _cells(capacity, WARPS), _wide(moved.shape[2], WARPS), num_warps=WARPS,
    )  # fmt: skip


@triton.jit
def _move(
    direction, moved, weights, counts, slot, part, bits, factor, repeats, given, asked, size, from_parts: tl.constexpr,
    to_parts: tl.constexpr, capacity: tl.constexpr, cells: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    line = tl.program_id(0).to(tl.int64)
    item = line // repeats
    direction += line * given
    moved += line * asked
    part += item * size
    bits += item * size * (capacity // 32)
    factor += item * capacity * capacity
    places = tl.load(counts + 2 * item)
    rows = tl.load(counts + 2 * item + 1)
    lane = tl.arange(0, capacity)
    active = tl.load(weights + item * capacity + lane) > 0.0
    if from_parts:
        correlations = tl.zeros([capacity], tl.float64)
        for first in range(0, places, cells):
            place = first + tl.arange(0, cells)
            met = place < places
            value = tl.load(direction + tl.load(part + place, mask=met, other=0), mask=met, other=0.0)
            held = holds(bits, place, lane, size, active[:, None] & met[None, :])
            correlations += tl.sum(tl.where(held, value[None, :], 0.0), 1)
    else:
        correlations = tl.load(direction + lane, mask=active, other=0.0)
    ones = active.to(tl.float64)
    shifted, even, _ = solve(factor, correlations, ones, rows, lane, capacity, cells, True)
    change = tl.where(active, shifted - tl.sum(shifted, 0) / tl.maximum(tl.sum(even, 0), 1e-300) * even, 0.0)
    if to_parts:
        for first in range(0, asked, wide):
            at = first + tl.arange(0, wide)
            tl.store(moved + at, tl.zeros([wide], tl.float64), mask=at < asked)
        tl.debug_barrier()
        for first in range(0, places, cells):
            place = first + tl.arange(0, cells)
            met = place < places
            held = holds(bits, place, lane, size, active[:, None] & met[None, :])
            value = tl.sum(tl.where(held, change[:, None], 0.0), 0)
            tl.store(moved + tl.load(part + place, mask=met, other=0), value, mask=met)
    else:
        tl.store(moved + lane, change)
