"""Kernels of projective dependency trees: rows [b, n + 1, n + 1], of which column 0 and the diagonal are never used.

One program per sentence runs Eisner's recursion (1996) inside and outside on a chart of its own: see `gpu_charts`. Samples are
drawn by one warp each from a chart in float64: see `projective_walks`. They take n³/2 exponentials inside and n³ outside, in n passes each
way, every one of which waits for the one before: with sentences of some 40 words it is this latency that counts, while there are few of
them for each multiprocessor. From global memory come (n + 1)² scores, once, and there go as many marginals; the charts (3 squares of as
many numbers for the log-partition, the best tree and samples, 8 for marginals, 16 for the product with the covariance) are written and read
in the caches while they fit.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..active_set.gpu import Map, launcher
from ..kernels.gpu.launching import launches
from .gpu_charts import BOTH, INSIDE, RIGHT, fill, outside, start, take_greatest, tiles, warps
from .gpu_tangents import SQUARES, center, inside_tangents, outside_tangents
from .gpu_walks import walk, write

MOST = 512
"""The longest sentence, with its root, for which tiles are compiled."""


def serves(operation: str, event: tuple[int, ...], dtype: torch.dtype, options: tuple[object, ...]) -> bool:
    """The sizes that these kernels take; see `structgrad.oracles.kernels.gpu`."""
    return event[0] <= MOST


def workspace(event: tuple[int, ...]) -> int:
    """Numbers, in the dtype in which to compute, that `best` needs for one problem."""
    return INSIDE * math.prod(event)


def log_partition(rows: Tensor, log_partition: Tensor, single_root: bool) -> None:
    """The log-partition [b] of rows."""
    size = rows.shape[1]
    room = INSIDE * size * size + size
    for part, (space,) in launches(rows, (room, rows.dtype)):
        _log_partition[(len(space),)](rows[part], log_partition[part], space, size, room, single_root, *tiles(size), num_warps=warps(size))


def marginals(rows: Tensor, marginals: Tensor, log_partition: Tensor, single_root: bool) -> None:
    """Marginals [b, n + 1, n + 1] of rows, and their log-partition [b]."""
    size = rows.shape[1]
    room = BOTH * size * size + size
    for part, (space,) in launches(rows, (room, rows.dtype)):
        _marginals[(len(space),)](
            rows[part], marginals[part], log_partition[part], space, size, room, single_root, *tiles(size), num_warps=warps(size)
        )


def covariance_product(rows: Tensor, direction: Tensor, product: Tensor, single_root: bool) -> None:
    """The derivative of the marginals along directions [b, n + 1, n + 1]: ``product`` of the same shape."""
    size, shapes = rows.shape[1], tiles(rows.shape[1])
    room = SQUARES * size * size + size
    # The product holds the marginals until they are no longer needed; two launches, because the first is compiled already.
    for part, (space, unused) in launches(rows, (room, rows.dtype), (1, torch.float64)):
        grid = (len(space),)
        _marginals[grid](rows[part], product[part], unused, space, size, room, single_root, *shapes, num_warps=warps(size))
        _differentiate[grid](direction[part], product[part], space, size, room, *shapes, num_warps=warps(size))


def argmax(rows: Tensor, structures: Tensor, single_root: bool) -> None:
    """The best structures [b, n + 1, n + 1]."""
    size, room = rows.shape[1], workspace(tuple(rows.shape[1:]))
    for part, (space,) in launches(rows, (room, rows.dtype)):
        _argmax[(len(space),)](rows[part], structures[part], space, size, room, single_root, *tiles(size), num_warps=warps(size))


def sample(rows: Tensor, uniforms: Tensor, structures: Tensor, single_root: bool) -> None:
    """Structures [b, s, n + 1, n + 1] from uniforms [b, s, 2n]; nothing for an infeasible row."""
    size, shapes = rows.shape[1], tiles(rows.shape[1])
    room, samples = INSIDE * size * size + size, uniforms.shape[1]
    for part, (space, unused) in launches(rows, (room, torch.float64), (1, torch.float64)):
        count, drawn = len(space), structures[part]
        _log_partition[(count,)](rows[part], unused, space, size, room, single_root, *shapes, num_warps=warps(size))
        _sample[(count * samples,)](space, uniforms[part], drawn, size, room, samples, shapes.area, shapes.row, num_warps=1)


@triton.jit
def best(
    scores,
    structure,
    workspace,
    size,
    single_root: tl.constexpr,
    area: tl.constexpr,
    narrowest: tl.constexpr,
    levels: tl.constexpr,
    row: tl.constexpr,
):
    """The best tree of one row of scores, put into a row of structures; computed in the dtype of the workspace.

    Of equal trees it is the one with the leftmost farthest child, then the leftmost seam, from the top down; where none is feasible, some
    tree. The workspace is `workspace` numbers, the last four arguments are ``tiles(size)``.
    """
    start(workspace, size, row)
    tl.debug_barrier()
    fill(scores, scores, workspace, size, single_root, True, False, area, narrowest, levels)
    heads = walk(workspace, workspace, size, False, row)
    write(heads, structure, size, area, row)
    tl.debug_barrier()


project = launcher(
    lambda event, single_root: Map(
        best, workspace(event), torch.float64, (event[0],), (single_root, *tiles(event[0])), warps=(warps(event[0]), warps(event[0]))
    )
)
"""SparseMAP: see `active_set`."""


@triton.jit
def _argmax(
    rows, structures, space, size, room, single_root: tl.constexpr,
    area: tl.constexpr, narrowest: tl.constexpr, levels: tl.constexpr, row: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0).to(tl.int64)
    parts = size * size
    best(
        rows + item * parts, structures + item * parts, space + item * room, size, single_root,
        area, narrowest, levels, row,
    )  # fmt: skip


@triton.jit
def _inside(
    scores, chart, shift, size, single_root: tl.constexpr, whole: tl.constexpr,
    area: tl.constexpr, narrowest: tl.constexpr, levels: tl.constexpr, row: tl.constexpr,
):  # fmt: skip
    """Fill a chart of one row of scores; returns its log-partition."""
    shifted = take_greatest(scores, shift, size, area, row)
    start(chart, size, row)
    tl.debug_barrier()
    fill(scores, shift, chart, size, single_root, False, whole, area, narrowest, levels)
    return tl.load(chart + size * RIGHT * size + size - 1).to(tl.float64) + shifted


@triton.jit
def _log_partition(
    rows, log_partition, space, size, room, single_root: tl.constexpr,
    area: tl.constexpr, narrowest: tl.constexpr, levels: tl.constexpr, row: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0).to(tl.int64)
    parts = size * size
    chart = space + item * room
    total = _inside(rows + item * parts, chart, chart + room - size, size, single_root, False, area, narrowest, levels, row)
    tl.store(log_partition + item, total)


@triton.jit
def _marginals(
    rows, marginals, log_partition, space, size, room, single_root: tl.constexpr,
    area: tl.constexpr, narrowest: tl.constexpr, levels: tl.constexpr, row: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0).to(tl.int64)
    parts = size * size
    chart = space + item * room
    total = _inside(rows + item * parts, chart, chart + room - size, size, single_root, True, area, narrowest, levels, row)
    tl.store(log_partition + item, total)
    outside(chart, marginals + item * parts, size, area, narrowest, levels, row)


@triton.jit
def _differentiate(
    direction, product, space, size, room,
    area: tl.constexpr, narrowest: tl.constexpr, levels: tl.constexpr, row: tl.constexpr,
):  # fmt: skip
    """The product in place of the marginals that belong to a whole chart."""
    item = tl.program_id(0).to(tl.int64)
    parts = size * size
    direction += item * parts
    product += item * parts
    chart = space + item * room
    means = chart + room - size
    center(direction, product, means, chart, size, area, row)
    tl.debug_barrier()
    inside_tangents(direction, means, product, chart, size, area, narrowest, levels)
    outside_tangents(product, chart, size, area, narrowest, levels)


@triton.jit
def _sample(space, uniforms, structures, size, room, count, area: tl.constexpr, row: tl.constexpr):
    place = tl.program_id(0).to(tl.int64)
    chart = space + place // count * room
    feasible = tl.load(chart + size * RIGHT * size + size - 1) > -float("inf")
    heads = walk(chart, uniforms + place * (2 * (size - 1)), size, True, row)
    write(tl.where(feasible, heads, -1), structures + place * (size * size), size, area, row)
