"""Charts over the spans of a sentence, which one program fills for one sentence: inside–outside, and its directional derivative.

A chart holds the spans of w + 1 tokens in its row w, by their first token, so that both parts of all spans of a width, cut at the same
place, are contiguous: lanes are spans, and what is summed over lies in the registers of a thread. Charts live in global memory that the
program alone uses, mostly in its L1 cache; a barrier ends every width. Rows beyond a chart, and what of its rows is no span, hold -inf: so
loads need no masks, which would cost as many instructions as the sums.

Numbers of the charts are logarithms to base 2 in float64 for all scores, and their differences, which are at most 0, are raised to powers
in the dtype of the rows: so float32 rows lose nothing to large scores, and take one instruction for an exponential. On the way down the
state of a span is its marginal, and the terms of the sum are shares of marginals, at most 1: no maximum is looked for.

What bounds it: n − 1 dependent steps up and as many down, each a few hundred cycles of latency; some 15 instructions for each of the
n³/6 cuts on the way up, 7 for each of the n³/3 on the way down, about half of whose lanes are used.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import triton
import triton.language as tl

from ..kernels.gpu.launching import WARP, lanes

MOST = 512
"""The longest sentence that is served: its two charts take 5 megabytes."""

LEAST_CELLS = 8
MOST_CELLS = 128
MOST_PARTS = 32
NUMBERS = 16
"""Numbers of a block that a thread holds, twice in the sums."""

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


class ChartPlan(NamedTuple):
    """What is fixed when kernels are compiled: few sizes for many lengths of sentences."""

    step: int
    """From a row of a chart to the next."""
    wide: int
    """The most spans of a block; blocks of half as many, and so on, serve the widths that have fewer."""
    tall: int
    """The most cuts of a block, and the rows of -inf before and behind the charts."""
    phases: int
    tile: int
    """Numbers of a block."""
    warps: int

    @property
    def constants(self) -> dict[str, int]:
        """What kernels take at compile time, in their order."""
        return {"step": self.step, "wide": self.wide, "tall": self.tall, "phases": self.phases, "tile": self.tile}

    def room(self, charts: int) -> int:
        """Numbers of one program's charts; the rows of -inf behind them are those before its neighbour's."""
        return (charts * self.step + self.tall) * self.step

    def total(self, programs: int, charts: int) -> int:
        """Numbers of the charts of all programs. One more lets none of them be aligned: their loads are to have one layout."""
        return programs * self.room(charts) + self.tall * self.step + 1


@cache
def plan(length: int) -> ChartPlan:
    """One warp, for which neither sums nor barriers leave the registers, as long as the batch fills the device with such."""
    coarse = 8 if length <= 64 else 16 if length <= 128 else 64
    step = (length + coarse - 1) // coarse * coarse
    wide = min(lanes(step), MOST_CELLS)
    warps = 1 if length <= 48 else 2 if length <= 80 else 4 if length <= 112 else 8
    return ChartPlan(step, wide, min(MOST_PARTS, wide), (wide // LEAST_CELLS).bit_length(), WARP * NUMBERS * warps, warps)


@triton.jit
def origin(workspace, program, charts: tl.constexpr, step: tl.constexpr, tall: tl.constexpr):
    """The first chart of a program, an int64."""
    return workspace + program * ((charts * step + tall) * step) + (tall * step + 1)


@triton.jit
def fill(first, count, value):
    """Write a value to consecutive places."""
    place = tl.arange(0, 512)
    numbers = tl.full((512,), value, first.dtype.element_ty)
    for start in range(0, count, 512):
        tl.store(first + start + place, numbers, mask=start + place < count)


@triton.jit
def surround(chart, charts: tl.constexpr, value, step: tl.constexpr, tall: tl.constexpr):
    """Prepare the charts of a program but for the first of them, which `gather` prepares, and what lies before and behind."""
    fill(chart - tall * step, tall * step, value)
    fill(chart + step * step, ((charts - 1) * step + tall) * step, value)


@triton.jit
def gather(scores, chart, n, factor, nothing, step: tl.constexpr, wide: tl.constexpr, tile: tl.constexpr):
    """Scores [n, n] by width into a chart, times a factor."""
    # A limit that is not known when this is compiled: unrolled, the loop would take all registers.
    rows: tl.constexpr = tile // wide
    for below in range(0, tl.maximum(n, step), rows):
        for first in range(0, step, wide):
            w = below + tl.arange(0, rows)[:, None]
            i = first + tl.arange(0, wide)[None, :]
            span = i + w < n
            own = tl.load(scores + i * (n + 1) + w, mask=span, other=0.0).to(chart.dtype.element_ty)
            tl.store(chart + w * step + i, tl.where(span, own * factor, nothing), mask=(w < step) & (i < step))


@triton.jit
def gather_rates(scores, direction, chart, n, step: tl.constexpr, wide: tl.constexpr, tile: tl.constexpr):
    """A direction [n, n] by width into a chart, 0 for forbidden spans."""
    rows: tl.constexpr = tile // wide
    for below in range(0, tl.maximum(n, step), rows):
        for first in range(0, step, wide):
            w = below + tl.arange(0, rows)[:, None]
            i = first + tl.arange(0, wide)[None, :]
            span = i + w < n
            allowed = tl.load(scores + i * (n + 1) + w, mask=span, other=-float("inf")) > -float("inf")
            rate = tl.load(direction + i * (n + 1) + w, mask=allowed, other=0.0)
            tl.store(chart + w * step + i, rate, mask=(w < step) & (i < step))


@triton.jit
def set_certain(result, n, certain, everything: tl.constexpr, wide: tl.constexpr, tile: tl.constexpr):
    """Write what every tree has into a result [n, n]: single tokens and the sentence; 0 where nothing is read, or in everything else."""
    rows: tl.constexpr = tile // wide
    for below in range(0, n, rows):
        for first in range(0, n, wide):
            i = below + tl.arange(0, rows)[:, None]
            j = first + tl.arange(0, wide)[None, :]
            fixed = (i == j) | ((i == 0) & (j == n - 1))
            value = tl.where(fixed, certain, 0.0).to(result.dtype.element_ty)
            tl.store(result + i * n + j, value, mask=(i < n) & (j < n) & (fixed | (j < i) | everything))


@triton.jit
def go_up(
    inside, sums, n, number: tl.constexpr, keep: tl.constexpr, step: tl.constexpr, wide: tl.constexpr, tall: tl.constexpr,
    phases: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Replace the scores of spans by the logarithms of the weights of all trees over them; keep those without their own scores in ``sums``.

    ``number`` is the dtype in which powers are computed.
    """
    for phase in tl.static_range(phases):
        low = 1 if phase == 0 else tl.maximum(n - (wide >> phase), 1)
        high = n if phase == phases - 1 else n - (wide >> (phase + 1))
        _sum_widths(inside, sums, n, low, high, number, keep, step, wide >> phase, tall, tile)


