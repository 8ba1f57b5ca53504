"""Worth of an estimate: bias, gain and variance at flat scores, beside REINFORCE and leave-one-out for as many losses."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ...estimators.base import Estimator
from ...estimators.score_function.reinforce import LeaveOneOut, Reinforce
from ..measures.replicates import Sampling
from ..statistics.intervals import Interval
from ..truth import Target
from .cases import FLAT, AuditLoss, Structure, random_scores, seeded, target
from .means import AuditEffort, Mean, exact_mean, sampler, scaled
from .result import FlatComparison
from .subject import Subject

REPLICATES = 8192

LEAST_GAIN = 0.01
"""Below it, the length of the mean says nothing that variances could be compared at."""

ROUNDS, ROWS = 3, 512

Bounds = tuple[float | None, float | None, float | None]


def compare(
    subject: Subject, fresh: Callable[[], Estimator[Any]], structure: Structure, effort: AuditEffort, losses: float | None
) -> FlatComparison:
    """One structure at flat scores, against the gradient of the expected loss times the declared scale."""
    aim = scaled(target(structure, AuditLoss(structure), random_scores(structure, FLAT, 1)[0]), subject.estimator.scale)
    mean, tier = mean_of(fresh(), aim, effort.sampling(structure.name, "comparison"))
    variance, gain = mean.metrics["relative_variance"].value, mean.metrics["gain"].value
    # At equal gain: a factor that any learning rate absorbs is no merit.
    relative = None if variance is None or gain is None or abs(gain) < LEAST_GAIN else variance / gain**2
    exact = target(structure, aim.loss, aim.scores)
    others = _variances(exact, effort.sampling(structure.name, "comparison"), losses) if losses else (None, None)
    ratios = [None if not other or not relative or relative < 1e-12 else relative / other for other in others]
    alone = None if ratios[1] is None or losses is None else seconds_ratio(fresh(), exact, max(2, round(losses)))
    return FlatComparison(
        where=structure.name,
        tier=tier,
        reference="expected",
        gain=_bounds(mean.metrics["gain"]),
        relative_bias=_bounds(mean.metrics["relative_bias"]),
        cosine=_bounds(mean.metrics["cosine"]),
        relative_variance=variance,
        to_reinforce=ratios[0],
        to_leave_one_out=ratios[1],
        per_second=None if ratios[1] is None or alone is None else ratios[1] * alone,
        zero_rate=mean.metrics["zero_gradient_rate"].value,
    )


def mean_of(estimator: Estimator[Any], aim: Target, sampling: Sampling) -> tuple[Mean, Any]:
    """The mean, exactly or from a few thousand replicates, and which of both."""
    summary = exact_mean(estimator, aim, sampling)
    if summary is not None:
        return Mean.of_summary(summary), "exact"
    return Mean.of_moments(sampler(estimator, aim, sampling)("comparison", REPLICATES)), "mc"


def _variances(aim: Target, sampling: Sampling, losses: float) -> tuple[float | None, float | None]:
    """Variances of REINFORCE and of leave-one-out with so many losses, relative to the squared norm of the gradient.

    REINFORCE averages as many samples as losses are paid for, a fraction of one too; leave-one-out takes at least two.
    """
    alone = mean_of(Reinforce(), aim, sampling)[0].metrics["relative_variance"].value
    count = max(2, round(losses))
    group = mean_of(LeaveOneOut(num_samples=count), aim, sampling)[0].metrics["relative_variance"].value
    return (None if alone is None else alone / losses), (None if group is None else group * count / max(losses, 2))


def seconds_ratio(estimator: Estimator[Any], aim: Target, samples: int) -> float:
    """Seconds of one estimate as a multiple of those of leave-one-out: the median of a few pairs, side by side."""
    rows, ratios = aim.scores.expand(ROWS, *aim.scores.shape), []
    for _ in range(ROUNDS):
        spent = []
        for contender in (estimator, LeaveOneOut(num_samples=samples)):
            start = time.perf_counter()
            contender.gradient(aim.loss, aim.oracle, rows, generator=seeded(1, "seconds"))
            spent.append(time.perf_counter() - start)
        ratios.append(spent[0] / spent[1])
    return sorted(ratios)[len(ratios) // 2]


def _bounds(interval: Interval) -> Bounds:
    return interval.value, interval.low, interval.high
