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


def solve(rows: Tensor, excess: Tensor, p: Tensor) -> None:
    """Probabilities [b, n] of rows [b, n] whose greatest score is 0, by α − 1 [b]; float64."""
    block = lanes(rows.shape[1])
    _solve[(len(rows),)](rows, excess, p, rows.shape[1], block, num_warps=warps(block))


@triton.jit
def _solve(rows, excess, p, size, block: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, block)
    inside = place < size
    row = tl.load(rows + item * size + place, mask=inside, other=-float("inf"))
    rate = tl.load(excess + item)
    # See `structgrad.oracles.simplex.projection.by_halving`: the unknown is the probability of the pivot.
    if rate >= 1.0:
        row = row - _least_in_support(row, rate)
    low = tl.zeros_like(rate)
    high = low + 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        above = tl.sum(_power(row, middle, rate), 0) >= 1.0
        low = tl.where(above, low, middle)
        high = tl.where(above, middle, high)
    tl.store(p + item * size + place, _power(row, high, rate), mask=inside)


@triton.jit
def _least_in_support(row, rate):
    """The lowest score c of the support: those above it have ``Σ ((α − 1)(x − c))^(1/(α − 1)) < 1``. By bits of −c, ordered as it is."""
    low = tl.zeros_like(rate).to(tl.int64, bitcast=True)
    high = (1.0 / rate).to(tl.int64, bitcast=True)
    while high - low > 1:
        middle = (low + high) >> 1
        lead = row + middle.to(tl.float64, bitcast=True)
        terms = tl.exp(tl.log(tl.where(lead > 0.0, rate * lead, 1.0)) / rate)
        within = tl.sum(tl.where(lead > 0.0, terms, 0.0), 0) < 1.0
        low = tl.where(within, middle, low)
        high = tl.where(within, high, middle)
    return tl.min(tl.where(-row <= low.to(tl.float64, bitcast=True), row, 0.0), 0)


@triton.jit
def _power(x, pivot, rate):
    """``[v^(α − 1) + (α − 1) x]₊^(1/(α − 1))`` for the pivot's v, exact down to its limit ``v exp x``."""
    if rate == 0.5:
        root = tl.maximum(tl.sqrt(pivot) + 0.5 * x, 0.0)
        result = root * root
    elif rate == 0.0:
        result = pivot * tl.exp(x)
    elif rate >= 1.0:
        # In logarithms: a power of a small v may be below all numbers.
        power = rate * tl.log(pivot)
        other = tl.log(tl.where(x > 0.0, rate * x, 1.0))
        most = tl.maximum(power, other)
        total = most + tl.log(tl.exp(power - most) + tl.exp(other - most))
        result = tl.where(x < 0.0, 0.0, tl.exp(tl.where(x > 0.0, total, power) / rate))
    else:
        # exp(u) − 1 and log(1 + y) to the last digits where they are small (Goldberg 1991, theorem 4).
        u = rate * tl.log(pivot)
        power = tl.exp(u)
        away = power != 1.0
        less = tl.where(away, (power - 1.0) * (u / tl.log(tl.where(away, power, 2.0))), u)
        y = tl.maximum(less + rate * x, -1.0)
        one = 1.0 + y
        near = one == 1.0
        logarithm = tl.where(near, y, tl.log(tl.where(one > 0.0, one, 1.0)) * (y / tl.where(near, 1.0, one - 1.0)))
        result = tl.where(one > 0.0, tl.exp(logarithm / rate), 0.0)
    return result
