"""Exact moments of an estimate, from all its outcomes and their probabilities."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .metrics import Estimates, Summary, active_parts
from .moments import FULL_COVARIANCE


class ExactMoments:
    """Weighted sums over all outcomes; the weights are probabilities, so that the sums are means.

    Args:
        gradient: [d], exact.
        information: Fisher's, [d, d], or None.
        covariance: whether it is computed, up to `FULL_COVARIANCE` parts.
    """

    def __init__(self, gradient: Tensor, information: Tensor | None = None, *, covariance: bool = True) -> None:
        self.gradient, self.information = gradient, information
        size, zeros = len(gradient), gradient.new_zeros
        self.error, self.active = torch.zeros_like(gradient), active_parts(gradient).double()
        # Weight, squared error, zero, non-zero parts, then the fields of `Estimates`.
        self.sums = zeros(9 if information is None else 10)
        self.products = zeros(size, size) if covariance and size <= FULL_COVARIANCE else None

    def add(self, estimates: Tensor, weights: Tensor) -> None:
        """Outcomes ``[r, *event]`` of these probabilities [r]."""
        flat = estimates.reshape(len(weights), -1).double()
        errors, along, square, signs = flat - self.gradient, flat @ self.gradient, torch.linalg.vecdot(flat, flat), flat.sign()
        moving = signs.abs()
        nonzero, signed = moving.sum(-1), moving @ self.active
        cosine = torch.where(square > 0, along / (square.sqrt() * self.gradient.norm().clamp(min=1e-300)), 0)
        agreeing = (signed + signs @ (self.active * self.gradient.sign())) / 2
        numbers = [torch.ones_like(weights), torch.linalg.vecdot(errors, errors), (nonzero == 0).double(), nonzero, (along > 0).double()]
        numbers += [cosine, square.square(), agreeing, signed]
        if self.information is not None:
            numbers.append(torch.linalg.vecdot(flat @ self.information, flat))
        self.sums += torch.stack(numbers) @ weights
        self.error += weights @ errors
        if self.products is not None:
            self.products.addmm_(errors.mT, errors * weights.unsqueeze(-1))

    def summary(self) -> Summary:
        """The exact moments."""
        weight, square, zero, nonzero, *singles = self.sums / self.sums[0]
        error = self.error / self.sums[0]
        covariance = None if self.products is None else self.products / self.sums[0] - torch.outer(error, error)
        trace = (square - error.square().sum()).clamp(min=0)
        infinite = torch.full_like(weight, math.inf)
        return Summary(self.gradient, error, trace, infinite, zero, nonzero, Estimates(*singles), covariance)


def single(estimate: Tensor, gradient: Tensor, information: Tensor | None = None) -> Summary:
    """The moments of an estimate without any randomness; its covariance is not made."""
    totals = ExactMoments(gradient.flatten(), information, covariance=False)
    totals.add(estimate.unsqueeze(0), totals.gradient.new_ones(1))
    return totals.summary()
