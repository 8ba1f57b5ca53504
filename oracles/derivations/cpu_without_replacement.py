"""Structures without replacement on the CPU: what `without_replacement` does, compiled, one row at a time and in the log domain.

A set may hold structures of any probability, such as all of a small space; so log-weights of nodes are kept, and no product can vanish.
The same uniforms give the same structures as there, but where rounding decides.

Source: Kool, van Hoof & Welling 2019, "Stochastic beams and where to find them", section 3 and appendix B.
"""

from __future__ import annotations

import math

import numpy as np

from ..kernels.compilation import compiled, uncounted
from .packing import PLACES, STEPS


@compiled
def sample_distinct(packed, rows, begins, order, uniforms, structures, log_probs, log_rest, threshold):
    """k structures of each walk [w, k, d], which are 0 before, and the other fields of a set, by uniforms [w, noise].

    Rows are float64 [b, d]; the walks of row i are those from ``begins[i]`` to ``begins[i + 1]`` in ``order``.
    """
    parts, steps, k = len(packed.used), packed.sizes[STEPS], structures.shape[1]
    scores, values = np.zeros(packed.sizes[PLACES]), np.zeros(len(packed.node_parts))
    greatest, mass, choices = np.empty(k * steps), np.empty(k * steps), np.empty((k, steps), np.int32)
    waiting, blocked = np.empty(steps + 2, np.int32), np.empty(k, np.int32)
    for row in range(len(rows)):
        for part in range(parts):
            scores[part] = rows[row, packed.used[part]]
        _inside(packed, scores, values)
        for at in range(begins[row], begins[row + 1]):
            w = order[at]
            greatest[:], mass[:] = -math.inf, -math.inf
            if values[-1] > -math.inf:
                greatest[0], mass[0] = -math.log(-math.log(uniforms[w, 0])), 0.0
            for place in range(k):
                log_probs[w, place] = _next(
                    packed, scores, values, place, uniforms[w], greatest, mass, choices, waiting, blocked, structures[w]
                )
            threshold[w], log_rest[w] = _greatest(greatest), _log_sum(mass)


@uncounted
def _greatest(values) -> float:
    top = -math.inf
    for value in values:
        top = max(top, value)
    return top


@uncounted
def _log_sum(values) -> float:
    top = _greatest(values)
    if top == -math.inf:
        return top
    total = 0.0
    for value in values:
        total += math.exp(value - top)
    return top + math.log(total)


@uncounted
def _value(packed, scores, values, x) -> float:
    """The log-weight of an edge."""
    return values[packed.first[x]] + values[packed.second[x]] + scores[packed.edge_parts[x]]


@uncounted
def _inside(packed, scores, values):
    """Log-weights of all nodes."""
    for node in range(packed.levels[0, 0], len(values)):
        top = -math.inf
        for x in range(packed.begins[node], packed.begins[node + 1]):
            top = max(top, _value(packed, scores, values, x))
        total = 0.0
        if top > -math.inf:
            for x in range(packed.begins[node], packed.begins[node + 1]):
                total += math.exp(_value(packed, scores, values, x) - top)
        values[node] = top + math.log(total) if total > 0.0 else -math.inf


@uncounted
def _next(packed, scores, values, place, uniforms, greatest, mass, choices, waiting, blocked, structures) -> float:
    """Write the next structure, the first again where none is left; its log-probability, -inf for one that is repeated."""
    steps, found = packed.sizes[STEPS], 0
    for entry in range(max(place, 1) * steps):
        if greatest[entry] > greatest[found]:
            found = entry
    highest, log_prob = greatest[found], mass[found]
    if highest == -math.inf:
        for part in packed.used:
            structures[place, part] = structures[0, part]
        return -math.inf
    greatest[found], mass[found] = -math.inf, -math.inf
    owner, begin = found // steps, found % steps
    count = _block(choices, place, owner, begin, blocked)
    waiting[0], waiting_top, step = len(values) - 1, 0, 0
    if waiting[0] == 0:
        waiting_top = -1
    while waiting_top >= 0:
        node = waiting[waiting_top]
        waiting_top -= 1
        chosen = choices[owner, step]
        if step >= begin:
            at = 1 + 2 * (place * steps + step)
            held = count if step == begin else 0
            chosen, chance, others = _choose(packed, scores, values, node, blocked, held, uniforms[at])
            entry = place * steps + step
            if others > -math.inf:
                mass[entry] = log_prob + others
                gumbel = mass[entry] - math.log(-math.log(uniforms[at + 1]))
                greatest[entry] = _cut_off(gumbel, highest)
            log_prob += chance
        choices[place, step] = chosen
        step += 1
        part = packed.edge_parts[chosen]
        if part < len(packed.used):
            structures[place, packed.used[part]] += 1
        for following in (packed.second[chosen], packed.first[chosen]):
            if following > 0:
                waiting_top += 1
                waiting[waiting_top] = following
    for rest in range(step, steps):
        choices[place, rest] = -1
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
def _is_blocked(blocked, count, x) -> bool:
    found = False
    for i in range(count):
        found = found or blocked[i] == x
    return found


@uncounted
def _choose(packed, scores, values, node, blocked, count, uniform):
    """An edge of those that are not blocked, its log-probability and that of all others."""
    begin, end = packed.begins[node], packed.begins[node + 1]
    top, total = -math.inf, 0.0
    for x in range(begin, end):
        if not _is_blocked(blocked, count, x):
            top = max(top, _value(packed, scores, values, x))
    for x in range(begin, end):
        if not _is_blocked(blocked, count, x):
            total += math.exp(_value(packed, scores, values, x) - top)
    running, chosen = 0.0, begin
    for x in range(begin, end):
        if _is_blocked(blocked, count, x):
            continue
        weight = math.exp(_value(packed, scores, values, x) - top)
        # Rounding may bring the threshold up to the total: the last edge of positive weight is then meant.
        chosen = x if weight > 0.0 else chosen
        running += weight
        if running > uniform * total:
            break
    most, others = -math.inf, 0.0
    for x in range(begin, end):
        if x != chosen and not _is_blocked(blocked, count, x):
            most = max(most, _value(packed, scores, values, x))
    if most > -math.inf:
        for x in range(begin, end):
            if x != chosen and not _is_blocked(blocked, count, x):
                others += math.exp(_value(packed, scores, values, x) - most)
    whole = top + math.log(total)
    return chosen, _value(packed, scores, values, chosen) - whole, (most + math.log(others) if others > 0.0 else -math.inf) - whole


@uncounted
def _cut_off(gumbel, highest) -> float:
    """A Gumbel variable, given that it is below a value: ``−log(e^−g + e^−h)``."""
    low, high = min(gumbel, highest), max(gumbel, highest)
    return low - math.log1p(math.exp(low - high))
