"""Exact samples of spanning trees by popping cycles: every word draws a head, and words on cycles draw again until there is no cycle.

Source: Propp & Wilson 1998, "How to get a perfectly random sample from a generic Markov chain and generate a random spanning tree of a
directed graph", section 6. Each word has a stack of heads, drawn independently; the heads on top make a graph, and popping a cycle uncovers
the next heads of its words. Which cycles are popped in the end does not depend on the order: so all are popped at once, round by round.
And the popped cycles say nothing about the tree beneath: the trees that took few rounds have the law of all trees, so that a sample which
is given up may be drawn anew in another way, with the law unchanged.

A round draws a head by bisection of a table of cumulative chances and finds the cycles by doubling of pointers: O(log n) dependent steps
for all words side by side, each bounded by the latency of the first cache. Rounds are few where scores are flat, and without bound where
they are peaked: cycles of two words that prefer each other are popped until one of them draws another head.

The numbers of a stack are those of Philox4x32-10 (Salmon et al. 2011) at the counter (word, depth, bits of the sample's second uniform)
under the key of the bits of its first: a tree depends on the scores and on its own uniforms alone.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...kernels.gpu.launching import lanes, launches, warps

MOST = 512
"""The most positions, the root's among them."""

ROUNDS = 1000
"""Rounds after which a sample is given up."""

LANES = 64
"""Short sentences fill this many lanes with several samples."""

WIDTH = 32
"""Words of which a program tabulates the chances."""


def serves(operation: str, event: tuple[int, ...], dtype: torch.dtype, options: tuple[Any, ...]) -> bool:
    """The sizes that these kernels take; see `structgrad.oracles.kernels.gpu`."""
    return event[0] <= MOST


