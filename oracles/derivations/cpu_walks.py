"""Walks from the root down, compiled: to a sample, to the structure of a rank, and to structures without replacement.

Source: Kool, van Hoof & Welling 2019, "Stochastic beams and where to find them", section 3 and appendix B, for the last, for sequences.
"""

import math

import numpy as np
from numba import uint64

from ..kernels.compilation import compiled, inlined, uncounted
from ..kernels.exponential import FARTHEST
from ..kernels.parts import mark
from .packing import PLACES, STEPS, WAITING


@compiled
def unrank(packed, ranking, ranks, structures):
    """The structures of ranks: by the edge of the root, then by its first node, then by its second. Adds their parts to integers [c, d]."""
    waiting, places = np.empty(packed.sizes[WAITING] + 2, np.int64), np.empty(packed.sizes[WAITING] + 2, np.int64)
    for row in range(len(ranks)):
        # On with first nodes, while second ones wait with their ranks.
        node, top, rank = len(packed.node_parts) - 1, 0, ranks[row]
        while node > 0:
            x, end = packed.begins[node], packed.begins[node + 1]
            while end - x > 1:
                middle = (x + end) // 2
                if ranking.starts[middle] <= rank:
                    x = middle
                else:
                    end = middle
            if packed.edge_entries[x] >= 0:
                structures[row, packed.edge_entries[x]] += 1
            node, second, rank = packed.first[x], packed.second[x], rank - ranking.starts[x]
            if second > 0:
                behind = ranking.counts[second]
                waiting[top], places[top] = second, rank % behind
                rank //= behind
                top += 1
            if node == 0 and top > 0:
                top -= 1
                node, rank = waiting[top], places[top]


@uncounted
def descend(packed, lanes, space, wide, lane, uniforms, waiting, parts):
    """The parts of a sample, and how many there are: the edge of every node, by its probability given the node.

    An item made of nothing in one way takes no uniform.
    """
    nodes, weights, found, step = space.nodes, space.weights, 0, 0
    node, top = len(packed.node_parts) - 1, 0
    while node > 0:
        begin, end = packed.begins[node], packed.begins[node + 1]
        chosen = begin
        if end > begin + 1 or packed.first[begin] + packed.second[begin] > 0:
            threshold, running = uniforms[step] * nodes[node * lanes + lane], 0.0
            step += 1
            for x in range(uint64(begin), uint64(end)):
                first = uint64(packed.first[x] * lanes + lane)
                term = nodes[first]
                if packed.second[x] > 0:
                    term *= nodes[uint64(packed.second[x] * lanes + lane)]
                term *= weights[uint64(packed.edge_parts[x] * lanes + lane)]
                if wide:
                    second, part = packed.second[x] * lanes + lane, packed.edge_parts[x] * lanes + lane
                    behind = space.exponents[first] + space.exponents[second] + space.part_exponents[part]
                    term *= 2.0 ** max(behind - space.exponents[node * lanes + lane], FARTHEST)
                # Rounding may bring the threshold up to the total: the last edge of positive weight is then meant.
                chosen = x if term > 0.0 else chosen
                running += term
                if running > threshold:
                    break
        node, top, found = next_node(packed, chosen, waiting, top, parts, found)
    return found


@inlined
def next_node(packed, chosen, waiting, top, parts, found):
    """Take the part of an edge; gives the node that comes next in preorder, how many others wait, and how many parts are found."""
    chosen = uint64(chosen)
    if packed.edge_entries[chosen] >= 0:
        parts[found] = packed.edge_entries[chosen]
        found += 1
    node, second = packed.first[chosen], packed.second[chosen]
    if second > 0:
        if node > 0:
            waiting[top] = second
            top += 1
        else:
            node = second
    elif node == 0 and top > 0:
        top -= 1
        node = waiting[top]
    return node, top, found


