"""Expectations of quadratic functions of spanning trees, and their exact gradients: three derivatives of one determinant."""

from __future__ import annotations

import torch
from torch import Tensor

from .deviations import Deviations
from .moments import QuadraticMoments


class TreeMoments:
    """The moments of ``y = A z`` about its value at a tree T, and the gradient of a function of them.

    Args:
        deviations: from T.
        scores: [n + 1, n + 1], 0 at ignored entries.
        weights: A, [r, n + 1, n + 1].
    """

    def __init__(self, deviations: Deviations, scores: Tensor, weights: Tensor) -> None:
        self._leaf = scores.expand(len(weights), *scores.shape).clone().requires_grad_()
        # Along a direction that is 0 on T, so that what is rare is not a difference of what is likely.
        along = torch.nn.functional.pad(deviations.less_tree(weights), (1, 0))
        with torch.enable_grad():
            log_weight = deviations.log_weight(deviations.relative(self._leaf))
            (taken,) = torch.autograd.grad(log_weight.sum(), self._leaf, create_graph=True)
            self._mean = (taken * along).sum((1, 2))
            (change,) = torch.autograd.grad(self._mean.sum(), self._leaf, create_graph=True)
            self._half = ((change * along).sum((1, 2)) + self._mean.square()) / 2
        words = torch.arange(1, scores.shape[-1], device=scores.device)
        centre = weights[:, deviations.heads, words].sum(-1)
        self.root = QuadraticMoments(centre, self._mean.detach(), self._half.detach())

    def gradient(self, first: Tensor, second: Tensor) -> Tensor:
        """Of ``Σ_r first_r E y_r + second_r E y_r² / 2``, y about the centre: [d]."""
        with torch.enable_grad():
            total = (first * self._mean + second * self._half).sum()
        (gradient,) = torch.autograd.grad(total, self._leaf)
        return gradient.sum(0).flatten()
