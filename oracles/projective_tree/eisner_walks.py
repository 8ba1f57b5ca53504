"""Walks through charts of projective dependency trees: one derivation per walk, from the top, all walks in lockstep.

A walk decides on one complete item at a time (see `structgrad.oracles.projective_tree.eisner`): which is its farthest child, and where the
seam under the arc to it lies. What decides says what the walk is: the best tree, a sample, the r-th best, the tree of a rank, or the rank
of a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..device_tables import pairs_of_best
from .eisner import EisnerCount, EisnerTables, KBest, Semiring, fill


def dense(entries: Sequence[Tensor], zero: float) -> Tensor:
    """``[b, n + 1, n + 1, ...]`` by first and last position, from entries by width; zero where the first lies after the last."""
    size = len(entries)
    whole = entries[0].new_full((size, *entries[0].shape), zero)
    for width, values in enumerate(entries):
        whole.diagonal(width, 0, 1).copy_(values.movedim(0, -1))
    return whole.movedim(2, 0)


class Span(NamedTuple):
    """Complete items, one per walk, of positive width: tensors [w]. ``load`` is what the walk carries along."""

    leftward: Tensor
    first: Tensor
    last: Tensor
    load: Tensor

    def arc(self, child: Tensor) -> tuple[Tensor, Tensor]:
        """First and last position of the arc to this farthest child."""
        return torch.where(self.leftward, child, self.first), torch.where(self.leftward, self.last, child)

    def within(self, child: Tensor) -> Tensor:
        """A position in the range of children, whatever was chosen."""
        return within(child, self.first + (~self.leftward).long(), self.last - self.leftward.long())


def within(places: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Places, moved into a range. Only walks through what has no structure of positive weight are moved, so that they stay walks."""
    return torch.minimum(torch.maximum(places, low), high)


class WalkStep(NamedTuple):
    """The decisions on one item: the farthest child, the seam under its arc, and loads of what lies lower, upper and beyond the arc."""

    child: Tensor
    seam: Tensor
    lower: Tensor
    upper: Tensor
    beyond: Tensor


@dataclass(frozen=True)
class Chart:
    """Tables as dense arrays, to look up all ways to build an item at once: rows [w, n + 1] by child or by seam.

    Attributes:
        begin: [b, 2, n + 1, n + 1], what begins at a position and ends at the child; index 1 is 0 for right and 1 for left items.
        end: [b, 2, n + 1, n + 1], what ends at a position and begins at the child.
        lower: [b, n + 1, n + 1], right complete items up to the seam.
        upper: [b, n + 1, n + 1], left complete items down to the position after the seam.
    """

    semiring: Semiring
    begin: Tensor
    end: Tensor
    lower: Tensor
    upper: Tensor

    @classmethod
    def of(cls, tables: EisnerTables, semiring: Semiring) -> Chart:
        """The chart of filled tables."""
        right, left, right_arc, left_arc = (dense(table.entries, semiring.zero) for table in tables)
        beyond = torch.full_like(left[:, :1], semiring.zero)
        return cls(
            semiring,
            begin=torch.stack([right_arc, left], 1),
            end=torch.stack([right.mT, left_arc.mT], 1),
            lower=right,
            upper=torch.cat([left[:, 1:], beyond], 1).mT,
        )

    def children(self, item: Tensor, span: Span) -> Tensor:
        """The weights of a complete item by its farthest child: [w, n + 1]."""
        side = span.leftward.long()
        return self.semiring.times(self.begin[item, side, span.first], self.end[item, side, span.last])

    def seams(self, item: Tensor, first: Tensor, last: Tensor) -> Tensor:
        """The weights of what lies under an arc by the last word of its lower part: [w, n + 1]."""
        return self.semiring.times(self.lower[item, first], self.upper[item, last])


def walk(length: int, loads: Tensor, decide: Callable[[int, Span], WalkStep]) -> Tensor:
    """Follow derivations of trees over n words in lockstep: heads [w, n + 1], where place 0 means nothing, from first loads [w].

    Each step takes the item that was put down last, so that n steps do. The order of what a step leaves is fixed: lower, upper, beyond.
    """
    walks = torch.arange(len(loads), device=loads.device)
    heads = loads.new_zeros(len(loads), length + 1)
    # Items of positive width that wait: their widths add up to the words without a head. Two more places for what is not kept.
    waiting = loads.new_zeros(4, len(loads), length + 3)
    top = torch.zeros_like(walks)

    def put(leftward: Tensor, first: Tensor, last: Tensor, load: Tensor) -> None:
        nonlocal top
        waiting[:, walks, top] = torch.stack([leftward.long(), first, last, load])
        top = top + (last > first).long()

    none = torch.zeros_like(walks)
    put(none, none, none + length, loads)
    for number in range(length):
        top = top - 1
        leftward, first, last, load = waiting[:, walks, top]
        span = Span(leftward != 0, first, last, load)
        step = decide(number, span)
        heads[walks, step.child] = torch.where(span.leftward, last, first)
        low, high = span.arc(step.child)
        put(leftward, torch.where(span.leftward, first, step.child), torch.where(span.leftward, step.child, last), step.beyond)
        put(none + 1, step.seam + 1, high, step.upper)
        put(none, low, step.seam, step.lower)
    return heads


Decide = Callable[[int, Span], WalkStep]


