"""Dynamic programmes over antidiagonals: what one program needs to sweep a grid, a lane per line of it.

Triton moves nothing from lane to lane, so that values pass to a neighbour through a line in global memory, which stays in the first cache.
Two lines take turns, for one barrier a step: what a step reads from one, the step after next overwrites, a barrier later.

Along an antidiagonal the entries of a row-major grid of m columns are m − 1 apart, and a read would fetch 32 bytes for each. Grids are
*sheared*, in tiles, to where cell (i, j) is entry i of line i + j, less m from m on: there the cells of an antidiagonal are neighbours, and
all n + m − 1 antidiagonals fill n·m entries without a gap.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launching import WARP, Space, lanes

TILE = 32
"""Entries that a tile of the shear has on either side."""

EACH = 2
"""Cells of an antidiagonal in one thread: with more, float32 and float64 would be laid out differently, and meet in shared memory."""


class Turned(NamedTuple):
    """A grid with its shorter side across the lanes."""

    n: int
    m: int
    across: int  # from one lane to the next, in entries of a row-major grid
    along: int
    flipped: bool  # the lanes are columns

    @property
    def block(self) -> int:
        """Lanes of a program, a power of two."""
        return lanes(self.n, WARP)

    @property
    def tile(self) -> int:
        """The extent of the squares that `shear` copies."""
        return TILE


def turned(rows: int, columns: int) -> Turned:
    """A grid of so many rows and columns."""
    flipped = rows > columns
    return Turned(columns, rows, 1, columns, True) if flipped else Turned(rows, columns, columns, 1, False)


def spaces(rows: Tensor, tables: int, lines: int, dtype: torch.dtype | None = None) -> tuple[Space, Space]:
    """Room for so many tables and lines per pair, for `launches`: the tables in a dtype, each pair's followed by its lines.

    The second workspace has lines in float64.
    """
    block, cells = turned(*rows.shape[1:]).block, rows.shape[1] * rows.shape[2]
    return (tables * cells + lines * block, dtype or rows.dtype), (lines * block, torch.float64)


@triton.jit
def shear(grid, sheared, n, m, across, along, tile: tl.constexpr):
    """Copy a grid [n, m], whose entries are ``across`` and ``along`` apart, to lines [m, n]: cell (i, j) is entry i of line i + j, less m.

    Ends with a barrier. The tiles are read along the grid and written along the lines.
    """
    for first in range(0, n, tile):
        i = first + tl.arange(0, tile)[:, None]
        for start in range(0, m, tile):
            line = start + tl.arange(0, tile)[None, :]
            here = grid + i * (across - along) + line * along
            inside = (i < n) & (line < m)
            # Two loads, so that the compiler knows which entries are neighbours; in most tiles one of them loads nothing.
            scores = tl.load(here, mask=inside & (line >= i), other=0.0)
            scores += tl.load(here + m * along, mask=inside & (line < i), other=0.0)
            tl.store(sheared + line * n + i, scores.to(sheared.dtype.element_ty), mask=inside)
    tl.debug_barrier()


@triton.jit
def unshear(sheared, grid, n, m, across, along, tile: tl.constexpr):
    """The inverse of `shear`; begins with a barrier."""
    tl.debug_barrier()
    for first in range(0, n, tile):
        i = first + tl.arange(0, tile)[:, None]
        for start in range(0, m, tile):
            line = start + tl.arange(0, tile)[None, :]
            here = grid + i * (across - along) + line * along
            inside = (i < n) & (line < m)
            values = tl.load(sheared + line * n + i, mask=inside, other=0.0)
            tl.store(here, values, mask=inside & (line >= i))
            tl.store(here + m * along, values, mask=inside & (line < i))


@triton.jit
def entries_of(step, n, m, place):
    """Where the cells of an antidiagonal are in a sheared table, and which lanes have one."""
    line = tl.where(step >= m, step - m, step)
    return line * n + place, (place < n) & (place <= step) & (step - place < m)


@triton.jit
def from_before(values, lines, step, place, fill, block: tl.constexpr):
    """Every lane's value to the next lane; the first gets ``fill``."""
    here = lines + (step % 2) * block + place
    tl.store(here, values)
    tl.debug_barrier()
    return tl.load(here - 1, mask=place > 0, other=fill)


@triton.jit
def from_behind(values, lines, step, place, fill, block: tl.constexpr):
    """Every lane's value to the lane before it; the last gets ``fill``."""
    here = lines + (step % 2) * block + place
    tl.store(here, values)
    tl.debug_barrier()
    return tl.load(here + 1, mask=place < block - 1, other=fill)


@triton.jit
def start_of(place):
    """Values diagonally before, beside and before, on the same lane, at first: the first cell is reached diagonally, from nowhere."""
    nothing = tl.full(place.shape, -float("inf"), tl.float64)
    return tl.where(place == 0, 0.0, nothing), nothing, nothing


@triton.jit
def terms(score, corner, beside, own):
    """Terms of a sum over the cells before, relative to the greatest, in the dtype of the score; their sum; and the value of the cell.

    Where nothing leads to the cell, the terms are 0, their sum 1 and the value -inf.
    """
    top = tl.maximum(tl.maximum(corner, beside), own)
    reached = top > -float("inf")
    base = tl.where(reached, top, 0.0)
    of_corner = tl.exp((corner - base).to(score.dtype))
    of_beside = tl.exp((beside - base).to(score.dtype))
    of_own = tl.exp((own - base).to(score.dtype))
    total = tl.where(reached, of_corner + of_beside + of_own, 1.0)
    value = score.to(tl.float64) + (top + tl.log(total).to(tl.float64))
    return of_corner, of_beside, of_own, total, value
