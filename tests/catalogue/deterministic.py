"""Formulas of deterministic estimators, and the objectives of those that are exact for one of their own."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structgrad.estimators import Loss
from tests.catalogue.mappings import MAPPINGS, point, pulled, sparse_law
from tests.catalogue.setting import Formula, Setting, along_the_face, nearest
from tests.catalogue.walks import WALKS
from tests.helpers import OracleCase, enumerate_truth, structures


def sparsemap_marginalisation(s: Setting) -> Tensor:
    """Mᵀ (S − S11ᵀS / 1ᵀS1) ℓ with S = (M Mᵀ)⁻¹ over the atoms."""
    solution = s.case.oracle.project(s.scores)
    atoms = solution.atoms[solution.weights > 0]
    inverse = torch.linalg.inv(atoms.flatten(1) @ atoms.flatten(1).mT)
    row_sums = inverse.sum(-1)
    jacobian = inverse - torch.outer(row_sums, row_sums) / row_sums.sum()
    return (atoms.flatten(1).mT @ jacobian @ s.loss(atoms)).reshape(s.case.event)


def over_structures(s: Setting) -> Tensor:
    """``Σ_S (ℓ − mean_S ℓ) z`` over the support of the sparsemax of all scores, or of the best."""
    support = torch.from_numpy(sparse_law(s.estimator, enumerate_truth(s.case, s.scores).structure_scores[0].numpy()) > 0)
    atoms = structures(s.case)[support]
    values = s.loss(atoms)
    return torch.einsum("s,s...->...", values - values.mean(), atoms)


def differentiable_dp(s: Setting) -> Tensor:
    """The derivative of the walk along γ, by a complex step: the Hessian is symmetric."""
    if s.estimator.omega == "entropy":
        return s.pushed(s.scores, s.gamma(s.marginals()))
    walk, row = partial(WALKS[type(s.case.oracle)], s.case.oracle), s.scores.numpy()
    gamma = torch.where(s.free, s.gamma(torch.from_numpy(walk(row))), 0)
    return torch.from_numpy(walk(row + 1e-30j * gamma.numpy()).imag / 1e-30)


FORMULAS: dict[str, Formula] = {
    "structured_attention": lambda s: s.pushed(s.scores, s.gamma(s.marginals())),
    "sparsemap": lambda s: along_the_face(s.case, s.scores, s.gamma(nearest(s.case, s.scores))),
    "sparsemap_marginalisation": sparsemap_marginalisation,
    "differentiable_dp": differentiable_dp,
    "sparsemax_marginalisation": over_structures,
    "top_k_sparsemax": over_structures,
    **dict.fromkeys(MAPPINGS, lambda s: pulled(s.estimator, s.scores, s.gamma(point(s.estimator, s.scores)))),
}


def over_atoms(estimator: Any, case: OracleCase, loss: Loss, scores: Tensor) -> Tensor:
    solution = case.oracle.project(scores)
    return (solution.weights * loss(solution.atoms.movedim(-len(case.event) - 1, 0)).movedim(0, -1)).sum(-1)


def sparse_expectation(estimator: Any, case: OracleCase, loss: Loss, scores: Tensor) -> Tensor:
    """Over all structures, or the best, with the sparsemax of their scores."""
    space = structures(case)
    p = np.stack([sparse_law(estimator, row) for row in enumerate_truth(case, scores).structure_scores.numpy()])
    return torch.from_numpy(p) @ loss(space)


OBJECTIVES: dict[str, Callable[[Any, OracleCase, Loss, Tensor], Tensor]] = {
    "structured_attention": lambda estimator, case, loss, scores: loss(case.oracle.marginals(scores)),
    "differentiable_dp": lambda estimator, case, loss, scores: loss(case.oracle.relax(scores, estimator.omega)),
    "sparsemap": lambda estimator, case, loss, scores: loss(case.oracle.project(scores).mean),
    "sparsemap_marginalisation": over_atoms,
    "sparsemax_marginalisation": sparse_expectation,
    "top_k_sparsemax": sparse_expectation,
}
"""Values of objectives; the estimators that are not here evaluate the loss at a mapping of each category."""
