"""Expectations of quadratic functions of ``y = A z``, and their exact gradients, over derivations.

Every node carries the first two moments of y over its sub-derivations, as deviations from one of them, its most probable one: where the
law is peaked the deviations are rare, and a rare event keeps all its digits; moments about 0 would lose them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ....oracles.derivations import DEAD, Level
from .derivations import GibbsLaw, spread


class QuadraticMoments(NamedTuple):
    """Of ``y − centre`` [r] at whole structures: mean, and half the mean square."""

    centre: Tensor
    mean: Tensor
    half_square: Tensor


class MomentPass:
    """The moments of all nodes, bottom up; and the gradient of a function of those of the root, top down.

    Args:
        law: of the derivations.
        weights: A, [r, d].
    """

    def __init__(self, law: GibbsLaw, weights: Tensor) -> None:
        self.law, self.weights = law, torch.nn.functional.pad(weights, (0, 1))
        # By node and row: a reference value of y, the mean of what y exceeds it by, and half the mean square.
        nodes = law.derivations.nodes
        self.centre, self.mean, self.half = (weights.new_zeros(nodes, len(weights)) for _ in range(3))
        for level, choice in zip(law.derivations.levels, law.choices, strict=True):
            self._add(level, choice)

    @property
    def root(self) -> QuadraticMoments:
        """The moments at whole structures."""
        root = self.law.derivations.root
        return QuadraticMoments(self.centre[root], self.mean[root], self.half[root])

    def _add(self, level: Level, choice: Tensor) -> None:
        values = self._values(level)
        best = choice.argmax(1).reshape(-1, 1, 1).expand(-1, 1, values.shape[-1])
        self.centre[level.heads] = values.gather(1, best).squeeze(1)
        mean, half = self._joint(level)
        self.mean[level.heads] = torch.einsum("he,her->hr", choice, mean)
        self.half[level.heads] = torch.einsum("he,her->hr", choice, half)

    def _values(self, level: Level) -> Tensor:
        """What y is at the centres of the edges: [h, e, r]."""
        values = self.centre[level.first] + self.weights.mT[level.parts]
        return values if level.second is None else values + self.centre[level.second]

    def _joint(self, level: Level, *, without: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean and half mean square [h, e, r] of every edge about the centre of its node; of all but one of its nodes where named."""
        mean = self._values(level) - self.centre[level.heads].unsqueeze(1)
        half = mean.square() / 2
        for tails in (level.first, level.second):
            if tails is not None and tails is not without:
                half = half + mean * self.mean[tails] + self.half[tails]
                mean = mean + self.mean[tails]
        return mean, half

    def gradient(self, first: Tensor, second: Tensor) -> Tensor:
        """Of ``Σ_r first_r E y_r + second_r E y_r² / 2``, y about the centre: [d]."""
        moments, nodes = self.root, self.law.derivations.nodes
        functional = self.mean.new_zeros(3, nodes, len(first))
        # The expectation is taken off first, so that what is summed is a covariance.
        at_root = torch.stack([-(first * moments.mean + second * moments.half_square), first, second])
        functional[:, self.law.derivations.root] = at_root
        gradient = self.mean.new_zeros(self.law.derivations.parts + 1)
        for level, choice in zip(reversed(self.law.derivations.levels), reversed(self.law.choices), strict=True):
            outer = functional[:, level.heads].unsqueeze(2) * choice.unsqueeze(-1)
            mean, half = self._joint(level)
            spread(gradient, level.parts, (outer[0] + outer[1] * mean + outer[2] * half).sum(-1))
            for tails in (level.first, level.second):
                if tails is not None:
                    self._push(functional, tails, outer, self._joint(level, without=tails))
        return gradient[:-1]

    @staticmethod
    def _push(functional: Tensor, tails: Tensor, outer: Tensor, rest: tuple[Tensor, Tensor]) -> None:
        """What a functional of an edge is as one of a node of it, given the moments of all else there."""
        mean, half = rest
        pushed = torch.stack([outer[0] + outer[1] * mean + outer[2] * half, outer[1] + outer[2] * mean, outer[2]])
        functional.index_add_(1, tails.flatten(), pushed.flatten(1, 2))
        functional[:, DEAD] = 0
