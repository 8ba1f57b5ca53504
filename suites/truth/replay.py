"""Exact moments of an estimator, by dealing it every possible sample.

An estimator that draws structures through its oracle alone is a function of these structures. Replacing the oracle's sampler by a script
that deals all of them, weighted by their exact probabilities, gives the mean and the covariance of the *shipped code* without sampling
error: a gradient that is off by a factor of 0.98 cannot hide.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ...estimators.base import Estimator
from ..statistics.exact_moments import ExactMoments
from ..statistics.metrics import Summary
from .enumeration import Target
from .scripted import ScriptedOracle, slots_of

__all__ = ["CHUNK", "REPLAY_CAP", "ScriptedOracle", "replay", "slots_of"]

REPLAY_CAP = 200_000
"""The largest number of tuples of samples that is dealt out, unless an effort says otherwise."""

CHUNK = 4096
"""Tuples per launch."""


def replay(estimator: Estimator[Any], target: Target, slots: int, information: Tensor | None = None) -> Summary:
    """The exact mean and covariance of one estimate, over all ``count ** slots`` tuples of samples.

    Args:
        estimator: draws ``slots`` structures through the oracle and nothing else, see `slots_of`.
        target: the instance.
        slots: samples per estimate.
        information: Fisher's, [d, d], for what is measured in its metric; None leaves that at 0.

    Cost:
        The estimator once per tuple, in launches of `CHUNK`; memory does not grow with the number of tuples.
    """
    scores, truth = target.scores, target.truth
    totals = ExactMoments(truth.gradient.flatten(), information)
    for dealt, weights in _deals(target, slots):
        script = ScriptedOracle(target.oracle, dealt)
        rows = scores.expand(len(weights), *scores.shape)
        totals.add(estimator.gradient(target.loss, script, rows, generator=torch.Generator(scores.device)), weights)
    return totals.summary()


def _deals(target: Target, slots: int) -> Iterator[tuple[Tensor, Tensor]]:
    """All tuples of possible samples, ``[slots, rows, *event]``, and their probabilities, chunk by chunk."""
    count, device = target.truth.count, target.scores.device
    structures, probabilities = structures_and_probabilities(target) if slots > 1 else (None, None)
    for start in range(0, count**slots, CHUNK):
        index = torch.arange(start, min(start + CHUNK, count**slots), device=device)
        if structures is None or probabilities is None:
            dealt = target.oracle._unrank(index, tuple(target.scores.shape)).double().unsqueeze(0)
            weights = _probabilities(dealt[0], target)
        else:
            ranks = torch.stack([index // count**slot % count for slot in range(slots)])
            dealt, weights = structures[ranks], probabilities[ranks].prod(0)
        possible = weights > 0
        if bool(possible.all()):
            yield dealt, weights
        elif bool(possible.any()):
            yield dealt[:, possible], weights[possible]


def structures_and_probabilities(target: Target) -> tuple[Tensor, Tensor]:
    """Every structure and its probability: small wherever tuples of them are few enough to be dealt."""
    ranks = torch.arange(target.truth.count, device=target.scores.device)
    structures = target.oracle._unrank(ranks, tuple(target.scores.shape)).double()
    return structures, _probabilities(structures, target)


def _probabilities(structures: Tensor, target: Target) -> Tensor:
    """Exact probabilities, with the log-partition of the enumeration."""
    parameters = target.oracle._potentials(target.scores).double()
    return (torch.where(structures > 0, parameters, 0).flatten(1).sum(-1) - target.truth.log_partition).exp()
