"""The k best derivations, asked for from the root down: a node finds its next best one only where a better derivation above it takes it.

A pass of maxima gives the best score of every node. What is further down its list is found on demand, one at
a time: each edge offers the best of what it leads to and has not given yet, and the node takes the best offer. A derivation, an *entry*, is
an edge and the entries of the two nodes that it leads to; entry v is the best of node v, and the others come after them, as they are found.
So the k best take, after the maxima, time in proportion to k times the nodes of a derivation, and not to k times the edges.

Lists have a fixed order, to the last bit: an offer is what the scores of both entries and of the part add up to, in that order,
and of equal ones the first is taken by edge, then by the place of the first entry in its list, then by that of the second. What follows an
offer is never better and comes later in that order, so that the best offer is the next of all.

Source: Huang & Chiang 2005, "Better k-best parsing", algorithm 3.
"""

import math
from typing import NamedTuple

import numpy as np

from ..kernels.compilation import compiled, inlined, inner, uncounted
from .cpu_maxima import maximise, scores_and_nodes
from .cpu_rows import size_of, write
from .packing import STEPS, Array, Numbers, Packed

FORBIDDEN = -1e100
"""Score of a forbidden part, as `capabilities.base.FORBIDDEN`: what takes one comes last."""

UNKNOWN, NONE = -1, -2
"""An entry that was not looked for; no entry, or no offer."""

FORBIDDING = -1
"""In place of a number of parts."""


class RankingWorkspace(NamedTuple):
    """Entries, and offers of edges: of one item at a time."""

    values: Array  # of entries
    nodes: Array  # int32, like the others: the node of an entry; an entry of another rank than 0 begins behind them
    edges: Array  # the edge of an entry, `UNKNOWN` for the best of a node that was not looked at
    first: Array  # the entry of the node that it leads to
    second: Array
    ranks: Array  # its place in the list of its node
    following: Array  # the next entry of the node, `UNKNOWN` or `NONE`
    last: Array  # [nodes] the last entry that is known
    offers: Array  # [edges] the value of the best offer of each, -inf for none
    heads: Array  # [edges] that offer, `UNKNOWN` for the best of both nodes, which needs no place
    offer_values: Array  # of offers
    offer_first: Array
    offer_second: Array
    offer_next: Array  # the next best offer of the same edge, or `NONE`
    stack: Array
    taken: Array  # parts of a derivation
    counters: Array  # entries, offers