def popped(
    rows: Tensor,
    uniforms: Tensor,
    structures: Tensor,
    unfinished: Tensor,
    root_words: Tensor | None = None,
    *,
    rounds: int = ROUNDS,
    together: int | None = None,
) -> None:
    """Draw trees from rows [b, n + 1, n + 1] into structures [b, s, n + 1, n + 1].

    Args:
        rows: scores of arcs; ignored entries are not used.
        uniforms: [b, s, noise] float64, of which the bits of the first two are used.
        structures: written, in any dtype.
        unfinished: [b, s] bool, written: samples that were given up and are 0, among them all of an infeasible row.
        root_words: [b, s] int64, the only word that the root heads, drawn by its marginals; 0 for none, which gives the sample up. None:
            the root heads any number of words.
        rounds: after how many a sample is given up.
        together: the samples of one program, a power of two.
    """
    _, samples, noise = uniforms.shape
    size = rows.shape[-1]
    block = lanes(size)
    several = together or max(LANES // block, 1)
    groups = triton.cdiv(samples, several)
    single, roots = root_words is not None, unfinished if root_words is None else root_words
    for part, (tables, space) in launches(rows, (size * size, torch.float64), (groups * 3 * several * block, torch.int32)):
        items = len(tables)
        _tabulate[(items * triton.cdiv(size, WIDTH),)](rows[part], tables, size, int(single), WIDTH, num_warps=1)
        _pop[(items * groups,)](
            *(tables, uniforms[part], roots[part], structures[part], unfinished[part], space),
            *(size, samples, noise, groups, rounds, single, noise > 1, max((size - 1).bit_length(), 1), several, block),
            num_warps=warps(several * block, 8),
        )


@triton.jit
def _tabulate(rows, tables, size, first: tl.constexpr, width: tl.constexpr):
    """The chances of heads from the first on, up to each one [head, word]: infinite from the last head on, so that none beyond it is drawn.

    Sums are serial: never less than the sum before, and equal to it where a head has no chance. A word without heads draws itself.
    """
    chunks = tl.cdiv(size, width)
    item = (tl.program_id(0) // chunks).to(tl.int64)
    word = (tl.program_id(0) % chunks) * width + tl.arange(0, width)
    rows += item * size * size + word
    tables += item * size * size + word
    inside = (word > 0) & (word < size)
    largest = tl.full([width], -float("inf"), tl.float64)
    head = tl.full((), first, tl.int32)
    while head < size:
        score = tl.load(rows + head * size, mask=inside & (word != head), other=-float("inf"))
        largest = tl.maximum(largest, score.to(tl.float64))
        head += 1
    feasible = largest > -float("inf")
    origin = tl.where(feasible, largest, 0.0)
    total = tl.full([width], 0.0, tl.float64)
    head = tl.full((), first, tl.int32)
    while head < size:
        score = tl.load(rows + head * size, mask=inside & (word != head), other=-float("inf"))
        total += tl.exp(score.to(tl.float64) - origin)
        head += 1
    below = tl.full([width], 0.0, tl.float64)
    head = tl.full((), 0, tl.int32)
    while head < size:
        score = tl.load(rows + head * size, mask=(inside & (word != head) & (head >= first)) != 0, other=-float("inf"))
        below += tl.exp(score.to(tl.float64) - origin)
        ended = tl.where(feasible, below >= total, head >= word)
        tl.store(tables + head * size, tl.where(ended, float("inf"), below / tl.where(feasible, total, 1.0)), mask=word < size)
        head += 1


@triton.jit
def _pop(
    tables,
    uniforms,
    root_words,
    structures,
    unfinished,
    space,
    size,
    samples,
    noise,
    groups,
    rounds,
    single_root: tl.constexpr,
    second: tl.constexpr,
    steps: tl.constexpr,
    several: tl.constexpr,
    block: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    item = program // groups
    word = tl.arange(0, block)[None, :]
    row = tl.arange(0, several)[:, None]
    sample = (program % groups) * several + row
    given = sample < samples
    sample = item * samples + sample
    tables += item * size * size + word
    # Where the words of this program put their pointers, in two planes by turns, and the marks of cycles.
    own = row * block
    pointers = space + program * (3 * several * block) + own
    marks = pointers + 2 * several * block
    key = tl.load(uniforms + sample * noise, mask=given, other=0.0).to(tl.int64, bitcast=True)
    tail = key * 0
    if second:
        tail = tl.load(uniforms + sample * noise + 1, mask=given, other=0.0).to(tl.int64, bitcast=True)
    drawing = given & (word > 0) & (word < size)
    hopeless = given & False
    if single_root:
        root = tl.load(root_words + sample, mask=given, other=0)
        hopeless = given & (root <= 0)
        drawing = drawing & (root > 0) & (word != root)
    depth = tl.zeros([several, block], tl.int32)
    heads = tl.zeros([several, block], tl.int32)
    tl.store(marks + word, depth)
    stamp = tl.full((), 0, tl.int32)
    left = tl.sum(tl.sum(drawing.to(tl.int32), 1), 0)
    while (left > 0) & (stamp < rounds):
        stamp += 1
        heads = tl.where(drawing, _draw(tables, key, tail, word, depth, drawing, size, steps), heads)
        depth += drawing.to(tl.int32)
        # After so many steps every path is at the root or on its cycle, and every word of a cycle is some path's place.
        ahead = heads
        for step in tl.static_range(steps):
            plane = pointers + (step % 2) * several * block
            tl.store(plane + word, ahead)
            tl.debug_barrier()
            ahead = tl.load(plane + ahead)
        tl.store(marks + ahead, tl.zeros([several, block], tl.int32) + stamp)
        tl.debug_barrier()
        drawing = given & (word > 0) & (tl.load(marks + word) == stamp)
        tl.debug_barrier()
        left = tl.sum(tl.sum(drawing.to(tl.int32), 1), 0)
    failed = hopeless | (tl.max(drawing.to(tl.int32), 1)[:, None] > 0)
    tl.store(unfinished + sample, failed, mask=given)
    heads = tl.where((word > 0) & ~failed, heads, -1)
    head = tl.full((), 0, tl.int32)
    while head < size:
        arc = (heads == head).to(structures.dtype.element_ty)
        tl.store(structures + (sample * size + head) * size + word, arc, mask=given & (word < size))
        head += 1


@triton.jit
def _draw(tables, key, tail, word, depth, drawing, size, steps: tl.constexpr):
    """The head at a depth of each word's stack: the first whose chances and those before it exceed a uniform of 53 bits."""
    low = tail.to(tl.int32) + depth * 0
    high = (tail >> 32).to(tl.int32) + depth * 0
    upper, lower, _, _ = tl.philox(key + depth * 0, word + depth * 0, depth, low, high)
    bits = (upper.to(tl.int64) << 21) | (lower.to(tl.int64) >> 11)
    uniform = bits.to(tl.float64) * 1.1102230246251565e-16
    least = depth * 0
    most = depth * 0 + size - 1
    for _ in tl.static_range(steps):
        middle = (least + most) // 2
        enough = tl.load(tables + middle * size, mask=drawing, other=0.0) > uniform
        most = tl.where(enough, middle, most)
        # The last one is enough.
        least = tl.where(enough, least, tl.minimum(middle + 1, most))
    return most
