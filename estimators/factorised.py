"""What estimators of independent categories share: log-probabilities, Gumbel races, and products with the Jacobian of the softmax."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..oracles.base import FORBIDDEN, Oracle
from ..oracles.capabilities import FactorisedOracle
from .base import Objective, PathwiseEstimator, expand_samples, with_backward
from .noise import Gumbel

PullBack = Callable[[Tensor], Tensor]
"""From γ to the estimate, both float64 ``[*batch, *event]``."""


@dataclass(frozen=True)
class Race:
    """An exact sample as the winner of a Gumbel race.

    Attributes:
        log_probs: float64 ``[*batch, *event]``.
        sample: the winner, float64 ``[*batch, *event]``.
        draw: Gumbel noise without conditions, ``[count, *batch, *event]``.
    """

    log_probs: Tensor
    sample: Tensor
    draw: Callable[[int], Tensor]

    def relaxed(self, count: int, temperature: float, log_probs: Tensor | None = None) -> Tensor:
        """``softmax(x / τ)`` of races ``x`` that the sample won, ``[count, *batch, *event]``; other log-probabilities where given."""
        noisy = conditional_race(self.log_probs if log_probs is None else log_probs, self.sample, self.draw(count))
        return (noisy / temperature).softmax(-1)


class ExactSampleForward(PathwiseEstimator[FactorisedOracle]):
    """Forward an exact sample, backward a linear function of γ: a subclass says which one."""

    needs: ClassVar[tuple[type[Oracle], ...]] = (FactorisedOracle,)
    objective: ClassVar[Objective] = "expected"

    @abc.abstractmethod
    def _pull_back(self, race: Race) -> PullBack: ...

    def structure(self, oracle: FactorisedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        sample = oracle.sample(scores, generator=generator)
        log_probs, moving = log_probabilities(oracle, scores.detach()), moving_categories(oracle, scores)
        pull_back = self._pull_back(Race(log_probs, sample.double(), lambda count: gumbels(oracle, scores, count, generator=generator)))
        return with_backward(sample, scores, lambda gamma: torch.where(moving, pull_back(gamma.double()), 0).to(scores.dtype))


def moving_categories(oracle: Oracle, scores: Tensor) -> Tensor:
    """Boolean ``[*batch, *event]``: the parts that carry gradient, which are those of categories with a choice, in feasible rows."""
    free = oracle.free_parts(scores)
    return free & (free.sum(-1, keepdim=True) > 1) & _feasible(free, oracle.event_ndim)


def log_probabilities(oracle: Oracle, scores: Tensor) -> Tensor:
    """Float64 log-softmax along the last dimension, differentiable.

    A forbidden part has a huge negative number in place of -inf, so that no derivative is NaN; an infeasible row is uniform and constant.
    """
    free = oracle.free_parts(scores)
    return scores.double().masked_fill(~free, FORBIDDEN).masked_fill(~_feasible(free, oracle.event_ndim), 0).log_softmax(-1)


def _feasible(free: Tensor, event_ndim: int) -> Tensor:
    """Boolean ``[*batch, 1...]``: whether every category has a part that is free."""
    some = free.any(-1, keepdim=True)
    for dim in range(-event_ndim, -1):
        some = some.all(dim, keepdim=True)
    return some


def gumbels(oracle: Oracle, scores: Tensor, count: int, *, generator: torch.Generator) -> Tensor:
    """Float64 Gumbel noise ``[count, *batch, *event]``; it is drawn batch first, because seed blocks cut the batch."""
    zeros = torch.zeros((), dtype=torch.float64, device=scores.device).expand(scores.shape)
    drawn = Gumbel().perturb(oracle, expand_samples(zeros, count, oracle.event_ndim), generator=generator)
    return drawn.movedim(scores.ndim - oracle.event_ndim, 0)


def conditional_race(log_probs: Tensor, sample: Tensor, noise: Tensor) -> Tensor:
    """``log p + G`` given that the sample won the race, from Gumbel noise without conditions.

    The maximum is a Gumbel variable of location 0 whoever wins, and the others are Gumbel variables cut off there:
    ``x_D = G_D`` and ``x_j = −log(e^{−G_D} + e^{−log p_j − G_j})``.
    """
    best = (sample * noise).sum(-1, keepdim=True)
    return torch.where(sample > 0, best, -torch.logaddexp(-best, -log_probs - noise))


def softmax_product(probabilities: Tensor, vector: Tensor) -> Tensor:
    """``(diag y − y yᵀ) v`` along the last dimension."""
    return probabilities * (vector - (probabilities * vector).sum(-1, keepdim=True))
