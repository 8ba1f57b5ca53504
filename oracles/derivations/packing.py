"""Hypergraphs of derivations in flat arrays, for the compiled executor: without dead items, and with columns that move by 0 or 1.

Walks read the edges of one node after another. Passes read *segments*: nodes with the same number of edges. Their k-th edges lead to one
node, or to nodes that follow each other, and take one part, or parts that follow each other. So k-th edges (a *column*) are three numbers
for all nodes of a segment, and an edge of eight nodes is a vector instruction. Parts are renumbered to that end; nodes keep the order in
which the author adds them.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

WIDTH = 8
"""Numbers of a vector, as in `kernels.vectors`."""

SCORE_LIMIT, WIDE_SCORE_LIMIT = 50.0, 150.0
"""Limits of shifted scores: a product of a weight and two nodes stays within float64, and one of a weight and a node."""

JOINS, EACH = 1, 2
"""Flags of a level: its edges lead to two nodes; each of them takes a part of its own, and not all edges of a node the same."""

ANYTHING, CHART, CHAIN, PATH, TREE = range(5)
"""Kinds of segments, by what their edges lead to and take: two nodes that move; one node of all, and parts that move; a node that moves;
two nodes and a part that move. The compiler makes passes for each, which take up to 1.5 times as long where it does not know the kind."""

ANY, BROKEN = -1, 2
"""Between strides of 0 and 1: where a column holds nothing but the empty item (or no part), and where it moves otherwise."""

SEVERAL = 4
"""Items from which on these lie side by side, and not nodes, where that pays."""

NEAR = 2**14
"""Nodes and parts of which eight items are in the processor's own cache."""

FULL, SHORT = 1.1, 2.0
"""Factors: so many times as many vector instructions nodes side by side may take before items do in that cache, and without it."""

FEW = 8
"""Vector instructions of a level of nodes up to which its start costs more than a cache that is too small, where parts are few too."""

ENTRIES, STEPS, WAITING, UNITS, PLACES, ITEMS, ALIKE = range(7)
"""Places in `Packed.sizes`."""

WAYS, PARTS_PER_UNIT, REACH = range(3)
"""Places in `Packed.scale`."""


class Packed(NamedTuple):
    """The derivations of one event shape. Node 0 is the empty item; every other has an edge, and is part of a structure.

    The first nodes all hold the empty item, so that a column of it can move; edges lead to the very first. The last node is the root.

    Attributes:
        levels: [l, 3], the first node, the first of the next level, and the flags.
        begins: [nodes + 1], the first edge of each node.
        first: [edges], the node that it leads to. ``second``: the other one; the empty item where there is none.
        edge_parts: [edges], the part that it takes. ``edge_entries``: the entry of that, -1 for none.
        node_parts: [nodes], what all edges of a node take.
        used: [parts], which entries of an event are parts at all. Numbers of parts from the next multiple of `WIDTH` on stand for none.
        straight: [vectors], whether `WIDTH` parts are neighbours in the event too.
        shares: [parts], how likely each is when all structures are. All 0 where nothing adds up to the same for all structures.
        units: [parts], what does: 1 for each part, or `Derivations.sizes`.
        sizes: entries of an event, nodes in the longest derivation, how many of them wait at most, units of a structure or 0, numbers of
            parts and of none, from how many items on these are to lie side by side, and whether the units of all parts are 1.
        scale: the logarithm of the number of structures, parts by unit on average, and the limit of sizes of shifted scores.
        segments: [s, 11], the first node, nodes, edges of each, the first column, flags, strides of first and second nodes and of parts,
            how many vectors of parts it and all before need, the kind, and whether it is a chain whose parts are whole vectors of an event
            that no other segment takes: passes read and write them there.
        columns: [c, 4], the first node, the second, the part and its entry of each edge of the first node of a segment.
    """

    levels: Array
    begins: Array
    first: Array
    second: Array
    edge_parts: Array
    edge_entries: Array
    node_parts: Array
    used: Array
    straight: Array
    shares: Array
    units: Array
    sizes: Array
    scale: Array
    segments: Array
    columns: Array


class Numbers(NamedTuple):
    """An array in either of two dtypes; the other one is without rows. So a function of it is compiled once, and both are read in place."""

    doubles: Array
    singles: Array


class Ranking(NamedTuple):
    """The order of derivations below each node: by the edge, then by its first node, then by its second.

    Attributes:
        starts: [edges], how many derivations of the node come before those of this edge. ``counts``: [nodes], how many there are.
    """

    starts: Array
    counts: Array


