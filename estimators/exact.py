"""Exact marginalisation: the reference."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..oracles.capabilities import EnumerableOracle, MarginalOracle, Oracle
from ..oracles.capabilities.derivatives import unsqueeze_event
from ..oracles.numerics import share_rows
from ..oracles.options import Count
from .base import Estimator, Evaluations, Loss, Objective, Tier, evaluate, with_gradient
from .enumeration import LIMIT, ListedOracle, chunks, too_many


@dataclass(frozen=True)
class ExactMarginalisation(Estimator[ListedOracle]):
    """Exact marginalisation: ``∇ Σ_z p_θ(z) L(z) = Σ_z p(z) (L(z) − L(z₀)) ∇ log p(z)``, by enumeration in chunks.

    Subtracting the loss of one structure z₀ changes nothing in exact arithmetic and keeps large offsets of the loss from cancelling.

    Cost: the loss on every structure, for every batch row; memory of one chunk. Use it for small spaces.

    Args:
        chunk: structures per loss call.
        limit: the most structures that are enumerated; spaces with more are refused.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> ExactMarginalisation().gradient(loss, Categorical(), torch.tensor([0.3, -0.2, 0.5]), generator=torch.Generator())
        tensor([-0.0390, -0.3454,  0.3843])
    """

    chunk: Count = 128
    limit: Count = LIMIT

    name: ClassVar[str] = "exact"
    tier: ClassVar[Tier] = "core"
    needs: ClassVar[tuple[type[Oracle], ...]] = (MarginalOracle, EnumerableOracle)
    objective: ClassVar[Objective] = "expected"
    unbiased: ClassVar[bool] = True
    deterministic: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, argmax=1, enumerations=1)

    def _limitation(self, oracle: ListedOracle, event_shape: tuple[int, ...]) -> str | None:
        return too_many(self.name, oracle, event_shape, self.limit)

    def surrogate(self, loss: Loss, oracle: ListedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        theta = scores.detach()
        shared = share_rows(theta, oracle.event_ndim)
        pivot = evaluate(loss, oracle.argmax(theta), oracle.event_ndim).detach()
        value, estimate = pivot, torch.zeros_like(theta)
        for structures in chunks(oracle, theta, self.chunk):
            log_prob, slopes = _with_slopes(oracle, structures, shared)
            excess = evaluate(loss, structures.expand(len(structures), *theta.shape), oracle.event_ndim) - pivot
            weighted = log_prob.exp() * excess
            value = value + weighted.sum(0)
            estimate = estimate + (unsqueeze_event(weighted.detach(), oracle.event_ndim) * slopes).sum(0)
        return with_gradient(value, scores, estimate)


def _with_slopes(oracle: ListedOracle, structures: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
    """``log p(z)`` and ``∇ log p(z)`` of every structure [c, 1, ..., *event] under every distinct row of scores: [c, *rows, ...].

    A structure with a forbidden part has log-probability -inf and gradient 0.
    """
    with torch.enable_grad():
        leaf = shared.expand(len(structures), *shared.shape).requires_grad_()
        log_prob = oracle.log_prob(structures, leaf)
        (slopes,) = torch.autograd.grad(torch.where(log_prob > -math.inf, log_prob, 0).sum(), leaf)
    return log_prob.detach(), slopes
