"""The mean of an estimator at one place: exactly where all its samples can be dealt, else by replicates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...estimators.base import Estimator
from ..measures.replicates import Sampling, draw_moments, finite, warmed
from ..measures.suite import Effort
from ..statistics.exact_moments import single
from ..statistics.intervals import Interval
from ..statistics.metrics import Summary, estimated_metrics, exact_metrics, summarise
from ..statistics.moments import Moments
from ..truth import Target
from ..truth.replay import replay
from ..truth.replay_oracle import slots_of
from .laws.behaviour import world_state

REPLAY_CAP = 20_000
"""Tuples of samples that are dealt at most."""

TOLERANCE = 1e-9
"""Relative distance below which an exact mean is the target: the rest is rounding."""


@dataclass(frozen=True)
class AuditEffort:
    """How far an audit goes.

    Attributes:
        alpha: error rate of the audit. ``seed``: of everything random.
        first, most: replicates of the first and of all looks of one test.
        seconds: of one test. ``structures``: at most.
    """

    alpha: float = 1e-3
    seed: int = 0
    first: int = 4096
    most: int = 262_144
    seconds: float = 5.0
    structures: int = 5

    @property
    def effort(self) -> Effort:
        """For the sequential test: the same level for every test; the correction for their number comes after."""
        return Effort(replicates=self.first, most_replicates=self.most, seconds=self.seconds, alpha=self.alpha, equivalence=EQUIVALENCE)

    def sampling(self, *key: str) -> Sampling:
        """Of one place."""
        return Sampling(replicates=self.first, seed=self.seed, key=("audit", *key))


EQUIVALENCE = 0.05
"""A bias whose upper 95 % bound is below this share of the target counts as none."""


def scaled(target: Target, scale: float) -> Target:
    """The same instance, whose target is a multiple of the gradient; kurtoses do not know scales."""
    return replace(target, truth=replace(target.truth, gradient=scale * target.truth.gradient)) if scale != 1 else target


def exact_mean(estimator: Estimator[Any], target: Target, sampling: Sampling) -> Summary | None:
    """The exact moments of the errors; None where the estimate is random in another way than by samples of the oracle."""
    if estimator.deterministic:
        unused = torch.Generator(target.scores.device).manual_seed(0)
        estimate = estimator.gradient(target.loss, target.oracle, target.scores, generator=unused)
        return finite(single(estimate, target.truth.gradient), estimator, target, sampling)
    before = world_state()
    slots = slots_of(estimator, target.oracle, target.loss, target.scores)
    if slots is None or world_state() != before or target.truth.count**slots > REPLAY_CAP:
        return None
    return finite(replay(warmed(estimator, target, sampling), target, slots), estimator, target, sampling)


def sampler(estimator: Estimator[Any], target: Target, sampling: Sampling) -> Callable[[str, int], Moments]:
    """Moments of fresh replicates, by the name of their stream and their number."""
    warm = warmed(estimator, target, sampling)
    return lambda slot, replicates: draw_moments(warm, target, replace(sampling, replicates=replicates), slot=slot)


@dataclass(frozen=True, eq=False)
class Mean:
    """What is known of a mean ``[d]``, with the metrics against the target."""

    value: Tensor
    metrics: dict[str, Interval]

    @classmethod
    def of_summary(cls, summary: Summary) -> Mean:
        """An exact one."""
        return cls(summary.error + summary.gradient, exact_metrics(summary, None))

    @classmethod
    def of_moments(cls, moments: Moments) -> Mean:
        """An estimated one."""
        summary = summarise(moments)
        return cls(summary.error + moments.gradient, estimated_metrics(moments))
