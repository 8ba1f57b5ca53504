"""Streaming, mergeable moments of gradient estimates, in float64 and O(dimension) memory at any number of replicates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BATCHES = 32
"""Accumulators per cell. Intervals are delete-one-batch jackknives over them; 32 lose about 1 % of width against many more."""

FULL_COVARIANCE = 256
"""Up to this many parts the whole covariance is accumulated; above, what needs it is estimated from the batch means."""


@dataclass
class Moments:
    """Moments of the errors ``ĝ − g`` of replicates, in `BATCHES` batches.

    Errors, not estimates, are accumulated: their mean is small, so no digits cancel. Batches are merged by Chan's formula, in any order.

    Attributes:
        count: [batches] replicates. ``mean``: [batches, d] mean error. ``square``: [batches, d] centred sums of squares.
        along: [batches] centred sums of squares of the error along the gradient.
        zero: [batches] estimates that are exactly 0. ``nonzero``: [batches] non-zero parts, summed over estimates.
        comoment: [d, d] centred sums of products over all batches, or None above `FULL_COVARIANCE` parts.
        total: replicates in ``comoment``. ``total_mean``: [d], their mean.

    Example:
        >>> moments = Moments.empty(torch.tensor([1.0, 0.0]))
        >>> moments.add(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), batch=0)
        >>> moments.mean[0], int(moments.zero[0])
        (tensor([0., 0.], dtype=torch.float64), 1)
    """

    gradient: Tensor
    count: Tensor
    mean: Tensor
    square: Tensor
    along: Tensor
    zero: Tensor
    nonzero: Tensor
    comoment: Tensor | None
    total: int
    total_mean: Tensor

    @classmethod
    def empty(cls, gradient: Tensor) -> Moments:
        """No replicates yet, of errors against an exact gradient (flattened to [d])."""
        exact = gradient.flatten().double()
        size, zeros = exact.shape[0], exact.new_zeros
        comoment = zeros(size, size) if size <= FULL_COVARIANCE else None
        return cls(
            gradient=exact,
            count=zeros(BATCHES),
            mean=zeros(BATCHES, size),
            square=zeros(BATCHES, size),
            along=zeros(BATCHES),
            zero=zeros(BATCHES),
            nonzero=zeros(BATCHES),
            comoment=comoment,
            total=0,
            total_mean=zeros(size),
        )

    def add(self, estimates: Tensor, batch: int) -> None:
        """Take one block of replicates ``[r, *event]`` into a batch."""
        flat = estimates.reshape(estimates.shape[0], -1)
        errors = flat.double() - self.gradient
        rows = errors.shape[0]
        mean = errors.mean(0)
        centred = errors - mean
        old = self.count[batch].clone()
        step = mean - self.mean[batch]
        weight = old * rows / (old + rows)
        self.count[batch] += rows
        self.mean[batch] += step * (rows / (old + rows))
        self.square[batch] += centred.square().sum(0) + step.square() * weight
        direction = self.gradient / self.gradient.norm().clamp(min=1e-300)
        self.along[batch] += (centred @ direction).square().sum() + (step @ direction).square() * weight
        self.zero[batch] += (flat == 0).all(-1).sum()
        self.nonzero[batch] += (flat != 0).sum()
        self._add_comoment(centred, mean, rows)

    def _add_comoment(self, centred: Tensor, mean: Tensor, rows: int) -> None:
        step = mean - self.total_mean
        if self.comoment is not None:
            self.comoment.addmm_(centred.mT, centred)
            self.comoment.addr_(step, step, alpha=self.total * rows / (self.total + rows))
        self.total_mean = self.total_mean + step * (rows / (self.total + rows))
        self.total += rows

    def merged(self, other: Moments) -> Moments:
        """The moments of both sets of replicates."""
        if not torch.equal(self.gradient, other.gradient):
            raise ValueError("`merged` got moments of errors against different gradients; expected the same exact gradient")
        total = (self.count + other.count).clamp(min=1)
        share = (other.count / total).unsqueeze(-1)
        cross = self.count * other.count / total
        step = other.mean - self.mean
        direction = self.gradient / self.gradient.norm().clamp(min=1e-300)
        jump = other.total_mean - self.total_mean
        everything = max(self.total + other.total, 1)
        comoment = None
        if self.comoment is not None and other.comoment is not None:
            comoment = self.comoment + other.comoment + torch.outer(jump, jump) * (self.total * other.total / everything)
        return Moments(
            gradient=self.gradient,
            count=self.count + other.count,
            mean=self.mean + step * share,
            square=self.square + other.square + step.square() * cross.unsqueeze(-1),
            along=self.along + other.along + (step @ direction).square() * cross,
            zero=self.zero + other.zero,
            nonzero=self.nonzero + other.nonzero,
            comoment=comoment,
            total=self.total + other.total,
            total_mean=self.total_mean + jump * (other.total / everything),
        )
