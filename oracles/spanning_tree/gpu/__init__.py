"""Sums over spanning trees: one program takes one item; see `elimination` and `marginals` for the steps.

Every item first tries plain float64 numbers, which hold it unless its scores lie hundreds apart; the program sees whether a weight was
lost, and marks the item for a second launch, which takes logarithms: in one kernel, they would cost every item half of its neighbours. The
log-partition is one elimination in registers, n steps bound by latency. Marginals take n steps out and n back over a workspace of some 5 n²
numbers (70 kB for 40 words), which stays in the caches; their derivatives twice as much.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...active_set.gpu import Map, launcher
from ...kernels.gpu.launching import WARP, lanes, launches, warps
from . import best_tree
from . import samples as tree_samples
from .elimination import close, finite, is_open, load_weights, logarithm, out_of_range, take_out, times
from .marginals import begin, begin_rates, escape, halved, halvings, record, room, words_at

MOST = 64
"""The most words whose weights fit into the registers of one program."""

GROUP = 4
"""Samples that a warp draws at once."""

MARK = (1, torch.int32)
"""Whether plain numbers held an item; what they did not is left to a second launch, in logarithms."""

REGISTERS = 128
"""The most that a thread of a sum takes: two programs of 64 words to a multiprocessor."""

LEAST_TOTAL = tl.constexpr(1e-250)
"""The least sum of chances of escape: what was lost below 1e-308 on the way is then nothing."""

GREATEST_TOTAL = tl.constexpr(1e250)


def serves(operation: str, event: tuple[int, ...], dtype: torch.dtype, options: tuple[Any, ...]) -> bool:
    """The sizes that these kernels take; see `structgrad.oracles.kernels.gpu`."""
    return event[0] <= (best_tree.MOST if operation in ("argmax", "project") else MOST + 1)


argmax = best_tree.argmax


def _map(event: tuple[int, ...], single_root: bool) -> Map:
    block = lanes(event[0])
    return Map(best_tree.best, best_tree.workspace(event), torch.float64, (event[0],), (single_root, block), (warps(block, 8), 4), 168)


project = launcher(_map)
"""SparseMAP: see `active_set`."""


def _block(rows: Tensor) -> tuple[int, int]:
    """The extent of a table, and warps."""
    block = lanes(rows.shape[1] - 1)
    return block, warps(block * block, 16)


def _columns(block: int, warps: int, logs: bool) -> tuple[int, int]:
    """How many columns are begun at once, and how many a step takes: such that a thread holds two numbers of each of its tables."""
    return max(min(block // 2, 8), 1) if logs else min(block, 16), min(block, 2 * WARP * warps // block)


def log_partition(rows: Tensor, log_partition: Tensor, single_root: bool) -> None:
    """The log-partition of rows [b, n + 1, n + 1] by one elimination."""
    block, number = _block(rows)
    for part, (certain,) in launches(rows, MARK):
        for logs in (False, True):
            _log_partition[(len(certain),)](
                rows[part], log_partition[part], certain, rows.shape[1] - 1, single_root, block, logs, num_warps=number, maxnreg=REGISTERS
            )


@triton.jit(do_not_specialize=["words"])
def _log_partition(rows, log_partition, certain, words, single_root: tl.constexpr, block: tl.constexpr, logs: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    if is_open(certain, item, logs):
        total, held = _eliminate(rows + item * (words + 1) * (words + 1), words, single_root, block, logs)
        tl.store(log_partition + item, total)
        close(certain, item, held, logs)


@triton.jit
def _eliminate(row, words, single_root: tl.constexpr, block: tl.constexpr, logs: tl.constexpr):
    """The logarithm of the weight of all trees, and whether no weight was lost."""
    weights, root, shift, certain = load_weights(row, words, single_root, block, logs)
    place = tl.arange(0, block)
    rooted = tl.full((1,), 0 if single_root else 1, tl.int32)
    pivots = tl.full((block,), 0.0 if logs else 1.0, tl.float64)
    k = words - 1
    while k >= 0:
        weights, root, rooted, pivot = take_out(weights, root, rooted, k, place < k, logs)
        pivots = tl.where(place == k, pivot, pivots)
        k -= 1
    if not logs:
        lost = tl.sum(tl.sum(out_of_range(weights), 1) + out_of_range(root) + out_of_range(pivots), 0)
        certain = tl.where(lost == 0, certain, 0)
    return shift + tl.sum(logarithm(pivots, logs), 0), certain


def marginals(rows: Tensor, marginals: Tensor, log_partition: Tensor, single_root: bool) -> None:
    """Marginals of rows [b, n + 1, n + 1] from the chances of escape; every one is right to its own size, and none is a difference."""
    block, number = _block(rows)
    words = rows.shape[1] - 1
    numbers = room(words)
    for part, (workspace, certain) in launches(rows, (numbers, torch.float64), MARK):
        for logs in (False, True):
            _marginals[(len(certain),)](
                rows[part], marginals[part], log_partition[part], certain, workspace, numbers, words, halvings(words),
                single_root, *_columns(block, number, logs), block, logs, num_warps=number, maxnreg=REGISTERS,
            )  # fmt: skip


@triton.jit(do_not_specialize=["words", "halvings", "room"])
def _marginals(
    rows, marginals, log_partition, certain, workspace, room, words, halvings,
    single_root: tl.constexpr, first: tl.constexpr, lines: tl.constexpr, block: tl.constexpr, logs: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0).to(tl.int64)
    start = item * (words + 1) * (words + 1)
    if is_open(certain, item, logs):
        total, held = _expect(
            rows + start, marginals + start, workspace + item * room, words, halvings, single_root, first, lines, block, logs
        )
        tl.store(log_partition + item, total)
        close(certain, item, held, logs)


@triton.jit
def _expect(
    row, marginals, tables, words, halvings,
    single_root: tl.constexpr, first: tl.constexpr, lines: tl.constexpr, block: tl.constexpr, logs: tl.constexpr,
):  # fmt: skip
    """Write the marginals of one item; gives its log-partition, and whether no weight was lost."""
    shift, certain = begin(row, tables, words, single_root, first, block, logs)
    total, found = escape(tables, tables, words, halvings, lines, block, logs, False)
    known = _conclude(marginals, tables, tables, words, total, lines, block, logs, False)
    return shift + total, certain & found & known


@triton.jit
def _conclude(results, tables, rates, words, total, lines: tl.constexpr, block: tl.constexpr, logs: tl.constexpr, along: tl.constexpr):
    """Write marginals or, along a direction, their derivatives; gives whether all that the heads of a word weigh is in range."""
    possible = total > -float("inf")
    unknown = tl.zeros((lines,), tl.int32)
    done = words * 0
    while done < words:
        m = done + tl.arange(0, lines)
        expected, root_expected, sums = _marginals_of(tables, rates, words, m, lines, block, logs, along)
        _put(results, words, m, expected, root_expected, block)
        possible = possible & (tl.sum(((m < words) & ~(sums > 0.0)).to(tl.int32), 0) == 0)
        unknown = unknown | ((m < words) & ~((sums > LEAST_TOTAL) & (sums < GREATEST_TOTAL))).to(tl.int32)
        done += lines
    if possible == 0:
        tl.debug_barrier()
        done = words * 0
        while done < words:
            m = done + tl.arange(0, lines)
            _put(results, words, m, tl.zeros((lines, block), tl.float64), tl.zeros((lines,), tl.float64), block)
            done += lines
    return (tl.max(unknown, 0) == 0).to(tl.int32)


@triton.jit
def _marginals_of(tables, rates, words, m, lines: tl.constexpr, block: tl.constexpr, logs: tl.constexpr, along: tl.constexpr):
    """Marginals [lines, block] and the root's [lines] of the heads of words m or, along a direction, their derivatives; and their sums."""
    zero: tl.constexpr = -float("inf") if logs else 0.0
    place = tl.arange(0, block)[None, :]
    there = m < words
    column = m * (words + 1)
    heads = column[:, None] + 1 + place
    inside = there[:, None] & (place < words)
    weights = tl.load(tables + heads, mask=inside, other=zero)
    root = tl.load(tables + column, mask=there, other=zero)
    escapes, from_root = _escapes(tables, words, m, zero, 0.0 if logs else 1.0, lines, block)
    numbers = times(weights, escapes, logs)
    root_number = times(root, from_root, logs)
    if logs:
        top = finite(tl.maximum(tl.max(numbers, 1), root_number))
        numbers = tl.exp(numbers - top[:, None])
        root_number = tl.exp(root_number - top)
    sums = tl.sum(numbers, 1) + root_number
    scale = 1.0 / tl.where(sums > 0.0, sums, 1.0)
    expected = numbers * scale[:, None]
    root_expected = root_number * scale
    if along:
        slopes = tl.load(rates + heads, mask=inside, other=0.0)
        root_slopes = tl.load(rates + column, mask=there, other=0.0)
        escape_rates, _ = _escapes(rates, words, m, 0.0, 0.0, lines, block)
        if logs:
            slopes = expected * (slopes + escape_rates)
            root_slopes = root_expected * root_slopes
        else:
            slopes = (slopes * escapes + weights * escape_rates) * scale[:, None]
            root_slopes = root_slopes * from_root * scale
        slope = tl.sum(slopes, 1) + root_slopes
        expected = slopes - expected * slope[:, None]
        root_expected = root_slopes - root_expected * slope
    return expected, root_expected, sums


