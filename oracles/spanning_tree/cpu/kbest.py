"""The k best spanning trees, by partition of the space into parts of which the best and the second best tree are known.

The second best tree of a part is the best one without some arc of the best. The contraction that finds the best one says which arc, and
what the best tree without it scores: another arc into the component that it enters, from what does not hang below, falls short of it by
least. When that tree is listed, its part is split in two: trees with the arc, of which the best one is that which was listed before, and
trees without it. So every tree takes two contractions.

Where trees are equally good, up to rounding, the contraction of a part may find another tree than the one that was listed for it. Such a
tree comes next, and an arc that only it has splits the part: no tree comes twice.

Source: Camerini, Fratta & Maffioli 1980, "The k best spanning arborescences of a network"; Zmigrod, Vieira & Cotterell 2021, "On finding
the k-best non-projective dependency trees". With a single root, all scores come second to the number of words that hang on the root, as in
`best_tree`: an arc of the root gives way to others of the root alone.
"""

import math
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from ...kernels.compilation import Array, inner, uncounted
from .best_tree import ArborescenceWorkspace, find

ROUNDING = 1e-14
"""How far what a tree is said to lose may be off, beside the largest score and for n² words: its score is estimated higher by that."""

UNKNOWN = -1


class TreeRankingWorkspace(NamedTuple):
    """Parts of the space of one item and trees, numbered as they are found. A part has a listed tree, and one that comes next in it."""

    values: Array  # [p] the score of the next tree, or what it is at most
    losses: Array  # [p] what the tree after the next loses beside that, where it lacks the arc of ``after``
    sources: Array  # [p] the part that was split; the first part has every tree
    arcs: Array  # [2, p] head and word of the arc that the part keeps or lacks
    keeps: Array  # [p] whether it keeps that arc
    listed: Array  # [p] the tree
    next: Array  # [p] the tree, `UNKNOWN` before it is looked for
    splits: Array  # [2, p] the arc that splits the part
    gains: Array  # [p] whether the next tree has that arc, and the listed one lacks it
    after: Array  # [2, p]
    trees: Array  # [t, n + 1] the heads of the words
    scores: Array  # [n + 1, n + 1] that a part leaves
    entries: Array  # [2n] the word by which a tree enters a component


@inner
def ranking_workspace(size: int, k: int) -> TreeRankingWorkspace:
    """Room for the k best trees of an event [size, size]."""
    parts = 2 * k + 1
    floats, integers = np.empty((2, parts)), np.empty((11, parts), np.int64)
    return TreeRankingWorkspace(
        floats[0], floats[1], integers[0], integers[1:3], integers[3], integers[4], integers[5], integers[6:8], integers[8], integers[9:11],
        np.empty((parts + 1, size), np.int64), np.empty((size, size)), np.empty(2 * size, np.int64),
    )  # fmt: skip


@inner
def list_best(row: Array, single_root: bool, best: ArborescenceWorkspace, space: TreeRankingWorkspace, numbers: Array) -> None:
    """Write the k best trees of a row [n + 1, n + 1] as 1 + their parts, [k, n]."""
    parts, trees, listed, largest = 1, 1, 1, 0.0
    space.arcs[1, 0], space.listed[0] = 0, 0
    _restrict(row, space, 0)
    for h in range(len(row)):
        for m in range(1, len(row)):
            largest = max(largest, abs(row[h, m]) if h != m and row[h, m] > -math.inf else 0.0)
    rounding = ROUNDING * len(row) * len(row) * largest
    used = find(space.scores, single_root, best)
    if used == 0:
        return
    total = _keep(row, best, space.trees[0])
    _number(space.trees[0], numbers[0])
    # The greatest value leaves first, of equal ones the earliest part.
    queue = [(math.inf, 0)]
    heappop(queue)
    _expect(space, 0, total - _second_best(best, used, single_root, space.entries, space.splits[:, 0]) + rounding, queue)
    while len(queue) > 0 and listed < len(numbers):
        part = heappop(queue)[1]
        if space.next[part] == UNKNOWN:
            _restrict(row, space, part)
            space.scores[space.splits[0, part], space.splits[1, part]] = -math.inf
            used = find(space.scores, single_root, best)
            if used > 0:
                space.next[part], space.values[part] = trees, _keep(row, best, space.trees[trees])
                space.losses[part] = _second_best(best, used, single_root, space.entries, space.after[:, part])
                heappush(queue, (-space.values[part], part))
                trees += 1
            continue
        _number(space.trees[space.next[part]], numbers[listed])
        listed += 1
        if listed == len(numbers):
            return
        for follows in range(2):
            # First the part of the tree that was just listed.
            half = parts + follows
            space.sources[half] = part
            for end in range(2):
                space.arcs[end, half] = space.splits[end, part]
            space.keeps[half] = space.gains[part] if follows == 0 else 1 - space.gains[part]
            space.listed[half] = space.next[part] if follows == 0 else space.listed[part]
            if follows == 0 and space.gains[part] == 0:
                for end in range(2):
                    space.splits[end, half] = space.after[end, part]
                _expect(space, half, space.values[part] - space.losses[part] + rounding, queue)
                continue
            _restrict(row, space, half)
            used = find(space.scores, single_root, best)
            if used == 0:
                continue
            total = _keep(row, best, space.trees[trees])
            if _differs(space.trees[trees], space.trees[space.listed[half]], space.splits[:, half]):
                space.next[half], space.gains[half], space.values[half] = trees, 1, total
                heappush(queue, (-total, half))
                trees += 1
            else:
                _expect(space, half, total - _second_best(best, used, single_root, space.entries, space.splits[:, half]) + rounding, queue)
        parts += 2


