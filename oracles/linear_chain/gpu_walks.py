"""Structures of the linear chain, one tag after the other: the best one, and samples; see `structgrad.oracles.linear_chain.gpu`."""

from __future__ import annotations

import triton
import triton.language as tl

from .gpu_recursions import load_step, or_zero, store_step


@triton.jit
def best(scores, structure, workspace, length, tags, block: tl.constexpr, full: tl.constexpr):
    """Viterbi for one row of scores [n, t, t]: writes its structure; the workspace holds n · t int32 numbers.

    Args:
        scores: points to the row; compared in its type.
        structure: points to as many entries, of any type.
        workspace: points to int32 numbers, see `workspace`.
        length: n.
        tags: t.
        block: a power of two, at least t.
        full: whether it is t.
    """
    c = tl.arange(0, block)
    value = tl.load(scores + c, mask=c < tags, other=-float("inf"))
    step = load_step(scores, tl.minimum(1, length - 1), tags, block, full)
    following = load_step(scores, tl.minimum(2, length - 1), tags, block, full)
    for i in range(1, length):
        ahead = load_step(scores, tl.minimum(i + 2, length - 1), tags, block, full)
        value, pointer = tl.max(
            value[:, None] + step, 0, return_indices=True, return_indices_tie_break_left=True
        )  # fmt: skip
        tl.store(workspace + i * tags + c, pointer.to(tl.int32), mask=c < tags)
        step = following
        following = ahead
    tl.debug_barrier()
    tag = tl.argmax(value, 0, tie_break_left=True).to(tl.int32)
    pointers = tl.load(workspace + tl.maximum(length - 1, 0) * tags + c, mask=c < tl.where(length > 1, tags, 0), other=0)
    for done in range(1, length):
        i = length - done
        # All pointers of a step are loaded before it is known which one counts.
        ahead = tl.load(workspace + (i - 1) * tags + c, mask=c < tl.where(i > 1, tags, 0), other=0)
        previous = tl.sum(tl.where(c == tag, pointers, 0), 0)
        store_step(structure, i, (c[:, None] == previous) & (c[None, :] == tag), tags, block, full)
        tag = previous
        pointers = ahead
    store_step(structure, 0, (c[:, None] == 0) & (c[None, :] == tag), tags, block, full)
    tl.debug_barrier()


@triton.jit
def argmax_kernel(rows, structures, pointers, length, tags, block: tl.constexpr, full: tl.constexpr):
    """The best structure of one sequence."""
    item = tl.program_id(0).to(tl.int64)
    start = item * length * tags * tags
    best(rows + start, structures + start, pointers + item * length * tags, length, tags, block, full)


@triton.jit
def walk_kernel(
    rows, uniforms, prefixes, log_partition, drawn, count, shares, length, tags, together: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """Tags [b, n, s] of samples, from the last one backwards; -1 where the row is infeasible."""
    item = (tl.program_id(0) // shares).to(tl.int64)
    row = rows + item * length * tags * tags
    prefixes += item * length * tags
    place = tl.program_id(0) % shares * together + tl.arange(0, together)
    drawn += item * length * count + place
    # Steps times samples may exceed 32 bits.
    apart = item * 0 + count
    # An idle lane does what the last sample does.
    uniforms += (item * count + tl.minimum(place, count - 1)) * length
    feasible = tl.load(log_partition + item) > -float("inf")
    p = tl.arange(0, block)[None, :]
    inside = p < tags
    joint = tl.load(prefixes + (length - 1) * tags + p, mask=inside, other=-float("inf"))
    tag = _pick(tl.broadcast_to(joint, (together, block)), tl.load(uniforms + length - 1), p, tags)
    tl.store(drawn + (length - 1) * apart, tl.where(feasible, tag, -1), mask=place < count)
    for done in range(1, length):
        i = length - done
        prefix = tl.load(prefixes + (i - 1) * tags + p, mask=inside, other=-float("inf"))
        scores = tl.load(row + (i * tags + p) * tags + tag[:, None], mask=inside, other=-float("inf")).to(tl.float64)
        tag = _pick(prefix + scores, tl.load(uniforms + i - 1), p, tags)
        tl.store(drawn + (i - 1) * apart, tl.where(feasible, tag, -1), mask=place < count)


@triton.jit
def _pick(joint, uniform, p, tags):
    """For each lane the first tag whose running sum of weights exceeds this share of them all."""
    top = or_zero(tl.max(joint, 1))
    sums = tl.cumsum(tl.exp(joint - top[:, None]), 1)
    threshold = uniform * tl.sum(tl.where(p == tags - 1, sums, 0.0), 1)
    below = (sums <= threshold[:, None]) & (p < tags)
    return tl.minimum(tl.sum(below.to(tl.int32), 1), tags - 1)


@triton.jit
def write_kernel(drawn, structures, count, pieces, length, tags, block: tl.constexpr, steps: tl.constexpr):
    """Samples [b, s, n, t, t] of known tags [b, n, s]."""
    item = (tl.program_id(0) // pieces).to(tl.int64)
    structures += item * length * tags * tags
    drawn += item // count * length * count + item % count
    apart = item * 0 + count
    p = tl.arange(0, block)[:, None]
    c = tl.arange(0, block)[None, :]
    inside = (p < tags) & (c < tags)
    for step in tl.static_range(steps):
        i = tl.program_id(0) % pieces * steps + step
        tag = tl.load(drawn + i * apart, mask=i < length, other=-1)
        previous = tl.load(drawn + (i - 1) * apart, mask=(i < length) & (i > 0), other=0)
        part = (p == previous) & (c == tag)
        # An interpreter of Triton takes the whole for a number where one side of `&` is a scalar.
        written = (inside & (i < length)) != 0
        tl.store(structures + i * (tags * tags) + p * tags + c, part.to(structures.dtype.element_ty), mask=written)
