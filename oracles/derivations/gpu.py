"""Operations on derivations for rows on a GPU, in Triton: one program per row goes through the levels, bottom up and top down.

As kernels of `structgrad.oracles.kernels.gpu`, for whatever structures, event shapes and options there are. Values of nodes are float64
log-weights in global memory, which no range of scores leaves; weights of edges, relative to their node, are in the dtype of the rows, and
never above 1, because no rounding brings the value of a node below that of an edge. Sums over the edges that lead to a node, or take a
part, are gathered from lists: nothing is added in an order that changes. Best scores are added and compared in the dtype of the rows, in
the order of plain torch, so that ties are the same; samples are float64 throughout.

Sources: those of `algorithms`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..kernels.gpu.launching import lanes, launches, warps
from .device import Graph

GROUP = 32
"""The most samples that one program draws."""

WALKED = 512
"""Edges that such a program looks at side by side, for all its samples."""


def log_partition(rows: Tensor, log_partition: Tensor, graph: Graph) -> None:
    """Log-partitions [b] of rows [b, *event]."""
    for part, (values,) in launches(rows, (graph.nodes, torch.float64)):
        _log_partition[(len(values),)](rows[part], log_partition[part], values, *_going_up(graph), **_edges_at_once(graph))


def marginals(rows: Tensor, marginals: Tensor, log_partition: Tensor, graph: Graph) -> None:
    """Marginals [b, *event] and log-partitions [b] of rows [b, *event]."""
    for part, (values, chances) in launches(rows, (graph.nodes, torch.float64), (graph.edges + graph.nodes, rows.dtype)):
        _marginals[(len(values),)](
            rows[part], marginals[part], log_partition[part], values, chances, *_going_up(graph), *_going_down(graph),
            **_edges_at_once(graph), **_sums_at_once(graph),
        )  # fmt: skip


def covariance_product(rows: Tensor, direction: Tensor, product: Tensor, graph: Graph) -> None:
    """The derivative of the marginals [b, *event] of rows along a direction."""
    numbers = (graph.nodes, torch.float64), (graph.edges + graph.nodes, rows.dtype)
    for part, (values, rates, chances, changes) in launches(rows, numbers[0], numbers[0], numbers[1], numbers[1]):
        _covariance_product[(len(values),)](
            rows[part], direction[part], product[part], values, rates, chances, changes, *_going_up(graph), *_going_down(graph),
            **_edges_at_once(graph), **_sums_at_once(graph),
        )  # fmt: skip


def argmax(rows: Tensor, structures: Tensor, graph: Graph) -> None:
    """Best structures of rows [b, *event]: of equal scores at a node, the first edge is taken."""
    for part, (values, choices) in launches(rows, (graph.nodes, rows.dtype), (2 * graph.nodes, torch.int32)):
        _argmax[(len(values),)](rows[part], structures[part], values, choices, *_going_up(graph), **_edges_at_once(graph))
        infeasible = values.reshape(len(rows[part]), graph.nodes)[:, -1] == -math.inf
        structures[part].masked_fill_(infeasible.reshape(-1, *[1] * (rows.ndim - 1)), 0)


def sample(rows: Tensor, uniforms: Tensor, structures: Tensor, graph: Graph) -> None:
    """Structures [b, s, *event] of rows [b, *event] by uniforms [b, s, steps], one for each node in preorder."""
    samples = structures.shape[1]
    group = lanes(min(samples, GROUP))
    groups = triton.cdiv(samples, group)
    width = min(lanes(graph.widest), WALKED // group)
    for part, (values, waiting) in launches(rows, (graph.nodes, torch.float64), (samples * graph.waiting, torch.int32)):
        _values[(len(values),)](rows[part], values, *_going_up(graph), **_edges_at_once(graph))
        _walk[(len(values) * groups,)](
            rows[part], uniforms[part], structures[part], values, waiting, graph.begins, graph.first, graph.second, graph.parts,
            graph.drawing, graph.nodes, graph.entries, samples, groups, uniforms.shape[2], graph.steps, graph.waiting, group, width,
            num_warps=warps(group * width, 4, 4),
        )  # fmt: skip


def _going_up(graph: Graph) -> tuple[Any, ...]:
    tables = graph.levels, graph.begins, graph.first, graph.second, graph.parts, graph.node_parts
    return (*tables, graph.depth, graph.nodes, graph.entries)


def _going_down(graph: Graph) -> tuple[Any, ...]:
    return graph.above_begins, graph.above, graph.taking_begins, graph.taking, graph.edges


def _edges_at_once(graph: Graph) -> dict[str, int]:
    heads, width = graph.edge_tile
    return {"heads": heads, "width": width, "num_warps": warps(heads * width, 4, 8)}


def _sums_at_once(graph: Graph) -> dict[str, int]:
    return {"fan": graph.above_tile[1], "side": graph.part_tile[0], "share": graph.part_tile[1]}


@triton.jit
def _or_zero(values):
    """What may be subtracted: 0 in the place of -inf."""
    return tl.where(values > -float("inf"), values, 0.0)


@triton.jit
def _log(mass):
    """The logarithm of sums of weights, -inf for 0."""
    return tl.where(mass > 0.0, tl.log(tl.where(mass > 0.0, mass, 1.0)), -float("inf"))


@triton.jit
def _extents(levels, level):
    """Of a level: its first node, the next level's, whether edges lead to two nodes, whether each takes a part, and the most of a node."""
    flags = tl.load(levels + level * 4 + 2)
    return tl.load(levels + level * 4), tl.load(levels + level * 4 + 1), (flags & 1) > 0, (flags & 2) > 0, tl.load(levels + level * 4 + 3)