@compiled
def kbest(lanes: int, doubles, singles, out_doubles, out_singles, numbers, *tables):
    """The best structures [b, k, d] of rows [b, d], or 1 + the numbers of their parts, ascending, [b, k, p].

    One of these has no rows. k is at most how many structures there are, and 0 stands for infeasible ones.
    """
    packed, rows, structures = Packed(*tables), Numbers(doubles, singles), Numbers(out_doubles, out_singles)
    k = max(structures.doubles.shape[1], structures.singles.shape[1], numbers.shape[1])
    scores, best = scores_and_nodes(packed, lanes)
    space, own = _workspace(packed, k), np.zeros(len(scores) // lanes)
    for start in range(0, size_of(rows), lanes):
        count = min(lanes, size_of(rows) - start)
        maximise(packed, lanes, rows, start, count, 0, FORBIDDEN, scores, best)
        for lane in range(count):
            for part in range(len(own)):
                own[part] = scores[part * lanes + lane]
            _begin(space, best, lanes, lane)
            _list(packed, space, own, k, structures, numbers, start + lane)


@inner
def _workspace(packed, k: int):
    nodes, edges = len(packed.node_parts), len(packed.first)
    # Finding one more of the root finds at most one more of each node of a derivation, and each of these makes two offers.
    steps = packed.sizes[STEPS] + 1
    entries, offers = nodes + k * steps, 2 * k * steps + 2
    return RankingWorkspace(
        np.empty(entries), np.empty(entries, np.int32), np.empty(entries, np.int32), np.empty(entries, np.int32),
        np.empty(entries, np.int32), np.empty(entries, np.int32), np.empty(entries, np.int32), np.empty(nodes, np.int32),
        np.empty(edges), np.empty(edges, np.int32), np.empty(offers), np.empty(offers, np.int32),
        np.empty(offers, np.int32), np.empty(offers, np.int32), np.empty(steps + 2, np.int32), np.empty(steps, np.int64),
        np.zeros(2, np.int64),
    )  # fmt: skip


@uncounted
def _begin(space, best, lanes, lane):
    """Of every node the value of its best derivation is known."""
    nodes = len(space.last)
    for node in range(nodes):
        space.values[node], space.nodes[node], space.ranks[node] = best[node * lanes + lane], node, 0
        space.edges[node], space.following[node], space.last[node] = UNKNOWN, UNKNOWN, node
    space.following[0] = NONE
    space.counters[0], space.counters[1] = nodes, 0


@inlined
def _list(packed, space, scores, k, structures, numbers, row):
    """Write the structures of one item. Where one takes a forbidden part, all after it do."""
    entry = len(space.last) - 1
    for rank in range(k):
        if rank > 0:
            entry = _next(packed, space, scores, entry)
        taken = _take_parts(packed, space, scores, entry) if entry >= 0 else FORBIDDING
        if taken == FORBIDDING:
            return
        write(space.taken, taken, structures, numbers, row, rank)


@uncounted
def _look(packed, space, scores, node):
    """Offers of the edges of a node, and the first of the best of them, which is its best entry."""
    begin, end = packed.begins[node], packed.begins[node + 1]
    top, place = -math.inf, begin
    for x in range(begin, end):
        value = space.values[packed.first[x]] + space.values[packed.second[x]]
        value += scores[packed.edge_parts[x]]
        space.offers[x], space.heads[x] = value, UNKNOWN
        if value > top:
            top, place = value, x
    _take(packed, space, node, node, place)


@uncounted
def _take(packed, space, node, entry, x):
    """Make the offer of an edge an entry."""
    head = space.heads[x]
    space.edges[entry] = x
    if head == UNKNOWN:
        space.first[entry], space.second[entry] = packed.first[x], packed.second[x]
        space.heads[x] = NONE
    else:
        space.first[entry], space.second[entry] = space.offer_first[head], space.offer_second[head]
        space.heads[x] = space.offer_next[head]
    space.offers[x] = -math.inf if space.heads[x] == NONE else space.offer_values[space.heads[x]]


@uncounted
def _next(packed, space, scores, entry):
    """The entry after this one in the list of its node, or `NONE`."""
    stack, top = space.stack, 0
    stack[0] = entry
    while top >= 0:
        known = stack[top]
        node = space.nodes[known]
        if space.edges[known] == UNKNOWN:
            _look(packed, space, scores, node)
        first, second = space.first[known], space.second[known]
        # Of two lists, all sums with the first of the second one are offered by their first, and the others by their second.
        turns = space.ranks[second] == 0
        if space.following[second] == UNKNOWN:
            top += 1
            stack[top] = second
            continue
        if turns and space.following[first] == UNKNOWN:
            top += 1
            stack[top] = first
            continue
        x = space.edges[known]
        if space.following[second] != NONE:
            _offer(packed, space, scores, x, first, space.following[second])
        if turns and space.following[first] != NONE:
            _offer(packed, space, scores, x, space.following[first], second)
        space.following[known] = _best_offer(packed, space, node)
        top -= 1
    return space.following[entry]


@uncounted
def _offer(packed, space, scores, x, first, second):
    """Put what two entries add up to behind the offers of an edge that are better, or equal and earlier by the ranks of their entries."""
    offer = space.counters[1]
    space.counters[1] += 1
    value = space.values[first] + space.values[second]
    value += scores[packed.edge_parts[x]]
    before, after = NONE, space.heads[x]
    while after != NONE and _is_before(space, after, value, first, second):
        before, after = after, space.offer_next[after]
    space.offer_values[offer], space.offer_first[offer], space.offer_second[offer], space.offer_next[offer] = value, first, second, after
    if before == NONE:
        space.heads[x], space.offers[x] = offer, value
    else:
        space.offer_next[before] = offer


@uncounted
def _is_before(space, offer, value, first, second):
    other = space.offer_values[offer]
    if other != value:
        return other > value
    rank = space.ranks[space.offer_first[offer]]
    if rank != space.ranks[first]:
        return rank < space.ranks[first]
    return space.ranks[space.offer_second[offer]] < space.ranks[second]


@uncounted
def _best_offer(packed, space, node):
    """The best offer of the edges of a node as its new entry; `NONE` where there is none."""
    top, place = -math.inf, -1
    for x in range(packed.begins[node], packed.begins[node + 1]):
        if space.offers[x] > top:
            top, place = space.offers[x], x
    if place < 0:
        return NONE
    entry = space.counters[0]
    space.counters[0] += 1
    space.values[entry], space.nodes[entry], space.following[entry] = top, node, UNKNOWN
    space.ranks[entry] = space.ranks[space.last[node]] + 1
    space.last[node] = entry
    _take(packed, space, node, entry, place)
    return entry


@uncounted
def _take_parts(packed, space, scores, entry):
    """Write down the parts of a derivation, and give how many there are: `FORBIDDING` where one of them is forbidden."""
    stack, top, taken = space.stack, 0 if entry > 0 else -1, 0
    stack[0] = entry
    while top >= 0:
        known = stack[top]
        top -= 1
        if space.edges[known] == UNKNOWN:
            _look(packed, space, scores, space.nodes[known])
        part = packed.edge_parts[space.edges[known]]
        if part < len(packed.used):
            if scores[part] == FORBIDDEN:
                return FORBIDDING
            space.taken[taken] = packed.used[part]
            taken += 1
        for following in (space.second[known], space.first[known]):
            if following > 0:
                top += 1
                stack[top] = following
    return taken
