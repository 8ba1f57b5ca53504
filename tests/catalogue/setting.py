"""What the formulas of the catalogue are written in: Jacobians, best structures and projections by enumeration."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from structgrad.estimators import Loss
from tests.estimator_cases import loss_gradient
from tests.helpers import OracleCase, enumerate_truth, read_parts, structures


@dataclass(frozen=True)
class Setting:
    """One row of scores [*event], the estimator and its loss; randomness is drawn anew from the same seed."""

    estimator: Any
    case: OracleCase
    loss: Loss
    scores: Tensor
    generator: torch.Generator

    @cached_property
    def free(self) -> Tensor:
        return (self.scores > -math.inf) & read_parts(self.case)

    def noise(self, source: Any) -> Tensor:
        """ε, drawn as the estimator draws it."""
        return source.perturb(self.case.oracle, torch.zeros(self.case.event, dtype=torch.float64), generator=self.generator)

    def samples(self, count: int | None) -> Tensor:
        drawn: Tensor = self.case.oracle.sample(self.scores, count, generator=self.generator)
        return drawn

    def gamma(self, point: Tensor) -> Tensor:
        return loss_gradient(self.loss, point)

    def best(self, scores: Tensor) -> Tensor:
        return structures(self.case)[enumerate_scores(self.case, scores).argmax()]

    @cached_property
    def law(self) -> Tensor:
        """p(z) of every structure."""
        return enumerate_truth(self.case, self.scores).probabilities[0]

    def marginals(self) -> Tensor:
        return enumerate_truth(self.case, self.scores).marginals[0]

    def pushed(self, scores: Tensor, vector: Tensor) -> Tensor:
        """Cov(z)·v at scores."""
        return (enumerate_truth(self.case, scores).covariance[0] @ vector.flatten()).reshape(self.case.event)

    def score_function(self, samples: Tensor, weights: Tensor) -> Tensor:
        """(1/N) Σ w (z − μ)."""
        return torch.einsum("s,s...->...", weights, samples - self.marginals()) / len(samples)


def enumerate_scores(case: OracleCase, scores: Tensor) -> Tensor:
    """⟨θ, z⟩ of every structure."""
    product = torch.where(structures(case) > 0, scores, 0)
    return product.flatten(1).sum(-1)


def nearest(case: OracleCase, point: Tensor) -> Tensor:
    """The nearest point of the hull of the feasible structures, as a least-squares problem with non-negative weights."""
    allowed = enumerate_scores(case, point) > -math.inf
    atoms = structures(case)[allowed].flatten(1).numpy()
    target = torch.where(point > -math.inf, point, 0).flatten().numpy()
    weights, _ = nnls(np.vstack([(atoms - target).T, np.ones(len(atoms))]), np.append(np.zeros(atoms.shape[1]), 1.0))
    return torch.from_numpy(weights @ atoms / weights.sum()).reshape(case.event)


def along_the_face(case: OracleCase, scores: Tensor, vector: Tensor) -> Tensor:
    """The Jacobian of the projection: orthogonal projection on the directions of the face that holds the nearest point."""
    values = enumerate_scores(case, scores - nearest(case, scores))
    face = structures(case)[values > values.max() - 1e-7].flatten(1).numpy()
    _, sizes, directions = np.linalg.svd(face - face[0])
    basis = torch.from_numpy(directions[: len(sizes)][sizes > 1e-9])
    return (basis.mT @ (basis @ vector.flatten())).reshape(case.event)


Formula = Callable[[Setting], Tensor]
"""What the estimate is for one row and one draw; only free parts count."""
