"""Exact moments of an estimator, by dealing it every possible sample.

An estimator that draws structures through its oracle alone is a function of these structures. Replacing the oracle's sampler by a script
that deals all of them, weighted by their exact probabilities, gives the mean and the covariance of the *shipped code* without sampling
error: a gradient that is off by a factor of 0.98 cannot hide.
"""

from __future__ import annotations

import dataclasses
import itertools
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

__all__ = ["CHUNK", "REPLAY_CAP", "ReplayOracle", "replay", "replay_order", "slots_of"]

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
        return _scripted(estimator, target, dealt), weights

    launches = Launches(f"`{estimator.name}` on {slots} samples of shape {tuple(scores.shape)}", CHUNK, scores.device)
    for _, found in launches.over(0, truth.count**slots, estimates):
        if found is not None:
            totals.add(*found)
    return totals.summary()


def replay_order(estimator: Estimator[Any], target: Target, cap: int, information: Tensor | None = None) -> Summary | None:
    """The exact moments of an estimator of `order` samples that has the mean of this one, which takes more of them.

    An estimate that is the average over all subsets of m samples has the mean of that of m, whatever the samples are. That it is such an
    average is no claim here: on tuples drawn at random the shipped code has to give what the smaller estimator gives on average.

    Returns:
        Moments whose mean is that of the estimator (its variance is not); None where it has no order, takes no more samples than that, is
        no such average, or ``cap`` does not suffice.

    Example:
        >>> from structgrad.estimators import LeaveOneOut
        >>> from structgrad.oracles import Subset
        >>> from structgrad.suites.truth import exact_truth
        >>> weights, scores = torch.tensor([1.0, -0.5, 2.0, 0.3]).double(), torch.zeros(4).double()
        >>> loss = lambda z: (z @ weights) ** 2
        >>> target = Target(Subset(2), loss, scores, exact_truth(loss, Subset(2), scores))
        >>> found = replay_order(LeaveOneOut(num_samples=16), target, REPLAY_CAP)
        >>> float(found.error.norm()) < 1e-12
        True
    """
    order, samples = estimator.order, getattr(estimator, "num_samples", 0)
    if order is None or samples <= order or target.truth.count**order > cap:
        return None
    smaller: Estimator[Any] = dataclasses.replace(estimator, num_samples=order)  # type: ignore[type-var]
    oracle, loss, scores = target.oracle, target.loss, target.scores
    if (slots_of(estimator, oracle, loss, scores), slots_of(smaller, oracle, loss, scores)) != (samples, order):
        return None
    structures, probabilities = structures_and_probabilities(target)
    generator = torch.Generator(scores.device).manual_seed(samples)
    drawn = torch.multinomial(probabilities, samples * TUPLES, replacement=True, generator=generator).unflatten(0, (samples, TUPLES))
    whole, average = _scripted(estimator, target, structures[drawn]), torch.zeros((TUPLES, *scores.shape), dtype=torch.float64)
    subsets = list(itertools.islice(itertools.combinations(range(samples), order), SUBSETS + 1))
    if len(subsets) > SUBSETS:
        return None
    for subset in subsets:
        average += _scripted(smaller, target, structures[drawn[list(subset)]]).double() / len(subsets)
    agree = torch.allclose(whole.double(), average, rtol=1e-9, atol=1e-9 * float(average.abs().max()))
    return replay(smaller, target, order, information) if agree else None


TUPLES = 64
"""Tuples of samples on which an estimate is compared with the average over its subsets."""

SUBSETS = 500
"""Subsets of a tuple at most: pairs of 32 samples."""


def _scripted(estimator: Estimator[Any], target: Target, dealt: Tensor) -> Tensor:
    """Estimates ``[rows, *event]`` for samples ``[slots, rows, *event]``."""
    rows = target.scores.expand(dealt.shape[1], *target.scores.shape)
    script = ReplayOracle(target.oracle, dealt)
    return estimator.gradient(target.loss, script, rows, generator=torch.Generator(target.scores.device))


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
    return (torch.where(structures > 0, structures * parameters, 0).flatten(1).sum(-1) - target.truth.log_partition).exp()
