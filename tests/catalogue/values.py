"""The value of every surrogate by plain autograd, from the structures that its estimator showed to the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from structgrad.estimators import Estimator, Loss
from tests.helpers import OracleCase, enumerate_truth, structures

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


VALUES: dict[str, Value] = {
    "exact": expectation,
    "rebar": mean_of_first,
    "relax": mean_of_first,
    "sparsemap_marginalisation": over_the_support,
    "step_greedy": mean_of_first,
    "step_sampled": mean_of_first,
    "step_conditional_mean": mean_of_first,
    "step_optimal": mean_of_first,
}
"""The others are `mean_of_last`."""


def value_of(estimator: Estimator[Any], case: OracleCase, scores: Tensor, seen: list[Tensor], loss: Loss) -> Tensor:
    """What a surrogate's value must be."""
    return VALUES.get(estimator.name, mean_of_last)(estimator, case, scores, seen, loss)
