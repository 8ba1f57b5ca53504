"""Hypergraphs of derivations in a few flat arrays, without what no whole structure goes through: what the compiled executor reads."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

WIDTH = 8
"""Items side by side, as in `kernels.lanes`: places count numbers, so that neighbouring nodes and parts are so far apart."""

SCORE_LIMIT, WIDE_SCORE_LIMIT = 50.0, 150.0
"""Of the sizes of shifted scores: a product of a weight and two nodes stays within float64, and one of a weight and a node."""

JOINS, EACH = 1, 2
"""Flags of a level: its edges lead to two nodes; each of them takes a part of its own, and not all edges of a node the same."""


class Packed(NamedTuple):
    """The derivations of one event shape. Node 0 is the empty item; every other has an edge, and is part of a structure.

    Attributes:
        levels: [l, 3], the first node, the first of the next level, and the flags.
        begins: [nodes + 1], the first edge of each node.
        first: [edges], the place of the node that it leads to. ``second``: of the other one; the empty item where there is none.
        edge_parts: [edges], the place of the part that it takes. ``node_parts``: [nodes], of what all edges of a node take.
        used: [parts], which entries of an event are parts at all, in the order of the edges that take them; after them there is
            a part of score 0.
        shares: [parts], how likely each is when all structures are. All 0 where nothing adds up to the same for all structures.
        units: [parts], what does: 1 for each part, or `Derivations.sizes`.
        sizes: [5], entries of an event, nodes in the longest derivation, how many of them wait at most, units of a structure or 0, and
            whether every part is taken in one place alone: by one edge, or by all edges of one node.
        scale: [3], the logarithm of the number of structures, parts by unit on average, and the limit of sizes of shifted scores.
    """

    levels: Array
    begins: Array
    first: Array
    second: Array
    edge_parts: Array
    node_parts: Array
    used: Array
    shares: Array
    units: Array
    sizes: Array
    scale: Array


class Numbers(NamedTuple):
    """An array in either of two dtypes; the other one is without rows. So a function of it is compiled once, and both are read in place."""

    doubles: Array
    singles: Array


class Ranking(NamedTuple):
    """Where derivations stand among those of their node, in the order of `algorithms.unrank`. Exact where there are at most 2**62.

    Attributes:
        starts: int64 [edges], how many derivations of the node come before those of this edge. ``counts``: [nodes], how many there are.
    """

    starts: Array
    counts: Array


def ranking(packed: Packed) -> Ranking:
    """Count derivations, bottom up. No node has more than the root; sums over a whole level may wrap, but differences of them do not."""
    nodes = len(packed.begins) - 1
    first, second = packed.first // WIDTH, packed.second // WIDTH
    starts, counts = np.zeros(len(first), np.int64), np.ones(nodes, np.int64)
    for start, stop, _ in packed.levels:
        begin, end = packed.begins[start], packed.begins[stop]
        at, sizes = packed.begins[start:stop] - begin, np.diff(packed.begins[start : stop + 1])
        ways = counts[first[begin:end]] * counts[second[begin:end]]
        before = np.cumsum(ways) - ways
        starts[begin:end] = before - np.repeat(before[at], sizes)
        counts[start:stop] = np.add.reduceat(ways, at)
    return Ranking(starts, counts)


def pack(derivations: Any) -> Packed | None:
    """Flatten derivations (`Derivations`) and drop dead items, items and parts of no whole structure, and edges to those.

    None where there is no structure.
    """
    levels = [_Level(level) for level in derivations.levels]
    possible, reached = np.zeros(derivations.nodes, bool), np.zeros(derivations.nodes, bool)
    possible[0] = True
    for level in levels:
        level.alive = possible[level.first] & possible[level.second]
        possible[level.start : level.stop] = level.alive.any(1)
    if not possible[derivations.root]:
        return None
    reached[derivations.root] = True
    for level in reversed(levels):
        level.alive &= reached[level.start : level.stop, None]
        reached[level.first[level.alive]] = reached[level.second[level.alive]] = True
    reached[0] = True
    return _packed(derivations, [level for level in levels if level.alive.any()], reached)


class _Level:
    """A level on the host, with all edges spelt out."""

    def __init__(self, level: Any) -> None:
        self.start, self.stop = level.start, level.start + len(level.first)
        self.joins, self.each = level.second is not None, level.parts.shape[1] > 1
        first = level.first.numpy()
        second = level.second.numpy() if self.joins else np.zeros_like(first)
        self.edges = np.stack([first, second, np.broadcast_to(level.parts.numpy(), first.shape)])
        self.first, self.second, self.parts = self.edges
        self.alive = np.zeros(self.first.shape, bool)


def _packed(derivations: Any, levels: list[_Level], reached: Array) -> Packed:
    numbers = np.cumsum(reached) - 1
    none = np.zeros((3, 0), np.int64)
    firsts, seconds, taken = np.concatenate([none, *(level.edges[:, level.alive] for level in levels)], 1)
    counts = np.concatenate([[0], *(level.alive.sum(1)[reached[level.start : level.stop]] for level in levels)])
    used, at = np.unique(taken, return_index=True)
    used = used[np.argsort(at)]
    used = used[used < derivations.parts]
    places = np.full(derivations.parts + 1, len(used))
    places[used] = np.arange(len(used))
    node_parts = np.full(len(counts), len(used))
    bounds = []
    for level in levels:
        here = np.flatnonzero(reached[level.start : level.stop])
        heads = numbers[level.start + here]
        if not level.each:
            node_parts[heads] = places[level.parts[here, 0]]
        bounds.append((heads[0], heads[-1] + 1, JOINS * level.joins + EACH * level.each))
    packed = Packed(
        np.array(bounds, np.int64).reshape(-1, 3),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        _placed(numbers[firsts]),
        _placed(numbers[seconds]),
        _placed(places[taken]),
        _placed(node_parts),
        used,
        np.zeros(len(used)),
        np.ones(len(used)) if derivations.sizes is None else derivations.sizes.numpy()[used].astype(float),
        np.array([derivations.parts, 0, 0, 0, _alone(levels, len(used), derivations.parts)]),
        np.array([0.0, 1.0, SCORE_LIMIT]),
    )
    _measure(packed, of_sizes=derivations.sizes is not None)
    if derivations.sizes is not None and not any(level.joins for level in levels):
        packed.scale[2] = WIDE_SCORE_LIMIT
    return packed


def _alone(levels: list[_Level], used: int, none: int) -> bool:
    takings = 0
    for level in levels:
        parts = np.where(level.alive, level.parts, none)
        takings += int(((parts if level.each else parts.min(1)) < none).sum())
    return takings == used


def _placed(numbers: Array) -> Array:
    return (WIDTH * numbers).astype(np.int32)


def _measure(packed: Packed, *, of_sizes: bool) -> None:
    """Fill `Packed.sizes`, `Packed.scale` and `Packed.shares`."""
    nodes = len(packed.begins) - 1
    steps, waiting, parts, varies, logs = (np.zeros(nodes) for _ in range(5))
    first, second, none = packed.first // WIDTH, packed.second // WIDTH, len(packed.used)
    chances, units = np.zeros(len(first)), np.append(packed.units, 0.0)
    for start, stop, _ in packed.levels:
        begin, end = packed.begins[start], packed.begins[stop]
        at, one, two = packed.begins[start:stop] - begin, first[begin:end], second[begin:end]
        here, sizes = slice(start, stop), np.diff(packed.begins[start : stop + 1])
        takes = units[packed.edge_parts[begin:end] // WIDTH]
        steps[here] = 1 + np.maximum.reduceat(steps[one] + steps[two], at)
        waiting[here] = np.maximum(np.maximum.reduceat(np.maximum(waiting[one] + (two > 0), waiting[two]), at), 1)
        number = parts[one] + parts[two] + takes
        parts[here] = np.maximum.reduceat(number, at)
        spread = np.minimum.reduceat(number, at) < parts[here]
        varies[here] = spread | (np.maximum.reduceat(np.maximum(varies[one], varies[two]), at) > 0)
        ways = logs[one] + logs[two]
        top = np.maximum.reduceat(ways, at)
        logs[here] = top + np.log(np.add.reduceat(np.exp(ways - np.repeat(top, sizes)), at))
        chances[begin:end] = np.exp(ways - np.repeat(logs[here], sizes))
    packed.sizes[1], packed.sizes[2] = steps[-1], waiting[-1]
    packed.scale[0] = logs[-1]
    if varies[-1] and of_sizes:
        raise ValueError("`Builder` got sizes of parts that do not add up to the same over every structure; expected such, or none")
    if varies[-1]:
        return
    packed.sizes[3] = parts[-1]
    above, taken = np.zeros(nodes), np.zeros(none + 1)
    above[-1] = 1
    for start, stop, _ in packed.levels[::-1]:
        begin, end = packed.begins[start], packed.begins[stop]
        edges = np.repeat(above[start:stop], np.diff(packed.begins[start : stop + 1])) * chances[begin:end]
        np.add.at(above, first[begin:end], edges)
        np.add.at(above, second[begin:end], edges)
        np.add.at(taken, packed.edge_parts[begin:end] // WIDTH, edges)
    expected = taken[:-1].sum() if of_sizes else parts[-1]
    packed.shares[:] = taken[:-1] / max(expected, 1)
    packed.scale[1] = expected / parts[-1] if of_sizes and parts[-1] > 0 else 1.0
