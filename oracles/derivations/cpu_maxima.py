"""The best derivation, compiled: see `cpu`."""

import math

import numpy as np
from numba import uint64

from ..kernels.compilation import compiled, inlined, inner, uncounted
from ..kernels.parts import allowed
from ..kernels.vectors import WIDTH, add, greatest, load, spread, store
from .cpu_rows import gather, is_in_place, joint_sum, kind_of, known, own, segment_of, size_of, vectors_of, write
from .cpu_walks import next_node
from .packing import CHAIN, CHART, PLACES, STEPS, TREE, WAITING, Numbers, Packed


@compiled
def argmax(lanes: int, doubles, singles, out_doubles, out_singles, numbers, *tables):
    """The best structure of each row; of edges that tie, the first. Structures [b, 1, d] or numbers of parts as in `sample`."""
    packed, rows, structures = Packed(*tables), Numbers(doubles, singles), Numbers(out_doubles, out_singles)
    parts, waiting = np.empty(packed.sizes[STEPS] + 1, np.int64), np.empty(packed.sizes[WAITING] + 2, np.int64)
    scores, best = scores_and_nodes(packed, lanes)
    for start in range(0, size_of(rows), lanes):
        count = min(lanes, size_of(rows) - start)
        maximise(packed, lanes, rows, start, count, 0, -math.inf, scores, best)
        for lane in range(count):
            found = follow(packed, lanes, rows, start, lanes == 1, scores, best, lane, waiting, parts)
            if rows.singles.shape[0] > 0:
                found = allowed(rows.singles[start + lane], parts, found)
            else:
                found = allowed(rows.doubles[start + lane], parts, found)
            write(parts, found, structures, numbers, start + lane, 0)


@inner
def scores_and_nodes(packed, lanes: int):
    """Room for a pass of maxima: the scores of parts, and the best value of each node, 0 for the empty item."""
    scores = np.empty(packed.sizes[PLACES] * lanes + WIDTH)
    scores[len(packed.straight) * WIDTH * lanes :] = 0.0
    return scores, np.zeros(len(packed.node_parts) * lanes + WIDTH)


@uncounted
def maximise(packed, lanes, rows, start, count, done, floor, scores, best):
    """Scores of parts, from the first vectors on that are to be gathered and at least so high, and the best value of every node.

    Where an item's scores are gathered from the first one on, and may be as low as they are, those of segments in place are not copied.
    """
    for x in range(len(packed.segments)):
        segment, kind = segment_of(packed, lanes, x), kind_of(packed, lanes, x)
        in_place = is_in_place(packed, lanes, x) and floor == -math.inf
        ready = packed.segments[x, 8] if lanes == 1 else vectors_of(packed, lanes)
        if ready > done:
            if not in_place:
                gather(packed, lanes, rows, start, count, done, ready, scores)
            if floor > -math.inf:
                for at in range(done * WIDTH, ready * WIDTH, WIDTH):
                    store(scores, at, greatest(load(scores, at), spread(floor)))
            done = ready
        else:
            in_place = False
        if in_place and rows.singles.shape[0] > 0:
            _maximise_edges_of_chain(packed.columns, 3, rows.singles, start * rows.singles.shape[1], best, segment)
        elif in_place:
            _maximise_edges_of_chain(packed.columns, 3, rows.doubles, start * rows.doubles.shape[1], best, segment)
        elif kind == CHAIN:
            _maximise_edges_of_chain(packed.columns, 2, scores, 0, best, segment)
        elif kind == CHART:
            _maximise_edges(packed.columns, scores, best, known(segment, CHART))
        elif kind == TREE:
            _maximise_edges(packed.columns, scores, best, known(segment, TREE))
        else:
            _maximise_edges(packed.columns, scores, best, segment)


@inlined
def _maximise_edges(columns, scores, best, segment):
    for i in range(0, segment.height, WIDTH):
        top = spread(-math.inf)
        for k in range(segment.begin, segment.end):
            top = greatest(joint_sum(best, scores, columns, k, segment, i), top)
        # What all edges take is no reason to prefer one, and comes after, where its size could hide what is.
        store(best, segment.start + i, top if segment.each else add(top, own(scores, columns, segment, i)))


@inlined
def _maximise_edges_of_chain(columns, place, scores, row, best, segment):
    """Maxima for four vectors of nodes at a time, as in `_sum_edges_of_chain`; the last one of a segment may be repeated.

    Scores stand at numbers of parts, or in a row at their entries.
    """
    last = max(segment.height - 1, 0) // WIDTH * WIDTH
    for i in range(0, segment.height, 4 * WIDTH):
        one, two, three, four = spread(-math.inf), spread(-math.inf), spread(-math.inf), spread(-math.inf)
        at, bt, ct = min(i + WIDTH, last), min(i + 2 * WIDTH, last), min(i + 3 * WIDTH, last)
        for k in range(segment.begin, segment.end):
            value, part = spread(best[uint64(columns[k, 0])]), row + columns[k, place]
            one, two = greatest(add(value, load(scores, part + i)), one), greatest(add(value, load(scores, part + at)), two)
            three = greatest(add(value, load(scores, part + bt)), three)
            four = greatest(add(value, load(scores, part + ct)), four)
        store(best, segment.start + i, one)
        store(best, segment.start + at, two)
        store(best, segment.start + bt, three)
        store(best, segment.start + ct, four)


@uncounted
def follow(packed, lanes, rows, start, in_place, scores, best, lane, waiting, parts):
    """The parts of the best derivation, and how many there are: of every node the first of the best edges, looked for again.

    Scores are those of a row, where they stay in place.
    """
    node, top, none, found = len(packed.node_parts) - 1, 0, len(packed.used), 0
    while node > 0:
        chosen, end = packed.begins[node], packed.begins[node + 1]
        if packed.node_parts[node] >= none:
            value = best[node * lanes + lane]
            while chosen < end - 1 and _value(packed, rows, start, in_place, scores, best, chosen, lanes, lane) != value:
                chosen += 1
        else:
            highest = -math.inf
            for x in range(packed.begins[node], end):
                value = best[uint64(packed.first[uint64(x)] * lanes + lane)]
                if packed.second[uint64(x)] > 0:
                    value += best[uint64(packed.second[uint64(x)] * lanes + lane)]
                chosen = x if value > highest else chosen
                highest = max(value, highest)
        node, top, found = next_node(packed, chosen, waiting, top, parts, found)
    return found


@inlined
def _value(packed, rows, start, in_place, scores, best, x, lanes, lane) -> float:
    x = uint64(x)
    value = best[uint64(packed.first[x] * lanes + lane)] + best[uint64(packed.second[x] * lanes + lane)]
    if not in_place:
        return value + scores[uint64(packed.edge_parts[x] * lanes + lane)]
    entry = packed.edge_entries[x]
    if entry < 0:
        return value
    return value + (rows.singles[start, uint64(entry)] if rows.singles.shape[0] > 0 else rows.doubles[start, uint64(entry)])
