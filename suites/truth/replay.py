"""Exact moments of an estimator, by dealing it every possible sample.

An estimator that draws structures through its oracle alone is a function of these structures. Replacing the oracle's sampler by a script
that deals all of them, weighted by their exact probabilities, gives the mean and the covariance of the *shipped code* without sampling
error: a gradient that is off by a factor of 0.98 cannot hide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...estimators.base import Estimator
from ..device_memory import Launches
from ..statistics.exact_moments import ExactMoments
from ..statistics.metrics import Summary
from .enumeration import Target
from .replay_oracle import ReplayOracle, slots_of

__all__ = ["CHUNK", "REPLAY_CAP", "ReplayOracle", "replay", "slots_of"]

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
    deal = _dealer(target, slots)

    def estimates(first: int, count: int) -> tuple[Tensor, Tensor] | None:
        dealt, weights = deal(first, count)
        if not len(weights):
            return None
        rows = scores.expand(len(weights), *scores.shape)
        script = ReplayOracle(target.oracle, dealt)
        return estimator.gradient(target.loss, script, rows, generator=torch.Generator(scores.device)), weights

    launches = Launches(f"`{estimator.name}` on {slots} samples of shape {tuple(scores.shape)}", CHUNK, scores.device)
    for _, found in launches.over(0, truth.count**slots, estimates):
        if found is not None:
            totals.add(*found)
    return totals.summary()


def _dealer(target: Target, slots: int) -> Callable[[int, int], tuple[Tensor, Tensor]]:
    """Deals so many tuples from the first one on: the possible ones, ``[slots, rows, *event]``, and their probabilities."""
    structures, probabilities = structures_and_probabilities(target) if slots > 1 else (None, None)

    def deal(first: int, number: int) -> tuple[Tensor, Tensor]:
        index, count = torch.arange(first, first + number, device=target.scores.device), target.truth.count
        if structures is None or probabilities is None:
            dealt = target.oracle.unrank(index, tuple(target.scores.shape)).double().unsqueeze(0)
            weights = _probabilities(dealt[0], target)
        else:
            ranks = torch.stack([index // count**slot % count for slot in range(slots)])
            dealt, weights = structures[ranks], probabilities[ranks].prod(0)
        possible = weights > 0
        return (dealt, weights) if bool(possible.all()) else (dealt[:, possible], weights[possible])

    return deal


def structures_and_probabilities(target: Target) -> tuple[Tensor, Tensor]:
    """Every structure and its probability: small wherever tuples of them are few enough to be dealt."""
    ranks = torch.arange(target.truth.count, device=target.scores.device)
    structures = target.oracle.unrank(ranks, tuple(target.scores.shape)).double()
    return structures, _probabilities(structures, target)


def _probabilities(structures: Tensor, target: Target) -> Tensor:
    """Exact probabilities, with the log-partition of the enumeration."""
    parameters = target.oracle.natural_parameters(target.scores).double()
    return (torch.where(structures > 0, parameters, 0).flatten(1).sum(-1) - target.truth.log_partition).exp()
