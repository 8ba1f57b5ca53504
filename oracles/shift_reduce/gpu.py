"""Shift-reduce derivations: a program per problem sweeps the states by the number of actions before them, lane i those after i shifts.

State (i, d) is reached after 2i − d actions. REDUCE stays on its lane and SHIFT leads to the next one, so that a step back takes one value
from the lane behind (see `antidiagonals`). The pass from the end leaves the probabilities of both actions at every state, and all else
follows forwards from these by products and sums, as on the CPU. Values are float64, exponentials are of differences and in the dtype of
the rows. Rows are small (13 kB at 40 leaves in float32) and stay in the first cache, hence they are read where they are, every score once.

What bounds it: the 2n − 1 steps of a pass, which wait for each other, each for a barrier and some fifty operations; and for full batches
the bytes, in numbers per entry 1 for log-partitions, 5 for marginals and 7 for products with the covariance.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..active_set.gpu import Map, launcher
from ..kernels.gpu.antidiagonals import EACH, from_before, from_behind
from ..kernels.gpu.launching import WARP, lanes, launches, warps

WIDEST = 2048
"""States in a row of the largest event."""

WALKS = 32
"""Walks that one program takes side by side."""


def serves(operation: str, event: tuple[int, ...], dtype: torch.dtype, options: tuple[Any, ...]) -> bool:
    """The sizes that these kernels take; see `structgrad.oracles.kernels.gpu`."""
    return event[0] <= WIDEST


def log_partition(rows: Tensor, log_partition: Tensor) -> None:
    """Log-partitions [b] of rows [b, n + 1, n + 1, 2]."""
    size, block = rows.shape[1], _block(rows.shape[1])
    for part, (lines,) in launches(rows, (2 * block, torch.float64)):
        _log_partition[(len(lines),)](rows[part], log_partition[part], lines, size, block, num_warps=warps(block, EACH))


def marginals(rows: Tensor, marginals: Tensor, log_partition: Tensor) -> None:
    """Marginals and log-partitions of rows."""
    size, block = rows.shape[1], _block(rows.shape[1])
    for part, (lines,) in launches(rows, (2 * block, torch.float64)):
        _marginals[(len(lines),)](rows[part], marginals[part], log_partition[part], lines, size, block, num_warps=warps(block, EACH))


def covariance_product(rows: Tensor, direction: Tensor, product: Tensor) -> None:
    """The covariance of the parts times a direction, for each row."""
    size, block = rows.shape[1], _block(rows.shape[1])
    for part, (lines, leads) in launches(rows, (4 * block, torch.float64), (size * size, rows.dtype)):
        _covariance_product[(len(lines),)](
            rows[part], direction[part], product[part], leads, lines, size, block, num_warps=warps(block, EACH)
        )


def potentials(rows: Tensor, potentials: Tensor) -> None:
    """Log-probabilities of a policy: at each state the log-softmax over the actions that can still complete a derivation."""
    size, block = rows.shape[1], _block(rows.shape[1])
    for part, (lines,) in launches(rows, (2 * block, torch.float64)):
        _potentials[(len(lines),)](rows[part], potentials[part], lines, size, block, num_warps=warps(block, EACH))


def sample(rows: Tensor, uniforms: Tensor, structures: Tensor) -> None:
    """Structures [b, s, n + 1, n + 1, 2] from uniforms [b, s, 2n − 1]: walks through one table, one uniform a step."""
    size, samples = rows.shape[1], uniforms.shape[1]
    block = _block(size)
    structures.zero_()
    groups = triton.cdiv(samples, WALKS)
    for part, (lines, chances, totals) in launches(rows, (2 * block, torch.float64), (size * size, torch.float64), (1, torch.float64)):
        count = len(lines)
        _shift_chances[(count,)](rows[part], totals, chances, lines, size, block, num_warps=warps(block, EACH))
        _walks[(count * groups,)](chances, totals, uniforms[part], structures[part], groups, samples, size, WALKS, num_warps=1)


def argmax(rows: Tensor, structures: Tensor) -> None:
    """The best derivation of each row."""
    size, block, room = rows.shape[1], _block(rows.shape[1]), workspace(tuple(rows.shape[1:]))
    for part, (space,) in launches(rows, (room, torch.float64)):
        _argmax[(len(space),)](rows[part], structures[part], space, room, size, block, num_warps=warps(block, EACH))


def workspace(event: tuple[int, ...]) -> int:
    """Float64 numbers that `best` needs for one problem: two lines, and a byte per state."""
    return 2 * _block(event[0]) + (event[0] * event[0] + 7) // 8


def _block(size: int) -> int:
    return lanes(size, WARP)


@triton.jit
def _fill(values, count, block: tl.constexpr):
    """Zeros, where only some entries will be written; ends with a barrier."""
    for first in range(0, count, 4 * block):
        entry = first + tl.arange(0, 4 * block)
        tl.store(values + entry, tl.zeros((4 * block,), values.dtype.element_ty), mask=entry < count)
    tl.debug_barrier()


@triton.jit
def _states(step, size, i):
    """The states after so many actions: their numbers, and where SHIFT and where REDUCE are on a derivation."""
    d = 2 * i - step
    real = (i < size) & (d <= i) & (d >= (i > 0).to(tl.int32))
    return i * size + d, real & (i < size - 1), real & (d >= 2)


@triton.jit
def _load(rows, step, size, i):
    """Scores of both actions at the states after so many, -inf where they are on no derivation."""
    states, shifts, reduces = _states(step, size, i)
    return (
        tl.load(rows + 2 * states, mask=shifts, other=-float("inf")),
        tl.load(rows + 2 * states + 1, mask=reduces, other=-float("inf")),
    )


@triton.jit
def _ends(i, size):
    """Values after the last action: one state with one tree. And of the lane behind each."""
    nothing = tl.full(i.shape, -float("inf"), tl.float64)
    return tl.where(i == size - 1, 0.0, nothing), tl.where(i == size - 2, 0.0, nothing)


@triton.jit
def _terms(shift, reduce, own, behind):
    """Both terms of a state's sum, relative to the greater, in the dtype of the scores; their sum, 1 where both are 0; and its value."""
    by_shift = shift.to(tl.float64) + behind
    by_reduce = reduce.to(tl.float64) + own
    top = tl.maximum(by_shift, by_reduce)
    reached = top > -float("inf")
    base = tl.where(reached, top, 0.0)
    of_shift = tl.exp((by_shift - base).to(shift.dtype))
    of_reduce = tl.exp((by_reduce - base).to(shift.dtype))
    total = tl.where(reached, of_shift + of_reduce, 1.0)
    return of_shift, of_reduce, total, top + tl.log(total).to(tl.float64)


