"""Exact moments of an estimate, from all its outcomes and their probabilities."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ...oracles import kernels
from .metrics import Estimates, Summary, active_parts
from .moments import FULL_COVARIANCE

TOGETHER = 256
"""Outcomes at a time: what the cache of a core holds."""


class ExactMoments:
    """Weighted sums over all outcomes; the weights are probabilities, so that the sums are means.

    Args:
        gradient: [d], exact.
        information: Fisher's, [d, d], or None.
        covariance: whether it is made, where there are no more than `FULL_COVARIANCE` parts.
    """

    def __init__(self, gradient: Tensor, information: Tensor | None = None, *, covariance: bool = True) -> None:
        self.gradient, self.information = gradient, information
        size, zeros = len(gradient), gradient.new_zeros
        self.error, self.active = torch.zeros_like(gradient), active_parts(gradient).double()
        # Weight, squared error, zero, non-zero parts, then the fields of `Estimates`.
        self.sums = zeros(9 if information is None else 10)
        self.products = zeros(size, size) if covariance and size <= FULL_COVARIANCE else None
        self._rows = torch.stack([gradient, self.active, self.active * gradient.sign()])

    def add(self, estimates: Tensor, weights: Tensor) -> None:
        """Outcomes ``[r, *event]`` of these probabilities [r]."""
        flat = estimates.reshape(len(weights), -1).double()
        if kernels.enabled(flat) and self.products is not None:
            self._add_compiled(flat, weights.double())
        elif kernels.enabled(flat) and len(flat) == 1:
            self._add_one(flat, weights.double())
        else:
            self._add(flat, weights)

    def _add_compiled(self, flat: Tensor, weights: Tensor) -> None:
        """What `_add` does on the CPU, in a fraction of the time; parts that are never anything but 0 are left out."""
        from .kernels import block_moments, outcome_moments, symmetric  # here, because they load the compiler

        assert self.products is not None
        flat = flat.detach().contiguous()
        estimates, size = flat.numpy(), flat.shape[1]
        places, nothing = np.empty(size, np.int64), np.zeros(size)
        moving = places[: block_moments.moving_parts(estimates, self.gradient.numpy(), nothing, nothing, places)]
        parts, index, weight = len(moving), torch.from_numpy(moving), weights.sum()
        centre = (weights @ flat)[index] / weight.clamp(min=1e-300)
        found, product, room = flat.new_zeros(parts, parts), flat.new_empty(parts * parts), flat.new_empty(2, TOGETHER, parts)
        fixed = (self._rows.numpy(), centre.numpy(), moving, self.error.numpy(), self.sums.numpy())
        for block, shares in zip(flat.split(TOGETHER), weights.split(TOGETHER), strict=True):
            centred, weighted = room[:, : len(block)]
            outcome_moments.add_outcomes(block.numpy(), shares.numpy(), *fixed, centred.numpy(), weighted.numpy())
            if parts < symmetric.LEAST:
                found.addmm_(centred.mT, weighted)
            else:
                symmetric.product(centred.flatten().numpy(), weighted.flatten().numpy(), len(block), parts, product.numpy())
                found += product.view(parts, parts)
        # About the mean of these, which lies far from the gradient where an estimator is wrong by far: nothing cancels in what follows.
        drift = centre - self.gradient[index]
        self.products[index.unsqueeze(-1), index] += found.addr(drift, drift * weight)
        if self.information is not None:
            information = self.information[index.unsqueeze(-1), index]
            self.sums[-1] += (information * found).sum() + weight * (centre @ information @ centre)

    def _add_one(self, flat: Tensor, weights: Tensor) -> None:
        """What `_add_compiled` does with one outcome, which does not vary: there are no products of parts to sum."""
        from .kernels import block_moments, outcome_moments

        estimate, size = flat.detach().contiguous().numpy(), flat.shape[1]
        places, nothing = np.empty(size, np.int64), np.zeros(size)
        moving = places[: block_moments.moving_parts(estimate, self.gradient.numpy(), nothing, nothing, places)]
        centre, room = estimate[0, moving], np.empty((2, 1, len(moving)))
        fixed = (self._rows.numpy(), centre, moving, self.error.numpy(), self.sums.numpy())
        outcome_moments.add_outcomes(estimate, weights.numpy(), *fixed, *room)
        if self.information is not None:
            index, middle = torch.from_numpy(moving), torch.from_numpy(centre)
            information = self.information if len(moving) == size else self.information[index][:, index]
            self.sums[-1] += weights[0] * (middle @ information @ middle)

    def _add(self, flat: Tensor, weights: Tensor) -> None:
        errors = flat - self.gradient
        self.error += weights @ errors
        if self.products is not None:
            self.products.addmm_(errors.mT, errors * weights.unsqueeze(-1))
        self.sums += weights @ torch.stack([torch.ones_like(weights), torch.linalg.vecdot(errors, errors), *self._numbers(flat)], -1)

    def _numbers(self, flat: Tensor) -> list[Tensor]:
        """What is counted of each outcome."""
        along, square, signs = flat @ self.gradient, torch.linalg.vecdot(flat, flat), flat.sign()
        moving = signs.abs()
        nonzero, signed = moving.sum(-1), moving @ self.active
        cosine = torch.where(square > 0, along / (square.sqrt() * self.gradient.norm().clamp(min=1e-300)), 0)
        agreeing = (signed + signs @ (self.active * self.gradient.sign())) / 2
        informed = [] if self.information is None else [torch.linalg.vecdot(flat @ self.information, flat)]
        descent = (along > 0).double()
        return [(nonzero == 0).double(), nonzero, descent, cosine, square.square(), agreeing, signed, *informed]

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
