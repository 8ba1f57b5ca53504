"""Independent categories: log-probabilities, Gumbel races, and products with the Jacobian of the softmax."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import FactorisedOracle, Oracle
from ...oracles.capabilities.base import FORBIDDEN
from ..base import Objective, PathwiseEstimator, with_backward
from ..noise import Gumbel

PullBack = Callable[[Tensor], Tensor]
"""From γ to the estimate, both float64 ``[*batch, *event]``."""


@dataclass(frozen=True)
class Race:
    """An exact sample as the winner of a Gumbel race.

    Attributes:
        log_probs: float64 ``[*batch, *event]``.
        sample: the winner, float64 ``[*batch, *event]``.
        draw: Gumbel noise without conditions, ``[*batch, *event]``.
    """

    log_probs: Tensor
    sample: Tensor
    draw: Callable[[], Tensor]

    def relaxed(self, count: int, temperature: float, log_probs: Tensor | None = None) -> PullBack:
        """The mean of ``J_τ(x) = (diag y − y yᵀ)/τ`` with ``y = softmax(x/τ)``, as a product, over races ``x`` that the sample won.

        Other log-probabilities than those of the sample are taken where given.
        """
        log_probs = self.log_probs if log_probs is None else log_probs
        # One at a time: intermediate results for all of them would not fit the caches.
        points = [self._relaxed(log_probs, temperature) for _ in range(count)]

        def product(gamma: Tensor) -> Tensor:
            total = torch.zeros_like(gamma)
            for point in points:
                total += softmax_product(point, gamma)
            return total / (count * temperature)

        return product

    def _relaxed(self, log_probs: Tensor, temperature: float) -> Tensor:
        # The winner has weight 1 and the others less, so that no maximum need be taken out.
        weights = _behind(log_probs, self.sample, self.draw()).mul_(-1 / temperature).exp_()
        return weights.div_(weights.sum(-1, keepdim=True))


class ExactSampleForward(PathwiseEstimator[FactorisedOracle]):
    """Forward an exact sample, backward a linear function of γ: a subclass says which one."""

    needs: ClassVar[tuple[type[Oracle], ...]] = (FactorisedOracle,)
    objective: ClassVar[Objective] = "expected"
    linear: ClassVar[bool] = True

    @abc.abstractmethod
    def _pull_back(self, race: Race) -> PullBack: ...

    def structure(self, oracle: FactorisedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        sample = oracle.sample(scores, generator=generator)
        log_probs, moving = log_probabilities(oracle, scores.detach()), moving_categories(oracle, scores)
        pull_back = self._pull_back(Race(log_probs, sample.double(), lambda: gumbels(oracle, scores, generator=generator)))
        return with_backward(sample, scores, lambda gamma: torch.where(moving, pull_back(gamma.double()), 0).to(scores.dtype))


def moving_categories(oracle: Oracle, scores: Tensor) -> Tensor:
    """Boolean ``[*batch, *event]``: the parts that carry gradient, which are those of categories with a choice, in feasible rows."""
    possible = possible_parts(oracle, scores)
    return possible & (possible.sum(-1, keepdim=True) > 1)


def possible_parts(oracle: Oracle, scores: Tensor) -> Tensor:
    """Boolean ``[*batch, *event]``: the parts of positive probability, none in infeasible rows."""
    if oracle.forbids_nothing(scores):
        return torch.ones_like(scores, dtype=torch.bool)
    free = oracle.free_parts(scores)
    return free & _feasible(free, oracle.event_ndim)


def log_probabilities(oracle: Oracle, scores: Tensor) -> Tensor:
    """Float64 log-softmax along the last dimension, differentiable.

    A forbidden part has a huge negative number in place of -inf, so that no derivative is NaN; an infeasible row is uniform and constant.
    """
    if oracle.forbids_nothing(scores):
        return scores.double().log_softmax(-1)
    free = oracle.free_parts(scores)
    return scores.double().masked_fill(~free, FORBIDDEN).masked_fill(~_feasible(free, oracle.event_ndim), 0).log_softmax(-1)


def _feasible(free: Tensor, event_ndim: int) -> Tensor:
    """Boolean ``[*batch, 1...]``: whether every category has a part that is free."""
    some = free.any(-1, keepdim=True)
    for dim in range(-event_ndim, -1):
        some = some.all(dim, keepdim=True)
    return some


def gumbels(oracle: Oracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
    """Float64 Gumbel noise ``[*batch, *event]``."""
    return Gumbel().draw(oracle, scores, generator=generator)


def conditional_race(log_probs: Tensor, sample: Tensor, noise: Tensor) -> Tensor:
    """``log p + G`` given that the sample won the race, from Gumbel noise without conditions; differentiable.

    The maximum is a Gumbel variable of location 0 whoever wins, and the others are Gumbel variables cut off there:
    ``x_D = G_D`` and ``x_j = −log(e^{−G_D} + e^{−log p_j − G_j})``.
    """
    return (sample * noise).sum(-1, keepdim=True) - _behind(log_probs, sample, noise)


def _behind(log_probs: Tensor, sample: Tensor, noise: Tensor) -> Tensor:
    """``x_D − x``, how far every part is behind the winner: ``log(1 + e^{G_D − G_j}/p_j)``, and 0 for the winner."""
    won = sample > 0
    best = noise.gather(-1, won.to(torch.uint8).argmax(-1, keepdim=True).expand(*noise.shape[:-1], 1))
    return torch.nn.functional.softplus(best - noise - log_probs, threshold=40).masked_fill(won, 0)


def softmax_product(probabilities: Tensor, vector: Tensor) -> Tensor:
    """``(diag y − y yᵀ) v`` along the last dimension."""
    return probabilities * (vector - (probabilities * vector).sum(-1, keepdim=True))