@triton.jit
def _policy(rows, chances, lines, i, size, keep: tl.constexpr, block: tl.constexpr):
    """The log-partition; where ``keep``, the probabilities of the actions at the states go to a table like the rows."""
    own, behind = _ends(i, size)
    shift, reduce = _load(rows, 2 * size - 4, size, i)
    for back in range(2 * size - 3):
        step = 2 * size - 4 - back
        # What comes next is loaded before this step waits.
        next_shift, next_reduce = _load(rows, step - 1, size, i)
        of_shift, of_reduce, total, own = _terms(shift, reduce, own, behind)
        if keep:
            states, shifts, reduces = _states(step, size, i)
            tl.store(chances + 2 * states, of_shift / total, mask=shifts)
            tl.store(chances + 2 * states + 1, of_reduce / total, mask=reduces)
        behind = from_behind(own, lines, back, i, -float("inf"), block)
        shift, reduce = next_shift, next_reduce
    return tl.max(tl.where(i == 0, own, -float("inf")), 0)


@triton.jit
def _log_partition(rows, log_partition, lines, size, block: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    rows += item * 2 * size * size
    tl.store(log_partition + item, _policy(rows, rows, lines + item * 2 * block, tl.arange(0, block), size, False, block))


@triton.jit
def _marginals(rows, marginals, log_partition, lines, size, block: tl.constexpr):
    """The probabilities of the actions are first where the marginals will be."""
    item = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, block)
    marginals += item * 2 * size * size
    lines += item * 2 * block
    _fill(marginals, 2 * size * size, block)
    total = _policy(rows + item * 2 * size * size, marginals, lines, i, size, True, block)
    tl.store(log_partition + item, total)
    tl.debug_barrier()
    number = marginals.dtype.element_ty
    arriving = tl.where(i == 0, tl.where(total > -float("inf"), 1.0, 0.0), 0.0).to(number)
    for step in range(2 * size - 3):
        states, shifts, reduces = _states(step, size, i)
        shifted = arriving * tl.load(marginals + 2 * states, mask=shifts, other=0.0)
        reduced = arriving * tl.load(marginals + 2 * states + 1, mask=reduces, other=0.0)
        tl.store(marginals + 2 * states, shifted, mask=shifts)
        tl.store(marginals + 2 * states + 1, reduced, mask=reduces)
        arriving = reduced + from_before(shifted.to(tl.float64), lines, step, i, 0.0, block).to(number)


