"""The value of every surrogate by plain autograd, from the structures that its estimator showed to the loss."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structgrad.estimators import Estimator, Loss
from tests.catalogue.mappings import sparse_law
from tests.catalogue.score_function import importance_weights, in_order, race
from tests.helpers import OracleCase, enumerate_truth, seeded, structure_indices, structures

Value = Callable[[Any, OracleCase, Tensor, list[Tensor], Loss], Tensor]
"""Estimator, case, scores [b, *event], what the loss saw call by call, loss: to [b]."""


def mean_of_last(estimator: Any, case: OracleCase, scores: Tensor, seen: list[Tensor], loss: Loss) -> Tensor:
    """Over the samples that were shown last; what came first was for a baseline."""
    return loss(seen[-1]).reshape(-1, len(scores)).mean(0)


def mean_of_first(estimator: Any, case: OracleCase, scores: Tensor, seen: list[Tensor], loss: Loss) -> Tensor:
    """Over the samples that were shown first."""
    return loss(seen[0]).reshape(-1, len(scores)).mean(0)


def expectation(estimator: Any, case: OracleCase, scores: Tensor, seen: list[Tensor], loss: Loss) -> Tensor:
    """Over all structures."""
    space = structures(case)
    values = loss(space.unsqueeze(1).expand(len(space), len(scores), *case.event))
    return torch.einsum("bs,sb->b", enumerate_truth(case, scores).probabilities, values)


def over_the_support(estimator: Any, case: OracleCase, scores: Tensor, seen: list[Tensor], loss: Loss) -> Tensor:
    return (case.oracle.project(scores).weights * loss(seen[-1]).movedim(0, -1)).sum(-1)


def summed_and_sampled(estimator: Any, case: OracleCase, scores: Tensor, seen: list[Tensor], loss: Loss) -> Tensor:
    """The best structures by their probabilities, and the sample after them by its weight."""
    best, losses = seen[-1][:-1], loss(seen[-1])
    p = probabilities_of(case, scores, best)
    q = p.sum(0)
    weight = torch.where((seen[-1][-1:] != best).flatten(2).any(-1).all(0), 1 - q, 0)
    baseline = (p * losses[:-1]).sum(0) / q if estimator.centred else 0
    return (p * losses[:-1]).sum(0) + (1 - q - weight) * baseline + weight * losses[-1]


def by_first_draw(estimator: Any, case: OracleCase, scores: Tensor, seen: list[Tensor], loss: Loss) -> Tensor:
    """Every structure of the set by the probability that it was drawn first, over all orders of the set."""
    p = enumerate_truth(case, scores).probabilities
    chosen = structure_indices(case, seen[-1])
    weights = torch.zeros(chosen.shape, dtype=torch.float64)
    for row in range(len(scores)):
        for order in itertools.permutations(range(len(chosen))):
            weights[order[0], row] += in_order(p[row], tuple(chosen[list(order), row].tolist()))
    return (weights / weights.sum(0) * loss(seen[-1])).sum(0)


def by_chances(estimator: Any, case: OracleCase, scores: Tensor, seen: list[Tensor], loss: Loss) -> Tensor:
    """By importance weights; the threshold is that of the laws' seed."""
    uniforms = torch.rand(len(scores), len(structures(case)), generator=seeded(), dtype=torch.float64)
    k, p = estimator.num_samples, probabilities_of(case, scores, seen[-1])
    races = [race(case, row, uniform).sort(descending=True).values for row, uniform in zip(scores, uniforms, strict=True)]
    weights = torch.stack([importance_weights(p[:, row], float(races[row][k])) for row in range(len(scores))], 1)
    return ((weights / weights.sum(0) if estimator.normalised else weights) * loss(seen[-1])).sum(0)


def probabilities_of(case: OracleCase, scores: Tensor, chosen: Tensor) -> Tensor:
    """[n, b] of structures [n, b, *event]."""
    return enumerate_truth(case, scores).probabilities.T.gather(0, structure_indices(case, chosen))


def sparse_expectation(estimator: Any, case: OracleCase, scores: Tensor, seen: list[Tensor], loss: Loss) -> Tensor:
    """Over all structures, or the best, with the sparsemax of their scores."""
    space = structures(case)
    values = loss(space.unsqueeze(1).expand(len(space), len(scores), *case.event))
    p = np.stack([sparse_law(estimator, row) for row in enumerate_truth(case, scores).structure_scores.numpy()])
    return torch.einsum("bs,sb->b", torch.from_numpy(p), values)


VALUES: dict[str, Value] = {
    "spigot_steps": mean_of_first,
    "spigot_ce": mean_of_first,
    "spigot_eg": mean_of_first,
    "exact": expectation,
    "muprop": mean_of_first,
    "local_expectation": mean_of_first,
    "path_quadrature": mean_of_first,
    "step_local_expectation": mean_of_first,
    "rebar": mean_of_first,
    "relax": mean_of_first,
    "sum_and_sample": summed_and_sampled,
    "unordered_set": by_first_draw,
    "importance_weighted_set": by_chances,
    "sparsemap_marginalisation": over_the_support,
    "step_greedy": mean_of_first,
    "step_sampled": mean_of_first,
    "step_conditional_mean": mean_of_first,
    "step_optimal": mean_of_first,
    "sparsemax_marginalisation": sparse_expectation,
    "top_k_sparsemax": sparse_expectation,
}
"""The others are `mean_of_last`."""


def value_of(estimator: Estimator[Any], case: OracleCase, scores: Tensor, seen: list[Tensor], loss: Loss) -> Tensor:
    """What a surrogate's value must be."""
    return VALUES.get(estimator.name, mean_of_last)(estimator, case, scores, seen, loss)
