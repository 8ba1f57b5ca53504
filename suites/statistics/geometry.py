"""The space that gradients of expectations live in: its directions, and the Fisher information as its metric.

Scores are over-parameterised: structures span an affine hull of fewer dimensions than there are parts, and no movement across it changes
the distribution. The part of an estimate across it is noise and bias without effect. The length of a step means little: ``δ'Fδ / 2`` is
the divergence that the step makes, so F measures its effect.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

RANK_TOLERANCE = 1e-10  # eigenvalues below this share of the largest count as 0


@dataclass(frozen=True, eq=False)
class Geometry:
    """The metric at one instance."""

    information: Tensor  # F, [d, d]: the Hessian of the divergence in the scores
    natural: float  # ``g'F⁺g``, the square of the decrease of the loss by the best step of divergence 1/2
    null: Tensor  # [d, r], an orthonormal basis of the directions that change no probability

    @classmethod
    def of(cls, information: Tensor, flat: Tensor, gradient: Tensor) -> Geometry:
        """The metric of a Fisher information [d, d], its value at flat scores with the same directions, and the gradient."""
        # g lies in the range of F. Correlations are inverted: at peaked scores, variances differ by many magnitudes.
        scales = information.diagonal().clamp(min=0).sqrt()
        inverse = torch.where(scales > 0, 1 / scales.clamp(min=1e-300), 0)
        values, vectors, kept = _spectrum(information * inverse * inverse.unsqueeze(-1))
        parts = (vectors.mT @ (gradient.flatten().double() * inverse)).square() / torch.where(kept, values, 1)
        _, directions, moving = _spectrum(flat)
        return cls(information, float(torch.where(kept, parts, 0).sum()), directions[:, ~moving])


def _spectrum(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues, eigenvectors, and whether an eigenvalue counts."""
    values, vectors = torch.linalg.eigh(matrix)
    return values, vectors, values > RANK_TOLERANCE * values.max().clamp(min=1e-300)