@triton.jit
def _covariance_product(rows, direction, product, leads, lines, size, block: tl.constexpr):
    """How marginals move along a direction: the probabilities of the actions are first where the product will be.

    The expected sum of the direction over what follows says how the probability of each action moves: by how much that sum leads after
    SHIFT, times both probabilities. Forwards, these movements add up along the derivations.
    """
    item = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, block)
    product += item * 2 * size * size
    leads += item * size * size
    lines += item * 4 * block
    _fill(product, 2 * size * size, block)
    total = _leads(rows + item * 2 * size * size, direction + item * 2 * size * size, product, leads, lines, i, size, block)
    tl.debug_barrier()
    number = product.dtype.element_ty
    arriving = tl.where(i == 0, tl.where(total > -float("inf"), 1.0, 0.0), 0.0).to(number)
    moving = tl.zeros_like(arriving)
    for step in range(2 * size - 3):
        states, shifts, reduces = _states(step, size, i)
        shift = tl.load(product + 2 * states, mask=shifts, other=0.0)
        reduce = tl.load(product + 2 * states + 1, mask=reduces, other=0.0)
        turning = arriving * shift * reduce * tl.load(leads + states, mask=shifts & reduces, other=0.0)
        shifted, moved_on = arriving * shift, moving * shift + turning
        reduced, moved_down = arriving * reduce, moving * reduce - turning
        tl.store(product + 2 * states, moved_on, mask=shifts)
        tl.store(product + 2 * states + 1, moved_down, mask=reduces)
        # One barrier is for both.
        here = lines + (2 + step % 2) * block + i
        tl.store(here, moved_on.to(tl.float64))
        arriving = reduced + from_before(shifted.to(tl.float64), lines, step, i, 0.0, block).to(number)
        moving = moved_down + tl.load(here - 1, mask=i > 0, other=0.0).to(number)


@triton.jit
def _leads(rows, direction, chances, leads, lines, i, size, block: tl.constexpr):
    """`_policy`, and by how much the expected sum of the direction over the rest of a derivation leads after SHIFT that after REDUCE."""
    own, behind = _ends(i, size)
    own_rate = tl.zeros_like(own)
    behind_rate = own_rate
    for back in range(2 * size - 3):
        step = 2 * size - 4 - back
        states, shifts, reduces = _states(step, size, i)
        shift, reduce = _load(rows, step, size, i)
        of_shift, of_reduce, total, own = _terms(shift, reduce, own, behind)
        chance = of_shift / total
        tl.store(chances + 2 * states, chance, mask=shifts)
        tl.store(chances + 2 * states + 1, of_reduce / total, mask=reduces)
        after_shift = tl.load(direction + 2 * states, mask=shifts, other=0.0).to(tl.float64) + behind_rate
        after_reduce = tl.load(direction + 2 * states + 1, mask=reduces, other=0.0).to(tl.float64) + own_rate
        lead = after_shift - after_reduce
        tl.store(leads + states, lead.to(leads.dtype.element_ty), mask=shifts & reduces)
        # From the likelier action, so that a sum that is not there, or does not count, leaves no rounding behind.
        likely = of_shift >= of_reduce
        own_rate = tl.where(likely, after_shift - (of_reduce / total).to(tl.float64) * lead, after_reduce + chance.to(tl.float64) * lead)
        here = lines + (2 + back % 2) * block + i
        tl.store(here, own_rate)
        behind = from_behind(own, lines, back, i, -float("inf"), block)
        behind_rate = tl.load(here + 1, mask=i < block - 1, other=0.0)
    return tl.max(tl.where(i == 0, own, -float("inf")), 0)


@triton.jit
def _potentials(rows, potentials, lines, size, block: tl.constexpr):
    """In float64; values are 0 where a derivation can be completed and -inf elsewhere."""
    item = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, block)
    rows += item * 2 * size * size
    potentials += item * 2 * size * size
    lines += item * 2 * block
    _fill(potentials, 2 * size * size, block)
    own, behind = _ends(i, size)
    for back in range(2 * size - 3):
        step = 2 * size - 4 - back
        states, shifts, reduces = _states(step, size, i)
        shift, reduce = _load(rows, step, size, i)
        can_shift = (behind == 0.0) & (shift > -float("inf"))
        can_reduce = (own == 0.0) & (reduce > -float("inf"))
        choice = can_shift & can_reduce
        lead = tl.where(choice, shift, 0.0).to(tl.float64) - tl.where(choice, reduce, 0.0).to(tl.float64)
        total = tl.where(choice, _log_of_one_and(tl.exp(-tl.abs(lead))), 0.0)
        of_shift = tl.where(can_shift, tl.minimum(lead, 0.0) - total, -float("inf"))
        of_reduce = tl.where(can_reduce, tl.minimum(-lead, 0.0) - total, -float("inf"))
        tl.store(potentials + 2 * states, of_shift.to(potentials.dtype.element_ty), mask=shifts)
        tl.store(potentials + 2 * states + 1, of_reduce.to(potentials.dtype.element_ty), mask=reduces)
        own = tl.where(can_shift | can_reduce, 0.0, tl.full(i.shape, -float("inf"), tl.float64))
        behind = from_behind(own, lines, back, i, -float("inf"), block)


