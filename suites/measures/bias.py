"""Bias and variance of an estimator on one instance, against the exact gradient, with a verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from scipy import stats
from torch import Tensor

from ...estimators.base import Estimator, Loss
from ...oracles.base import EnumerableOracle
from ..statistics.metrics import Interval, Summary, bias_interval, estimated_metrics, exact_metrics, summarise
from ..statistics.moments import BATCHES, Moments
from ..statistics.seeds import BLOCK, generator, seed_blocks, seed_sequence
from ..truth import Target, Truth, exact_truth
from ..truth.replay import REPLAY_CAP, replay, slots_of

Tier = Literal["auto", "exact", "mc"]
Verdict = Literal["unbiased-exact", "equivalent", "biased", "unresolved"]

ALPHA = 1e-3
"""Level of the test for bias of one cell; a hit of an estimator that claims to be unbiased must repeat on fresh seeds."""

EQUIVALENCE = 0.05
"""A bias whose 95 % upper bound is below this share of ‖g‖ is called equivalent to none."""

EXACT_TOLERANCE = 1e-9
"""Relative bias of an exact tier below which it is rounding."""

FILTER = 200
"""A direction is tested only where replicates / exact kurtosis reach this: else too few samples carry the variance for a t-test."""


@dataclass(frozen=True)
class Sampling:
    """How replicates are drawn.

    Args:
        replicates: N.
        seed: the root seed. ``key``: stable names of the stream, such as problem, stage and instance.
        batch_size: rows per launch, rounded up to whole blocks of 128; the numbers do not depend on it.
        tier: ``auto`` is exact where the estimator can be replayed, Monte Carlo elsewhere; ``mc`` forces replicates.
        dtype: in which the estimator runs; truth and moments are float64.
    """

    replicates: int = 4096
    seed: int = 0
    key: tuple[str, ...] = ()
    batch_size: int = 4096
    tier: Tier = "auto"
    dtype: torch.dtype = torch.float64

    def __post_init__(self) -> None:
        if self.replicates < 2 * BATCHES:
            raise ValueError(f"`Sampling` got replicates={self.replicates}; expected at least {2 * BATCHES}, two per batch")
        if self.batch_size < 1:
            raise ValueError(f"`Sampling` got batch_size={self.batch_size}; expected at least 1")
        if self.tier not in ("auto", "exact", "mc"):
            raise ValueError(f"`Sampling` got tier={self.tier!r}; expected auto, exact or mc")


@dataclass(frozen=True)
class Measurement:
    """What `measure` finds: metrics with intervals, how they were found, and the verdict of the test for bias.

    ``p_value`` is that of the test (Bonferroni over directions), None for the exact tier and where no direction could be tested.
    """

    metrics: dict[str, Interval]
    tier: Literal["exact", "mc"]
    replicates: int | None
    verdict: Verdict
    p_value: float | None = None


def measure(  # noqa: PLR0913
    estimator: Estimator[Any],
    oracle: Any,
    loss: Loss,
    scores: Tensor,
    *,
    truth: Truth | None = None,
    sampling: Sampling | None = None,
) -> Measurement:
    """Bias, variance and relatives of an estimator at one score tensor.

    Deterministic estimators and those that draw structures through the oracle alone are measured exactly (see `replay`), as far as the
    space allows; others by independent replicates.

    Args:
        estimator: any object of the contract.
        oracle: what it runs on; enumerable, unless ``truth`` is given.
        loss: ``[..., *event] -> [...]``.
        scores: one instance, ``[*event]``.
        truth: the exact gradient, if it is known already.
        sampling: replicates, seeds and tier.

    Raises:
        ValueError: a pair that does not fit, scores of another shape, or ``tier="exact"`` where only Monte Carlo is possible.

    Example:
        >>> from structgrad.estimators import Reinforce
        >>> from structgrad.oracles import Subset
        >>> weights = torch.tensor([1.0, -0.5, 2.0, 0.3], dtype=torch.float64)
        >>> found = measure(Reinforce(), Subset(2), lambda z: (z @ weights) ** 2, torch.zeros(4, dtype=torch.float64))
        >>> found.tier, found.verdict, found.metrics["relative_bias"].value < 1e-12
        ('exact', 'unbiased-exact', True)
    """
    sampling = sampling or Sampling()
    reason = estimator.incompatibility(oracle)
    if reason is not None:
        raise ValueError(f"`measure` got a pair that does not fit: {reason}")
    if truth is None:
        if not isinstance(oracle, EnumerableOracle):
            raise ValueError(f"`measure` got the oracle {oracle.name}, which cannot be enumerated; pass the exact gradient as truth=")
        truth = exact_truth(loss, oracle, scores)
    target = Target(oracle, loss, scores.detach().to(sampling.dtype), truth)
    summary = _exact_summary(estimator, target, sampling)
    if summary is not None:
        return _exact_measurement(summary, truth)
    if sampling.tier == "exact":
        raise ValueError(f"`measure` got tier='exact' for {estimator.name}, which cannot be replayed here; expected tier='auto' or 'mc'")
    return _sampled_measurement(_warmed(estimator, target, sampling), target, sampling)


def draw_moments(estimator: Estimator[Any], target: Target, sampling: Sampling, *, slot: str = "replicates") -> Moments:
    """Streaming moments of N independent replicates; memory does not grow with N."""
    moments = Moments.empty(target.truth.gradient)
    for first, estimates in _launches(estimator, target, sampling, slot):
        for offset, block in enumerate(estimates.split(BLOCK)):
            moments.add(block, (first // BLOCK + offset) % BATCHES)
    return moments


def _launches(estimator: Estimator[Any], target: Target, sampling: Sampling, slot: str) -> Iterator[tuple[int, Tensor]]:
    key = seed_sequence(sampling.seed, *sampling.key, slot)
    scores = target.scores
    step = -(-sampling.batch_size // BLOCK) * BLOCK
    for first in range(0, sampling.replicates, step):
        rows = min(step, sampling.replicates - first)
        streams = seed_blocks(key, first, rows, scores.device)
        yield first, estimator.gradient(target.loss, target.oracle, scores.expand(rows, *scores.shape), generator=streams)


def _warmed(estimator: Estimator[Any], target: Target, sampling: Sampling) -> Estimator[Any]:
    stream = generator(sampling.seed, *sampling.key, "warm-up", device=target.scores.device)
    return estimator.warmed_up(target.loss, target.oracle, target.scores, generator=stream)


def _exact_summary(estimator: Estimator[Any], target: Target, sampling: Sampling) -> Summary | None:
    """The exact moments, or None where only replicates will do."""
    if sampling.tier == "mc":
        return None
    if estimator.deterministic:
        return _deterministic_summary(estimator, target)
    slots = slots_of(estimator, target.oracle, target.loss, target.scores)
    if slots is None or target.truth.count**slots > REPLAY_CAP:
        return None
    return replay(_warmed(estimator, target, sampling), target, slots)


def _deterministic_summary(estimator: Estimator[Any], target: Target) -> Summary:
    unused = torch.Generator(target.scores.device)
    estimate = estimator.gradient(target.loss, target.oracle, target.scores, generator=unused).double().flatten()
    gradient = target.truth.gradient.flatten()
    zero, infinite = gradient.new_zeros(()), gradient.new_full((), math.inf)
    nonzero = (estimate != 0).sum().double()
    return Summary(gradient, estimate - gradient, zero, infinite, (nonzero == 0).double(), nonzero)


def _exact_measurement(summary: Summary, truth: Truth) -> Measurement:
    size = math.sqrt(float((summary.error + summary.gradient).square().sum()) + float(summary.trace))
    # Where the gradient all but vanishes, the rounding of the estimates and of the losses in them is what is left.
    rounding = 1e-13 * size + 1e-14 * (abs(truth.value) + math.sqrt(truth.loss_variance))
    allowed = EXACT_TOLERANCE * float(summary.gradient.norm()) + rounding
    verdict: Verdict = "unbiased-exact" if float(summary.error.norm()) <= allowed else "biased"
    return Measurement(exact_metrics(summary), "exact", None, verdict)


def _sampled_measurement(estimator: Estimator[Any], target: Target, sampling: Sampling) -> Measurement:
    moments = draw_moments(estimator, target, sampling)
    p_value = bias_test(moments, target.truth)
    bound = math.sqrt(bias_interval(moments)[1])
    verdict: Verdict = "unresolved"
    if p_value is not None and p_value < ALPHA:
        verdict = "biased" if not estimator.unbiased or _repeats(estimator, target, sampling) else "unresolved"
    elif not estimator.unbiased and bias_interval(moments, level=1 - ALPHA)[0] > 0:
        # No claim is at stake, so the interval of the bias decides where no direction passes the filter of the test.
        verdict = "biased"
    elif bound <= EQUIVALENCE * float(moments.gradient.norm()):
        verdict = "equivalent"
    return Measurement(estimated_metrics(moments), "mc", moments.total, verdict, p_value)


def _repeats(estimator: Estimator[Any], target: Target, sampling: Sampling) -> bool:
    """Whether fresh seeds reject too."""
    again = bias_test(draw_moments(estimator, target, sampling, slot="confirmation"), target.truth)
    return again is not None and again < ALPHA


def bias_test(moments: Moments, truth: Truth) -> float | None:
    """p-value of "the mean of the estimates is the exact gradient": t along the gradient and max-|t| over parts, Bonferroni over both.

    Directions whose exact kurtosis is too large for the number of replicates are left out: where the structures that carry the variance do
    not occur in the sample, its variance is far too small, and any test would cry wolf. None where no direction is left.
    """
    summary = summarise(moments)
    n = float(summary.replicates)
    norm = moments.gradient.norm()
    p_values = []
    if norm > 0 and n / truth.kurtosis_along >= FILTER:
        spread = float(moments.along.sum() + (moments.count * ((moments.mean - summary.error) @ moments.gradient / norm).square()).sum())
        p_values.append(_t_test(float(summary.error @ moments.gradient / norm), spread, n))
    between = (moments.count.unsqueeze(-1) * (moments.mean - summary.error).square()).sum(0)
    squares = moments.square.sum(0) + between
    tested = (n / truth.kurtosis.flatten() >= FILTER).to(squares.device)
    parts = [_t_test(float(e), float(s), n) for e, s in zip(summary.error[tested], squares[tested], strict=True)]
    if parts:
        p_values.append(min(1.0, min(parts) * len(parts)))
    return min(1.0, min(p_values) * len(p_values)) if p_values else None


def _t_test(error: float, square: float, n: float) -> float:
    """Two-sided p-value of a mean of 0."""
    standard = math.sqrt(square / (n - 1) / n)
    if standard <= 1e-14 * abs(error) or standard == 0:
        return 1.0 if abs(error) < 1e-12 else 0.0
    return float(2 * stats.t.sf(abs(error) / standard, n - 1))
