"""Every operation on a hypergraph of derivations, in batched torch.

A pass goes through the levels once: bottom up for inside values (log-weights, best scores, k best, counts), top down for marginals. A walk
takes a derivation apart from the root down, all rows in lockstep: what decides on the edges says whether it is the best structure, a
sample, the r-th best or the one of a rank.

Sources: Goodman 1999, "Semiring parsing" (inside and outside values); Huang & Chiang 2005, "Better k-best parsing", section 3; Li & Eisner
2009, "First- and second-order expectation semirings", section 4 (the derivative of the outside pass); Mensch & Blondel 2018, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from ..device_tables import pairs_of_best
from ..numerics import log_sum_exp, running_sums
from .hypergraph import DEAD, UNIT, Level
from .tables import Tables

Maximum = Callable[[Tensor, int], Tensor]
"""A maximum along a dimension, or what smooths it."""


class Edges(NamedTuple):
    """The edges below one node of every walk: [*walks, e], padded with edges to `DEAD`."""

    first: Tensor
    second: Tensor
    parts: Tensor


Decision = Callable[[int, Tensor, Tensor, Edges], tuple[Tensor, Tensor, Tensor]]
"""From the step, nodes, their labels and their edges to the places of the chosen edges, and labels of the two nodes that they lead to."""


def inside(tables: Tables, rows: Tensor, maximum: Maximum = log_sum_exp) -> Tensor:
    """Values of all nodes [b, nodes] from parts [b, d]; differentiable, and exact at any scale with `log_sum_exp`: -inf where none is.

    ``maximum(values, 2)`` of [b, h, e] combines the edges of a level.
    """
    padded = torch.nn.functional.pad(rows, (0, 1))
    values: Tensor = leaves(tables, rows)
    # 0, which depends on the rows as all values do, where the empty item is the whole structure too.
    values[:, UNIT] = padded[:, -1]
    for level in tables.levels:
        values[:, level.heads] = maximum(_joined(level, values, padded), 2)
    return values


def leaves(tables: Tables, rows: Tensor) -> Tensor:
    """Values [b, nodes] before the first level: 0 at `UNIT`, -inf elsewhere."""
    values = rows.new_full((len(rows), tables.nodes), -math.inf)
    values[:, UNIT] = 0
    return values


def _joined(level: Level, values: Tensor, padded: Tensor) -> Tensor:
    """[b, h, e]: what each edge of a level adds up to, from values of nodes and of parts."""
    return _led_to(level, values) + _gathered(padded, level.parts)


def led_to(level: Level, values: Tensor) -> list[Tensor]:
    """[b, h, e] each: values of the one or two nodes that each edge leads to."""
    return [_gathered(values, nodes) for nodes in (level.first, level.second) if nodes is not None]


def _led_to(level: Level, values: Tensor) -> Tensor:
    """[b, h, e]: what the nodes that each edge leads to add up to."""
    first, *second = led_to(level, values)
    return first + second[0] if second else first


def _gathered(values: Tensor, places: Tensor) -> Tensor:
    return values.index_select(1, places.flatten()).reshape(len(values), *places.shape)


def value(tables: Tables, rows: Tensor, maximum: Maximum = log_sum_exp) -> Tensor:
    """The value of whole structures: [b]."""
    return inside(tables, rows, maximum)[:, tables.root]


def decisions(tables: Tables, rows: Tensor) -> Tensor:
    """Log-probabilities [b, d] of the edge that takes each part, given its node; -inf where that is infeasible. Differentiable.

    For derivations in which every part is taken by one edge.
    """
    padded, values, edges = torch.nn.functional.pad(rows, (0, 1)), leaves(tables, rows), []
    for level in tables.levels:
        joined = _joined(level, values, padded)
        values[:, level.heads] = total = log_sum_exp(joined, 2)
        possible = joined > -math.inf
        edges.append(torch.where(possible, joined - torch.where(possible.any(2), total, 0).unsqueeze(2), -math.inf).flatten(1))
    return torch.nn.functional.pad(torch.cat(edges, 1), (0, 1), value=-math.inf).index_select(1, tables.taking[:, 0])


def _chances(tables: Tables, rows: Tensor) -> tuple[list[Tensor], Tensor]:
    """Per level [b, h, e] the probability of each edge below its node, all 0 where nothing is feasible; and the log-partition [b]."""
    padded, values, chances = torch.nn.functional.pad(rows, (0, 1)), leaves(tables, rows), []
    for level in tables.levels:
        weights = _joined(level, values, padded)
        top = weights.amax(2, keepdim=True)
        weights = (weights - torch.where(top > -math.inf, top, 0)).exp_()
        total = weights.sum(2, keepdim=True)
        values[:, level.heads] = (top + total.log()).squeeze(2)
        chances.append(weights.div_(torch.where(total > 0, total, 1)))
    return chances, values[:, tables.root]


def marginals(tables: Tables, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Marginals [b, d] and the log-partition [b], by inside weights bottom up and probabilities of edges top down; no gradients."""
    chances, log_partition = _chances(tables, rows)
    edges = Sums(tables, rows)
    for place in reversed(range(len(tables.levels))):
        edges.put(place, edges.above(place).unsqueeze(2) * chances[place])
    return edges.by_part(), log_partition


