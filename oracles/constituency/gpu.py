"""Binary trees over spans: one program per sentence; the charts and what fills them are in `gpu_charts`.

The best tree is found by the same way up with maxima in place of sums, in the dtype of the scores, and marked from the sentence down by all
spans of a width at once. Samples walk down by one span of every tree after the other, in preorder, which is the order of their uniforms:
one way up per row in float64, then a program for every group of samples.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..active_set.gpu import Map, launcher
from ..kernels.gpu.launching import lanes, launches, rows_at_once
from .gpu_charts import (
    LN2,
    LOG2E,
    MOST,
    ChartPlan,
    fill,
    gather,
    gather_rates,
    go_down,
    go_down_rates,
    go_up,
    go_up_rates,
    origin,
    plan,
    set_certain,
    surround,
)

PROGRAMS = 4096
"""The most programs of a launch: a device holds fewer at a time, and each takes sentence after sentence in the same charts."""

GROUP = 32
"""The most samples that one program draws."""


def serves(operation: str, event: tuple[int, ...], dtype: torch.dtype, options: tuple[Any, ...]) -> bool:
    """The sizes that these kernels take; see `structgrad.oracles.kernels.gpu`."""
    return event[0] <= MOST


def log_partition(rows: Tensor, log_partition: Tensor) -> None:
    """Log-partitions [b] of rows [b, n, n]."""
    made, programs = _planned(rows, 1)
    charts = rows.new_empty(made.total(programs, 1), dtype=torch.float64)
    _log_partition[(programs,)](rows, log_partition, charts, len(rows), rows.shape[1], **made.constants, num_warps=made.warps)


def marginals(rows: Tensor, marginals: Tensor, log_partition: Tensor) -> None:
    """Marginals [b, n, n] and log-partitions [b] of rows [b, n, n]."""
    made, programs = _planned(rows, 2)
    charts = rows.new_empty(made.total(programs, 2), dtype=torch.float64)
    _marginals[(programs,)](rows, marginals, log_partition, charts, len(rows), rows.shape[1], **made.constants, num_warps=made.warps)


def covariance_product(rows: Tensor, direction: Tensor, product: Tensor) -> None:
    """Derivatives of the marginals [b, n, n] of rows along directions."""
    made, programs = _planned(rows, 2, rows.dtype)
    charts = rows.new_empty(made.total(programs, 2), dtype=torch.float64)
    rates = rows.new_empty(made.total(programs, 2))
    _covariance_product[(programs,)](
        rows, direction, product, charts, rates, len(rows), rows.shape[1], **made.constants, num_warps=made.warps
    )


def argmax(rows: Tensor, structures: Tensor) -> None:
    """Best trees of rows [b, n, n], with the shortest left part among equals."""
    made = plan(rows.shape[1])
    room = workspace(tuple(rows.shape[1:]))
    for part, (space,) in launches(rows, (room, rows.dtype)):
        _argmax[(len(space),)](rows[part], structures[part], space, rows.shape[1], room, **made.constants, num_warps=made.warps)


def sample(rows: Tensor, uniforms: Tensor, structures: Tensor) -> None:
    """Trees [b, s, n, n] of rows [b, n, n] by uniforms [b, s, n − 1]."""
    samples, n = structures.shape[1], rows.shape[1]
    made, programs = _planned(rows, 2, beside=4 * samples * n)
    group = lanes(min(samples, GROUP))
    groups = triton.cdiv(samples, group)
    charts = rows.new_empty(made.total(programs, 2), dtype=torch.float64)
    spans = rows.new_empty(programs * samples * n, dtype=torch.int32)
    for start in range(0, len(rows), programs):
        some = slice(start, start + programs)
        count = len(rows[some])
        _tables[(count,)](rows[some], charts, n, **made.constants, num_warps=made.warps)
        _walk[(count * groups,)](
            uniforms[some], structures[some], charts, spans, n, samples, groups, made.step, made.tall, group, min(512 // group, 64),
            num_warps=1,
        )  # fmt: skip


def workspace(event: tuple[int, ...]) -> int:
    """Numbers that `best` works with: those that it is to compare in, float64 or float32."""
    made = plan(event[0])
    return 2 * (made.step + made.tall) * made.step + 1


def _planned(rows: Tensor, charts: int, rates: torch.dtype | None = None, beside: int = 0) -> tuple[ChartPlan, int]:
    """The plan for rows, and how many programs have room for so many charts, as many charts of their rates, and bytes beside them."""
    made = plan(rows.shape[1])
    needed = made.room(charts) * (torch.float64.itemsize + (rates.itemsize if rates else 0)) + beside
    return made, min(len(rows), PROGRAMS, rows_at_once(needed))


@triton.jit(do_not_specialize=["count", "n"])
def _log_partition(
    rows, log_partition, charts, count, n, step: tl.constexpr, wide: tl.constexpr, tall: tl.constexpr, phases: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64)
    inside = origin(charts, place, 1, step, tall)
    surround(inside, 1, -float("inf"), step, tall)
    while place < count:
        gather(rows + place * n * n, inside, n, LOG2E, -float("inf"), step, wide, tile)
        tl.debug_barrier()
        go_up(inside, inside, n, rows.dtype.element_ty, False, step, wide, tall, phases, tile)
        tl.store(log_partition + place, tl.load(inside + (n - 1) * step) * LN2)
        tl.debug_barrier()
        place += tl.num_programs(0)


@triton.jit(do_not_specialize=["count", "n"])
def _marginals(
    rows, marginals, log_partition, charts, count, n, step: tl.constexpr, wide: tl.constexpr, tall: tl.constexpr, phases: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64)
    inside = origin(charts, place, 2, step, tall)
    sums = inside + step * step
    surround(inside, 2, -float("inf"), step, tall)
    while place < count:
        result = marginals + place * n * n
        gather(rows + place * n * n, inside, n, LOG2E, -float("inf"), step, wide, tile)
        tl.debug_barrier()
        go_up(inside, sums, n, rows.dtype.element_ty, True, step, wide, tall, phases, tile)
        total = tl.load(inside + (n - 1) * step)
        tl.store(log_partition + place, total * LN2)
        set_certain(result, n, tl.where(total > -float("inf"), 1.0, 0.0), False, wide, tile)
        go_down(inside, sums, result, n, rows.dtype.element_ty, step, wide, tall, phases, tile // 2)
        tl.debug_barrier()
        place += tl.num_programs(0)


@triton.jit(do_not_specialize=["count", "n"])
def _covariance_product(
    rows, direction, product, charts, rates, count, n, step: tl.constexpr, wide: tl.constexpr, tall: tl.constexpr, phases: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64)
    inside = origin(charts, place, 2, step, tall)
    inside_rates = origin(rates, place, 2, step, tall)
    sums = inside + step * step
    sum_rates = inside_rates + step * step
    surround(inside, 2, -float("inf"), step, tall)
    surround(inside_rates, 2, 0.0, step, tall)
    while place < count:
        scores = rows + place * n * n
        result = product + place * n * n
        gather(scores, inside, n, LOG2E, -float("inf"), step, wide, tile)
        gather_rates(scores, direction + place * n * n, inside_rates, n, step, wide, tile)
        tl.debug_barrier()
        go_up_rates(inside, sums, inside_rates, sum_rates, n, step, wide, tall, phases, tile // 2)
        set_certain(result, n, 0.0, False, wide, tile)
        go_down_rates(inside, sums, inside_rates, sum_rates, result, n, step, wide, tall, phases, tile // 4)
        tl.debug_barrier()
        place += tl.num_programs(0)


@triton.jit(do_not_specialize=["n", "room"])
def _argmax(
    rows, structures, charts, n, room, step: tl.constexpr, wide: tl.constexpr, tall: tl.constexpr, phases: tl.constexpr, tile: tl.constexpr
):
    item = tl.program_id(0).to(tl.int64)
    best(rows + item * n * n, structures + item * n * n, charts + item * room, n, step, wide, tall, phases, tile)


@triton.jit
def best(
    scores, structure, workspace, n, step: tl.constexpr, wide: tl.constexpr, tall: tl.constexpr, phases: tl.constexpr, tile: tl.constexpr
):
    """The best tree [n, n] of scores [n, n], ties to the shortest left part; the constants are those of `plan`.

    ``workspace`` has `workspace` numbers of its own, float64 or float32, in which scores are added and compared.
    """
    chart = workspace + (tall * step + 1)
    cuts = chart + (step + tall) * step
    fill(chart - tall * step, tall * step, -float("inf"))
    fill(chart + step * step, tall * step, -float("inf"))
    gather(scores, chart, n, 1.0, -float("inf"), step, wide, tile)
    set_certain(structure, n, 1.0, True, wide, tile)
    tl.debug_barrier()
    for phase in tl.static_range(phases):
        low = 1 if phase == 0 else tl.maximum(n - (wide >> phase), 1)
        high = n if phase == phases - 1 else n - (wide >> (phase + 1))
        _best_widths(chart, cuts, n, low, high, step, wide >> phase, tall, tile)
    for narrower in range(1, n - 1):
        w = n - narrower
        for first in range(0, narrower, wide):
            i = first + tl.arange(0, wide)
            held = tl.load(structure + i * (n + 1) + w, mask=i < narrower, other=0) > 0
            cut = tl.load(cuts + w * step + i, mask=held, other=0.0).to(tl.int32)
            one = tl.full((wide,), 1, structure.dtype.element_ty)
            tl.store(structure + i * (n + 1) + cut, one, mask=held)
            tl.store(structure + (i + cut + 1) * n + i + w, one, mask=held)
        tl.debug_barrier()


@triton.jit
def _best_widths(chart, cuts, n, low, high, step: tl.constexpr, cells: tl.constexpr, tall: tl.constexpr, tile: tl.constexpr):
    """Best trees over the spans of the widths from ``low`` on, in blocks of as many spans, and their lowest cuts."""
    number: tl.constexpr = chart.dtype.element_ty
    parts: tl.constexpr = tall if tall * cells < tile else tile // cells
    for w in range(low, high):
        for first in range(0, n - w, cells):
            i = first + tl.arange(0, cells)
            place = tl.arange(0, parts)[:, None]
            own = tl.load(chart + w * step + i)
            left = (chart + i)[None, :] + place * step
            right = (chart + (w - 1) * step + 1 + i)[None, :] - place * (step - 1)
            top = tl.full((cells,), -float("inf"), number)
            cut = tl.zeros((cells,), tl.int32)
            for start in range(0, w, parts):
                terms = tl.load(left + start * step) + tl.load(right - start * (step - 1))
                high_here = tl.max(terms, 0)
                lowest = tl.min(tl.where(terms == high_here[None, :], place, parts), 0)
                cut = tl.where(high_here > top, start + lowest, cut)
                top = tl.maximum(top, high_here)
            tl.store(chart + w * step + i, own + top, mask=i < n - w)
            tl.store(cuts + w * step + i, cut.to(number), mask=i < n - w)
        tl.debug_barrier()


@triton.jit(do_not_specialize=["n"])
def _tables(rows, charts, n, step: tl.constexpr, wide: tl.constexpr, tall: tl.constexpr, phases: tl.constexpr, tile: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    inside = origin(charts, item, 2, step, tall)
    surround(inside, 2, -float("inf"), step, tall)
    gather(rows + item * n * n, inside, n, LOG2E, -float("inf"), step, wide, tile)
    tl.debug_barrier()
    go_up(inside, inside + step * step, n, tl.float64, True, step, wide, tall, phases, tile)


@triton.jit(do_not_specialize=["n", "samples", "groups"])
def _walk(
    uniforms, structures, charts, spans, n, samples, groups, step: tl.constexpr, tall: tl.constexpr, group: tl.constexpr,
    parts: tl.constexpr,
):  # fmt: skip
    """A group of trees of one row; a span of w + 1 tokens holds w cuts, which fixes where its parts come in preorder."""
    item = (tl.program_id(0) // groups).to(tl.int64)
    first = tl.program_id(0) % groups * group
    inside = origin(charts, item, 2, step, tall)
    sums = inside + step * step
    start = item * samples + first
    ours = tl.minimum(samples - first, group)
    member = tl.arange(0, group)
    fill(structures + start * n * n, ours * n * n, 0.0)
    live = member < tl.where(tl.load(inside + (n - 1) * step) > -float("inf"), ours, 0)
    structure = structures + start * n * n + member * (n * n)
    waiting = spans + start * n + member * n
    draws = uniforms + start * (n - 1) + member * (n - 1)
    one = tl.full((group,), 1.0, structures.dtype.element_ty)
    tl.store(waiting, tl.full((group,), 0, tl.int32) + (n - 1), mask=live)
    tl.debug_barrier()
    for t in range(0, n):
        tl.store(structure + t * (n + 1), one, mask=live)
    for t in range(0, n - 1):
        # Both ends in one number; where nothing is to be drawn, some span of two tokens.
        span = tl.load(waiting + t, mask=live, other=1)
        i = span >> 16
        j = span & 0xFFFF
        w = j - i
        uniform = tl.load(draws + t, mask=live, other=0.0)
        whole = tl.load(sums + w * step + i)
        whole = tl.where(whole > -float("inf"), whole, 0.0)
        reached = tl.zeros((group,), tl.float64)
        below = tl.zeros((group,), tl.int32)
        last = tl.zeros((group,), tl.int32)
        for chunk in range(0, tl.max(w, 0), parts):
            place = chunk + tl.arange(0, parts)[None, :]
            within = place < w[:, None]
            left = tl.load(inside + place * step + i[:, None], mask=within, other=-float("inf"))
            right = tl.load(inside + (w[:, None] - 1 - place) * step + i[:, None] + place + 1, mask=within, other=-float("inf"))
            weights = tl.exp2(left + right - whole[:, None])
            table = reached[:, None] + tl.cumsum(weights, 1)
            below += tl.sum((within & (table <= uniform[:, None])).to(tl.int32), 1)
            last = tl.maximum(last, tl.max(tl.where(weights > 0.0, place, 0), 1))
            reached += tl.sum(weights, 1)
        # Rounding may leave the uniform above the whole table.
        cut = tl.minimum(below, last)
        tl.store(structure + i * n + j, one, mask=live)
        tl.store(waiting + t + 1, (i << 16) | (i + cut), mask=live & (cut > 0))
        tl.store(waiting + t + 1 + cut, ((i + cut + 1) << 16) | j, mask=live & (cut + 1 < w))
        tl.debug_barrier()


def _map(event: tuple[int, ...]) -> Map:
    made = plan(event[0])
    return Map(best, workspace(event), torch.float64, (event[0],), tuple(made.constants.values()), warps=(made.warps, made.warps))


project = launcher(_map)
"""SparseMAP: see `active_set`."""
