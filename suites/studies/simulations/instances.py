"""Small instances, flat and peaked, on spaces of different shapes."""

from __future__ import annotations

import functools

import numpy as np
import torch

from ....estimators.base import Estimator
from ....oracles import Assignment, Categorical, EnumerableOracle, SpanningTree, Subset
from ...problems import make_loss
from ...truth import Target, exact_truth
from .laws import EstimateLaw

SPACES: dict[str, tuple[EnumerableOracle, tuple[int, ...]]] = {
    "trees5": (SpanningTree(single_root=False), (6, 6)),
    "categorical10": (Categorical(), (10,)),
    "subset10": (Subset(3), (10,)),
    "assignment5": (Assignment(), (5, 5)),
}
"""Spaces of 1296, 10, 120 and 120 structures."""


@functools.lru_cache(maxsize=64)
def instance(space: str, deviation: float) -> Target:
    """Independent normal scores of a standard deviation, with a tanh network as the loss: it is of no degree in the parts."""
    oracle, event = SPACES[space]
    random = np.random.default_rng(list(SPACES).index(space))
    direction = torch.from_numpy(random.standard_normal(event))
    gold = oracle.argmax(torch.from_numpy(random.standard_normal(event)))
    scores = deviation * torch.where(oracle.read_mask(event), direction, 0)
    loss = make_loss("mlp", gold, oracle, seed=1)
    return Target(oracle, loss, scores, exact_truth(loss, oracle, scores))


@functools.lru_cache(maxsize=256)
def law(estimator: Estimator[EnumerableOracle], space: str, deviation: float) -> EstimateLaw:
    """The exact law of an estimator on an instance."""
    return EstimateLaw.of(estimator, instance(space, deviation))