@triton.jit
def _escapes(tables, words, m, zero: tl.constexpr, one: tl.constexpr, lines: tl.constexpr, block: tl.constexpr):
    """Chances of escape before words m of an item; a word that is alone has no halves."""
    escapes = tl.full((lines, block), zero, tl.float64)
    from_root = tl.full((lines,), one, tl.float64)
    if words > 1:
        escapes, from_root = halved(tables + record(words), m * 0, m, m < words, words, words_at(words, 1), zero, block)
    return escapes, from_root


@triton.jit
def _put(results, words, m, values, root_values, block: tl.constexpr):
    """Write the arcs to words m [lines], and 0 where there is none."""
    place = tl.arange(0, block)
    there = m < words
    inside = there[:, None] & (place < words)[None, :]
    kind: tl.constexpr = results.dtype.element_ty
    tl.store(results + (place[None, :] + 1) * (words + 1) + m[:, None] + 1, values.to(kind), mask=inside)
    tl.store(results + m + 1, root_values.to(kind), mask=there)
    tl.store(results + (m + 1) * (words + 1), tl.zeros(m.shape, kind), mask=there)
    tl.store(results, tl.full((), 0.0, kind))


def covariance_product(rows: Tensor, direction: Tensor, product: Tensor, single_root: bool) -> None:
    """The derivative of the marginals along a direction: the same computation on numbers with their rates."""
    block, number = _block(rows)
    words = rows.shape[1] - 1
    numbers = 2 * room(words)
    for part, (workspace, certain) in launches(rows, (numbers, torch.float64), MARK):
        for logs in (False, True):
            _covariance_product[(len(certain),)](
                rows[part], direction[part], product[part], certain, workspace, numbers, words, halvings(words),
                single_root, *_columns(block, number, logs), block, logs, num_warps=number, maxnreg=REGISTERS,
            )  # fmt: skip


