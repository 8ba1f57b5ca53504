"""Operations on derivations in batched torch: on devices, for derivatives of any order, and where a kernel refuses a row.

A pass goes through the levels once: bottom up for inside values (log-weights or best scores), top down for marginals. A walk takes a
derivation apart from the root down, all rows in lockstep: the edges that it takes are those of the best structure, or of a sample.

Sources: Goodman 1999, "Semiring parsing" (inside and outside values); Li & Eisner 2009, "First- and second-order expectation semirings",
section 4 (the derivative of the outside pass); Mensch & Blondel 2018, section 3.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..numerics import log_sum_exp, running_sums
from .hypergraph import UNIT
from .packing import STEPS, WAITING
from .tables import LevelTables, Tables

Maximum = Callable[[Tensor, int], Tensor]
"""A maximum along a dimension, or what smooths it."""


def inside(tables: Tables, rows: Tensor, maximum: Maximum = log_sum_exp) -> Tensor:
    """Values of all nodes [b, nodes + 1] from parts [b, d]; differentiable, and exact at any scale with `log_sum_exp`: -inf where none is.

    ``maximum(values, 2)`` of [b, h, e] combines the edges of a level.
    """
    padded, values = pad(rows, (0, 1)), leaves(tables, rows)
    # 0, which depends on the rows as all values do, where the empty item is the whole structure too.
    values[:, UNIT] = padded[:, -1]
    for level in tables.levels:
        values[:, level.heads] = maximum(_joined(level, values, padded), 2)
    return values


def leaves(tables: Tables, rows: Tensor) -> Tensor:
    """Values [b, nodes + 1] before the first level: 0 at `UNIT`, -inf elsewhere."""
    values = rows.new_full((len(rows), tables.root + 2), -math.inf)
    values[:, UNIT] = 0
    return values


def led_to(level: LevelTables, values: Tensor) -> list[Tensor]:
    """[b, h, e] each: values of the one or two nodes that each edge leads to."""
    return [_gathered(values, nodes) for nodes in (level.first, level.second) if nodes is not None]


def _joined(level: LevelTables, values: Tensor, padded: Tensor) -> Tensor:
    """[b, h, e]: what each edge of a level adds up to, from values of nodes and of parts."""
    return _led_to(level, values) + _gathered(padded, level.parts)


def _led_to(level: LevelTables, values: Tensor) -> Tensor:
    """[b, h, e]: what the nodes that each edge leads to add up to."""
    first, *second = led_to(level, values)
    return first + second[0] if second else first


def _gathered(values: Tensor, places: Tensor) -> Tensor:
    return values.index_select(1, places.flatten()).reshape(len(values), *places.shape)


def decisions(tables: Tables, rows: Tensor) -> Tensor:
    """Log-probabilities [b, d] of the edge that takes each part, given its node; -inf where that is infeasible. Differentiable.

    For derivations in which every part is taken by one edge.
    """
    padded, values, edges = pad(rows, (0, 1)), leaves(tables, rows), []
    for level in tables.levels:
        joined = _joined(level, values, padded)
        values[:, level.heads] = total = log_sum_exp(joined, 2)
        possible = joined > -math.inf
        edges.append(torch.where(possible, joined - torch.where(possible.any(2), total, 0).unsqueeze(2), -math.inf).flatten(1))
    return pad(torch.cat(edges, 1), (0, 1), value=-math.inf).index_select(1, tables.taking[:, 0])


def _chances(tables: Tables, rows: Tensor) -> tuple[list[Tensor], Tensor]:
    """Per level [b, h, e] the probability of each edge below its node, all 0 where nothing is feasible; and the log-partition [b]."""
    padded, values, chances = pad(rows, (0, 1)), leaves(tables, rows), []
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
    for level, chance in zip(reversed(tables.levels), reversed(chances), strict=True):
        edges.put(level, edges.above(level).unsqueeze(2) * chance)
    return edges.by_part(), log_partition


def max_marginals(tables: Tables, rows: Tensor) -> Tensor:
    """The value [b, d] of the best structure that takes each part, -inf where none does; no gradients."""
    padded, values, slacks = pad(rows, (0, 1)), leaves(tables, rows), []
    for level in tables.levels:
        joined = _joined(level, values, padded)
        values[:, level.heads] = best = joined.amax(2)
        slacks.append(joined - torch.where(best > -math.inf, best, 0).unsqueeze(2))
    # What the best structure through an edge has less than the best one through its node.
    edges = Sums(tables, rows, root=values[:, tables.root], none=-math.inf, add=torch.amax)
    for level, slack in zip(reversed(tables.levels), reversed(slacks), strict=True):
        edges.put(level, edges.above(level).unsqueeze(2) + slack)
    return edges.by_part()


class Sums:
    """Numbers of edges, filled top down, and their sums by the node that they lead to and by the part that they take.

    With another ``add``, such as a maximum, and what is ``none`` to it, results of that in the place of sums.
    """

    def __init__(
        self, tables: Tables, rows: Tensor, root: Tensor | float = 1.0, none: float = 0.0, add: Callable[[Tensor, int], Tensor] = torch.sum
    ) -> None:
        self.tables, self.root, self.add = tables, root, add
        self.values = rows.new_full((len(rows), len(tables.first)), none)

    def put(self, level: LevelTables, edges: Tensor) -> None:
        """Keep what the edges [b, h, e] of a level carry."""
        self.values[:, level.edges] = edges.flatten(1)

    def above(self, level: LevelTables) -> Tensor:
        """Sums for the nodes [b, h] of a level, once all above it is filled."""
        sums = self.add(_gathered(self.values, level.above), 2)
        if level is self.tables.levels[-1]:
            sums[:, -1] = self.root
        return sums

    def by_part(self) -> Tensor:
        """[b, d]."""
        return self.add(_gathered(self.values, self.tables.taking), 2)


def covariance_product(tables: Tables, rows: Tensor, along: Tensor) -> Tensor:
    """``Cov(z) v`` [b, d], the derivative of the marginals along v [b, d], by the tangents of both passes; no gradients."""
    chances, _ = _chances(tables, rows)
    padded, values = pad(torch.where(rows > -math.inf, along, 0), (0, 1)), torch.zeros_like(leaves(tables, rows))
    changes = []
    for level, chance in zip(tables.levels, chances, strict=True):
        moved = _joined(level, values, padded)
        mean = (chance * moved).sum(2, keepdim=True)
        values[:, level.heads] = mean.squeeze(2)
        changes.append(chance * (moved - mean))
    edges, moving = Sums(tables, rows), Sums(tables, rows, root=0.0)
    for level, chance, change in zip(reversed(tables.levels), reversed(chances), reversed(changes), strict=True):
        heads = edges.above(level).unsqueeze(2)
        moving.put(level, moving.above(level).unsqueeze(2) * chance + heads * change)
        edges.put(level, heads * chance)
    return moving.by_part()


def walk(tables: Tables, shape: tuple[int, ...], decide: Callable[[Tensor], Tensor]) -> Tensor:
    """Structures from the root down: boolean [*shape, d], or int64 where parts are counted; ``decide`` gives the edges of nodes [*shape].

    Every step takes the next node of a preorder, in as many steps as the longest derivation has nodes.
    """
    counted, device = tables.binary is not None, tables.first.device
    taken = torch.zeros((*shape, tables.parts + 1), dtype=torch.int64 if counted else torch.bool, device=device)
    take, one = taken.scatter_add_ if counted else taken.scatter_, torch.ones((*shape, 1), dtype=taken.dtype, device=device)
    node = torch.full(shape, tables.root, device=device)
    # Second nodes wait on a stack, above place 0, which holds `UNIT`: there a walk stays that is at its end.
    waiting = torch.full((*shape, int(tables.packed.sizes[WAITING]) + 2), UNIT, device=device)
    top = torch.zeros((*shape, 1), dtype=torch.int64, device=device)
    joins = any(level.second is not None for level in tables.levels)
    for _ in range(int(tables.packed.sizes[STEPS])):
        edge = decide(node)
        take(-1, tables.part[edge].unsqueeze(-1), one)
        node = tables.first[edge]
        if joins:
            second, ends = tables.second[edge].unsqueeze(-1), node.unsqueeze(-1) == UNIT
            # The empty item does not wait: what comes next is written over it.
            waiting.scatter_(-1, top + 1, second)
            top = top + (second != UNIT).long()
            node = torch.where(ends, waiting.gather(-1, top), node.unsqueeze(-1)).squeeze(-1)
            top = (top - ends.long()).clamp(min=0)
    return taken[..., :-1]


def argmax(tables: Tables, rows: Tensor) -> Tensor:
    """The best structure of every row: boolean [b, d]. Of equal scores at a node, the first edge is taken."""
    values, padded = leaves(tables, rows), pad(rows, (0, 1))
    chosen = torch.full(values.shape, len(tables.first) - 1, device=rows.device)
    for level in tables.levels:
        # A part of all edges of a node is no reason to prefer one, and comes after, where its size could hide what is.
        each = level.parts.shape[1] > 1
        value, place = (_joined(level, values, padded) if each else _led_to(level, values)).max(2)
        values[:, level.heads] = value if each else value + _gathered(padded, level.parts).squeeze(2)
        # Where everything is forbidden, it is the first: what comes out is still a structure.
        chosen[:, level.heads] = tables.begins[level.heads] + place
    return walk(tables, (len(rows),), lambda node: chosen.gather(1, node.unsqueeze(1)).squeeze(1))


def sample(tables: Tables, rows: Tensor, uniforms: Tensor) -> Tensor:
    """Exact samples: boolean [s, b, d] from float64 uniforms [s, b, steps]; 0 for an infeasible row.

    One for each node in preorder, but for those in `Tables.given`.
    """
    values, padded = inside(tables, rows), pad(rows, (0, 1))
    items = torch.arange(len(rows), device=rows.device).unsqueeze(-1)
    place = torch.arange(max(level.first.shape[1] for level in tables.levels), device=rows.device)
    # One more, for structures that are made in one way.
    uniforms = pad(uniforms, (0, 1))
    used = torch.zeros((*uniforms.shape[:-1], 1), dtype=torch.int64, device=rows.device)

    def drawn(node: Tensor) -> Tensor:
        nonlocal used
        uniform = uniforms.gather(-1, used.clamp(max=uniforms.shape[-1] - 1))
        used = used + (~tables.given[node]).long().unsqueeze(-1)
        # Edges beyond the last one of the node are replaced by the one that stands for none.
        edge = torch.where(place < tables.widths[node].unsqueeze(-1), tables.begins[node].unsqueeze(-1) + place, len(tables.first) - 1)
        weights = values[items, tables.first[edge]] + values[items, tables.second[edge]] + padded[items, tables.part[edge]]
        sums = running_sums(weights.masked_fill(edge == len(tables.first) - 1, -math.inf))
        total = sums[..., -1:]
        # Rounding may bring the threshold up to the total: the last edge of positive weight is then meant.
        chosen = torch.minimum((sums <= uniform * total).sum(-1, keepdim=True), (sums < total).sum(-1, keepdim=True))
        return edge.gather(-1, chosen).squeeze(-1)

    return walk(tables, tuple(uniforms.shape[:-1]), drawn) * (values[:, tables.root] > -math.inf).unsqueeze(-1)


def rank(tables: Tables, structures: Tensor) -> Tensor:
    """The inverse of `executor.unrank`: int64 [c] from structures [c, d].

    Where a part of the structure scores 1 and any other −1, it alone is the best; so the best edges are its derivation. Parts that are
    counted score nothing: the others tell structures apart.
    """
    starts, counts = tables.ranking
    votes = 2 * (structures != 0).double() - 1
    votes = pad(votes if tables.binary is None else votes * tables.binary, (0, 1))
    values, ranks = leaves(tables, votes), torch.zeros((len(votes), tables.root + 1), dtype=torch.int64, device=votes.device)
    for level in tables.levels:
        values[:, level.heads], place = _joined(level, values, votes).max(2)
        edge = tables.begins[level.heads] + place
        second = tables.second[edge]
        # Off the derivation numbers may wrap around; they are never read.
        ranks[:, level.heads] = starts[edge] + ranks.gather(1, tables.first[edge]) * counts[second] + ranks.gather(1, second)
    return ranks[:, tables.root]