class Sums:
    """Numbers of edges, filled top down, and their sums by the node that they lead to and by the part that they take."""

    def __init__(self, tables: Tables, rows: Tensor, root: float = 1.0) -> None:
        self.tables, self.root = tables, root
        self.ends = [0, *accumulate(level.first.numel() for level in tables.levels)]
        self.values = rows.new_zeros(len(rows), self.ends[-1] + 1)

    def put(self, place: int, edges: Tensor) -> None:
        """Keep what the edges [b, h, e] of a level carry."""
        self.values[:, self.ends[place] : self.ends[place + 1]] = edges.flatten(1)

    def above(self, place: int) -> Tensor:
        """Sums for the nodes [b, h] of a level, once all above it is filled."""
        sums = _gathered(self.values, self.tables.above[place]).sum(2)
        at_root = self.tables.root - self.tables.levels[place].start
        if 0 <= at_root < sums.shape[1]:
            sums[:, at_root] += self.root
        return sums

    def by_part(self) -> Tensor:
        """[b, d]."""
        return _gathered(self.values, self.tables.taking).sum(2)


def covariance_product(tables: Tables, rows: Tensor, along: Tensor) -> Tensor:
    """``Cov(z) v`` [b, d], the derivative of the marginals along v [b, d], by the tangents of both passes; no gradients."""
    chances, _ = _chances(tables, rows)
    padded, values = torch.nn.functional.pad(torch.where(rows > -math.inf, along, 0), (0, 1)), rows.new_zeros(len(rows), tables.nodes)
    changes = []
    for level, chance in zip(tables.levels, chances, strict=True):
        moved = _joined(level, values, padded)
        mean = (chance * moved).sum(2, keepdim=True)
        values[:, level.heads] = mean.squeeze(2)
        changes.append(chance * (moved - mean))
    edges, moving = Sums(tables, rows), Sums(tables, rows, root=0.0)
    for place in reversed(range(len(tables.levels))):
        heads = edges.above(place).unsqueeze(2)
        moving.put(place, moving.above(place).unsqueeze(2) * chances[place] + heads * changes[place])
        edges.put(place, heads * chances[place])
    return moving.by_part()