@compiled
def sample_distinct(packed, rows, begins, order, uniforms, structures, log_probs, log_rest, threshold):
    """k structures without replacement of each walk [w, k, d], which are 0 before, and the other fields of a set, by uniforms [w, noise].

    Rows are float64 [b, d]; the walks of row i are those from ``begins[i]`` to ``begins[i + 1]`` in ``order``.

    All derivations with a common beginning are a set, whose mass is a product of probabilities of edges given their nodes. The greatest of
    ``log p(z) + Gumbel`` over a set is a Gumbel variable at its log-mass, whichever attains it. So the set of a beginning is split into
    those that continue by the edge of the winner, which keep the greatest value, and all that continue otherwise, whose greatest is a
    Gumbel variable at their log-mass, cut off there. The greatest of all that was split off is the next structure.

    Log-weights of nodes are kept, since no product can vanish there: a set may hold structures of any probability, such as all of a small
    space. What structure i splits off at its step s stands at i steps + s of ``greatest`` and ``mass``.
    """
    parts, steps, k = len(packed.used), packed.sizes[STEPS], structures.shape[1]
    scores, values = np.zeros(packed.sizes[PLACES]), np.zeros(len(packed.node_parts))
    greatest, mass, choices = np.empty(k * steps), np.empty(k * steps), np.empty((k, steps), np.int32)
    waiting, found, blocked = np.empty(steps + 2, np.int64), np.empty(steps, np.int64), np.empty(k, np.int32)
    logs = np.empty(np.diff(packed.begins).max())
    for row in range(len(rows)):
        for part in range(parts):
            scores[part] = rows[row, packed.used[part]]
        for node in range(packed.levels[0, 0], len(values)):
            values[node] = _log_sum(logs, _weigh(packed, scores, values, node, logs))[2]
        for at in range(begins[row], begins[row + 1]):
            w = order[at]
            greatest[:], mass[:] = -math.inf, -math.inf
            if values[-1] > -math.inf:
                greatest[0], mass[0] = -math.log(-math.log(uniforms[w, 0])), 0.0
            for place in range(k):
                log_probs[w, place] = _next_distinct(
                    packed, scores, values, logs, place, uniforms[w], greatest, mass, choices, blocked, waiting, found, structures[w]
                )
            threshold[w], log_rest[w] = greatest.max(), _log_sum(mass, len(mass))[2]


@uncounted
def _weigh(packed, scores, values, node, logs) -> int:
    """Log-weights of the edges of a node, and how many there are."""
    begin, end = packed.begins[node], packed.begins[node + 1]
    for x in range(begin, end):
        logs[x - begin] = values[packed.first[x]] + values[packed.second[x]] + scores[packed.edge_parts[x]]
    return end - begin


@uncounted
def _log_sum(logs, count):
    """The greatest of some logarithms, the sum of all as a multiple of it, and the logarithm of that sum."""
    top, sum_ = -math.inf, 0.0
    for i in range(count):
        top = max(top, logs[i])
    for i in range(count if top > -math.inf else 0):
        sum_ += math.exp(logs[i] - top)
    return top, sum_, top + math.log(sum_) if sum_ > 0.0 else -math.inf


@uncounted
def _next_distinct(packed, scores, values, logs, place, uniforms, greatest, mass, choices, blocked, waiting, parts, structures) -> float:
    """Write the next structure, the first again where none is left; its log-probability, -inf for one that is repeated."""
    steps, best = packed.sizes[STEPS], 0
    for entry in range(max(place, 1) * steps):
        if greatest[entry] > greatest[best]:
            best = entry
    highest, log_prob = greatest[best], mass[best]
    if highest == -math.inf:
        for part in packed.used:
            structures[place, part] = structures[0, part]
        return -math.inf
    greatest[best], mass[best] = -math.inf, -math.inf
    # It begins as the structure that it was split off, up to a step; there it takes no edge that one with the same beginning took.
    owner, begin = best // steps, best % steps
    held = _block(choices, place, owner, begin, blocked)
    node, top, found, step = len(values) - 1, 0, 0, 0
    while node > 0:
        chosen = choices[owner, step]
        if step >= begin:
            at, entry = 1 + 2 * (place * steps + step), place * steps + step
            chosen, chance, others = _choose(packed, scores, values, logs, node, blocked, held if step == begin else 0, uniforms[at])
            if others > -math.inf:
                mass[entry] = log_prob + others
                # A Gumbel variable g at that log-mass, given that it is below h: −log(e^−g + e^−h).
                gumbel = mass[entry] - math.log(-math.log(uniforms[at + 1]))
                low, high = min(gumbel, highest), max(gumbel, highest)
                greatest[entry] = low - math.log1p(math.exp(low - high))
            log_prob += chance
        choices[place, step] = chosen
        step += 1
        node, top, found = next_node(packed, chosen, waiting, top, parts, found)
    choices[place, step:] = -1
    mark(parts, found, structures[place])
    return log_prob


@uncounted
def _block(choices, place, owner, begin, blocked) -> int:
    """The edges that structures with the same beginning took after it, and how many."""
    count = 0
    for other in range(place):
        same = True
        for step in range(begin):
            same = same and choices[other, step] == choices[owner, step]
        if same:
            blocked[count] = choices[other, begin]
            count += 1
    return count


@uncounted
def _choose(packed, scores, values, logs, node, blocked, held, uniform):
    """An edge of those that are not blocked, its log-probability and that of all others."""
    begin, count, running, chosen = packed.begins[node], _weigh(packed, scores, values, node, logs), 0.0, 0
    for i in range(held):
        logs[blocked[i] - begin] = -math.inf
    top, sum_, whole = _log_sum(logs, count)
    for i in range(count):
        weight = math.exp(logs[i] - top)
        # Rounding may bring the threshold up to the total: the last edge of positive weight is then meant.
        chosen = i if weight > 0.0 else chosen
        running += weight
        if running > uniform * sum_:
            break
    chance, logs[chosen] = logs[chosen], -math.inf
    return begin + chosen, chance - whole, _log_sum(logs, count)[2] - whole
