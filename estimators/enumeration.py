"""Passes over all structures of an oracle, in chunks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..oracles.capabilities import EnumerableOracle, MarginalOracle
from ..oracles.capabilities.enumeration import MAX_RANK
from ..oracles.magnitudes import counted, duration
from ..oracles.numerics import share_rows
from .base import Loss, evaluate

LIMIT = 2_000_000
"""The most structures of which an estimator takes the losses one after the other, unless its option ``limit`` says otherwise."""

TYPICAL_RATE = 2e4
"""Structures a second of one row of scores, on one core, as measured with cheap losses; some structures take four times as long."""


class ListedOracle(MarginalOracle, EnumerableOracle):
    """What a sum over all structures needs, as a type."""


def too_many(name: str, oracle: EnumerableOracle, event_shape: tuple[int, ...], limit: int) -> str | None:
    """Why an estimator that goes through all structures cannot serve scores of a shape; None where they are within its limit."""
    total = oracle.count(event_shape)
    if total <= min(limit, MAX_RANK):
        return None
    raises = f", raise limit= for so long a wait ({name}[limit={total}])" if total <= MAX_RANK else ""
    return (
        f"{name} enumerates at most limit={limit} structures, and the oracle {oracle.name} has {counted(total)} of the shape {event_shape}"
        f", which take {duration(total, TYPICAL_RATE)} at a typical {TYPICAL_RATE:,.0f} a second{raises}"
    )


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