def walk(tables: Tables, labels: Tensor, decide: Decision) -> Tensor:
    """Structures from the root down: boolean [*walks, d], from the labels [*walks] of the roots; int64 where parts are counted.

    Every step takes the next node of a preorder, in as many steps as the longest derivation has nodes.
    """
    shape, device = tuple(labels.shape), labels.device
    counted = tables.binary is not None
    taken = torch.zeros((*shape, tables.parts + 1), dtype=torch.int64 if counted else torch.bool, device=device)
    take = taken.scatter_add_ if counted else taken.scatter_
    one = torch.ones((*shape, 1), dtype=taken.dtype, device=device)
    if all(level.second is None for level in tables.levels):
        node = torch.full_like(labels, tables.root)
        for step in range(tables.steps):
            edges = Edges(*(table[node] for table in tables.edges))
            place, labels, _ = decide(step, node, labels, edges)
            node, part = (table.gather(-1, place.unsqueeze(-1)) for table in (edges.first, edges.parts))
            take(-1, part, one)
            node = node.squeeze(-1)
        return taken[..., :-1]
    # Nodes that wait, each with its label, on a stack whose place 0 holds `UNIT`: there a walk stays that is at its end.
    waiting = torch.full((2, *shape, tables.waiting + 2), UNIT, device=device)
    waiting[0, ..., 1], waiting[1, ..., 1] = tables.root, labels
    top = torch.ones(shape, dtype=torch.int64, device=device)
    for step in range(tables.steps):
        node, label = waiting.gather(-1, top.expand(2, *shape).unsqueeze(-1)).squeeze(-1).unbind(0)
        edges = Edges(*(table[node] for table in tables.edges))
        place, of_first, of_second = decide(step, node, label, edges)
        first, second, part = (table.gather(-1, place.unsqueeze(-1)).squeeze(-1) for table in edges)
        take(-1, part.unsqueeze(-1), one)
        top = (top - 1).clamp(min=0)
        for following, load in ((second, of_second), (first, of_first)):
            above = (top + 1).expand(2, *shape).unsqueeze(-1)
            waiting.scatter_(-1, above, torch.stack([following, load]).unsqueeze(-1))
            # What is no item does not wait, and is written over.
            top = top + (following > DEAD).long()
    return taken[..., :-1]


def argmax(tables: Tables, rows: Tensor) -> Tensor:
    """The best structure of every row: boolean [b, d]. Of equal scores at a node, the first edge is taken."""
    chosen = torch.zeros((len(rows), tables.nodes), dtype=torch.int64, device=rows.device)
    values, padded = leaves(tables, rows), torch.nn.functional.pad(rows, (0, 1))
    for level in tables.levels:
        # A part of all edges of a node is no reason to prefer one, and comes after, where its size could hide what is.
        each = level.parts.shape[1] > 1
        value, place = (_joined(level, values, padded) if each else _led_to(level, values)).max(2)
        value = value if each else value + _gathered(padded, level.parts).squeeze(2)
        # Where everything is forbidden, what comes out is still a structure.
        chosen[:, level.heads] = torch.where(value > -math.inf, place, tables.possible[level.heads])
        values[:, level.heads] = value

    def best(step: int, node: Tensor, label: Tensor, edges: Edges) -> tuple[Tensor, Tensor, Tensor]:
        return chosen.gather(1, node.unsqueeze(1)).squeeze(1), label, label

    return walk(tables, torch.zeros(len(rows), dtype=torch.int64, device=rows.device), best)


def sample(tables: Tables, rows: Tensor, uniforms: Tensor) -> Tensor:
    """Exact samples: boolean [s, b, d] from float64 uniforms [s, b, steps]; 0 for an infeasible row.

    One for each node in preorder, but for those in `Tables.given`.
    """
    values, padded = inside(tables, rows), torch.nn.functional.pad(rows, (0, 1))
    items = torch.arange(len(rows), device=rows.device).unsqueeze(-1)
    # One more, for structures that are made in one way.
    uniforms = torch.nn.functional.pad(uniforms, (0, 1))
    used = torch.zeros((*uniforms.shape[:-1], 1), dtype=torch.int64, device=rows.device)

    def drawn(step: int, node: Tensor, label: Tensor, edges: Edges) -> tuple[Tensor, Tensor, Tensor]:
        nonlocal used
        uniform = uniforms.gather(-1, used.clamp(max=uniforms.shape[-1] - 1))
        used = used + (~tables.given[node]).long().unsqueeze(-1)
        sums = running_sums(values[items, edges.first] + values[items, edges.second] + padded[items, edges.parts])
        total = sums[..., -1:]
        # Rounding may bring the threshold up to the total: the last edge of positive weight is then meant.
        place = torch.minimum((sums <= uniform * total).sum(-1), (sums < total).sum(-1))
        return place, label, label

    structures = walk(tables, torch.zeros(uniforms.shape[:-1], dtype=torch.int64, device=rows.device), drawn)
    return structures * (values[:, tables.root] > -math.inf).unsqueeze(-1)


