"""How sparse an estimator's forward distribution is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...estimators.base import Estimator, PathwiseEstimator
from ...oracles.base import ProjectionOracle
from ..truth import Truth


def forward_sparsity(estimator: Estimator[Any], oracle: Any, scores: Tensor, *, truth: Truth) -> dict[str, float]:
    """Support and non-zeros of the forward pass.

    The support is the number of structures that the forward distribution gives positive probability: 1 for argmax, the atoms of SparseMAP,
    and all feasible structures for samples, noise and marginals.

    Args:
        estimator: whose forward.
        oracle: what it runs on.
        scores: one instance, ``[*event]``.
        truth: says how many structures are feasible.

    Returns:
        ``support`` and ``forward_nonzeros`` (non-zero parts of the structure that the loss sees).

    Example:
        >>> from structgrad.estimators import SparseMAP
        >>> from structgrad.oracles import Categorical
        >>> from structgrad.suites import exact_truth
        >>> scores = torch.tensor([1.0, 0.8, -1.0], dtype=torch.float64)
        >>> truth = exact_truth(lambda z: z.square().sum(-1), Categorical(), scores)
        >>> forward_sparsity(SparseMAP(), Categorical(), scores, truth=truth)
        {'support': 2.0, 'forward_nonzeros': 2.0}
    """
    if ProjectionOracle in estimator.needs and estimator.objective in ("relaxed", "sparse"):
        support = int(oracle.project(scores).support)
    else:
        support = 1 if estimator.objective == "argmax" else truth.support
    return {"support": float(support), "forward_nonzeros": float((_forward_point(estimator, oracle, scores) != 0).sum())}


def _forward_point(estimator: Estimator[Any], oracle: Any, scores: Tensor) -> Tensor:
    """What the loss is evaluated at; where that is a random structure, the best one stands for it: all have as many parts."""
    if estimator.inside_hull and isinstance(estimator, PathwiseEstimator):
        with torch.no_grad():
            point: Tensor = estimator.structure(oracle, scores, generator=torch.Generator(scores.device))
        return point
    best: Tensor = oracle.argmax(scores)
    return best
