"""Exactly k of n, by dynamic programmes over how many are taken.

Parts are taken with probabilities ``σ(θ − s)``, independently of each other, with s such that these sum to k: then no number of parts is
likelier to be taken than k (Darroch 1964), which so has a probability of at least 1/(n + 1), and nothing leaves the range of a float64, in
which everything is computed. ``prefix_i[j]`` is the probability that j of the first i parts are taken, ``suffix_i[j]`` that j of those from
i on are; a marginal is a sum of products of the two, without division or subtraction (Chen & Liu 1997, section 2).

The lanes are counts 0 to k. A table is n dependent steps, each a shift by one lane through memory; that latency bounds it (some 300 cycles
a step), so that prefixes and suffixes are filled side by side by two programs. A table takes 8 (n + 1)(k + 1) bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..kernels.gpu.launching import lanes, launches, warps
from ..simplex.gpu import MOST, kth_largest

PARTS = 32
"""Whose marginals a program finds."""

COUNTS = 32
"""At a time, for each of these parts."""

DRAWS = 32
"""Samples of one program."""


def serves(operation: str, event: tuple[int, ...], dtype: torch.dtype, options: tuple[Any, ...]) -> bool:
    """The sizes that these kernels take; see `structgrad.oracles.kernels.gpu`."""
    return math.prod(event) <= MOST


def workspace(event: tuple[int, ...]) -> int:
    """Numbers that `best` keeps in memory: none."""
    return 0


def argmax(rows: Tensor, structures: Tensor, k: int) -> None:
    """The k largest of each row; of those that tie with the smallest of them, the first."""
    block = lanes(rows.shape[1])
    _argmax[(len(rows),)](rows, structures, rows.shape[1], k, block, num_warps=warps(block))


def log_partition(rows: Tensor, log_partition: Tensor, k: int) -> None:
    """``log Σ_z exp⟨θ, z⟩`` of each row."""
    for part, found in _weighed(rows, k, 1):
        _fill_tables(found, log_partition[part], k, 1)


def marginals(rows: Tensor, marginals: Tensor, log_partition: Tensor, k: int) -> None:
    """The probability of each part, and the log-partition."""
    for part, found in _weighed(rows, k, 2):
        _fill_tables(found, log_partition[part], k, 2)
        _pair_tables(found, marginals[part], k)


def covariance_product(rows: Tensor, direction: Tensor, product: Tensor, k: int) -> None:
    """The derivative of the marginals along a direction: means of slopes, as they differ from that of all subsets."""
    for part, found in _weighed(rows, k, 2, direction):
        _fill_tables(found, found.total, k, 2, tangent=True)
        _pair_tables(found, product[part], k, tangent=True)


def sample(rows: Tensor, uniforms: Tensor, structures: Tensor, k: int) -> None:
    """Exact samples: part by part, taken with its probability given how many are still to be taken."""
    (draws, noise), size = uniforms.shape[1:], rows.shape[1]
    block = min(lanes(draws), DRAWS)
    groups = triton.cdiv(draws, block)
    for part, found in _weighed(rows, k, 2):
        _fill_tables(found, found.total, k, 2)
        grid = (len(found.total) * groups,)
        leaps = noise < size  # one uniform for each part that is taken
        _draw[grid](found.chances, found.tables, uniforms[part], structures[part], groups, size, draws, k, noise, leaps, block, num_warps=1)


class _SubsetSums(NamedTuple):
    """What is summed for some rows, and where.

    Attributes:
        chances: of parts to be taken, to be left, and slopes [b, 3n].
        rest: [b, 1], the score that these leave out. ``total``: [b, 1], room for a log-partition that nobody asks for.
        tables: prefixes and suffixes [b, turns (n + 1)(k + 1)]. ``means``: of their slopes, or the tables.
    """

    chances: Tensor
    rest: Tensor
    total: Tensor
    tables: Tensor
    means: Tensor


def _weighed(rows: Tensor, k: int, turns: int, direction: Tensor | None = None) -> Iterator[tuple[slice, _SubsetSums]]:
    """Parts of rows [b, n] with the chances of their parts, and room for the tables of so many turns."""
    size, tangent, kind = rows.shape[1], direction is not None, torch.float64
    needed = (3 * size, kind), (1, kind), (1, kind), *[(turns * (size + 1) * (k + 1), kind)] * (2 if tangent else 1)
    along, block = rows if direction is None else direction, lanes(size)
    for part, (chances, rest, total, tables, *means) in launches(rows, *needed):
        _weigh[(len(chances),)](rows[part], along[part], chances, rest, size, k, block, tangent, num_warps=warps(block))
        yield part, _SubsetSums(chances, rest, total, tables, means[0] if tangent else tables)


def _fill_tables(found: _SubsetSums, log_partition: Tensor, k: int, turns: int, tangent: bool = False) -> None:
    chances, rest, _, tables, means = found
    count, size, counts = len(chances), chances.shape[1] // 3, lanes(k + 1)
    _fill[(count, turns)](chances, rest, tables, means, log_partition, size, k, counts, tangent, num_warps=warps(counts))


def _pair_tables(found: _SubsetSums, results: Tensor, k: int, tangent: bool = False) -> None:
    count, size = results.shape
    chances, _, _, tables, means = found
    block, counts = min(lanes(size), PARTS), min(lanes(k), COUNTS)
    _pair[(count, triton.cdiv(size, block))](
        chances, tables, means, results, size, k, block, counts, tangent, num_warps=warps(block * counts, 4, 8)
    )


@triton.jit
def _argmax(rows, structures, size, k, block: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * size
    best(rows + start, structures + start, structures, size, k, block)


@triton.jit
def best(scores, structure, workspace, size, k, block: tl.constexpr):
    """Write the best subset of a row of scores; where there is none, the first forbidden parts are taken too. No ``workspace`` is used."""
    place = tl.arange(0, block)
    row = tl.load(scores + place, mask=place < size, other=-float("inf")).to(tl.float64)
    last = kth_largest(row, k)
    above = row > last
    equal = (row == last).to(tl.int32)
    wanted = k - tl.sum(above.to(tl.int32), 0)
    taken = above | ((equal > 0) & (tl.cumsum(equal, 0) <= wanted))
    tl.store(structure + place, taken.to(structure.dtype.element_ty), mask=place < size)
    tl.debug_barrier()


@triton.jit
def _weigh(rows, direction, chances, rest, size, k, block: tl.constexpr, tangent: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, block)
    inside = place < size
    row = tl.load(rows + item * size + place, mask=inside, other=-float("inf")).to(tl.float64)
    origin = _origin(row, size, k)
    odds = row - origin
    small = tl.exp(-tl.abs(odds))
    taken = tl.where(odds > 0.0, 1.0, small) / (1.0 + small)
    left = tl.where(odds > 0.0, small, 1.0) / (1.0 + small)
    chances += item * 3 * size
    tl.store(chances + place, taken, mask=inside)
    tl.store(chances + size + place, left, mask=inside)
    tl.store(rest + item, tl.sum(tl.maximum(odds, 0.0) + tl.log(1.0 + small), 0) + k * origin)
    if tangent:
        # What is the same for all parts moves no probability.
        slope = tl.load(direction + item * size + place, mask=inside, other=0.0).to(tl.float64)
        slope = tl.where(taken > 0.0, slope, 0.0)
        mass = tl.sum(taken, 0)
        mean = tl.sum(taken * slope, 0) / tl.where(mass > 0.0, mass, 1.0)
        tl.store(chances + 2 * size + place, tl.where(taken > 0.0, slope, mean) - mean, mask=inside)


@triton.jit
def _origin(row, size, k):
    """The s with ``Σ σ(θ − s) = k``, as nearly as is needed, by bisection between the k-th and the next largest score."""
    last = kth_largest(row, k)
    last = tl.where(last > -float("inf"), last, 0.0)
    following = tl.where(k < size, kth_largest(row, k + 1), -float("inf"))
    one = tl.full((), 1.0, tl.float64)
    high = last + tl.log(one + size)
    low = tl.maximum(following, last - 80.0) - tl.log(one + k)
    step = tl.full((), 0, tl.int32)
    while step < 16:
        middle = (low + high) / 2.0
        odds = row - middle
        small = tl.exp(-tl.abs(odds))
        more = tl.sum(tl.where(odds > 0.0, 1.0, small) / (1.0 + small), 0) > k
        low = tl.where(more, middle, low)
        high = tl.where(more, high, middle)
        step += 1
    return low


@triton.jit
def _fill(chances, rest, tables, means, log_partition, size, k, counts: tl.constexpr, tangent: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    turn = tl.program_id(1)
    start = (item * tl.num_programs(1) + turn) * (size + 1) * (k + 1)
    tables += start
    means += start
    chances += item * 3 * size
    count = tl.arange(0, counts)
    inside = count <= k
    moved = inside & (count > 0)
    chance = tl.where(count == 0, 1.0, 0.0).to(tl.float64)
    mean = tl.zeros([counts], tl.float64)
    tl.store(tables + count, chance, mask=inside)
    if tangent:
        tl.store(means + count, mean, mask=inside)
    step = tl.full((), 0, tl.int32)
    here = step.to(tl.int64)
    while step < size:
        tl.debug_barrier()
        part = tl.where(turn == 0, step, size - 1 - step)
        stays = tl.load(chances + size + part) * chance
        joins = tl.load(chances + part) * tl.load(tables + here + count - 1, mask=moved, other=0.0)
        chance = stays + joins
        if tangent:
            joined = tl.load(means + here + count - 1, mask=moved, other=0.0) + tl.load(chances + 2 * size + part)
            mean = (stays * mean + joins * joined) / tl.where(chance > 0.0, chance, 1.0)
            tl.store(means + here + k + 1 + count, mean, mask=inside)
        here += k + 1
        tl.store(tables + here + count, chance, mask=inside)
        step += 1
    probability = tl.sum(tl.where(count == k, chance, 0.0), 0)
    value = tl.log(tl.where(probability > 0.0, probability, 1.0)) + tl.load(rest + item)
    tl.store(log_partition + item, tl.where(probability > 0.0, value, -float("inf")), mask=turn == 0)


@triton.jit
def _pair(chances, tables, means, results, size, k, block: tl.constexpr, counts: tl.constexpr, tangent: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1) * block + tl.arange(0, block)
    real = part < size
    each = (size + 1) * (k + 1)
    whole = (2 * item * (size + 1) + size) * (k + 1) + k
    before = 2 * item * each + part[:, None].to(tl.int64) * (k + 1)
    # Of the parts after this one, all but ``count`` of the others that are taken.
    after = (2 * item + 1) * each + (size - 1 - part)[:, None].to(tl.int64) * (k + 1) + k - 1
    chances += item * 3 * size
    if tangent:
        slope = tl.load(chances + 2 * size + part, mask=real, other=0.0)[:, None] - tl.load(means + whole)
    found = tl.zeros([block, counts], tl.float64)
    start = tl.full((), 0, tl.int32)
    while start < k:
        count = start + tl.arange(0, counts)[None, :]
        inside = (count < k) & real[:, None]
        term = tl.load(tables + before + count, mask=inside, other=0.0) * tl.load(tables + after - count, mask=inside, other=0.0)
        if tangent:
            both = tl.load(means + before + count, mask=inside, other=0.0) + tl.load(means + after - count, mask=inside, other=0.0)
            term = term * (both + slope)
        found += term
        start += counts
    probability = tl.load(tables + whole)
    taken = tl.load(chances + part, mask=real, other=0.0)
    result = taken * tl.sum(found, 1) / tl.where(probability > 0.0, probability, 1.0)
    tl.store(results + item * size + part, tl.where(probability > 0.0, result, 0.0), mask=real)


@triton.jit
def _draw(chances, tables, uniforms, structures, groups, size, draws, k, noise, leaps: tl.constexpr, block: tl.constexpr):
    item = (tl.program_id(0) // groups).to(tl.int64)
    draw = tl.program_id(0) % groups * block + tl.arange(0, block)
    real = draw < draws
    structures += (item * draws + draw) * size
    uniforms += (item * draws + draw) * noise
    suffixes = (2 * item + 1) * (size + 1) * (k + 1)
    chances += item * 3 * size
    wanted = tl.zeros([block], tl.int32) + k
    uniform = tl.load(uniforms, mask=real, other=1.0)
    part = tl.full((), 0, tl.int32)
    while part < size:
        here = suffixes + (size - part).to(tl.int64) * (k + 1) + wanted
        chance = tl.load(chances + part)
        if not leaps:
            uniform = tl.load(uniforms + part, mask=real, other=1.0)
        left = uniform * tl.load(tables + here, mask=real, other=0.0)
        joins = chance * tl.load(tables + here - (k + 1) - 1, mask=real & (wanted > 0), other=0.0)
        taken = left < joins
        if leaps:
            stays = tl.load(chances + size + part) * tl.load(tables + here - (k + 1), mask=real, other=0.0)
            # Where nothing can be without this part, rounding must not pass over it.
            taken = taken | ((stays == 0.0) & (joins > 0.0))
            following = tl.load(uniforms + tl.minimum(k - wanted + 1, k - 1), mask=real & taken, other=1.0)
            uniform = tl.where(taken, following, (left - joins) / tl.where(stays > 0.0, stays, 1.0))
        tl.store(structures + part, taken.to(structures.dtype.element_ty), mask=real)
        wanted -= taken.to(tl.int32)
        part += 1