@triton.jit
def _own(row, node_parts, node, here, each, kind: tl.constexpr):
    """[h]: scores of the parts that all edges of a node take, 0 where there is none."""
    part = tl.load(node_parts + node, mask=here & (each == 0), other=-1)
    return tl.load(row + part, mask=part >= 0, other=0.0).to(kind)


@triton.jit
def _joined(row, values, first, second, parts, own, edge, real, joins, each):
    """[h, e]: what edges add up to, in the type of the values and in the order of plain torch; -inf where there is none."""
    kind: tl.constexpr = values.dtype.element_ty
    one = tl.load(first + edge, mask=real, other=0)
    part = tl.load(parts + edge, mask=real & each, other=-1)
    two = tl.load(second + edge, mask=real & joins, other=0)
    score = tl.load(row + part, mask=part >= 0, other=0.0).to(kind)
    joined = (tl.load(values + one, mask=real, other=-float("inf")) + own[:, None]) + score
    return joined + tl.load(values + two, mask=two > 0, other=0.0)


@triton.jit
def _go_up(
    row, values, levels, begins, first, second, parts, node_parts, depth, number: tl.constexpr, heads: tl.constexpr, width: tl.constexpr
):
    """Fill the values [nodes] of a row, float64, from weights in the type ``number``."""
    tl.store(values, 0.0)
    tl.debug_barrier()
    for level in range(depth):
        start, stop, joins, each, widest = _extents(levels, level)
        for low in range(start, stop, heads):
            node = low + tl.arange(0, heads)
            here = node < stop
            begin = tl.load(begins + node, mask=here, other=0)
            end = tl.load(begins + node + 1, mask=here, other=0)
            own = _own(row, node_parts, node, here, each, tl.float64)
            top = tl.full((heads,), -float("inf"), tl.float64)
            mass = tl.zeros((heads,), number)
            for past in range(0, widest, width):
                edge = begin[:, None] + (past + tl.arange(0, width))[None, :]
                real = edge < end[:, None]
                joined = _joined(row, values, first, second, parts, own, edge, real, joins, each)
                high = tl.maximum(top, tl.max(joined, 1))
                base = _or_zero(high)
                mass = mass * tl.exp((top - base).to(number)) + tl.sum(tl.exp((joined - base[:, None]).to(number)), 1)
                top = high
            tl.store(values + node, top + _log(mass).to(tl.float64), mask=here)
        tl.debug_barrier()


@triton.jit
def _gathered(numbers, listed, begins, key, here, extent: tl.constexpr, width: tl.constexpr):
    """[extent]: sums of the numbers that lists of places name."""
    begin = tl.load(begins + key, mask=here, other=0)
    end = tl.load(begins + key + 1, mask=here, other=0)
    sums = tl.zeros((extent,), numbers.dtype.element_ty)
    for past in range(0, tl.max(end - begin, 0), width):
        place = begin[:, None] + (past + tl.arange(0, width))[None, :]
        real = place < end[:, None]
        found = tl.load(listed + place, mask=real, other=0)
        sums += tl.sum(tl.load(numbers + found, mask=real, other=0.0), 1)
    return sums