@inner
def _expect(space: TreeRankingWorkspace, part: int, value: float, queue: list[tuple[float, int]]) -> None:
    """Let a part wait for its turn to be searched for the next tree, if it has one."""
    if value > -math.inf:
        space.values[part], space.next[part], space.gains[part] = value, UNKNOWN, 0
        heappush(queue, (-value, part))


@uncounted
def _restrict(row: Array, space: TreeRankingWorkspace, part: int) -> None:
    """The scores that a part leaves."""
    scores, size = space.scores, len(row)
    for h in range(size):
        for m in range(1, size):
            scores[h, m] = row[h, m]
    while part > 0:
        head, word = space.arcs[0, part], space.arcs[1, part]
        if space.keeps[part] == 0:
            scores[head, word] = -math.inf
        else:
            for h in range(size):
                if h != head:
                    scores[h, word] = -math.inf
        part = space.sources[part]


@uncounted
def _keep(row: Array, best: ArborescenceWorkspace, heads: Array) -> float:
    """Write down the best tree; gives its score."""
    total = 0.0
    for m in range(1, len(heads)):
        heads[m] = best.head[m]
        total += row[heads[m], m]
    return total


@uncounted
def _number(heads: Array, numbers: Array) -> None:
    for m in range(1, len(heads)):
        numbers[m - 1] = 1 + heads[m] * len(heads) + m


@uncounted
def _differs(heads: Array, other: Array, arc: Array) -> bool:
    """Whether trees differ, and an arc that the first one alone has."""
    for m in range(1, len(heads)):
        if heads[m] != other[m]:
            arc[0], arc[1] = heads[m], m
            return True
    return False


@uncounted
def _second_best(best: ArborescenceWorkspace, used: int, single_root: bool, entries: Array, arc: Array) -> float:
    """What the second best tree loses beside the best one, inf where there is none, and the arc that it lacks."""
    size, least = best.arcs.shape[1], math.inf
    for component in range(1, used):
        around = -best.state[component]
        entries[component] = component if component < size else entries[best.entered[component]]
        if around > 0 and best.entered[around] == component:
            continue  # its arc in the tree is that of the component around it
        loss = _loss(best, component, single_root, entries[component], least)
        if loss < least:
            least = loss
            arc[0], arc[1] = best.head[component], entries[component]
    return least


@uncounted
def _loss(best: ArborescenceWorkspace, component: int, single_root: bool, entry: int, least: float) -> float:
    """How much another arc into a component falls short of the one that enters it, at most ``least``."""
    arcs, head, value = best.arcs, best.head[component], best.value[component]
    size, taken = arcs.shape[1], 0.0
    if not (single_root and head == 0):
        for h in range(1 if single_root else 0, size):
            if value - arcs[component, h] < least and h != head:
                word = h
                while word not in (0, entry):
                    word = best.head[word]
                if word == 0:
                    least = value - arcs[component, h]
    # From the same head into other members, of any depth.
    while component >= size:
        entered, member = best.entered[component], best.child[component]
        while member > 0:
            if member != entered:
                least = min(least, value - (arcs[member, head] - best.value[member] + taken))
            member = best.sibling[member]
        taken -= best.value[entered]
        component = entered
    return least
