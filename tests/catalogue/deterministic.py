"""Formulas of deterministic estimators."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.catalogue.setting import Formula, Setting, along_the_face, nearest


def sparsemap_marginalisation(s: Setting) -> Tensor:
    """Mᵀ (S − S11ᵀS / 1ᵀS1) ℓ with S = (M Mᵀ)⁻¹ over the atoms."""
    solution = s.case.oracle.project(s.scores)
    atoms = solution.atoms[solution.weights > 0]
    inverse = torch.linalg.inv(atoms.flatten(1) @ atoms.flatten(1).mT)
    row_sums = inverse.sum(-1)
    jacobian = inverse - torch.outer(row_sums, row_sums) / row_sums.sum()
    return (atoms.flatten(1).mT @ jacobian @ s.loss(atoms)).reshape(s.case.event)


FORMULAS: dict[str, Formula] = {
    "structured_attention": lambda s: s.pushed(s.scores, s.gamma(s.marginals())),
    "sparsemap": lambda s: along_the_face(s.case, s.scores, s.gamma(nearest(s.case, s.scores))),
    "sparsemap_marginalisation": sparsemap_marginalisation,
}