@triton.jit
def _sum_widths(
    inside, sums, n, low, high, number: tl.constexpr, keep: tl.constexpr, step: tl.constexpr, cells: tl.constexpr, tall: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    """The widths from ``low`` on, in blocks of as many spans."""
    parts: tl.constexpr = tall if tall * cells < tile else tile // cells
    quarter: tl.constexpr = parts // 4
    for w in range(low, high):
        for first in range(0, n - w, cells):
            i = first + tl.arange(0, cells)
            cut = tl.arange(0, quarter)[:, None]
            here = inside + w * step + i
            own = tl.load(here)
            # Consecutive cuts, in four parts, which are independent of each other, where one reduction would be a chain.
            left_1 = (inside + i)[None, :] + cut * step
            left_2 = left_1 + quarter * step
            left_3 = left_2 + quarter * step
            left_4 = left_3 + quarter * step
            right_1 = (inside + (w - 1) * step + 1 + i)[None, :] + cut * (1 - step)
            right_2 = right_1 + quarter * (1 - step)
            right_3 = right_2 + quarter * (1 - step)
            right_4 = right_3 + quarter * (1 - step)
            top = tl.full((cells,), -float("inf"), tl.float64)
            total = tl.zeros((cells,), number)
            for start in range(0, w, parts):
                ahead = start * step
                back = start - ahead
                a = tl.load(left_1 + ahead) + tl.load(right_1 + back)
                b = tl.load(left_2 + ahead) + tl.load(right_2 + back)
                c = tl.load(left_3 + ahead) + tl.load(right_3 + back)
                d = tl.load(left_4 + ahead) + tl.load(right_4 + back)
                # Three instructions in float64, where `tl.maximum`, which minds NaN, takes eight.
                greater = tl.where(a > b, a, b)
                other = tl.where(c > d, c, d)
                highest = tl.max(tl.where(greater > other, greater, other), 0)
                higher = tl.where(highest > top, highest, top)
                shift = tl.where(higher > -float("inf"), higher, 0.0)
                taken = shift[None, :]
                weights = tl.exp2((a - taken).to(number)) + tl.exp2((b - taken).to(number))
                weights += tl.exp2((c - taken).to(number)) + tl.exp2((d - taken).to(number))
                total = total * tl.exp2((top - shift).to(number)) + tl.sum(weights, 0)
                top = higher
            some = total > 0.0
            value = tl.where(some, top + tl.log2(tl.where(some, total, 1.0).to(tl.float64)), -float("inf"))
            if keep:
                tl.store(sums + w * step + i, value, mask=i < n - w)
            tl.store(here, value + own, mask=i < n - w)
        tl.debug_barrier()


@triton.jit
def go_down(
    inside, sums, marginals, n, number: tl.constexpr, step: tl.constexpr, wide: tl.constexpr, tall: tl.constexpr, phases: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    """Marginals [n, n] of all spans but single tokens and the sentence, after `go_up`.

    A span that is in the tree is cut in a way that holds a certain part with probability ``2^(part + other part − sum of all cuts)``: so
    ``sums`` are replaced by ``log₂ marginal − sum``, and the marginal of a part is a sum over all wider spans that begin or end with it.
    """
    root = (n - 1) * step
    whole = tl.where(tl.load(inside + root) > -float("inf"), tl.load(sums + root), float("inf"))
    tl.debug_barrier()
    tl.store(sums + root, -whole)
    tl.debug_barrier()
    for phase in tl.static_range(phases):
        low = 2 if phase == 0 else (wide >> (phases - phase)) + 1
        high = n if phase == phases - 1 else tl.minimum(n, (wide >> (phases - 1 - phase)) + 1)
        _share_widths(inside, sums, marginals, n, low, high, number, step, wide >> (phases - 1 - phase), tall, tile)


@triton.jit
def _share_widths(
    inside, sums, marginals, n, low, high, number: tl.constexpr, step: tl.constexpr, cells: tl.constexpr, tall: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    """The widths that have ``low`` spans and more, in blocks of as many spans."""
    parts: tl.constexpr = cells if cells < tall else tall
    few: tl.constexpr = parts if parts * cells < tile else tile // cells
    for count in range(low, high):
        w = n - count
        for first in range(0, count, cells):
            i = first + tl.arange(0, cells)
            wider = tl.arange(0, few)[:, None]
            value = tl.load(inside + w * step + i)
            own_sum = tl.load(sums + w * step + i)
            around_right = (sums + (w + 1) * step + i)[None, :] + wider * step
            right = (inside + w + 1 + i)[None, :] + wider * step
            around_left = (sums + (w + 1) * step - 1 + i)[None, :] + wider * (step - 1)
            left = (inside - 1 + i)[None, :] + wider * (step - 1)
            shares = tl.zeros((few, cells), number)
            for start in range(0, count - 1, few):
                # As the left part of wider spans, then as the right part.
                terms = tl.load(around_right + start * step) + tl.load(right + start * step) + value[None, :]
                others = tl.load(around_left + start * (step - 1)) + tl.load(left + start * (step - 1)) + value[None, :]
                shares += tl.exp2(terms.to(number)) + tl.exp2(others.to(number))
            marginal = tl.minimum(tl.sum(shares, 0), 1.0)
            some = marginal > 0.0
            around = tl.where(some, tl.log2(tl.where(some, marginal, 1.0).to(tl.float64)) - own_sum, -float("inf"))
            tl.store(sums + w * step + i, around, mask=i < count)
            tl.store(marginals + i * (n + 1) + w, marginal, mask=i < count)
        tl.debug_barrier()


@triton.jit
def go_up_rates(
    inside, sums, inside_rates, sum_rates, n, step: tl.constexpr, wide: tl.constexpr, tall: tl.constexpr, phases: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    """`go_up` with derivatives along a direction, which ``inside_rates`` holds at first: a sum changes by the mean over its cuts."""
    for phase in tl.static_range(phases):
        low = 1 if phase == 0 else tl.maximum(n - (wide >> phase), 1)
        high = n if phase == phases - 1 else n - (wide >> (phase + 1))
        _sum_width_rates(inside, sums, inside_rates, sum_rates, n, low, high, step, wide >> phase, tall, tile)


@triton.jit
def _sum_width_rates(
    inside, sums, inside_rates, sum_rates, n, low, high, step: tl.constexpr, cells: tl.constexpr, tall: tl.constexpr, tile: tl.constexpr
):
    number: tl.constexpr = inside_rates.dtype.element_ty
    parts: tl.constexpr = tall if tall * cells < tile else tile // cells
    for w in range(low, high):
        for first in range(0, n - w, cells):
            i = first + tl.arange(0, cells)
            cut = tl.arange(0, parts)[:, None]
            left = (inside + i)[None, :] + cut * step
            right = (inside + (w - 1) * step + 1 + i)[None, :] + cut * (1 - step)
            left_rates = (inside_rates + i)[None, :] + cut * step
            right_rates = (inside_rates + (w - 1) * step + 1 + i)[None, :] + cut * (1 - step)
            own = tl.load(inside + w * step + i)
            own_rate = tl.load(inside_rates + w * step + i)
            top = tl.full((cells,), -float("inf"), tl.float64)
            total = tl.zeros((cells,), number)
            change = tl.zeros((cells,), number)
            for start in range(0, w, parts):
                ahead = start * step
                back = start - ahead
                terms = tl.load(left + ahead) + tl.load(right + back)
                rates = tl.load(left_rates + ahead) + tl.load(right_rates + back)
                higher = tl.maximum(top, tl.max(terms, 0))
                shift = tl.where(higher > -float("inf"), higher, 0.0)
                weights = tl.exp2((terms - shift[None, :]).to(number))
                fall = tl.exp2((top - shift).to(number))
                total = total * fall + tl.sum(weights, 0)
                change = change * fall + tl.sum(weights * rates, 0)
                top = higher
            some = total > 0.0
            total = tl.where(some, total, 1.0)
            value = tl.where(some, top + tl.log2(total.to(tl.float64)), -float("inf"))
            rate = change / total
            tl.store(sums + w * step + i, value, mask=i < n - w)
            tl.store(inside + w * step + i, value + own, mask=i < n - w)
            tl.store(sum_rates + w * step + i, rate, mask=i < n - w)
            tl.store(inside_rates + w * step + i, rate + own_rate, mask=i < n - w)
        tl.debug_barrier()


@triton.jit
def go_down_rates(
    inside, sums, inside_rates, sum_rates, product, n, step: tl.constexpr, wide: tl.constexpr, tall: tl.constexpr, phases: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    """The derivatives of `go_down` in place of the marginals: a share changes by the rate of its exponent, whose parts nearly cancel."""
    root = (n - 1) * step
    whole = tl.where(tl.load(inside + root) > -float("inf"), tl.load(sums + root), float("inf"))
    whole_rate = tl.load(sum_rates + root)
    tl.debug_barrier()
    tl.store(sums + root, -whole)
    tl.store(sum_rates + root, -whole_rate)
    tl.debug_barrier()
    for phase in tl.static_range(phases):
        low = 2 if phase == 0 else (wide >> (phases - phase)) + 1
        high = n if phase == phases - 1 else tl.minimum(n, (wide >> (phases - 1 - phase)) + 1)
        _share_width_rates(inside, sums, inside_rates, sum_rates, product, n, low, high, step, wide >> (phases - 1 - phase), tall, tile)


@triton.jit
def _share_width_rates(
    inside, sums, inside_rates, sum_rates, product, n, low, high, step: tl.constexpr, cells: tl.constexpr, tall: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    number: tl.constexpr = inside_rates.dtype.element_ty
    parts: tl.constexpr = cells if cells < tall else tall
    few: tl.constexpr = parts if parts * cells < tile else tile // cells
    for count in range(low, high):
        w = n - count
        for first in range(0, count, cells):
            i = first + tl.arange(0, cells)
            wider = tl.arange(0, few)[:, None]
            value = tl.load(inside + w * step + i)
            value_rate = tl.load(inside_rates + w * step + i)
            own_sum = tl.load(sums + w * step + i)
            own_rate = tl.load(sum_rates + w * step + i)
            around_right = (sums + (w + 1) * step + i)[None, :] + wider * step
            right = (inside + w + 1 + i)[None, :] + wider * step
            around_left = (sums + (w + 1) * step - 1 + i)[None, :] + wider * (step - 1)
            left = (inside - 1 + i)[None, :] + wider * (step - 1)
            around_right_rates = (sum_rates + (w + 1) * step + i)[None, :] + wider * step
            right_rates = (inside_rates + w + 1 + i)[None, :] + wider * step
            around_left_rates = (sum_rates + (w + 1) * step - 1 + i)[None, :] + wider * (step - 1)
            left_rates = (inside_rates - 1 + i)[None, :] + wider * (step - 1)
            shares = tl.zeros((few, cells), number)
            changes = tl.zeros((few, cells), number)
            for start in range(0, count - 1, few):
                ahead = start * step
                along = start * (step - 1)
                terms = tl.load(around_right + ahead) + tl.load(right + ahead) + value[None, :]
                rates = tl.load(around_right_rates + ahead) + tl.load(right_rates + ahead) + value_rate[None, :]
                share = tl.exp2(terms.to(number))
                shares += share
                changes += share * rates
                terms = tl.load(around_left + along) + tl.load(left + along) + value[None, :]
                rates = tl.load(around_left_rates + along) + tl.load(left_rates + along) + value_rate[None, :]
                share = tl.exp2(terms.to(number))
                shares += share
                changes += share * rates
            total = tl.sum(shares, 0)
            change = tl.sum(changes, 0)
            some = total > 0.0
            total = tl.where(some, total, 1.0)
            around = tl.where(some, tl.log2(total.to(tl.float64)) - own_sum, -float("inf"))
            tl.store(sums + w * step + i, around, mask=i < count)
            tl.store(sum_rates + w * step + i, tl.where(some, change / total - own_rate, 0.0), mask=i < count)
            tl.store(product + i * (n + 1) + w, tl.where(some, change, 0.0), mask=i < count)
        tl.debug_barrier()
