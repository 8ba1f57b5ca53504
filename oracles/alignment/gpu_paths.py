"""Single alignments, the best and random ones: a pass forward that leaves choices behind, and walks from the last cell back along them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..kernels.gpu.antidiagonals import EACH, entries_of, from_before, shear, spaces, start_of, terms, turned
from ..kernels.gpu.launching import launches, warps

WALKS = 32
"""Walks that one program takes side by side."""


def sample(rows: Tensor, uniforms: Tensor, structures: Tensor) -> None:
    """Structures [b, s, n, m] from uniforms [b, s, n + m − 1]: walks from the last cell back, one uniform a step."""
    grid, samples = turned(*rows.shape[1:]), uniforms.shape[1]
    structures.zero_()
    groups = triton.cdiv(samples, WALKS)
    for part, (tables, lines, totals) in launches(rows, *spaces(rows, 2, 2, torch.float64), (1, torch.float64)):
        count = len(tables)
        _chances[(count,)](rows[part], totals, tables, lines, *grid, grid.block, grid.tile, num_warps=warps(grid.block, EACH))
        _walks[(count * groups,)](
            tables, lines.shape[1], totals, uniforms[part], structures[part], groups, samples, *rows.shape[1:], grid.flipped, WALKS,
            num_warps=1,
        )  # fmt: skip


def argmax(rows: Tensor, structures: Tensor) -> None:
    """The best path of each row."""
    grid = turned(*rows.shape[1:])
    room = workspace(tuple(rows.shape[1:]))
    for part, (space,) in launches(rows, (room, torch.float64)):
        _argmax[(len(space),)](
            rows[part], structures[part], space, room, *rows.shape[1:], grid.flipped, grid.block, num_warps=warps(grid.block, EACH)
        )


def workspace(event: tuple[int, ...]) -> int:
    """Float64 numbers that `best` needs for one problem: two lines, and a byte per cell."""
    grid = turned(*event)
    return 2 * grid.block + (grid.n * grid.m + 7) // 8


@triton.jit
def _chances(rows, totals, tables, lines, n, m, across, along, flipped: tl.constexpr, block: tl.constexpr, tile: tl.constexpr):
    """Two tables in float64 for each cell: up to which uniform a path came diagonally, and up to which diagonally or from above.

    Above 1 where nothing else is possible, however the weights round.
    """
    item = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, block)
    cells = n * m
    tables += item * (2 * cells + 2 * block)
    lines += item * 2 * block
    shear(rows + item * cells, tables, n, m, across, along, tile)
    corner, beside, own = start_of(place)
    for step in range(n + m - 1):
        entries, inside = entries_of(step, n, m, place)
        score = tl.load(tables + entries, mask=inside, other=-float("inf"))
        of_corner, of_beside, of_own, total, own = terms(score, corner, beside, own)
        if flipped:
            above, left = of_own, of_beside
        else:
            above, left = of_beside, of_own
        diagonal = tl.where(above + left > 0.0, of_corner / total, 2.0)
        straight = tl.where(left > 0.0, (of_corner + above) / total, 2.0)
        tl.store(tables + entries, diagonal, mask=inside)
        tl.store(tables + cells + entries, straight, mask=inside)
        corner = beside
        beside = from_before(own, lines, step, place, -float("inf"), block)
    tl.store(totals + item, tl.max(tl.where(place == n - 1, own, -float("inf")), 0))


@triton.jit
def _walks(tables, lines, totals, uniforms, structures, groups, samples, rows, columns, flipped: tl.constexpr, walks: tl.constexpr):
    """Paths of some samples of a pair, one a lane."""
    item = (tl.program_id(0) // groups).to(tl.int64)
    sample = tl.program_id(0) % groups * walks + tl.arange(0, walks)
    drawn = (sample < samples) & (tl.load(totals + item + tl.zeros((walks,), tl.int32)) > -float("inf"))
    cells = rows * columns
    tables += item * (2 * cells + lines)
    uniforms += (item * samples + sample) * (rows + columns - 1)
    structures += (item * samples + sample) * cells
    i = tl.zeros((walks,), tl.int32) + (rows - 1)
    j = tl.zeros((walks,), tl.int32) + (columns - 1)
    tl.store(structures + i * columns + j, tl.full((walks,), 1.0, structures.dtype.element_ty), mask=drawn)
    for step in range(rows + columns - 2):
        if flipped:
            entries, _ = entries_of(i + j, columns, rows, j)
        else:
            entries, _ = entries_of(i + j, rows, columns, i)
        going = drawn & (i + j > 0)
        uniform = tl.load(uniforms + step, mask=going, other=0.0)
        not_diagonal = uniform >= tl.load(tables + entries, mask=going, other=2.0)
        left = uniform >= tl.load(tables + cells + entries, mask=going, other=2.0)
        i -= (going & ~left).to(tl.int32)
        j -= (going & (left | ~not_diagonal)).to(tl.int32)
        tl.store(structures + i * columns + j, tl.full((walks,), 1.0, structures.dtype.element_ty), mask=going)


@triton.jit
def _argmax(rows, structures, workspace, room, n, m, flipped: tl.constexpr, block: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    best(rows + item * n * m, structures + item * n * m, workspace + item * room, n, m, flipped, block)


@triton.jit
def best(scores, structure, workspace, rows, columns, flipped: tl.constexpr, block: tl.constexpr):
    """The best path through a grid [rows, columns] of scores, as 0/1; of equal ones as `structgrad.oracles.alignment.oracle` says.

    The pass forward leaves a byte per cell that says where the best path to it came from. Scores are read where they are, each once,
    because they take part in a sum and two comparisons alone: a shear would cost as much. In float64, like the CPU's kernel. It begins and
    ends with a barrier.

    Args:
        scores: one row.
        structure: one row of results; every entry is written.
        workspace: so many float64 numbers as the function `workspace` says.
        rows: of the grid.
        columns: of the grid.
        flipped: whether there are more rows than columns; then the columns lie across the lanes, otherwise the rows.
        block: the power of two that the shorter side fits into.
    """
    tl.debug_barrier()
    place = tl.arange(0, block)
    if flipped:
        n, m, across, along = columns, rows, 1, columns
    else:
        n, m, across, along = rows, columns, columns, 1
    moves = (workspace + 2 * block).to(tl.pointer_type(tl.int8), bitcast=True)
    for first in range(0, n * m, 4 * block):
        entry = first + tl.arange(0, 4 * block)
        tl.store(structure + entry, tl.zeros((4 * block,), structure.dtype.element_ty), mask=entry < n * m)
    corner, beside, own = start_of(place)
    score = tl.load(scores + place * across, mask=place == 0, other=-float("inf"))
    for step in range(n + m - 1):
        entries, inside = entries_of(step, n, m, place)
        _, inside_after = entries_of(step + 1, n, m, place)
        following = tl.load(scores + place * across + (step + 1 - place) * along, mask=inside_after, other=-float("inf"))
        if flipped:
            above, left = own, beside
        else:
            above, left = beside, own
        top = tl.maximum(tl.maximum(corner, above), left)
        move = tl.where(corner >= top, 0, tl.where(above >= left, 1, 2))
        tl.store(moves + entries, move.to(tl.int8), mask=inside)
        # A forbidden cell costs more than any sum of scores, so that a path leads to every cell.
        own = tl.where(inside, tl.maximum(score.to(tl.float64), -1e250) + top, -float("inf"))
        corner = beside
        beside = from_before(own, workspace, step, place, -float("inf"), block)
        score = following
    tl.debug_barrier()
    i = tl.zeros((), tl.int32) + (rows - 1)
    j = tl.zeros((), tl.int32) + (columns - 1)
    while i + j > 0:
        tl.store(structure + i * columns + j, 1.0)
        if flipped:
            entry, _ = entries_of(i + j, columns, rows, j)
        else:
            entry, _ = entries_of(i + j, rows, columns, i)
        move = tl.load(moves + entry).to(tl.int32)
        i -= (move != 2).to(tl.int32)
        j -= (move != 1).to(tl.int32)
    tl.store(structure, 1.0)
    tl.debug_barrier()
