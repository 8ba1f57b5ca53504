"""The space that gradients of expectations live in: its directions, and the Fisher information as its metric.

Scores are over-parameterised: structures span an affine hull of fewer dimensions than there are parts, and no movement across it changes
the distribution. The part of an estimate across it is noise and bias without effect. The length of a step means little: ``δ'Fδ / 2`` is
the divergence that the step makes, so F measures its effect.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

RANK_TOLERANCE = 1e-10
"""Eigenvalues below this share of the largest count as 0."""


@dataclass(frozen=True, eq=False)
class Geometry:
    """The metric at one instance.

    Attributes:
        information: F, [d, d]: the Hessian of the divergence in the scores.
        natural: ``g'F⁺g``, the square of the decrease of the loss by the best step of divergence 1/2.
        null: [d, r], an orthonormal basis of the directions that change no probability.
    """

    information: Tensor
    natural: float
    null: Tensor

    @classmethod
    def of(cls, information: Tensor, flat: Tensor, gradient: Tensor) -> Geometry:
        """The metric of a Fisher information [d, d], its value at flat scores with the same directions, and the gradient."""
        return cls(information, _inverse_form(information, gradient.flatten().double()), _null_basis(flat))


def _inverse_form(information: Tensor, vector: Tensor) -> float:
    """``v'F⁺v`` of a vector in the range of F, from correlations: at peaked scores, variances differ by many magnitudes."""
    scales = information.diagonal().clamp(min=0).sqrt()
    moving = scales > 0
    inverse = torch.where(moving, 1 / scales.clamp(min=1e-300), 0)
    values, vectors = torch.linalg.eigh(information * inverse * inverse.unsqueeze(-1))
    kept = values > RANK_TOLERANCE * values.max().clamp(min=1e-300)
    parts = (vectors.mT @ (vector * inverse)).square() / torch.where(kept, values, 1)
    return float(torch.where(kept, parts, 0).sum())


def _null_basis(flat: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(flat)
    null: Tensor = vectors[:, values <= RANK_TOLERANCE * values.max().clamp(min=1e-300)]
    return null
