"""Monotone alignments: a program per pair sweeps the antidiagonals of its grid, whose cells depend on the two antidiagonals before alone.

The grid is turned so that its shorter side, of n cells, lies across the lanes: lane i computes the cells of line i, one on each of the
n + m − 1 antidiagonals, from what its own lane and the lane before it had (see `antidiagonals`). Scores and results are sheared, which
costs one more pass over them.

The forward pass computes in float64, but for exponentials and logarithms, which are of differences and in the dtype of the rows: weights
depend on small differences of values that long paths make large. It keeps for each cell the softmax weights of the three cells before
it (Mensch & Blondel 2018, section 4.2), in the place of the scores and beside them. The passes back are then products and sums.

What bounds it: at full occupancy bytes, in numbers per cell 3 for log-partitions, 12 for marginals and 21 for products with the
covariance; for few pairs n + m − 1 steps that wait for each other, each for a barrier and some twenty to a hundred operations.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..active_set.gpu import Map, launcher
from ..kernels.gpu.antidiagonals import EACH, entries_of, from_before, from_behind, shear, spaces, start_of, terms, turned, unshear
from ..kernels.gpu.launching import launches, warps
from .gpu_paths import argmax, best, sample, workspace

__all__ = ["argmax", "best", "covariance_product", "log_partition", "marginals", "sample", "serves", "workspace"]

WIDEST = 2048
"""The longest shorter side."""

LARGEST = 2**27
"""Cells of the largest grid, so that offsets within the tables of a pair fit 32 bits."""


def serves(operation: str, event: tuple[int, ...], dtype: torch.dtype, options: tuple[Any, ...]) -> bool:
    """The sizes that these kernels take; see `structgrad.oracles.kernels.gpu`."""
    return min(event) <= WIDEST and event[0] * event[1] <= LARGEST


def _map(event: tuple[int, ...]) -> Map:
    grid = turned(*event)
    few = warps(grid.block, 8)
    return Map(best, workspace(event), torch.float64, event, (grid.flipped, grid.block), (few, max(few, 4)))


project = launcher(_map)
"""SparseMAP: see `active_set`."""


def log_partition(rows: Tensor, log_partition: Tensor) -> None:
    """Log-partitions [b] of rows [b, n, m]."""
    grid = turned(*rows.shape[1:])
    for part, (tables, lines) in launches(rows, *spaces(rows, 1, 2)):
        _log_partition[(len(tables),)](
            rows[part], log_partition[part], tables, lines, *grid[:4], grid.block, grid.tile, num_warps=warps(grid.block, EACH)
        )


def marginals(rows: Tensor, marginals: Tensor, log_partition: Tensor) -> None:
    """Marginals and log-partitions of rows."""
    grid = turned(*rows.shape[1:])
    for part, (tables, lines) in launches(rows, *spaces(rows, 3, 2)):
        _marginals[(len(tables),)](
            rows[part],
            marginals[part],
            log_partition[part],
            tables,
            lines,
            *grid[:4],
            grid.block,
            grid.tile,
            num_warps=warps(grid.block, EACH),
        )


def covariance_product(rows: Tensor, direction: Tensor, product: Tensor) -> None:
    """The covariance of the parts times a direction, for each row."""
    grid = turned(*rows.shape[1:])
    for part, (tables, lines) in launches(rows, *spaces(rows, 6, 4)):
        _covariance_product[(len(tables),)](
            rows[part],
            direction[part],
            product[part],
            tables,
            lines,
            *grid[:4],
            grid.block,
            grid.tile,
            num_warps=warps(grid.block, EACH),
        )


@triton.jit
def _forward(tables, lines, n, m, place, keep: tl.constexpr, block: tl.constexpr):
    """The log-partition of sheared scores, the first of the tables; where ``keep``, weights go to three tables."""
    cells = n * m
    corner, beside, own = start_of(place)
    entries, inside = entries_of(0, n, m, place)
    score = tl.load(tables + entries, mask=inside, other=-float("inf"))
    for step in range(n + m - 1):
        # What comes next is loaded before this step waits.
        entries_after, inside_after = entries_of(step + 1, n, m, place)
        following = tl.load(tables + entries_after, mask=inside_after, other=-float("inf"))
        of_corner, of_beside, of_own, total, own = terms(score, corner, beside, own)
        if keep:
            tl.store(tables + entries, of_corner / total, mask=inside)
            tl.store(tables + cells + entries, of_beside / total, mask=inside)
            tl.store(tables + 2 * cells + entries, of_own / total, mask=inside)
        corner = beside
        beside = from_before(own, lines, step, place, -float("inf"), block)
        score, entries, inside = following, entries_after, inside_after
    return tl.max(tl.where(place == n - 1, own, -float("inf")), 0)


@triton.jit
def _log_partition(rows, log_partition, tables, lines, n, m, across, along, block: tl.constexpr, tile: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    tables += item * (n * m + 2 * block)
    shear(rows + item * n * m, tables, n, m, across, along, tile)
    total = _forward(tables, lines + item * 2 * block, n, m, tl.arange(0, block), False, block)
    tl.store(log_partition + item, total)


@triton.jit
def _marginals(rows, marginals, log_partition, tables, lines, n, m, across, along, block: tl.constexpr, tile: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, block)
    cells = n * m
    tables += item * (3 * cells + 2 * block)
    shear(rows + item * cells, tables, n, m, across, along, tile)
    total = _forward(tables, lines + item * 2 * block, n, m, place, True, block)
    tl.store(log_partition + item, total)
    _backward(tables, total, n, m, place, block)
    unshear(tables, marginals + item * cells, n, m, across, along, tile)


@triton.jit
def _backward(tables, total, n, m, place, block: tl.constexpr):
    """Sheared marginals in the place of the first weights: a path that passes a cell came from each cell before by its weight."""
    cells = n * m
    number = tables.dtype.element_ty
    lines = tables + 3 * cells
    arriving = tl.where(place == n - 1, tl.where(total > -float("inf"), 1.0, 0.0), 0.0).to(number)
    corner = tl.zeros_like(arriving)
    entries, inside = entries_of(n + m - 2, n, m, place)
    to_corner = tl.load(tables + entries, mask=inside, other=0.0)
    to_beside = tl.load(tables + cells + entries, mask=inside, other=0.0)
    to_own = tl.load(tables + 2 * cells + entries, mask=inside, other=0.0)
    for back in range(n + m - 1):
        entries_after, inside_after = entries_of(n + m - 3 - back, n, m, place)
        next_corner = tl.load(tables + entries_after, mask=inside_after, other=0.0)
        next_beside = tl.load(tables + cells + entries_after, mask=inside_after, other=0.0)
        next_own = tl.load(tables + 2 * cells + entries_after, mask=inside_after, other=0.0)
        tl.store(tables + entries, arriving, mask=inside)
        passed = from_behind(to_beside * arriving + corner, lines, back, place, 0.0, block)
        corner = to_corner * arriving
        arriving = to_own * arriving + passed
        to_corner, to_beside, to_own, entries, inside = next_corner, next_beside, next_own, entries_after, inside_after


@triton.jit
def _covariance_product(rows, direction, product, tables, lines, n, m, across, along, block: tl.constexpr, tile: tl.constexpr):
    """Six tables: the weights, the scores in the place of the first; and their derivatives, the direction in the place of the first."""
    item = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, block)
    cells = n * m
    tables += item * (6 * cells + 4 * block)
    shear(rows + item * cells, tables, n, m, across, along, tile)
    shear(direction + item * cells, tables + 3 * cells, n, m, across, along, tile)
    total = _forward_tangents(tables, lines + item * 4 * block, n, m, place, block)
    _backward_tangents(tables, total, n, m, place, block)
    unshear(tables, product + item * cells, n, m, across, along, tile)


@triton.jit
def _forward_tangents(tables, lines, n, m, place, block: tl.constexpr):
    """`_forward` with derivatives along the direction.

    Of a cell's value it is the mean of those before, by weight, and the direction there; of a weight, the weight times how far the
    derivative of the cell before is from that mean. In float64, because such differences are small where those derivatives are large.
    """
    cells = n * m
    corner, beside, own = start_of(place)
    nothing = tl.zeros_like(corner)
    corner_rate, beside_rate, own_rate = nothing, nothing, nothing
    for step in range(n + m - 1):
        entries, inside = entries_of(step, n, m, place)
        score = tl.load(tables + entries, mask=inside, other=-float("inf"))
        along = tl.load(tables + 3 * cells + entries, mask=inside, other=0.0)
        of_corner, of_beside, of_own, total, own = terms(score, corner, beside, own)
        sum_of_terms = of_corner.to(tl.float64) + of_beside.to(tl.float64) + of_own.to(tl.float64)
        mean = of_corner.to(tl.float64) * corner_rate + of_beside.to(tl.float64) * beside_rate + of_own.to(tl.float64) * own_rate
        mean /= tl.where(sum_of_terms > 0.0, sum_of_terms, 1.0)
        of_corner, of_beside, of_own = of_corner / total, of_beside / total, of_own / total
        tl.store(tables + entries, of_corner, mask=inside)
        tl.store(tables + cells + entries, of_beside, mask=inside)
        tl.store(tables + 2 * cells + entries, of_own, mask=inside)
        tl.store(tables + 3 * cells + entries, of_corner * (corner_rate - mean).to(score.dtype), mask=inside)
        tl.store(tables + 4 * cells + entries, of_beside * (beside_rate - mean).to(score.dtype), mask=inside)
        tl.store(tables + 5 * cells + entries, of_own * (own_rate - mean).to(score.dtype), mask=inside)
        own_rate = mean + along.to(tl.float64)
        corner, corner_rate = beside, beside_rate
        # One barrier is for both.
        here = lines + (step % 2) * block + place
        tl.store(here + 2 * block, own_rate)
        beside = from_before(own, lines, step, place, -float("inf"), block)
        beside_rate = tl.load(here + 2 * block - 1, mask=place > 0, other=0.0)
    return tl.max(tl.where(place == n - 1, own, -float("inf")), 0)


@triton.jit
def _backward_tangents(tables, total, n, m, place, block: tl.constexpr):
    """`_backward` with derivatives along the direction, which are what it leaves in the first table."""
    cells = n * m
    number = tables.dtype.element_ty
    lines = tables + 6 * cells
    arriving = tl.where(place == n - 1, tl.where(total > -float("inf"), 1.0, 0.0), 0.0).to(number)
    moving, corner, corner_rate = tl.zeros_like(arriving), tl.zeros_like(arriving), tl.zeros_like(arriving)
    for back in range(n + m - 1):
        entries, inside = entries_of(n + m - 2 - back, n, m, place)
        to_corner = tl.load(tables + entries, mask=inside, other=0.0)
        to_beside = tl.load(tables + cells + entries, mask=inside, other=0.0)
        to_own = tl.load(tables + 2 * cells + entries, mask=inside, other=0.0)
        corner_slope = tl.load(tables + 3 * cells + entries, mask=inside, other=0.0)
        beside_slope = tl.load(tables + 4 * cells + entries, mask=inside, other=0.0)
        own_slope = tl.load(tables + 5 * cells + entries, mask=inside, other=0.0)
        tl.store(tables + entries, moving, mask=inside)
        here = lines + (back % 2) * block + place
        tl.store(here + 2 * block, to_beside * moving + beside_slope * arriving + corner_rate)
        passed = from_behind(to_beside * arriving + corner, lines, back, place, 0.0, block)
        passed_rate = tl.load(here + 2 * block + 1, mask=place < block - 1, other=0.0)
        corner, corner_rate = to_corner * arriving, to_corner * moving + corner_slope * arriving
        moving = to_own * moving + own_slope * arriving + passed_rate
        arriving = to_own * arriving + passed