def kbest(tables: Tables, rows: Tensor, k: int) -> Tensor:
    """The k best structures of every row, best first: boolean [k, b, d]; k is at most their number."""
    firsts, seconds = pairs_of_best(k, rows.device)
    values = rows.new_full((len(rows), tables.nodes, k), -math.inf)
    values[:, UNIT, 0] = 0
    padded = torch.nn.functional.pad(rows, (0, 1))
    pointers = torch.zeros((len(rows), tables.nodes, k), dtype=torch.int64, device=rows.device)
    for level in tables.levels:
        joint = values[:, level.first]
        if level.second is not None:
            joint = joint[..., firsts] + values[:, level.second][..., seconds]
        joint = (joint + _gathered(padded, level.parts).unsqueeze(-1)).flatten(2)
        joint = torch.nn.functional.pad(joint, (0, max(0, k - joint.shape[2])), value=-math.inf)
        order = joint.sort(dim=2, descending=True, stable=True)
        values[:, level.heads], pointers[:, level.heads] = order.values[..., :k], order.indices[..., :k]
    items = torch.arange(len(rows), device=rows.device)

    def ranked(step: int, node: Tensor, place: Tensor, edges: Edges) -> tuple[Tensor, Tensor, Tensor]:
        pointer, joins = pointers[items, node, place], tables.joins[node]
        pair = torch.where(joins, pointer % len(firsts), 0)
        first, second = torch.where(joins, firsts[pair], pointer % k), seconds[pair]
        return pointer // torch.where(joins, len(firsts), k), first, second

    return walk(tables, torch.arange(k, device=rows.device).unsqueeze(-1).expand(k, len(rows)).contiguous(), ranked)


def unrank(tables: Tables, ranks: Tensor) -> Tensor:
    """The structures of int64 ranks [c], boolean [c, d]: by the edge of the root, then by its first node, then by its second."""
    starts, counts = tables.ranking

    def placed(step: int, node: Tensor, rank: Tensor, edges: Edges) -> tuple[Tensor, Tensor, Tensor]:
        place = ((starts[node] <= rank.unsqueeze(-1)).sum(-1) - 1).clamp(min=0)
        within = rank - starts[node].gather(-1, place.unsqueeze(-1)).squeeze(-1)
        behind = counts[edges.second.gather(-1, place.unsqueeze(-1)).squeeze(-1)].clamp(min=1)
        return place, within // behind, within % behind

    return walk(tables, ranks, placed)


def rank(tables: Tables, structures: Tensor) -> Tensor:
    """The inverse of `unrank`: int64 [c] from structures [c, d].

    Where a part of the structure scores 1 and any other −1, it alone is the best; so the best edges are its derivation. Parts that are
    counted score nothing: the others tell structures apart.
    """
    starts, counts = tables.ranking
    votes = 2 * (structures != 0).double() - 1
    votes = torch.nn.functional.pad(votes if tables.binary is None else votes * tables.binary, (0, 1))
    values, ranks = leaves(tables, votes), torch.zeros((len(votes), tables.nodes), dtype=torch.int64, device=votes.device)
    for level in tables.levels:
        values[:, level.heads], place = _joined(level, values, votes).max(2)
        first, second = (table[level.heads].gather(1, place.mT).mT for table in tables.edges[:2])
        begin = starts[level.heads].gather(1, place.mT).mT
        # Off the derivation numbers may wrap around; they are never read.
        ranks[:, level.heads] = begin + ranks.gather(1, first) * counts[second] + ranks.gather(1, second)
    return ranks[:, tables.root]
