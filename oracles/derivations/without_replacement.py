"""Structures without replacement: Gumbel variables of sets of derivations, split from the root down.

All derivations with a common beginning are a set, whose mass is a product of probabilities of edges given their nodes. The greatest of
``log p(z) + Gumbel`` over a set is a Gumbel variable at its log-mass, whoever attains it; so the set of a beginning is split into those
that go on by the edge of the winner, which keep the greatest value, and all that go on otherwise, whose greatest is a Gumbel variable at
their log-mass that is cut off there. What is best of all that was split off is the next structure: no other one is looked at.

Source: Kool, van Hoof & Welling 2019, "Stochastic beams and where to find them", section 3 and appendix B, for sequences, level by level.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..capabilities import DrawnSet
from ..numerics import log_sum_exp, running_sums
from ..random_streams import gumbel_quantile
from . import algorithms
from .tables import Tables


def uniforms_needed(steps: int, k: int) -> int:
    """How many uniforms k structures take: one, and two for every node of each."""
    return 1 + 2 * k * steps


def sample_distinct(tables: Tables, rows: Tensor, items: Tensor, k: int, uniforms: Tensor) -> DrawnSet:
    """k structures ``[k, w, d]`` of each walk, in the order in which they are drawn; where fewer are feasible, the first is repeated.

    Args:
        tables: of the derivations.
        rows: float64 scores of parts [b, d].
        items: [w], the row of each walk.
        k: at most how many structures there are.
        uniforms: float64 [w, `uniforms_needed`], inside (0, 1).
    """
    race = _Race(tables, rows, items, k, gumbel_quantile(uniforms[:, 0].clone()))
    split = uniforms[:, 1:].reshape(len(items), k, tables.steps, 2)
    structures, log_probs = list[Tensor](), list[Tensor]()
    for place in range(k):
        drawn = _Walk(race, place, split[:, place])
        structure = algorithms.walk(tables, torch.zeros_like(items), drawn.decide)
        structures.append(torch.where(drawn.found.unsqueeze(-1), structure, structures[0] if structures else 0 * structure))
        log_probs.append(torch.where(drawn.found, drawn.log_prob, -math.inf))
    return DrawnSet(torch.stack(structures), torch.stack(log_probs, -1), log_sum_exp(race.mass, -1), race.greatest.amax(-1))


class _Race:
    """Weights of nodes, and the sets that were split off: that of structure i at its step s stands at i steps + s."""

    def __init__(self, tables: Tables, rows: Tensor, items: Tensor, k: int, start: Tensor) -> None:
        self.values, self.padded = algorithms.inside(tables, rows), torch.nn.functional.pad(rows, (0, 1))
        self.items, self.steps = items.unsqueeze(-1), tables.steps
        # The greatest perturbed log-probability of each, and its log-mass.
        shape = (len(items), k * tables.steps)
        self.greatest, self.mass = (torch.full(shape, -math.inf, dtype=torch.float64, device=rows.device) for _ in range(2))
        feasible = self.values[items, tables.root] > -math.inf
        self.greatest[:, 0], self.mass[:, 0] = torch.where(feasible, start, -math.inf), torch.where(feasible, 0.0, -math.inf)
        # The edges that each structure took, by their places below their nodes.
        self.choices = torch.full((len(items), k, tables.steps), -1, device=rows.device)

    def joined(self, edges: algorithms.Edges) -> Tensor:
        """Log-weights [w, e] of edges."""
        return self.values[self.items, edges.first] + self.values[self.items, edges.second] + self.padded[self.items, edges.parts]


class _Walk:
    """The way down to the next structure of every walk, which writes what it splits off and which edges it took."""

    def __init__(self, race: _Race, place: int, uniforms: Tensor) -> None:
        self.race, self.place, self.uniforms = race, place, uniforms
        self.highest, at = race.greatest.max(-1)
        self.found, at = self.highest > -math.inf, at.unsqueeze(-1)
        self.log_prob = race.mass.gather(-1, at).squeeze(-1)
        for table in (race.greatest, race.mass):
            table.scatter_(-1, at, -math.inf)
        # It begins as the structure that it was split off, up to a step; there it takes no edge that one with the same beginning took.
        owner, begin = at // race.steps, at % race.steps
        self.known = race.choices.gather(1, owner.unsqueeze(-1).expand(-1, -1, race.steps)).squeeze(1)
        later = torch.arange(race.steps, device=at.device) >= begin
        before = race.choices[:, :place]
        same = ((before == self.known.unsqueeze(1)) | later.unsqueeze(1)).all(-1)
        self.blocked = torch.where(same, before.gather(-1, begin.unsqueeze(-1).expand(-1, place, 1)).squeeze(-1), -1)
        self.begin = begin.squeeze(-1)

    def decide(self, step: int, node: Tensor, label: Tensor, edges: algorithms.Edges) -> tuple[Tensor, Tensor, Tensor]:
        race, entry, new = self.race, self.place * self.race.steps + step, self.begin <= step
        joined = race.joined(edges)
        if self.place:
            own = torch.arange(joined.shape[-1], device=joined.device)
            blocked = (own == self.blocked.unsqueeze(-1)).any(-2)
            joined = joined.masked_fill((self.begin == step).unsqueeze(-1) & blocked, -math.inf)
        sums, total = running_sums(joined), log_sum_exp(joined, -1)
        total = torch.where(total > -math.inf, total, 0)
        # Rounding may bring the threshold up to the total: the last edge of positive weight is then meant.
        drawn = torch.minimum((sums <= self.uniforms[:, step, :1] * sums[..., -1:]).sum(-1), (sums < sums[..., -1:]).sum(-1))
        place = torch.where(new, drawn, self.known[:, step]).clamp(min=0)
        race.choices[:, self.place, step] = place
        others = log_sum_exp(joined.scatter(-1, place.unsqueeze(-1), -math.inf), -1) - total
        going = new & self.found
        rest = torch.where(going, self.log_prob + others, -math.inf)
        cut = torch.logaddexp(-self.highest, gumbel_quantile(self.uniforms[:, step, 1].clone()).neg() - rest).neg()
        race.mass[:, entry], race.greatest[:, entry] = rest, torch.where(rest > -math.inf, cut, -math.inf)
        chance = joined.gather(-1, place.unsqueeze(-1)).squeeze(-1) - total
        self.log_prob = torch.where(going, self.log_prob + chance, self.log_prob)
        return place, label, label
