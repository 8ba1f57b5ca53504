"""Philox4x32-10 on the GPU: the counters, keys and bits of `structgrad.oracles.kernels.philox`, a pair of uniforms per lane.

What bounds it is the arithmetic of the ten rounds, some forty products of 32 bits for two uniforms, not their 16 bytes.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

PAIRS = 512
"""Pairs of uniforms per program."""


def uniforms(keys: Tensor, places: Tensor, out: Tensor, draw: int) -> None:
    """Fill ``out`` [rows, width] with uniforms of 53 bits in [0, 1), from the seed of each row's block and its place there, both int64."""
    rows, width = out.shape
    half = (width + 1) // 2
    _uniforms[(triton.cdiv(rows * half, PAIRS),)](keys, places, out, rows, width, half, draw, PAIRS, num_warps=4)


@triton.jit(do_not_specialize=["draw"])
def _uniforms(keys, places, out, rows, width, half, draw, pairs: tl.constexpr):
    # 64 bits for the first pair of the program alone: what lies beyond is counted from its row.
    first = tl.program_id(0).to(tl.int64) * pairs
    start = first // half
    beyond = (first % half).to(tl.int32) + tl.arange(0, pairs)
    row = start + beyond // half
    pair = beyond % half
    inside = row < rows
    key = tl.load(keys + row, mask=inside, other=0)
    place = tl.load(places + row, mask=inside, other=0).to(tl.uint32)
    counter = pair.to(tl.uint32)
    a, b, c, d = tl.philox(key, counter, place, tl.zeros_like(counter) + draw.to(tl.uint32), tl.zeros_like(counter), n_rounds=10)
    here = out + row * width + 2 * pair
    tl.store(here, _uniform(a, b), mask=inside)
    tl.store(here + 1, _uniform(c, d), mask=inside & (2 * pair + 1 < width))


@triton.jit
def _uniform(high, low):
    """The upper 53 of 64 bits."""
    return (((high.to(tl.uint64) << 32) | low.to(tl.uint64)) >> 11).to(tl.float64) * 1.1102230246251565e-16
