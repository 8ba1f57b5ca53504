"""Passes over all structures in chunks, and the reference that is made of them: exact marginalisation."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..oracles.capabilities import EnumerableOracle, MarginalOracle
from ..oracles.capabilities.derivatives import unsqueeze_event
from ..oracles.numerics import share_rows
from ..oracles.options import Count
from .base import Evaluations, UnbiasedEstimator
from .surrogates import Loss, evaluate, with_gradient

LIMIT = 2_000_000
"""The most structures of which an estimator takes the losses one after the other, unless its option ``limit`` says otherwise."""


class ListedOracle(MarginalOracle, EnumerableOracle):
    """The oracle of a sum over all structures, as a type."""


def chunks(oracle: EnumerableOracle, scores: Tensor, size: int) -> Iterator[Tensor]:
    """All structures, at most ``size`` at a time: ``[c, 1, ..., *event]`` in the dtype of the scores, to be expanded over the batch."""
    batch_dims = scores.ndim - oracle.event_ndim
    event = tuple(scores.shape[batch_dims:])
    total = oracle.count(event)
    for start in range(0, total, size):
        listed = oracle.enumerate(event, start, min(start + size, total), dtype=scores.dtype, device=scores.device)
        yield listed.reshape(len(listed), *([1] * batch_dims), *event)


def expected_loss(loss: Loss, oracle: ListedOracle, scores: Tensor, size: int) -> Tensor:
    """``E_p L(z) = Σ_z p(z) L(z)``: ``[*batch]``, without gradients. Probabilities are computed once for rows that share their scores."""
    shared, batch = share_rows(scores.detach(), oracle.event_ndim), scores.shape[: scores.ndim - oracle.event_ndim]
    total = scores.new_zeros(batch)
    with torch.no_grad():
        for structures in chunks(oracle, scores, size):
            values = evaluate(loss, structures.expand(len(structures), *scores.shape), oracle.event_ndim)
            total = total + (oracle.log_prob(structures, shared).exp() * values).sum(0)
    return total


@dataclass(frozen=True)
class ExactMarginalisation(UnbiasedEstimator[ListedOracle], name="exact", tier="core"):
    """Exact marginalisation: ``∇ Σ_z p_θ(z) L(z) = Σ_z p(z) (L(z) − L(z₀)) ∇ log p(z)``, by enumeration in chunks.

    Subtracting the loss of one structure z₀ changes nothing in exact arithmetic and keeps large offsets of the loss from cancelling.

    Cost: the loss on every structure, for every batch row; memory of one chunk. Use it for small spaces.

    Args:
        chunk: structures per loss call.

    Example:
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> ExactMarginalisation().gradient(loss, "categorical", torch.tensor([0.3, -0.2, 0.5]), generator=torch.Generator())
        tensor([-0.0390, -0.3454,  0.3843])
    """

    chunk: Count = 128
    limit: Count = LIMIT

    needs = (MarginalOracle, EnumerableOracle)
    deterministic = True
    calls = Evaluations(losses=1, argmax=1, enumerations=1)

    def surrogate(self, loss: Loss, oracle: ListedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        theta = scores.detach()
        shared = share_rows(theta, oracle.event_ndim)
        pivot = evaluate(loss, oracle.argmax(theta), oracle.event_ndim).detach()
        value, estimate = pivot, torch.zeros_like(theta)
        for structures in chunks(oracle, theta, self.chunk):
            with torch.enable_grad():
                leaf = shared.expand(len(structures), *shared.shape).requires_grad_()
                log_prob = oracle.log_prob(structures, leaf)
                # A structure with a forbidden part has log-probability -inf and gradient 0.
                (slopes,) = torch.autograd.grad(torch.where(log_prob > -math.inf, log_prob, 0).sum(), leaf)
            excess = evaluate(loss, structures.expand(len(structures), *theta.shape), oracle.event_ndim) - pivot
            weighted = log_prob.detach().exp() * excess
            value = value + weighted.sum(0)
            estimate = estimate + (unsqueeze_event(weighted.detach(), oracle.event_ndim) * slopes).sum(0)
        return with_gradient(value, scores, estimate)
