"""MAP of spanning trees for whole batches: every cycle of every item is contracted at once.

Source: Chu & Liu 1965, "On the shortest arborescence of a directed graph"; Edmonds 1967, "Optimum branchings", section 2. Each word takes
its best head; where that makes cycles, each becomes one component, whose arc from a head h to a member v is worth what it gains over the
arc that v had; and so on until no cycle is left. Then the components are opened, the last one first: the member that the arc enters takes
it, the others keep their arcs of the cycle.

With a single root, a component goes to the root only where no word may head it. So the root takes as few words as possible, without any
number that stands for a large penalty and would cost precision (Gabow & Tarjan 1984, "Efficient algorithms for a family of matroid
intersection problems", use the same lexicographic order).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class _Round(NamedTuple):
    """What one round contracted, over labels 0..n; a component is labelled by its lowest member.

    component: [b, n + 1], the label of each position before the round;
    head, entry: [b, n + 1], the arc that each component had chosen: from a position, into one of its positions;
    cyclic: [b, n + 1], whether the component lies on a cycle;
    leader: [b, n + 1], the lowest label of its cycle, or its own.
    """

    component: Tensor
    head: Tensor
    entry: Tensor
    cyclic: Tensor
    leader: Tensor


def best_heads(rows: Tensor, *, single_root: bool) -> Tensor:
    """Heads [b, n] of the best trees of rows [b, n + 1, n + 1], ties to the lowest head; each word under the one before if infeasible.

    Cost: at most n rounds, in practice about n / 2, each of O(n²) per item.
    """
    size = rows.shape[-1]
    positions = torch.arange(size, device=rows.device)
    arcs = (positions != positions.unsqueeze(-1)) & (positions > 0).unsqueeze(-1)
    # [b, component, head]: the best arc from a position into the component, and the position that it enters.
    weights = torch.where(arcs, rows.double().mT, -math.inf)
    entries = positions.unsqueeze(-1).expand_as(weights)
    component = positions.expand(len(rows), size)
    rounds: list[_Round] = []
    while True:
        value, head = _chosen(weights, single_root)
        entry = entries.gather(-1, head.unsqueeze(-1)).squeeze(-1)
        cyclic, leader = _cycles(torch.where(value > -math.inf, component.gather(1, head), 0))
        if not bool(cyclic.any()):
            break
        rounds.append(_Round(component, head, entry, cyclic, leader))
        weights, entries = _contracted(torch.where(cyclic.unsqueeze(-1), weights - value.unsqueeze(-1), weights), entries, leader)
        component = leader.gather(1, component)
        weights = weights.masked_fill(component.unsqueeze(1) == positions.unsqueeze(-1), -math.inf)
    alive = (component == positions) & (positions > 0)
    feasible = ((value > -math.inf) | ~alive).all(-1)
    if single_root:
        feasible = feasible & ((alive & (head == 0)).sum(-1) <= 1)
    for contracted in reversed(rounds):
        head, entry = _opened(contracted, head, entry)
    return torch.where(feasible.unsqueeze(-1), head, positions - 1)[:, 1:]


def _chosen(weights: Tensor, single_root: bool) -> tuple[Tensor, Tensor]:
    """The best arc into each component: its weight and its head, [b, n + 1]."""
    if not single_root or weights.shape[-1] == 1:
        return tuple(weights.max(-1))  # type: ignore[return-value]
    value, head = weights[..., 1:].max(-1)
    word = value > -math.inf
    return torch.where(word, value, weights[..., 0]), torch.where(word, head + 1, 0)


def _cycles(parent: Tensor) -> tuple[Tensor, Tensor]:
    """Which labels lie on cycles of ``parent`` [b, n + 1] (label 0 is the end of all paths), and the lowest of each one's cycle."""
    own = torch.arange(parent.shape[-1], device=parent.device).expand_as(parent)
    lowest, ahead = own, parent
    for _ in range(max(parent.shape[-1] - 1, 1).bit_length()):
        lowest = torch.minimum(lowest, lowest.gather(1, ahead))
        ahead = ahead.gather(1, ahead)
    # After that many steps every path is on its cycle, and every label of a cycle is some path's place.
    cyclic = torch.zeros_like(parent, dtype=torch.bool).scatter(1, ahead, torch.ones_like(parent, dtype=torch.bool))
    cyclic = cyclic & (own > 0)
    return cyclic, torch.where(cyclic, lowest, own)


def _contracted(weights: Tensor, entries: Tensor, leader: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and entries of the components after each label has joined its leader: the best member for every head."""
    group = leader.unsqueeze(-1).expand_as(weights)
    best = torch.full_like(weights, -math.inf).scatter_reduce(1, group, weights, "amax")
    members = torch.arange(weights.shape[-1], device=weights.device).unsqueeze(-1).expand_as(weights)
    # Labels that joined another keep a weight of -inf, and any entry.
    attained = torch.where(weights == best.gather(1, group), members, weights.shape[-1] - 1)
    member = torch.full_like(entries, weights.shape[-1] - 1).scatter_reduce(1, group, attained, "amin")
    return best, entries.gather(1, member)


def _opened(contracted: _Round, head: Tensor, entry: Tensor) -> tuple[Tensor, Tensor]:
    """The arcs of all components before a round, from those after it."""
    component, own_head, own_entry, cyclic, leader = contracted
    outer_head, outer_entry = head.gather(1, leader), entry.gather(1, leader)
    labels = torch.arange(head.shape[-1], device=head.device)
    keeps = cyclic & (component.gather(1, outer_entry) != labels)
    return torch.where(keeps, own_head, outer_head), torch.where(keeps, own_entry, outer_entry)
