"""From moments to metrics with intervals.

Squared norms of a noisy mean are biased upwards by ``tr S/N``; every norm here is corrected for it (a U-statistic), so that an unbiased
estimator shows a relative bias of 0 and not of its noise floor. Intervals are delete-one-batch jackknives, but for the bias and, where it
is close to 1, the cosine: at these boundaries the jackknife is wrong, and the interval comes from the variance of the U-statistic itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from .moments import BATCHES, Moments

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A value with its interval; bounds are None for an exact value, everything is None where the metric is not defined."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Summary:
    """The moments that metrics are functions of; every field may have leading dimensions.

    Attributes:
        gradient: [d], exact.
        error: [..., d], mean of ``ĝ − g``.
        trace: [...], trace of the covariance of one estimate.
        replicates: [...], how many estimates the mean is over; ``inf`` for an exact mean.
        zero: [...], share of estimates that are 0. ``nonzero``: [...], mean number of non-zero parts.
    """

    gradient: Tensor
    error: Tensor
    trace: Tensor
    replicates: Tensor
    zero: Tensor
    nonzero: Tensor


def metric_values(summary: Summary) -> dict[str, Tensor]:
    """Every metric of `METRICS` that moments give, ``[...]``; NaN where it is not defined (a gradient of norm 0)."""
    gradient, noise = summary.gradient, summary.trace / summary.replicates
    norm = gradient.norm()
    mean = summary.error + gradient
    bias = summary.error.square().sum(-1) - noise
    length = mean.square().sum(-1) - noise
    along = mean @ gradient
    second = bias + summary.trace
    return {
        "relative_bias": bias.clamp(min=0).sqrt() / norm,
        "relative_bias_squared": bias / norm**2,
        "relative_variance": summary.trace / norm**2,
        "relative_mse": second / norm**2,
        "gain": along / norm**2,
        "cosine": along / (norm * length.clamp(min=0).sqrt()),
        "rho": along / (norm * (length + summary.trace).clamp(min=0).sqrt()),
        "zero_gradient_rate": summary.zero,
        "gradient_nonzeros": summary.nonzero,
    }


def exact_metrics(summary: Summary) -> dict[str, Interval]:
    """Metrics of an exact tier: no intervals."""
    return {name: Interval(_finite(float(value))) for name, value in metric_values(summary).items()}


def estimated_metrics(moments: Moments) -> dict[str, Interval]:
    """Metrics of replicates, with 95 % intervals."""
    whole = {name: float(value) for name, value in metric_values(summarise(moments)).items()}
    jackknife = metric_values(_leave_one_out(moments))
    result = {name: _jackknife(value, jackknife[name]) for name, value in whole.items()}
    norm = float(moments.gradient.norm())
    if norm > 0:
        bias = bias_interval(moments)
        result["relative_bias_squared"] = Interval(_finite(whole["relative_bias_squared"]), bias[0] / norm**2, bias[1] / norm**2)
        result["relative_bias"] = Interval(_finite(whole["relative_bias"]), math.sqrt(bias[0]) / norm, math.sqrt(bias[1]) / norm)
        result["cosine"] = _cosine(moments, whole, result["cosine"])
    return result


def summarise(moments: Moments) -> Summary:
    """All batches together."""
    return _combined(moments, torch.ones(1, BATCHES, dtype=torch.float64, device=moments.mean.device), squeeze=True)


def _leave_one_out(moments: Moments) -> Summary:
    return _combined(moments, 1 - torch.eye(BATCHES, dtype=torch.float64, device=moments.mean.device), squeeze=False)


def _combined(moments: Moments, kept: Tensor, *, squeeze: bool) -> Summary:
    """Moments over the batches that each row of ``kept`` [s, batches] keeps."""
    counts = kept * moments.count
    total = counts.sum(-1)
    error = counts @ moments.mean / total.unsqueeze(-1)
    spread = (moments.mean.unsqueeze(0) - error.unsqueeze(1)).square().sum(-1)
    squares = kept @ moments.square.sum(-1) + (counts * spread).sum(-1)
    parts = (error, squares / (total - 1).clamp(min=1), total, kept @ moments.zero / total, kept @ moments.nonzero / total)
    return Summary(moments.gradient, *(part[0] if squeeze else part for part in parts))


def _jackknife(value: float, without: Tensor) -> Interval:
    finite = without[without.isfinite()]
    if not math.isfinite(value) or len(finite) < len(without):
        return Interval(_finite(value))
    folds = len(finite)
    error = math.sqrt((folds - 1) / folds * float((finite - finite.mean()).square().sum()))
    half = float(stats.t.ppf((1 + LEVEL) / 2, folds - 1)) * error
    return Interval(value, value - half, value + half)


def bias_interval(moments: Moments, direction: Tensor | None = None, *, level: float = LEVEL) -> tuple[float, float]:
    """Interval of ``‖b‖²``: the β that the U-statistic does not contradict, ``Var(β) = 4λβ/N + 2 tr(S²)/N²`` with ``λ = b'Sb/‖b‖²``.

    Args:
        moments: of the errors.
        direction: a unit vector [d] to leave out: the interval is then that of the bias orthogonal to it.
        level: of the interval.
    """
    summary = summarise(moments)
    error, n = summary.error, float(summary.replicates)
    estimate = float(error.square().sum()) - float(summary.trace) / n
    if direction is not None:
        shift = error @ direction
        error = error - shift * direction
        estimate = float(error.square().sum()) - (float(summary.trace) - _variance_along(moments, direction)) / n
    trace_square = _trace_of_square(moments)
    unit = error / error.norm().clamp(min=1e-300)
    slope = _variance_along(moments, unit)
    quantile = float(stats.t.ppf((1 + level) / 2, BATCHES - 1)) ** 2
    half = 2 * slope * quantile / n
    root = math.sqrt(max((estimate + half) ** 2 - estimate**2 + 2 * quantile * trace_square / n**2, 0.0))
    return max(estimate + half - root, 0.0), max(estimate + half + root, 0.0)


def _variance_along(moments: Moments, unit: Tensor) -> float:
    """``u'Su``: from the whole covariance, or from the spread of the batch means."""
    if moments.comoment is not None:
        return float(unit @ moments.comoment @ unit) / max(moments.total - 1, 1)
    means = moments.mean @ unit
    return float((moments.count * (means - (moments.count @ means) / moments.count.sum()).square()).sum()) / (BATCHES - 1)


