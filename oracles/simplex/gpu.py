"""Euclidean projection on ``{x : 0 ≤ x ≤ 1, Σx = k}`` without sorting: a row stays in the registers of one program."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..kernels.gpu.launching import lanes, warps

MOST = 16384
"""The longest row that registers hold."""


def serves(operation: str, event: tuple[int, ...], dtype: torch.dtype, options: tuple[Any, ...]) -> bool:
    """The sizes that these kernels take; see `structgrad.oracles.kernels.gpu`."""
    return math.prod(event) <= MOST


def project(rows: Tensor, mean: Tensor, free: Tensor, gap: Tensor, k: int) -> None:
    """Project rows [b, n]: see `structgrad.oracles.simplex.cpu.project`."""
    block = lanes(rows.shape[1])
    _project[(len(rows),)](rows, mean, free, gap, rows.shape[1], k, block, num_warps=warps(block))


@triton.jit
def _project(rows, mean, free, gap, size, k, block: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, block)
    inside = place < size
    row = tl.load(rows + item * size + place, mask=inside, other=-float("inf"))
    origin = kth_largest(row, k)
    feasible = origin > -float("inf")
    # Measured from the k-th largest score, the threshold lies within [-1, 0].
    near = tl.where(row > -float("inf"), row - tl.where(feasible, origin, 0.0), -float("inf"))
    threshold = _threshold(near, k)
    point = tl.where(feasible, tl.minimum(tl.maximum(near - threshold, 0.0), 1.0), 0.0)
    # ⟨θ − μ, z − μ⟩ ≤ Σ max(r, 0) − rμ with r = θ − μ − τ, for every z of k parts: 0 but for rounding, and exactly 0 beyond ±1.
    near_enough = (near > -1.0) & (near < 1.0)
    residual = tl.where(near_enough, near - point - threshold, 0.0)
    above = tl.maximum(tl.sum(tl.maximum(residual, 0.0) - residual * point, 0), 0.0)
    tl.store(mean + item * size + place, point, mask=inside)
    tl.store(free + item * size + place, (point > 0.0) & (point < 1.0), mask=inside)
    tl.store(gap + item, tl.where(feasible, above, float("inf")))


@triton.jit
def kth_largest(row, k):
    """The k-th largest of float64 numbers, -inf where fewer are above it: by bisection of their bits, which are ordered as they are."""
    bits = row.to(tl.int64, bitcast=True)
    keys = tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFFFFFFFFFF)
    low = tl.min(keys, 0)
    high = tl.max(keys, 0)
    while low < high:
        # The upper middle, without overflow.
        middle = (low >> 1) + (high >> 1) + ((low | high) & 1)
        enough = tl.sum((keys >= middle).to(tl.int32), 0) >= k
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    found = tl.where(low >= 0, low, low ^ 0x7FFFFFFFFFFFFFFF)
    return found.to(tl.float64, bitcast=True)


@triton.jit
def _threshold(near, k):
    """The τ in [-1, 0] with ``Σ clip(x − τ, 0, 1) = k``: Newton's method in a bracket; exact where two steps meet the same piece."""
    low = tl.full((), -1.0, tl.float64)
    high = tl.full((), 0.0, tl.float64)
    threshold = low
    last_above = tl.full((), -1, tl.int32)
    last_full = last_above
    going = tl.full((), 1, tl.int32)
    while going > 0:
        over = near > threshold
        beyond = near > threshold + 1.0
        total = tl.sum(tl.where(over & ~beyond, near, 0.0), 0)
        above = tl.sum(over.to(tl.int32), 0)
        full = tl.sum(beyond.to(tl.int32), 0)
        slope = (above - full).to(tl.float64)
        excess = total - threshold * slope - (k - full).to(tl.float64)
        found = (excess == 0.0) | ((above == last_above) & (full == last_full))
        low = tl.where(found | (excess <= 0.0), low, threshold)
        high = tl.where(found | (excess > 0.0), high, threshold)
        step = (total - (k - full).to(tl.float64)) / tl.maximum(slope, 1.0)
        newton = (step > low) & (step < high)
        step = tl.where(newton, step, (low + high) / 2.0)
        stuck = ~((step > low) & (step < high))
        threshold = tl.where(found, threshold, step)
        last_above = tl.where(newton, above, -1)
        last_full = full
        going = tl.where(found | stuck, 0, 1)
    return threshold