@triton.jit
def _by_part(numbers, taking, taking_begins, result, entries, side: tl.constexpr, share: tl.constexpr):
    """Write the sums by the entry of the event, 0 for what is no part."""
    for low in range(0, entries, side):
        part = low + tl.arange(0, side)
        here = part < entries
        sums = _gathered(numbers, taking, taking_begins, part, here, side, share)
        tl.store(result + part, sums.to(result.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["depth", "nodes", "entries"])
def _log_partition(
    rows, log_partition, values, levels, begins, first, second, parts, node_parts, depth, nodes, entries, heads: tl.constexpr,
    width: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0).to(tl.int64)
    values += item * nodes
    number: tl.constexpr = rows.dtype.element_ty
    _go_up(rows + item * entries, values, levels, begins, first, second, parts, node_parts, depth, number, heads, width)
    tl.store(log_partition + item, tl.load(values + nodes - 1))


@triton.jit(do_not_specialize=["depth", "nodes", "entries"])
def _values(
    rows, values, levels, begins, first, second, parts, node_parts, depth, nodes, entries, heads: tl.constexpr, width: tl.constexpr
):
    """Values for samples: their weights are float64."""
    item = tl.program_id(0).to(tl.int64)
    values += item * nodes
    _go_up(rows + item * entries, values, levels, begins, first, second, parts, node_parts, depth, tl.float64, heads, width)


@triton.jit(do_not_specialize=["depth", "nodes", "entries", "edges"])
def _marginals(
    rows, marginals, log_partition, values, chances, levels, begins, first, second, parts, node_parts, depth, nodes, entries,
    above_begins, above, taking_begins, taking, edges, heads: tl.constexpr, width: tl.constexpr, fan: tl.constexpr, side: tl.constexpr,
    share: tl.constexpr,
):  # fmt: skip
    """``chances`` [edges + nodes]: how likely a structure goes through each of them."""
    item = tl.program_id(0).to(tl.int64)
    row = rows + item * entries
    values += item * nodes
    chances += item * (edges + nodes)
    number: tl.constexpr = rows.dtype.element_ty
    _go_up(row, values, levels, begins, first, second, parts, node_parts, depth, number, heads, width)
    total = tl.load(values + nodes - 1)
    tl.store(log_partition + item, total)
    whole = tl.where(total > -float("inf"), 1.0, 0.0)
    for done in range(depth):
        start, stop, joins, each, widest = _extents(levels, depth - 1 - done)
        for low in range(start, stop, heads):
            node = low + tl.arange(0, heads)
            here = node < stop
            begin = tl.load(begins + node, mask=here, other=0)
            end = tl.load(begins + node + 1, mask=here, other=0)
            own = _own(row, node_parts, node, here, each, tl.float64)
            value = _or_zero(tl.load(values + node, mask=here, other=0.0))
            visited = _gathered(chances, above, above_begins, node, here, heads, fan) + tl.where(node == nodes - 1, whole, 0.0).to(number)
            tl.store(chances + edges + node, visited, mask=here)
            for past in range(0, widest, width):
                edge = begin[:, None] + (past + tl.arange(0, width))[None, :]
                real = edge < end[:, None]
                joined = _joined(row, values, first, second, parts, own, edge, real, joins, each)
                weight = tl.exp((joined - value[:, None]).to(number))
                tl.store(chances + edge, visited[:, None] * weight, mask=real)
        tl.debug_barrier()
    _by_part(chances, taking, taking_begins, marginals + item * entries, entries, side, share)


@triton.jit
def _rates(row, along, part, real):
    """The direction of parts, in float64; what is forbidden does not move."""
    allowed = tl.load(row + part, mask=real, other=-float("inf")) > -float("inf")
    return tl.load(along + part, mask=allowed, other=0.0).to(tl.float64)


@triton.jit
def _moved(row, along, rates, first, second, parts, own, edge, real, joins, each):
    """[h, e]: by how much the scores of edges move along the direction, float64."""
    one = tl.load(first + edge, mask=real, other=0)
    part = tl.load(parts + edge, mask=real & each, other=-1)
    two = tl.load(second + edge, mask=real & joins, other=0)
    moved = tl.load(rates + one, mask=real, other=0.0) + own[:, None] + _rates(row, along, part, part >= 0)
    return moved + tl.load(rates + two, mask=two > 0, other=0.0)


@triton.jit
def _go_up_rates(
    row, along, values, rates, levels, begins, first, second, parts, node_parts, depth, number: tl.constexpr, heads: tl.constexpr,
    width: tl.constexpr,
):  # fmt: skip
    """As `_go_up`, and how values move along the direction: the mean over edges, 0 where none is feasible."""
    tl.store(values, 0.0)
    tl.store(rates, 0.0)
    tl.debug_barrier()
    for level in range(depth):
        start, stop, joins, each, widest = _extents(levels, level)
        for low in range(start, stop, heads):
            node = low + tl.arange(0, heads)
            here = node < stop
            begin = tl.load(begins + node, mask=here, other=0)
            end = tl.load(begins + node + 1, mask=here, other=0)
            own = _own(row, node_parts, node, here, each, tl.float64)
            of_node = tl.load(node_parts + node, mask=here & (each == 0), other=-1)
            own_rate = _rates(row, along, of_node, of_node >= 0)
            top = tl.full((heads,), -float("inf"), tl.float64)
            # In float64, because a direction may have an offset, which all edges share.
            mass = tl.zeros((heads,), tl.float64)
            moment = tl.zeros((heads,), tl.float64)
            for past in range(0, widest, width):
                edge = begin[:, None] + (past + tl.arange(0, width))[None, :]
                real = edge < end[:, None]
                joined = _joined(row, values, first, second, parts, own, edge, real, joins, each)
                moved = _moved(row, along, rates, first, second, parts, own_rate, edge, real, joins, each)
                high = tl.maximum(top, tl.max(joined, 1))
                base = _or_zero(high)
                before = tl.exp((top - base).to(number)).to(tl.float64)
                weight = tl.exp((joined - base[:, None]).to(number)).to(tl.float64)
                mass = mass * before + tl.sum(weight, 1)
                moment = moment * before + tl.sum(weight * moved, 1)
                top = high
            tl.store(values + node, top + _log(mass.to(number)).to(tl.float64), mask=here)
            tl.store(rates + node, moment / tl.where(mass > 0.0, mass, 1.0), mask=here)
        tl.debug_barrier()


@triton.jit(do_not_specialize=["depth", "nodes", "entries", "edges"])
def _covariance_product(
    rows, direction, product, values, rates, chances, changes, levels, begins, first, second, parts, node_parts, depth, nodes, entries,
    above_begins, above, taking_begins, taking, edges, heads: tl.constexpr, width: tl.constexpr, fan: tl.constexpr, side: tl.constexpr,
    share: tl.constexpr,
):  # fmt: skip
    """As `_marginals`, and how chances move along the direction, ``changes`` [edges + nodes]."""
    item = tl.program_id(0).to(tl.int64)
    row = rows + item * entries
    along = direction + item * entries
    values += item * nodes
    rates += item * nodes
    chances += item * (edges + nodes)
    changes += item * (edges + nodes)
    number: tl.constexpr = rows.dtype.element_ty
    _go_up_rates(row, along, values, rates, levels, begins, first, second, parts, node_parts, depth, number, heads, width)
    whole = tl.where(tl.load(values + nodes - 1) > -float("inf"), 1.0, 0.0)
    for done in range(depth):
        start, stop, joins, each, widest = _extents(levels, depth - 1 - done)
        for low in range(start, stop, heads):
            node = low + tl.arange(0, heads)
            here = node < stop
            begin = tl.load(begins + node, mask=here, other=0)
            end = tl.load(begins + node + 1, mask=here, other=0)
            own = _own(row, node_parts, node, here, each, tl.float64)
            of_node = tl.load(node_parts + node, mask=here & (each == 0), other=-1)
            own_rate = _rates(row, along, of_node, of_node >= 0)
            value = _or_zero(tl.load(values + node, mask=here, other=0.0))
            mean = tl.load(rates + node, mask=here, other=0.0)
            visited = _gathered(chances, above, above_begins, node, here, heads, fan) + tl.where(node == nodes - 1, whole, 0.0).to(number)
            moving = _gathered(changes, above, above_begins, node, here, heads, fan)
            tl.store(chances + edges + node, visited, mask=here)
            tl.store(changes + edges + node, moving, mask=here)
            for past in range(0, widest, width):
                edge = begin[:, None] + (past + tl.arange(0, width))[None, :]
                real = edge < end[:, None]
                joined = _joined(row, values, first, second, parts, own, edge, real, joins, each)
                moved = _moved(row, along, rates, first, second, parts, own_rate, edge, real, joins, each)
                weight = tl.exp((joined - value[:, None]).to(number))
                change = moving[:, None] + visited[:, None] * (moved - mean[:, None]).to(number)
                tl.store(chances + edge, visited[:, None] * weight, mask=real)
                tl.store(changes + edge, weight * change, mask=real)
        tl.debug_barrier()
    _by_part(changes, taking, taking_begins, product + item * entries, entries, side, share)


@triton.jit(do_not_specialize=["depth", "nodes", "entries"])
def _argmax(
    rows, structures, values, choices, levels, begins, first, second, parts, node_parts, depth, nodes, entries, heads: tl.constexpr,
    width: tl.constexpr,
):  # fmt: skip
    """``choices`` [2 nodes]: the best edge of each, and whether it is in the best structure."""
    item = tl.program_id(0).to(tl.int64)
    row = rows + item * entries
    structure = structures + item * entries
    values += item * nodes
    choices += item * 2 * nodes
    held = choices + nodes
    kind: tl.constexpr = values.dtype.element_ty
    lane = tl.arange(0, heads * width)
    for low in range(0, entries, heads * width):
        tl.store(structure + low + lane, tl.zeros((heads * width,), structures.dtype.element_ty), mask=low + lane < entries)
    for low in range(0, nodes, heads * width):
        # The root alone, at first.
        tl.store(held + low + lane, (low + lane == nodes - 1).to(tl.int32), mask=low + lane < nodes)
    tl.store(values, 0.0)
    tl.debug_barrier()
    for level in range(depth):
        start, stop, joins, each, widest = _extents(levels, level)
        for low in range(start, stop, heads):
            node = low + tl.arange(0, heads)
            here = node < stop
            begin = tl.load(begins + node, mask=here, other=0)
            end = tl.load(begins + node + 1, mask=here, other=0)
            own = _own(row, node_parts, node, here, each, kind)
            top = tl.full((heads,), -float("inf"), kind)
            # Where everything is forbidden, what comes out is still a structure.
            choice = begin
            for past in range(0, widest, width):
                edge = begin[:, None] + (past + tl.arange(0, width))[None, :]
                real = edge < end[:, None]
                joined = _joined(row, values, first, second, parts, own, edge, real, joins, each)
                high = tl.max(joined, 1)
                lowest = tl.min(tl.where(real & (joined == high[:, None]), edge, 0x7FFFFFFF), 1)
                choice = tl.where(high > top, lowest, choice)
                top = tl.maximum(top, high)
            tl.store(values + node, top, mask=here)
            tl.store(choices + node, choice, mask=here)
        tl.debug_barrier()
    one = tl.full((heads,), 1, tl.int32)
    for done in range(depth):
        start, stop, joins, each, widest = _extents(levels, depth - 1 - done)
        for low in range(start, stop, heads):
            node = low + tl.arange(0, heads)
            taken = tl.load(held + node, mask=node < stop, other=0) > 0
            edge = tl.load(choices + node, mask=taken, other=0)
            part = tl.load(parts + edge, mask=taken, other=-1)
            tl.store(structure + part, one.to(structures.dtype.element_ty), mask=part >= 0)
            tl.store(held + tl.load(first + edge, mask=taken, other=0), one, mask=taken)
            tl.store(held + tl.load(second + edge, mask=taken, other=0), one, mask=taken)
        tl.debug_barrier()


@triton.jit(do_not_specialize=["nodes", "entries", "samples", "groups", "draws", "steps", "room"])
def _walk(
    rows, uniforms, structures, values, waiting, begins, first, second, parts, drawing, nodes, entries, samples, groups, draws, steps, room,
    group: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """A group of samples of one row, each with a stack of nodes that wait; the empty item stands for none."""
    item = (tl.program_id(0) // groups).to(tl.int64)
    start = tl.program_id(0) % groups * group
    row = rows + item * entries
    values += item * nodes
    ours = tl.minimum(samples - start, group)
    member = tl.arange(0, group)
    place = item * samples + start + member
    structure = structures + place * entries
    uniforms += place * draws
    stack = waiting + place * room
    for low in range(0, entries, width):
        entry = low + tl.arange(0, width)[None, :]
        zeros = tl.zeros((group, width), structures.dtype.element_ty)
        tl.store(structure[:, None] + entry, zeros, mask=(member < ours)[:, None] & (entry < entries))
    tl.debug_barrier()
    feasible = tl.load(values + nodes - 1) > -float("inf")
    node = tl.where(member < tl.where(feasible, ours, 0), nodes - 1, 0)
    height = tl.zeros((group,), tl.int32)
    drawn = tl.zeros((group,), tl.int32)
    one = tl.full((group,), 1, structures.dtype.element_ty)
    for _ in range(steps):
        live = node > 0
        begin = tl.load(begins + node, mask=live, other=0)
        end = tl.load(begins + node + 1, mask=live, other=0)
        draw = tl.load(drawing + node, mask=live, other=0)
        uniform = tl.load(uniforms + drawn, mask=draw > 0, other=0.0)
        drawn += draw
        chosen = _drawn(row, values, first, second, parts, begin, end, uniform, group, width)
        part = tl.load(parts + chosen, mask=live, other=-1)
        tl.store(structure + part, one, mask=part >= 0)
        left = tl.load(first + chosen, mask=live, other=0)
        right = tl.load(second + chosen, mask=live, other=0)
        splits = (left > 0) & (right > 0)
        ends = (left == 0) & (right == 0) & (height > 0)
        tl.store(stack + height, right, mask=splits)
        next_up = tl.load(stack + height - 1, mask=ends, other=0)
        height += splits.to(tl.int32) - ends.to(tl.int32)
        node = tl.where(left > 0, left, tl.where(right > 0, right, next_up))
        # What one thread has put on a stack, another may take from it.
        tl.debug_barrier()


@triton.jit
def _drawn(row, values, first, second, parts, begin, end, uniform, group: tl.constexpr, width: tl.constexpr):
    """[g]: for each sample the first edge at which the running sum of weights exceeds this share of them all."""
    most = tl.max(end - begin, 0)
    top = tl.full((group,), -float("inf"), tl.float64)
    for past in range(0, most, width):
        edge = begin[:, None] + (past + tl.arange(0, width))[None, :]
        top = tl.maximum(top, tl.max(_walked(row, values, first, second, parts, edge, edge < end[:, None]), 1))
    top = _or_zero(top)
    total = tl.zeros((group,), tl.float64)
    for past in range(0, most, width):
        edge = begin[:, None] + (past + tl.arange(0, width))[None, :]
        joined = _walked(row, values, first, second, parts, edge, edge < end[:, None])
        total = tl.max(total[:, None] + tl.cumsum(tl.exp(joined - top[:, None]), 1), 1)
    reached = tl.zeros((group,), tl.float64)
    below = tl.zeros((group,), tl.int32)
    for past in range(0, most, width):
        edge = begin[:, None] + (past + tl.arange(0, width))[None, :]
        real = edge < end[:, None]
        joined = _walked(row, values, first, second, parts, edge, real)
        sums = reached[:, None] + tl.cumsum(tl.exp(joined - top[:, None]), 1)
        below += tl.sum((real & (sums <= (uniform * total)[:, None])).to(tl.int32), 1)
        reached = tl.max(sums, 1)
    # A share below 1 stays below the total, which is one of the sums; whatever it is, no edge of another node is meant.
    return begin + tl.minimum(below, end - begin - 1)


@triton.jit
def _walked(row, values, first, second, parts, edge, real):
    """[g, e]: what the edges of a node for each sample add up to, float64."""
    one = tl.load(first + edge, mask=real, other=0)
    two = tl.load(second + edge, mask=real, other=0)
    part = tl.load(parts + edge, mask=real, other=-1)
    score = tl.load(row + part, mask=part >= 0, other=0.0).to(tl.float64)
    return tl.load(values + one, mask=real, other=-float("inf")) + score + tl.load(values + two, mask=two > 0, other=0.0)
