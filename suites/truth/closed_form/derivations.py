"""The Gibbs law of derivations: a top-down choice of edges, whose probabilities are ratios of inside weights.

They are all at most 1, so that nothing overflows, and whatever is summed along derivations is a sum of products of probabilities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ....oracles.derivations import UNIT, Derivations


@dataclass(frozen=True, eq=False)
class GibbsLaw:
    """The Gibbs law of derivations.

    Attributes:
        derivations: of what. ``choices``: per level [h, e], the probability of each edge below its node.
        log_partition: A(θ). ``marginals``: [d]. ``roundings``: how many units of rounding a probability may be off.
    """

    derivations: Derivations
    choices: tuple[Tensor, ...]
    log_partition: float
    marginals: Tensor
    roundings: float


def gibbs_law(derivations: Derivations, scores: Tensor) -> GibbsLaw:
    """Inside weights bottom up, and probabilities of nodes top down.

    Args:
        derivations: whose law.
        scores: natural parameters, flat [d], with 0 at ignored entries.
    """
    padded = torch.nn.functional.pad(scores, (0, 1))
    inside = scores.new_full((derivations.nodes,), -math.inf)
    inside[UNIT] = 0
    choices, largest = [], 0.0
    for level in derivations.levels:
        weights = inside[level.first] + padded[level.parts]
        if level.second is not None:
            weights = weights + inside[level.second]
        total = weights.logsumexp(1)
        possible = total > -math.inf
        inside[level.heads] = total
        choices.append((weights - torch.where(possible, total, 0).unsqueeze(1)).exp())
        choices[-1] = choices[-1] / torch.where(possible, choices[-1].sum(1), 1).unsqueeze(1)
        largest = max(largest, float(torch.where(possible, total.abs(), 0).max()))
    roundings = len(derivations.levels) * (largest + 8)
    return GibbsLaw(derivations, tuple(choices), float(inside[derivations.root]), _marginals(derivations, choices), roundings)


def _marginals(derivations: Derivations, choices: list[Tensor]) -> Tensor:
    outside = choices[0].new_zeros(derivations.nodes)
    outside[derivations.root] = 1
    taken = choices[0].new_zeros(derivations.parts + 1)
    for level, choice in zip(reversed(derivations.levels), reversed(choices), strict=True):
        edges = outside[level.heads].unsqueeze(1) * choice
        spread(taken, level.parts, edges)
        spread(outside, level.first, edges)
        if level.second is not None:
            spread(outside, level.second, edges)
    return taken[:-1]


def spread(totals: Tensor, places: Tensor, edges: Tensor) -> None:
    """Add values [h, e] to totals at places [h, e], or their sums by node at places [h, 1]."""
    values = edges if places.shape[1] == edges.shape[1] else edges.sum(1, keepdim=True)
    totals.index_add_(0, places.flatten(), values.flatten())