@triton.jit
def _log_of_one_and(x):
    """``log(1 + x)`` for x from 0 to 1, exact for small ones: the rounding of the sum cancels (Kahan)."""
    sum_with_one = 1.0 + x
    rounded = sum_with_one - 1.0
    return tl.where(rounded > 0.0, tl.log(sum_with_one) * (x / tl.where(rounded > 0.0, rounded, 1.0)), x)


@triton.jit
def _shift_chances(rows, totals, chances, lines, size, block: tl.constexpr):
    """The probability of SHIFT at each state, in float64."""
    item = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, block)
    rows += item * 2 * size * size
    chances += item * size * size
    lines += item * 2 * block
    own, behind = _ends(i, size)
    for back in range(2 * size - 3):
        step = 2 * size - 4 - back
        states, shifts, reduces = _states(step, size, i)
        shift, reduce = _load(rows, step, size, i)
        of_shift, _, total, own = _terms(shift.to(tl.float64), reduce, own, behind)
        tl.store(chances + states, of_shift / total, mask=shifts | reduces)
        behind = from_behind(own, lines, back, i, -float("inf"), block)
    tl.store(totals + item, tl.max(tl.where(i == 0, own, -float("inf")), 0))


@triton.jit
def _walks(chances, totals, uniforms, structures, groups, samples, size, walks: tl.constexpr):
    """Derivations of some samples of a row, one a lane."""
    item = (tl.program_id(0) // groups).to(tl.int64)
    sample = tl.program_id(0) % groups * walks + tl.arange(0, walks)
    drawn = (sample < samples) & (tl.load(totals + item + tl.zeros((walks,), tl.int32)) > -float("inf"))
    chances += item * size * size
    uniforms += (item * samples + sample) * (2 * size - 3)
    structures += (item * samples + sample) * (2 * size * size)
    state = tl.zeros((walks,), tl.int32)
    for step in range(2 * size - 3):
        uniform = tl.load(uniforms + step, mask=drawn, other=0.0)
        action = (uniform >= tl.load(chances + state, mask=drawn, other=1.0)).to(tl.int32)
        tl.store(structures + 2 * state + action, tl.full((walks,), 1.0, structures.dtype.element_ty), mask=drawn)
        # One shift adds a row and a column of states, one reduction takes a column away.
        state += size + 1 - (size + 2) * action
        state = tl.where(drawn, state, 0)


@triton.jit
def _argmax(rows, structures, workspace, room, size, block: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    best(rows + item * 2 * size * size, structures + item * 2 * size * size, workspace + item * room, size, block)


@triton.jit
def best(scores, structure, workspace, size, block: tl.constexpr):
    """The best derivation, as 0/1; of equal ones that which shifts first. In float64, like the CPU's kernel.

    The pass from the end leaves a byte per state that says which action the best completion takes. It begins and ends with a barrier.

    Args:
        scores: one row [size, size, 2].
        structure: one row of results; every entry is written.
        workspace: so many float64 numbers as the function `workspace` says.
        size: n + 1.
        block: the power of two, at least 32, that the size fits into.
    """
    tl.debug_barrier()
    i = tl.arange(0, block)
    moves = (workspace + 2 * block).to(tl.pointer_type(tl.int8), bitcast=True)
    _fill(structure, 2 * size * size, block)
    own, behind = _ends(i, size)
    shift, reduce = _load(scores, 2 * size - 4, size, i)
    for back in range(2 * size - 3):
        step = 2 * size - 4 - back
        next_shift, next_reduce = _load(scores, step - 1, size, i)
        states, shifts, reduces = _states(step, size, i)
        by_shift = shift.to(tl.float64) + behind
        by_reduce = reduce.to(tl.float64) + own
        # Where one of the two is impossible, nothing is compared: both may be -inf.
        better = reduces & ((by_reduce > by_shift) | ~shifts)
        tl.store(moves + states, better.to(tl.int8), mask=shifts | reduces)
        own = tl.maximum(by_shift, by_reduce)
        behind = from_behind(own, workspace, back, i, -float("inf"), block)
        shift, reduce = next_shift, next_reduce
    tl.debug_barrier()
    state = tl.zeros((), tl.int32)
    for _ in range(2 * size - 3):
        action = tl.load(moves + state).to(tl.int32)
        tl.store(structure + 2 * state + action, 1.0)
        state += size + 1 - (size + 2) * action
    tl.debug_barrier()


def _map(event: tuple[int, ...]) -> Map:
    block = _block(event[0])
    few = warps(block, 8)
    return Map(best, workspace(event), torch.float64, (event[0],), (block,), (few, max(few, 4)), 168 if few == 1 else None)


project = launcher(_map)
"""SparseMAP: see `active_set`."""