@triton.jit(do_not_specialize=["words", "halvings", "room"])
def _covariance_product(
    rows, direction, product, certain, workspace, room, words, halvings,
    single_root: tl.constexpr, first: tl.constexpr, lines: tl.constexpr, block: tl.constexpr, logs: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0).to(tl.int64)
    start = item * (words + 1) * (words + 1)
    tables = workspace + item * room
    if is_open(certain, item, logs):
        held = _vary(
            rows + start, direction + start, product + start, tables, room // 2, words, halvings, single_root, first, lines, block, logs
        )
        close(certain, item, held, logs)


@triton.jit
def _vary(
    row, direction, product, tables, room, words, halvings,
    single_root: tl.constexpr, first: tl.constexpr, lines: tl.constexpr, block: tl.constexpr, logs: tl.constexpr,
):  # fmt: skip
    """Write the derivative of one item; gives whether no weight was lost."""
    rates = tables + room
    _, certain = begin(row, tables, words, single_root, first, block, logs)
    begin_rates(direction, tables, rates, words, lines, block, logs)
    total, found = escape(tables, rates, words, halvings, lines, block, logs, True)
    known = _conclude(product, tables, rates, words, total, lines, block, logs, True)
    return certain & found & known


def sample(rows: Tensor, uniforms: Tensor, structures: Tensor, single_root: bool) -> None:
    """Trees of rows [b, n + 1, n + 1] from uniforms [b, s, n]: one elimination for all samples of an item."""
    block, number = _block(rows)
    words, samples = rows.shape[1] - 1, uniforms.shape[1]
    numbers = tree_samples.room(words)
    group = min(lanes(samples), GROUP)
    for part, (workspace, certain) in launches(rows, (numbers, torch.float64), MARK):
        items = len(rows[part])
        for logs in (False, True):
            tree_samples.prepare[(items,)](
                rows[part], workspace, certain, words, numbers, single_root, block, logs, num_warps=number, maxnreg=REGISTERS
            )
        tree_samples.draw[(items * -(-samples // group),)](
            workspace, uniforms[part], structures[part], words, numbers, samples, single_root, group, lanes(words + 1, 2), num_warps=1
        )
