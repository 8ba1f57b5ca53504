"""Passes over all structures of an oracle, in chunks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..oracles.base import EnumerableOracle, MarginalOracle
from ..oracles.masking import share_rows
from .base import Loss, evaluate


class ListedOracle(MarginalOracle, EnumerableOracle):
    """What a sum over all structures needs, as a type."""


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