def choose(chart: Chart, items: Tensor, pick: Callable[[Tensor, int], Tensor]) -> Decide:
    """Decisions by ``pick(values, t)``: places in rows [w, n + 1] of weights; t is 2 · step for a child, 2 · step + 1 for a seam."""

    def decide(number: int, span: Span) -> WalkStep:
        child = span.within(pick(chart.children(items, span), 2 * number))
        low, high = span.arc(child)
        seam = within(pick(chart.seams(items, low, high), 2 * number + 1), low, high - 1)
        return WalkStep(child, seam, span.load, span.load, span.load)

    return decide


def follow(best: KBest, items: Tensor) -> Decide:
    """Decisions that lead to the r-th best structure; the load of an item is its rank r."""
    seams, *sides = (dense(origins, 0) for origins in best.origins())
    children, places = torch.stack(sides, 1), pairs_of_best(best.k, items.device)
    pairs = places.shape[1]

    def decide(number: int, span: Span) -> WalkStep:
        # The places of the pair are those of what begins at the first position and of what ends at the last one.
        origin = children[items, span.leftward.long(), span.first, span.last, span.load]
        begin, end = places[:, origin % pairs]
        child = span.first + origin // pairs + (~span.leftward).long()
        low, high = span.arc(child)
        arc, beyond = torch.where(span.leftward, end, begin), torch.where(span.leftward, begin, end)
        below = seams[items, low, high, arc]
        lower, upper = places[:, below % pairs]
        return WalkStep(child, low + below // pairs, lower, upper, beyond)

    return decide


class Ranks:
    """How many trees lie where: the order of the decisions (child, seam, then what is lower, upper and beyond) is that of the ranks."""

    def __init__(self, size: int, device: torch.device, *, single_root: bool) -> None:
        ones = torch.ones(1, size, size, dtype=torch.int64, device=device)
        self.chart = Chart.of(fill(ones, EisnerCount(), single_root=single_root), EisnerCount())

    def unrank(self, ranks: Tensor) -> Tensor:
        """Heads [c, n + 1] of the trees of these ranks."""
        item = torch.zeros_like(ranks)

        def decide(number: int, span: Span) -> WalkStep:
            ways = self.chart.children(item, span)
            child, rank = _locate(ways, span.load)
            low, high = span.arc(child)
            seams, beyond = self._split(ways, child, low, high)
            seam, rank = _locate(seams * beyond.unsqueeze(-1), rank)
            upper = self.chart.upper[0, high, seam]
            joint = rank // beyond
            return WalkStep(child, seam, joint // upper, joint % upper, rank % beyond)

        return walk(self.chart.lower.shape[-1] - 1, ranks, decide)

    def rank(self, structures: Tensor) -> Tensor:
        """Ranks [c] of trees [c, n + 1, n + 1]; some number for what is none."""
        arcs = structures != 0
        item = torch.zeros_like(arcs[:, 0, 0], dtype=torch.int64)
        first, last = _stretches(arcs)
        position, total = torch.arange(arcs.shape[-1], device=arcs.device), item

        def decide(number: int, span: Span) -> WalkStep:
            nonlocal total
            walks = torch.arange(len(arcs), device=arcs.device)
            inside = (position >= span.first.unsqueeze(-1)) & (position <= span.last.unsqueeze(-1))
            children = (arcs[walks, torch.where(span.leftward, span.last, span.first)] & inside).to(torch.uint8)
            rightmost = len(position) - 1 - children.flip(-1).argmax(-1)
            child = span.within(torch.where(span.leftward, children.argmax(-1), rightmost))
            low, high = span.arc(child)
            seam = within(torch.where(span.leftward, last[walks, low], first[walks, high] - 1), low, high - 1)
            ways = self.chart.children(item, span)
            seams, beyond = self._split(ways, child, low, high)
            scale = span.load * beyond
            total = total + span.load * _before(ways, child) + scale * _before(seams, seam)
            return WalkStep(child, seam, scale * self.chart.upper[0, high, seam], scale, span.load)

        walk(arcs.shape[-1] - 1, torch.ones_like(item), decide)
        return total

    def _split(self, ways: Tensor, child: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Ways to choose the seam [w, n + 1], and how many ways lie beyond the arc [w]."""
        seams = self.chart.seams(torch.zeros_like(child), low, high)
        return seams, ways.gather(-1, child.unsqueeze(-1)).squeeze(-1) // seams.sum(-1).clamp(min=1)


def _locate(ways: Tensor, rank: Tensor) -> tuple[Tensor, Tensor]:
    """The place in which a rank falls, and what is left of it there."""
    place = (ways.cumsum(-1) <= rank.unsqueeze(-1)).sum(-1)
    return place, rank - _before(ways, place)


def _before(ways: Tensor, place: Tensor) -> Tensor:
    at = place.unsqueeze(-1)
    return (ways.cumsum(-1).gather(-1, at) - ways.gather(-1, at)).squeeze(-1)


def _stretches(arcs: Tensor) -> tuple[Tensor, Tensor]:
    """First and last word of the subtree of every position: [c, n + 1] each."""
    size = arcs.shape[-1]
    below = (arcs | torch.eye(size, dtype=torch.bool, device=arcs.device)).float()
    for _ in range(size.bit_length()):
        below = (below @ below).clamp(max=1)
    return below.argmax(-1), size - 1 - below.flip(-1).argmax(-1)
