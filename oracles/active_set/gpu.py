"""SparseMAP: Wolfe's min-norm-point algorithm, the whole loop in one program per problem, MAP included.

Source: Wolfe 1976, "Finding the nearest point in a polytope", for the point ``θ``; Niculae et al. 2018, "SparseMAP", section 3.2. The steps
and their safeguards are those of the CPU's `structgrad.oracles.active_set.cpu`; how weights are solved for is in `gpu_factor`. They are
solved for from the residual at hand, not from the scores: every step is one of iterative refinement too, so that errors in the factor
correct themselves, and an atom that rounding makes look dependent is answered by another such step.

Most answers have few atoms, and a program with room for few of them is one warp with a factor that its nearest cache holds. So every row is
tried with `FEW_ATOMS` first. Those that find no room for another are written on a list, and a second launch, which has little to do
where there are none, begins anew with them and `MOST_ATOMS`. Programs take the next row when they are done with one, and keep their
workspace: it is bounded however many rows there are. No result depends on which program takes a row, or when.

What bounds it: the longest chain of steps of any problem, each one MAP, two passes over the atoms' bits (m atoms by the parts that some of
them has) and four to six over m² numbers; a problem waits for nothing on the host, and none waits for another.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..kernels.gpu.launching import WARP, lanes, rows_at_once
from .gpu_factor import DEPENDENT, append, compare, drop, refresh, solve

FEW_ATOMS = 64
"""Room for atoms at the first attempt."""

MOST_ATOMS = 256
"""Room for atoms at the second. A problem whose answer has d parts in play needs d + 1 at most, and in practice few: trees of 20 words have
some 40 atoms at scores of standard deviation 1, 100 at 0.3 and 220 at 0.1. Where there is no room for another, the gap says how far the
answer is."""

ROUNDING = tl.constexpr(1e-15)
"""A gap below this much of the sums that it is the difference of is rounding."""

NOTICEABLE = tl.constexpr(10.0)
"""A gap of more than this much rounding is worth another solution for the weights where the new atom adds no dimension."""

MOST_REPEATS = tl.constexpr(50)
"""Such solutions mend rounding, and need not end by themselves."""

CELLS = 8
"""Numbers that a thread holds of a block of two dimensions; the sums over such blocks must stay in registers beside it."""

TALL = 8
"""The most rows of the factor in such a block."""

WIDE = 4
"""Numbers that a thread holds of a block of one dimension."""


class Atoms(NamedTuple):
    """The atoms of b rows in the memory of the device, each with room for the same number of them: what is kept of a projection.

    Attributes:
        weights: float64 [b, capacity], 0 in a free lane.
        counts: int32 [b, 2], how many places are in use, and whether the row is on the list ``crowded``.
        part: int32 [b, d], the part of each place.
        bits: int32 [b, capacity / 32, d], the atoms by place; of rows that are not crowded the first `FEW_ATOMS` / 32 words.
        crowded: int32 [1 + b], how many rows found no room among few atoms, and which, in any order.
    """

    weights: Tensor
    counts: Tensor
    part: Tensor
    bits: Tensor
    crowded: Tensor


class Map(NamedTuple):
    """A structure's MAP of one problem, for events of one shape, as ``best(scores, structure, workspace, *sizes, *options)``.

    Attributes:
        best: the function; scores are float64, structures bytes.
        room: how many numbers its workspace has.
        dtype: of the workspace.
        sizes: its arguments at run time.
        options: its arguments at compile time.
        warps: of a program with room for few atoms, and of one with room for many.
        registers: the most that a thread of the latter may take, where the compiler does without more.
    """

    best: Any
    room: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    options: tuple[Any, ...]
    warps: tuple[int, int] = (1, 4)
    registers: int | None = None


Launcher = Callable[..., Atoms]
"""What a module has as ``project``: called with rows [b, *event], inside, mean [b, d] and gap [b]; see `launcher`."""


def launcher(describe: Callable[..., Map]) -> Launcher:
    """The ``project`` of a structure.

    Args:
        describe: gives the MAP for an event shape and the oracle's options.
    """

    def project(rows: Tensor, inside: Tensor, mean: Tensor, gap: Tensor, *options: Any) -> Atoms:
        """Project float64 rows [b, *event]: write means [b, d] and gaps [b].

        ``inside`` [b, d] says which parts count, [b, 0] that all do; see `structgrad.oracles.active_set.cpu`.
        """
        return project_with(describe(tuple(rows.shape[1:]), *options), rows, inside, mean, gap)

    return project


def capacities(size: int) -> list[int]:
    """Room for atoms at each attempt: affinely independent ones are one more than parts at most."""
    most = min(lanes(size + 1, WARP), MOST_ATOMS)
    return [most] if most <= FEW_ATOMS else [FEW_ATOMS, most]


def kept(size: int) -> int:
    """Bytes that the projection of a row of so many parts keeps, its mean among them. What it takes beside them is bounded for all rows."""
    most = capacities(size)[-1]
    return 8 * (size + 1) + 8 * most + 4 * (2 + size + most // WARP * size + 1)


def project_with(task: Map, rows: Tensor, inside: Tensor, mean: Tensor, gap: Tensor) -> Atoms:
    """See `launcher`."""
    count, size = mean.shape
    *_, most = attempts = capacities(size)
    make = partial(torch.empty, device=rows.device)
    # Whose turn it is in each launch; then the list of crowded rows.
    turns = torch.zeros(3 + count, dtype=torch.int32, device=rows.device)
    atoms = Atoms(
        make(count, most, dtype=torch.float64), make(count, 2, dtype=torch.int32), make(count, size, dtype=torch.int32),
        make(count, most // 32, size, dtype=torch.int32), turns[2:],
    )  # fmt: skip
    for again, (capacity, warps) in enumerate(zip(attempts, task.warps, strict=False)):
        programs = min(count, rows_at_once(8 * capacity**2 + 21 * size + task.room * task.dtype.itemsize))
        _project[(programs,)](
            rows, inside, mean, gap, *atoms, turns, make(programs, capacity, capacity, dtype=torch.float64),
            make(programs, size, dtype=torch.float64), make(programs, size, dtype=torch.float64), make(programs, size, dtype=torch.int32),
            make(programs, size, dtype=torch.uint8), make(programs, task.room, dtype=task.dtype), count, size, task.room, task.sizes,
            task.best, task.options, len(task.options), inside.shape[1] == 0, again, capacity, most, cells(capacity, warps),
            wide(size, warps), num_warps=warps, maxnreg=task.registers if again else None,
        )  # fmt: skip
    return atoms


def cells(capacity: int, warps: int) -> int:
    """The other extent of blocks that are ``capacity`` long."""
    return min(max(CELLS * WARP * warps // capacity, 1), TALL)


def wide(size: int, warps: int) -> int:
    """The extent of blocks of parts.

    At least one for each thread: a number with two threads might be written by one while the other has yet to read it.
    """
    return min(WIDE * WARP * warps, lanes(size, WARP * warps))


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


@triton.jit(do_not_specialize=["count"])
def _project(
    rows, inside, mean, gap, weights, counts, part, bits, crowded, turns, factors, residuals, means, slots, structures, spaces, count, size,
    room, sizes, best: tl.constexpr, constants: tl.constexpr, many: tl.constexpr, everything: tl.constexpr, again: tl.constexpr,
    capacity: tl.constexpr, most: tl.constexpr, cells: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """One row after the other, in the workspace of this program: all of them or, the second time, those that are crowded."""
    program = tl.program_id(0).to(tl.int64)
    factor = factors + program * capacity * capacity
    residual = residuals + program * size
    means += program * size
    slot = slots + program * size
    structure = structures + program * size
    space = spaces + program * room
    lane = tl.arange(0, capacity)
    total = tl.load(crowded) if again else count
    turn = tl.atomic_add(turns + again, 1, sem="relaxed")
    while turn < total:
        item = (tl.load(crowded + 1 + turn) if again else turn).to(tl.int64)
        row = rows + item * size
        own_part = part + item * size
        own_bits = bits + item * size * (most // 32)
        _begin(row, residual, slot, mean + item * size, size, wide)
        current, active, places, certified, full = _solve(
            row, inside + item * size, residual, structure, means, slot, own_part, own_bits, factor, space, size, sizes, lane,
            best, constants, many, everything, capacity, cells, wide,
        )  # fmt: skip
        if (full > 0) & (capacity < most):
            tl.store(crowded + 1 + tl.atomic_add(crowded, 1, sem="relaxed"), item.to(tl.int32))
        own_weights = weights + item * most + lane
        tl.store(own_weights, tl.where(active > 0, current, 0.0))
        for beyond in tl.static_range(capacity, most, capacity):
            tl.store(own_weights + beyond, tl.zeros_like(current))
        tl.store(counts + 2 * item, places)
        tl.store(counts + 2 * item + 1, tl.full((), again, tl.int32))
        tl.store(gap + item, certified)
        if tl.sum(active, 0) > 0:
            for first in range(0, places, wide):
                place = first + tl.arange(0, wide)
                at = tl.load(own_part + place, mask=place < places, other=0)
                tl.store(mean + item * size + at, tl.load(means + place, mask=place < places, other=0.0), mask=place < places)
        turn = tl.atomic_add(turns + again, 1, sem="relaxed")
        # The next row takes the workspace when all of this one is read.
        tl.debug_barrier()


@triton.jit
def _begin(row, residual, slot, mean, size, wide: tl.constexpr):
    """No part has a place; the first residual is the scores."""
    for first in range(0, size, wide):
        at = first + tl.arange(0, wide)
        tl.store(residual + at, tl.load(row + at, mask=at < size, other=0.0), mask=at < size)
        tl.store(slot + at, tl.full([wide], -1, tl.int32), mask=at < size)
        tl.store(mean + at, tl.zeros([wide], tl.float64), mask=at < size)
    tl.debug_barrier()


@triton.jit
def _solve(  # noqa: PLR0915 (one loop)
    row, inside, residual, structure, means, slot, part, bits, factor, space, size, sizes, lane, best: tl.constexpr,
    constants: tl.constexpr, many: tl.constexpr, everything: tl.constexpr, capacity: tl.constexpr, cells: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """Project one row; gives the weights of its atoms, which lanes have one, how many places, the gap, and whether there was no room."""
    words: tl.constexpr = capacity // 32
    places = tl.full((), 0, tl.int32)
    rows = places
    steps = places
    repeats = places
    full = places
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
                        full = tl.full((), 1, tl.int32)
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
    return current, active, places, certified, full