def _trace_of_square(moments: Moments) -> float:
    """``tr(S²)``, corrected for the noise of the estimate of S."""
    degrees = moments.total - 1 if moments.comoment is not None else BATCHES - 1
    if moments.comoment is not None:
        covariance = moments.comoment / max(degrees, 1)
        square, trace = float(covariance.square().sum()), float(covariance.trace())
    else:
        centred = (moments.mean - (moments.count @ moments.mean) / moments.count.sum()) * moments.count.sqrt().unsqueeze(-1)
        gram = centred @ centred.mT / degrees
        square, trace = float(gram.square().sum()), float(gram.trace())
    return max(degrees**2 / ((degrees - 1) * (degrees + 2)) * (square - trace**2 / degrees), 0.0)


def _cosine(moments: Moments, values: dict[str, float], jackknife: Interval) -> Interval:
    """The jackknife where a bias orthogonal to the gradient is certain; else the interval of that bias, turned into cosines."""
    norm = float(moments.gradient.norm())
    low, high = bias_interval(moments, moments.gradient / norm)
    if low > 0 or jackknife.value is None:
        return jackknife
    gain = values["gain"]
    bounds = [gain / math.hypot(gain, math.sqrt(bound) / norm) if gain else 0.0 for bound in (low, high)]
    return Interval(max(-1.0, min(1.0, jackknife.value)), min(bounds), max(bounds))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
