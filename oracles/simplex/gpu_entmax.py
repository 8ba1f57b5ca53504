"""α-entmax without sorting (Peters, Niculae & Martins 2019, algorithm 1): one program halves a bracket for a row in its registers.

Bound by arithmetic: 60 passes over a row in registers, each a logarithm and an exponential per number, or a product where α is 1.5.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..kernels.gpu.launching import lanes, warps

MOST = 8192
"""The longest row that registers hold."""

HALVINGS = tl.constexpr(60)
"""Of a bracket no longer than log n: what is left is below the rounding of float64."""


def serves(operation: str, event: tuple[int, ...], dtype: torch.dtype, options: tuple[Any, ...]) -> bool:
    """The sizes that these kernels take; see `structgrad.oracles.kernels.gpu`."""
    return math.prod(event) <= MOST


def solve(rows: Tensor, excess: Tensor, highest: Tensor, p: Tensor) -> None:
    """Probabilities [b, n] of rows [b, n] whose greatest score is 0, by α − 1 [b] and the most [b] that the threshold can be; float64."""
    block = lanes(rows.shape[1])
    _solve[(len(rows),)](rows, excess, highest, p, rows.shape[1], block, num_warps=warps(block))


@triton.jit
def _solve(rows, excess, highest, p, size, block: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, block)
    inside = place < size
    row = tl.load(rows + item * size + place, mask=inside, other=-float("inf"))
    rate = tl.load(excess + item)
    high = tl.load(highest + item)
    low = tl.zeros_like(high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        above = tl.sum(_power(row - middle, rate), 0) >= 1.0
        low = tl.where(above, middle, low)
        high = tl.where(above, high, middle)
    # One step of Newton's method, for the last digits.
    found = _power(row - low, rate)
    slope = tl.sum(tl.where(found > 0.0, tl.exp((1.0 - rate) * tl.log(tl.where(found > 0.0, found, 1.0))), 0.0), 0)
    newton = low + (tl.sum(found, 0) - 1.0) / tl.maximum(slope, 1e-300)
    threshold = tl.minimum(tl.maximum(newton, low), high)
    tl.store(p + item * size + place, _power(row - threshold, rate), mask=inside)


@triton.jit
def _power(x, rate):
    """``[1 + (α − 1) x]₊^(1/(α − 1))``, exact down to its limit ``exp x``."""
    if rate == 0.5:
        root = tl.maximum(1.0 + 0.5 * x, 0.0)
        result = root * root
    elif rate == 0.0:
        result = tl.exp(x)
    else:
        y = tl.maximum(rate * x, -1.0)
        # log(1 + y) to the last digits where y is small (Goldberg 1991, theorem 4).
        one = 1.0 + y
        near = one == 1.0
        logarithm = tl.where(near, y, tl.log(tl.where(one > 0.0, one, 1.0)) * (y / tl.where(near, 1.0, one - 1.0)))
        result = tl.where(one > 0.0, tl.exp(logarithm / rate), 0.0)
    return result