def ranking(packed: Packed, kind: type = np.int64) -> Ranking:
    """Count derivations, bottom up: exactly, in int64 up to 2**62 and in ``object`` always.

    No node has more than the root. Sums over a whole level may wrap in int64, but differences of them do not.
    """
    starts: Array = np.zeros(len(packed.first), kind)
    counts: Array = np.ones(len(packed.node_parts), kind)
    for start, stop, _ in packed.levels:
        begin, end = packed.begins[start], packed.begins[stop]
        at, sizes = packed.begins[start:stop] - begin, np.diff(packed.begins[start : stop + 1])
        ways = counts[packed.first[begin:end]] * counts[packed.second[begin:end]]
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
    counts = np.concatenate([[0], *(level.alive.sum(1)[reached[level.start : level.stop]] for level in levels)]).astype(np.int64)
    used, at = np.unique(taken, return_index=True)
    used = used[np.argsort(at)]
    used = used[used < derivations.parts]
    places = np.full(derivations.parts + 1, len(used))
    places[used] = np.arange(len(used))
    node_parts, bounds = np.full(len(counts), len(used)), []
    for level in levels:
        here = np.flatnonzero(reached[level.start : level.stop])
        heads = numbers[level.start + here]
        if not level.each:
            node_parts[heads] = places[level.parts[here, 0]]
        bounds.append((heads[0], heads[-1] + 1, JOINS * level.joins + EACH * level.each))
    ends = np.stack([numbers[firsts], numbers[seconds], places[taken]])
    edges = _Edges(np.array(bounds, np.int64).reshape(-1, 3), counts, ends, node_parts, len(used))
    order = edges.order_parts()
    segments, columns, units, nothings = edges.segments()
    width = len(used) if len(used) == 0 else -(-len(used) // WIDTH) * WIDTH
    entries = np.append(used[order], np.zeros(width - len(used), np.int64))
    shift = max(units, 1) - 1

    def node(number: Array) -> Array:
        return np.where(number > 0, number + shift, 0)

    def part(number: Array) -> Array:
        return np.where(number < len(used), number, width)

    segments[:, 0] += shift
    padded = np.append(entries, np.zeros(max(nothings, 1), np.int64))
    columns = np.stack([node(columns[:, 0]), node(columns[:, 1]), part(columns[:, 2]), padded[part(columns[:, 2])]], 1)
    # What all edges of a node take is a column too, so that all parts that a segment needs are in columns, and where it ends.
    ends = part(columns[:, 2]) + np.repeat(np.where(segments[:, 7] > 0, segments[:, 1] - 1, 0), segments[:, 2])
    needed = np.maximum.reduceat(np.where(columns[:, 2] < width, ends, -1), segments[:, 3]) if len(segments) else np.zeros(0, np.int64)
    segments[:, 8] = np.maximum.accumulate(needed + 1)
    segments[:, 8] = -(-segments[:, 8] // WIDTH)
    edges_alone, edges_together = (-(-segments[:, 1] // WIDTH) * segments[:, 2]).sum(), (segments[:, 1] * segments[:, 2]).sum() / WIDTH
    blocks = entries.reshape(-1, WIDTH)
    straight = (np.arange(width).reshape(-1, WIDTH)[:, -1] < len(used)) & (np.diff(blocks, axis=1) == 1).all(1)
    direct = _in_place(segments, columns, blocks, straight, np.bincount(edges.parts, minlength=width)[:width])
    near = shift + len(counts) + width <= NEAR or (edges_alone <= FEW * len(levels) and width < len(counts))
    together = edges_alone > (FULL if near else SHORT) * edges_together
    padding = np.zeros(width - len(used) + WIDTH)
    of_sizes = derivations.sizes is not None
    packed = Packed(
        edges.levels + np.array([shift, shift, 0]),
        np.concatenate([np.zeros(shift, np.int64), [0], np.cumsum(counts)]).astype(np.int32),
        node(edges.first).astype(np.int32),
        node(edges.second).astype(np.int32),
        part(edges.parts).astype(np.int32),
        np.append(used[order], -1)[edges.parts].astype(np.int32),
        np.concatenate([np.full(shift, width), part(edges.node_parts)]).astype(np.int32),
        used[order],
        straight,
        np.append(np.zeros(len(used)), padding),
        np.append(derivations.sizes.numpy()[used[order]].astype(float) if of_sizes else np.ones(len(used)), padding),
        np.array([derivations.parts, 0, 0, 0, width + max(nothings, 1), SEVERAL if together else np.iinfo(np.int64).max, not of_sizes]),
        np.array([0.0, 1.0, WIDE_SCORE_LIMIT if of_sizes and not any(level.joins for level in levels) else SCORE_LIMIT]),
        np.column_stack([segments, direct]),
        columns,
    )
    _measure(packed, of_sizes=of_sizes)
    return packed


def _in_place(segments: Array, columns: Array, blocks: Array, straight: Array, takers: Array) -> Array:
    """Which segments are chains that read and write whole vectors of an event, of parts that one edge alone takes."""
    good = straight & (takers.reshape(-1, WIDTH) == 1).all(1)
    goes_on = good & (np.diff(blocks[:, 0], prepend=-1) == WIDTH)
    good, breaks = np.append(good, False), np.append(np.cumsum(~goes_on), 0)
    heights, starts = np.repeat(segments[:, 1], segments[:, 2]), columns[:, 2]
    whole = (heights % WIDTH == 0) & (starts % WIDTH == 0)
    first, last = np.where(whole, [starts, starts + heights - WIDTH], 0) // WIDTH
    whole &= good[first] & (breaks[np.minimum(last, len(blocks))] == breaks[first])
    chain: Array = (segments[:, 9] == CHAIN) & (np.diff(segments[:, 8], prepend=0) == segments[:, 1] * segments[:, 2] // WIDTH)
    if len(segments):
        chain &= np.logical_and.reduceat(whole, segments[:, 3])
    return chain


class _Edges:
    """Edges of all nodes, end to end, in the numbers that nodes keep; parts are to be put in order."""

    def __init__(self, levels: Array, counts: Array, edges: Array, node_parts: Array, none: int) -> None:
        self.levels, (self.first, self.second, self.parts), self.node_parts, self.none = levels, edges, node_parts, none
        self.begins, self.counts = np.concatenate([[0], np.cumsum(counts)]), counts
        self.flags, of_level = np.zeros(len(counts), np.int64), np.zeros(len(counts), np.int64)
        for number, (start, stop, flags) in enumerate(levels):
            self.flags[start:stop], of_level[start:stop] = flags, number + 1
        # Nodes that may go on from the one before, their edges, and the edges that these may go on from.
        like = np.zeros(len(counts), bool)
        like[1:] = (counts[1:] == counts[:-1]) & (of_level[1:] == of_level[:-1])
        self.following = np.flatnonzero(like)
        sizes = counts[self.following]
        self.at = np.cumsum(sizes) - sizes
        self.here = np.repeat(self.begins[self.following] - self.at, sizes) + np.arange(sizes.sum())
        self.before = self.here - np.repeat(sizes, sizes)

    def _strides(self, numbers: Array, nothing: int) -> Array:
        """Moves of the columns of each node from the node before."""
        strides = np.full(len(self.counts), BROKEN)
        if not len(self.here):
            return strides
        one, other = numbers[self.before], numbers[self.here]
        steps, still = other - one, (one == nothing) & (other == nothing)
        steps[(steps < 0) | ((one == nothing) != (other == nothing))] = BROKEN
        least = np.minimum.reduceat(np.where(still, BROKEN, steps), self.at)
        most = np.maximum.reduceat(np.where(still, ANY, steps), self.at)
        strides[self.following] = np.where(most == ANY, ANY, np.where((least == most) & (most <= 1), most, BROKEN))
        return strides

    def _moves(self) -> tuple[Array, Array]:
        """Strides of first and second nodes."""
        return self._strides(self.first, 0), self._strides(self.second, 0)

    def order_parts(self) -> Array:
        """Renumber parts so that those which nodes of a segment take follow each other, else by first use; gives the old numbers."""
        first, second = self._moves()
        fits = (first != BROKEN) & (second != BROKEN)
        here = fits[np.repeat(np.arange(len(self.counts)), self.counts)[self.here]] if len(self.here) else np.zeros(0, bool)
        one, other = self.parts[self.before[here]], self.parts[self.here[here]]
        moving = (one != other) & (one < self.none) & (other < self.none)
        one, other = one[moving], other[moving]
        for _ in range(2):  # each part has one that follows it, and follows one
            _, kept = np.unique(one, return_index=True)
            other, one = one[np.sort(kept)], other[np.sort(kept)]
        before = np.arange(self.none)
        before[other] = one
        # The first part of each row of parts, and how far behind it a part is, by steps of twice the length.
        rank = (before != np.arange(self.none)).astype(np.int64)
        top = before
        for _ in range(max(self.none, 1).bit_length()):
            rank, top = rank + rank[top], top[top]
        endless = before[top] != top
        top[endless], rank[endless] = np.flatnonzero(endless), 0
        order = np.lexsort((rank, top))
        places = np.append(np.empty(self.none, np.int64), self.none)
        places[order] = np.arange(self.none)
        self.parts, self.node_parts = places[self.parts], places[self.node_parts]
        return order

    def segments(self) -> tuple[Array, Array, int, int]:
        """`Packed.segments` and `Packed.columns`, in numbers; how many nodes must hold the empty item, and parts be none."""
        steps = np.stack([*self._moves(), self._strides(self.parts, self.none)])
        broken = (steps == BROKEN).any(0)
        starts, known = list[int](), list[list[int]]()
        for node, step in enumerate(steps.T.tolist()[1:], 1):
            if not broken[node] and all(one in (ANY, other) or other == ANY for one, other in zip(step, known[-1], strict=True)):
                known[-1] = [max(one, other) for one, other in zip(step, known[-1], strict=True)]
            else:
                starts.append(node)
                known.append([ANY] * 3)
        begin = np.array(starts, np.int64)
        heights, widths = np.diff(np.append(begin, len(self.counts))), self.counts[begin]
        first_column = np.cumsum(widths) - widths
        edges = np.repeat(self.begins[begin] - first_column, widths) + np.arange(widths.sum())
        columns = np.stack([self.first[edges], self.second[edges], self.parts[edges]], 1)
        moving = np.array(known, np.int64).reshape(-1, 3)
        flags, (first, second, part) = self.flags[begin], moving.T == 1
        both = first & second
        cases = [(flags == JOINS) & both, (flags == EACH) & ~first & part, (flags == 0) & first, (flags == JOINS + EACH) & both & part]
        kinds = np.select(cases, [CHART, CHAIN, PATH, TREE], ANYTHING)
        strides, ready = np.maximum(moving, 0), np.zeros_like(begin)
        segments = np.column_stack([begin, heights, widths, first_column, flags, strides, ready, kinds])
        # Where a column of nothing stands among those that move, it moves too.
        tall = np.repeat(heights, widths)[:, None] * (np.repeat(moving, widths, 0) == 1) * (columns == [0, 0, self.none])
        return segments, columns, int(tall[:, :2].max(initial=1)), int(tall[:, 2].max(initial=1))


def _measure(packed: Packed, *, of_sizes: bool) -> None:
    """Fill `Packed.sizes`, `Packed.scale` and `Packed.shares`."""
    nodes = len(packed.node_parts)
    steps, waiting, parts, varies, logs = (np.zeros(nodes) for _ in range(5))
    first, second = packed.first, packed.second
    chances, units = np.zeros(len(first)), np.append(packed.units, 0.0)[: packed.sizes[PLACES] + 1]
    for start, stop, _ in packed.levels:
        begin, end = packed.begins[start], packed.begins[stop]
        at, one, two = packed.begins[start:stop] - begin, first[begin:end], second[begin:end]
        here, sizes = slice(start, stop), np.diff(packed.begins[start : stop + 1])
        takes = units[packed.edge_parts[begin:end]]
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
    packed.sizes[STEPS], packed.sizes[WAITING] = steps[-1], waiting[-1]
    packed.scale[WAYS] = logs[-1]
    if varies[-1] and of_sizes:
        raise ValueError("`Builder` got sizes of parts that do not add up to the same over every structure; expected such, or none")
    if varies[-1]:
        return
    packed.sizes[UNITS] = parts[-1]
    above, taken = np.zeros(nodes), np.zeros(packed.sizes[PLACES])
    above[-1] = 1
    for start, stop, _ in packed.levels[::-1]:
        begin, end = packed.begins[start], packed.begins[stop]
        edges = np.repeat(above[start:stop], np.diff(packed.begins[start : stop + 1])) * chances[begin:end]
        np.add.at(above, first[begin:end], edges)
        np.add.at(above, second[begin:end], edges)
        np.add.at(taken, packed.edge_parts[begin:end], edges)
    taken = taken[: len(packed.used)]
    expected = taken.sum() if of_sizes else parts[-1]
    packed.shares[: len(taken)] = taken / max(expected, 1)
    packed.scale[PARTS_PER_UNIT] = expected / parts[-1] if of_sizes and parts[-1] > 0 else 1.0
