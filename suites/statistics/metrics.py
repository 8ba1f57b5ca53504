"""Metrics with intervals, computed from moments.

Squared norms of a noisy mean are biased upwards by ``tr S/N``. Every norm here is corrected for it (a U-statistic), so the relative bias of
an unbiased estimator is 0 and not its noise floor. `intervals` describes the intervals, and each has the name of its method.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..metrics import named
from .geometry import Geometry
from .intervals import (
    LEVEL,
    NO_ANGLE,
    NO_VARIANCE,
    UNDIRECTED_MEAN,
    UNRESOLVED,
    Errors,
    Interval,
    bias_interval,
    clustered_wilson,
    enough_events,
    has_spread,
    is_resolved,
    jackknife,
    jackknives,
    profile,
    resolves_direction,
    wilson,
)
from .moments import BATCHES, Moments

__all__ = [
    "LEVEL",
    "Estimates",
    "Interval",
    "Summary",
    "active_parts",
    "bias_interval",
    "estimated_metrics",
    "exact_metrics",
    "first_metrics",
    "metric_values",
    "summarise",
    "without_each_batch",
]

SAMPLES = 16
"""Estimates in an average, for the metrics of averages."""

UNDIRECTED = named(lambda metric: metric.undirected)
"""Metrics that do not compare with the exact gradient: they are defined even if it vanishes."""

LINEAR = named(lambda metric: metric.mean)
"""Metrics that are means of independent numbers, one per replicate: the jackknife of their batches is a t-interval."""

COMPARED = named(lambda metric: metric.paired)
"""Metrics whose values without each batch are kept, so that runs with the same random numbers can be compared pair by pair."""

SHARES = ("zero_gradient_rate", "descent_probability")
"""Shares of independent replicates, whose intervals need no spread."""

FOLLOWED = ("gain", "relative_variance", "relative_mse")
"""Metrics that are also given for the first batches alone, to show how their intervals shrink."""

FIRST_BATCHES = (4, 8, 16)

NEAR_ONE = 0.99
"""A cosine beyond it hardly depends on the gain: the bias orthogonal to the gradient decides."""

_DIGITS = 10
"""Significant digits of a kept value: digits beyond them are rounding on another machine."""


@dataclass(frozen=True)
class Estimates:
    """Means of properties of single estimates, ``[...]``.

    Attributes:
        descent: share with ``⟨ĝ, g⟩ > 0``. ``cosine``: with g, 0 for an estimate of 0. ``quartic``: of ``‖ĝ‖⁴``.
        agreeing: of the number of parts whose sign is that of g. ``signed``: of active parts that are not 0.
        informed: of ``ĝ'Fĝ``; None without Fisher information.
    """

    descent: Tensor
    cosine: Tensor
    quartic: Tensor
    agreeing: Tensor
    signed: Tensor
    informed: Tensor | None = None


@dataclass(frozen=True)
class Summary:
    """The moments that metrics are functions of; every field but the gradient may have leading dimensions.

    Attributes:
        gradient: [d], exact.
        error: [..., d], mean of ``ĝ − g``.
        trace: [...], trace of the covariance of one estimate.
        replicates: [...], number of estimates in the mean; ``inf`` for an exact mean.
        zero: [...], share of estimates that are 0. ``nonzero``: [...], mean number of non-zero parts.
        estimates: moments that need more than mean and trace; None if unknown.
        covariance: S, [d, d], of an exact tier up to `FULL_COVARIANCE` parts.
    """

    gradient: Tensor
    error: Tensor
    trace: Tensor
    replicates: Tensor
    zero: Tensor
    nonzero: Tensor
    estimates: Estimates | None = None
    covariance: Tensor | None = None


def active_parts(gradient: Tensor) -> Tensor:
    """Boolean, like the gradient: parts whose sign means something: no ignored entries, no forbidden parts, no rounding."""
    size = gradient.abs()
    return size > 1e-12 * size.max()


def metric_values(summary: Summary, geometry: Geometry | None = None) -> dict[str, Tensor]:
    """The metrics that are functions of a summary, ``[...]``; NaN if one is not defined (a gradient of norm 0)."""
    gradient, noise = summary.gradient, summary.trace / summary.replicates
    norm = gradient.norm()
    mean = summary.error + gradient
    bias = summary.error.square().sum(-1) - noise
    length = mean.square().sum(-1) - noise
    along = mean @ gradient
    varies = summary.trace > NO_VARIANCE * mean.square().sum(-1)
    values = {
        "relative_bias": bias.clamp(min=0).sqrt() / norm,
        "relative_bias_squared": bias / norm**2,
        "relative_variance": summary.trace / norm**2,
        "relative_mse": (bias + summary.trace) / norm**2,
        "gain": along / norm**2,
        "cosine": along / (norm * length.clamp(min=0).sqrt()),
        "snr": torch.where(varies, length / summary.trace, math.nan),
        "rho": along / (norm * (length + summary.trace).clamp(min=0).sqrt()),
        f"rho_{SAMPLES}": along / (norm * (length + summary.trace / SAMPLES).clamp(min=0).sqrt()),
    }
    if summary.estimates is not None:
        values |= {
            "mean_cosine": summary.estimates.cosine,
            "descent_probability": summary.estimates.descent,
            "sign_agreement": summary.estimates.agreeing / summary.estimates.signed,
            "kurtosis": summary.estimates.quartic / (length + summary.trace).square(),
        }
        if summary.estimates.informed is not None and geometry is not None:
            values |= _fisher_values(summary, summary.estimates.informed, geometry)
    return values | {"zero_gradient_rate": summary.zero, "gradient_nonzeros": summary.nonzero}


def _fisher_values(summary: Summary, informed: Tensor, geometry: Geometry) -> dict[str, Tensor]:
    """Like rho, in the metric of the Fisher information: ``⟨m, g⟩ / √(g'F⁺g E ĝ'Fĝ)``."""
    mean = summary.error + summary.gradient
    naive = torch.linalg.vecdot(mean @ geometry.information, mean)
    # E of the naive square of the mean is m'Fm + tr(FS)/N, and that of the single estimates m'Fm + tr(FS).
    share = 1 / summary.replicates
    trace = (informed - naive) / (1 - share)
    square = naive - trace * share
    along = mean @ summary.gradient
    root = math.sqrt(geometry.natural)
    return {
        "fisher_rho": along / (root * informed.clamp(min=0).sqrt()),
        f"fisher_rho_{SAMPLES}": along / (root * (square + trace / SAMPLES).clamp(min=0).sqrt()),
    }


def exact_metrics(summary: Summary, geometry: Geometry | None = None, *, floor: float = 0.0) -> dict[str, Interval]:
    """Metrics of an exact tier: no intervals.

    Args:
        summary: of an exact mean and covariance.
        geometry: for the metrics that need the Fisher information; None leaves them out.
        floor: a gradient of no greater norm counts as none: metrics that compare with it are None, and the absolute error is given.
    """
    norm = float(summary.gradient.norm())
    values = {name: Interval(_finite(float(value))) for name, value in metric_values(summary, geometry).items()}
    unit = summary.gradient / summary.gradient.norm().clamp(min=1e-300)
    values["orthogonal_bias"] = Interval(_finite(_ratio(float((summary.error - (summary.error @ unit) * unit).norm()), norm)))
    if geometry is not None:
        values["null_bias"] = Interval(_finite(_ratio(float((summary.error @ geometry.null).norm()), norm)))
    return values if norm > floor else _absolute(values, Interval(float(summary.error.norm())), Interval(float(summary.trace)))


def estimated_metrics(
    moments: Moments, geometry: Geometry | None = None, *, floor: float = 0.0, resolved: bool | None = None
) -> dict[str, Interval]:
    """Metrics of replicates, with 95 % intervals; all except shares are `UNRESOLVED` if too few replicates carry the spread.

    Args:
        moments: of the errors.
        geometry: as for `exact_metrics`.
        floor: as for `exact_metrics`.
        resolved: whether enough replicates carry the spread, or there is none; by default, the result of `is_resolved`.
    """
    found = _estimated(moments, geometry, floor)
    if not (is_resolved(moments) if resolved is None else resolved):
        return {name: interval if name in SHARES else UNRESOLVED for name, interval in found.items()}
    if has_spread(moments) and "absolute_bias" not in found and not resolves_direction(moments):
        found |= dict.fromkeys(("cosine", "orthogonal_bias"), NO_ANGLE)
    elif has_spread(moments) and "absolute_bias" not in found and not (found["snr"].low or 0.0) > 0:
        found["cosine"] = UNDIRECTED_MEAN  # an angle of noise, which exists in the half of the draws alone in which |m|² is positive
    return found


def _estimated(moments: Moments, geometry: Geometry | None, floor: float) -> dict[str, Interval]:
    whole = {name: float(value) for name, value in metric_values(summarise(moments), geometry).items()}
    without = metric_values(_leave_one_out(moments), geometry)
    result = {name: _labelled(name, interval) for name, interval in jackknives(whole, without).items()}
    if (low := result["snr"].low) is not None:
        result["snr"] = replace(result["snr"], low=max(low, 0.0))
    for name in SHARES:
        result[name] = wilson(whole[name], moments.total)
    result["sign_agreement"] = clustered_wilson(whole["sign_agreement"], without["sign_agreement"], moments.total)
    errors, gradient = Errors.of(moments), moments.gradient
    if float(gradient.norm()) > floor:
        orthogonal = errors.without(gradient / float(gradient.norm()))
        cosine = cosine_interval(orthogonal, gradient, whole["gain"], result["cosine"])
        return result | bias_metrics(errors, orthogonal, gradient, geometry) | {"cosine": cosine}
    variance = jackknife(float(summarise(moments).trace), _leave_one_out(moments).trace)
    return _absolute(result, norm_interval(errors, 1.0), variance)


def without_each_batch(moments: Moments) -> dict[str, tuple[float, ...]]:
    """The metrics of `COMPARED` with one batch left out, 32 values each; a metric that is not defined has none.

    Two runs on the same random numbers differ, batch by batch, far less than each of them varies.
    """
    values = metric_values(_leave_one_out(moments))
    kept = {name: tuple(float(f"{value:.{_DIGITS}g}") for value in values[name].tolist()) for name in COMPARED}
    return {name: numbers for name, numbers in kept.items() if all(map(math.isfinite, numbers))}


def first_metrics(moments: Moments) -> Iterator[tuple[int, str, Interval]]:
    """(replicates, metric, interval) for the metrics of `FOLLOWED` from the first 4, 8 and 16 batches alone."""
    everything = torch.eye(BATCHES, dtype=torch.float64, device=moments.mean.device)
    for first in FIRST_BATCHES:
        rows = everything[:first]
        all_of_them = rows.sum(0, keepdim=True)
        values = metric_values(_combined(moments, torch.cat([all_of_them, all_of_them - rows]), squeeze=False))
        whole, without = {name: float(values[name][0]) for name in FOLLOWED}, {name: values[name][1:] for name in FOLLOWED}
        replicates = int(moments.count[:first].sum())
        known = not has_spread(moments) or enough_events(moments.square.sum(-1), moments.count, first / BATCHES)
        for name, interval in jackknives(whole, without).items():
            yield replicates, name, _labelled(name, interval) if known else UNRESOLVED


def bias_metrics(errors: Errors, orthogonal: Errors, gradient: Tensor, geometry: Geometry | None) -> dict[str, Interval]:
    """Norms of biases, with profile intervals; ``orthogonal`` are the errors orthogonal to the gradient."""
    norm = float(gradient.norm())
    low, high = profile(errors)
    result = {
        "relative_bias": norm_interval(errors, norm),
        "relative_bias_squared": Interval(errors.square_norm() / norm**2, low / norm**2, high / norm**2, "profile"),
        "orthogonal_bias": norm_interval(orthogonal, norm),
    }
    return result if geometry is None else result | {"null_bias": norm_interval(errors.within(geometry.null), norm)}


def norm_interval(errors: Errors, unit: float, *, noise: float = 0.0) -> Interval:
    """The norm of a bias in multiples of ``unit``, with the profile interval; ``noise`` is that of the reference."""
    low, high = profile(errors, noise=noise)
    value = math.sqrt(max(errors.square_norm() - noise, 0.0))
    return Interval(value / unit, math.sqrt(low) / unit, math.sqrt(high) / unit, "profile")


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
    spread = (moments.mean.unsqueeze(0) - error.unsqueeze(1)).square_().sum(-1)
    squares = kept @ moments.square.sum(-1) + (counts * spread).sum(-1)
    active = active_parts(moments.gradient).double()
    agreeing = (moments.nonzero @ active + moments.signs @ (active * moments.gradient.sign())) / 2
    singles = (moments.descents, moments.cosines, moments.quartics, agreeing, moments.nonzero @ active)
    means = [kept @ sums / total for sums in (moments.zero, moments.nonzero.sum(-1), *singles)]
    trace = squares / (total - 1).clamp(min=1)
    if moments.information is not None:
        means.append(kept @ moments.informed / total)
    if squeeze:
        error, trace, total, *means = (part[0] for part in (error, trace, total, *means))
    return Summary(moments.gradient, error, trace, total, means[0], means[1], Estimates(*means[2:]))


def cosine_interval(orthogonal: Errors, gradient: Tensor, gain: float, estimate: Interval) -> Interval:
    """The jackknife if a bias orthogonal to the gradient is certain and large; else the interval of that bias, turned into cosines."""
    norm = float(gradient.norm())
    low, high = profile(orthogonal)
    if estimate.value is None or (low > 0 and abs(estimate.value) <= NEAR_ONE):
        return estimate
    squares = (max(orthogonal.square_norm(), 0.0), low, high)
    value, *bounds = [gain / math.hypot(gain, math.sqrt(square) / norm) if gain else 0.0 for square in squares]
    return Interval(value, min(bounds), max(bounds), "profile")


def _labelled(name: str, interval: Interval) -> Interval:
    return replace(interval, method="t") if name in LINEAR and interval.method else interval


def _absolute(metrics: dict[str, Interval], bias: Interval, variance: Interval) -> dict[str, Interval]:
    """Keep the metrics that need no gradient to compare with."""
    kept = {name: interval if name in UNDIRECTED else Interval(None) for name, interval in metrics.items()}
    return kept | {"absolute_bias": bias, "absolute_variance": variance}


def _ratio(value: float, norm: float) -> float:
    return value / norm if norm > 0 else math.nan


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
