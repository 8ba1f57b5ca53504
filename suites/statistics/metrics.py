"""Metrics with intervals, computed from moments.

Squared norms of a noisy mean are biased upwards by ``tr S/N``. Every norm here is corrected for it (a U-statistic), so the relative bias of
an unbiased estimator is 0 and not its noise floor. `intervals` describes the intervals, and each has the name of its method.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from ..metrics import METRICS
from . import intervals
from .interval import Interval
from .moments import BATCHES, Moments

SAMPLES = 16  # estimates in an average, for the metrics of averages

UNDIRECTED, LINEAR, COMPARED = (
    tuple(name for name, metric in METRICS.items() if getattr(metric, flag)) for flag in ("undirected", "mean", "paired")
)  # for these flags see `Metric`

U_STATISTIC = "u-statistic"  # the method of exact numbers that come from single structures and not from tuples

TUPLE_METRICS = ("mean_cosine", "descent_probability", "sign_agreement", "kurtosis", "zero_gradient_rate", "gradient_nonzeros")
"""Metrics that exist for tuples of samples only."""

SHARES = ("zero_gradient_rate", "descent_probability")  # shares of independent replicates, whose intervals need no spread
NEAR_ONE = 0.99  # a cosine beyond it hardly depends on the gain: the bias orthogonal to the gradient decides

_ABSOLUTE = "absolute_variance"

_DIGITS = 10  # significant digits of a kept value: digits beyond them are rounding on another machine

RANK_TOLERANCE = 1e-10  # eigenvalues below this share of the largest count as 0


@dataclass(frozen=True, eq=False)
class Geometry:
    """The space that gradients of expectations live in: its directions, and the Fisher information as its metric.

    Scores are over-parameterised: structures span an affine hull of fewer dimensions than there are parts, and no movement across it
    changes the distribution. The part of an estimate across it is noise and bias without effect. The length of a step means little:
    ``δ'Fδ / 2`` is the divergence that the step makes, so F measures its effect.
    """

    information: Tensor  # F, [d, d]: the Hessian of the divergence in the scores
    natural: float  # ``g'F⁺g``, the square of the decrease of the loss by the best step of divergence 1/2
    null: Tensor  # [d, r], an orthonormal basis of the directions that change no probability

    @classmethod
    def of(cls, information: Tensor, flat: Tensor, gradient: Tensor) -> Self:
        """The metric of a Fisher information [d, d], its value at flat scores with the same directions, and the gradient."""
        # g lies in the range of F. Correlations are inverted: at peaked scores, variances differ by many magnitudes.
        scales = information.diagonal().clamp(min=0).sqrt()
        inverse = torch.where(scales > 0, 1 / scales.clamp(min=1e-300), 0)
        values, vectors, kept = _spectrum(information * inverse * inverse.unsqueeze(-1))
        parts = (vectors.mT @ (gradient.flatten().double() * inverse)).square() / torch.where(kept, values, 1)
        _, directions, moving = _spectrum(flat)
        return cls(information, float(torch.where(kept, parts, 0).sum()), directions[:, ~moving])


def _spectrum(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues, eigenvectors, and whether an eigenvalue counts."""
    values, vectors = torch.linalg.eigh(matrix)
    return values, vectors, values > RANK_TOLERANCE * values.max().clamp(min=1e-300)


@dataclass(frozen=True)
class Summary:
    """The moments that metrics are functions of, NaN if unknown; every field but the gradient may have leading dimensions."""

    gradient: Tensor  # [d], exact
    error: Tensor  # [..., d], mean of ``ĝ − g``
    trace: Tensor  # [...], trace of the covariance of one estimate
    replicates: Tensor  # [...], number of estimates in the mean; ``inf`` for an exact mean
    zero: Tensor  # [...], share of estimates that are 0
    nonzero: Tensor  # [...], mean number of non-zero parts
    descent: Tensor  # share of estimates with ``⟨ĝ, g⟩ > 0``
    cosine: Tensor  # mean of those with g, 0 for an estimate of 0; as the following ones
    quartic: Tensor  # of ``‖ĝ‖⁴``
    agreeing: Tensor  # of the number of parts whose sign is that of g
    signed: Tensor  # of active parts that are not 0
    informed: Tensor | None = None  # of ``ĝ'Fĝ``; None without Fisher information


@dataclass(frozen=True, eq=False)
class NoisyGradient:
    """A gradient ``[*event]`` with the trace of the covariance of its own error, ``tr S/N`` of a mean: 0 if it is exact."""

    gradient: Tensor
    noise: float


def summarise(moments: Moments, *, exact: bool = False) -> Summary:
    """All batches together; ``exact`` if they are all outcomes of a law, weighted by their probabilities."""
    return _combined(moments, torch.ones_like(moments.count), exact=exact)


def single(estimate: Tensor, gradient: Tensor, information: Tensor | None = None) -> Summary:
    """The moments of an estimate without any randomness."""
    moments = Moments.empty(gradient, information, batches=1)
    moments.add(estimate.unsqueeze(0))
    return summarise(moments, exact=True)


def leave_one_out(moments: Moments) -> Summary:
    """Each batch left out, [batches]."""
    return _combined(moments, 1 - torch.eye(BATCHES, dtype=torch.float64, device=moments.mean.device))


def _combined(moments: Moments, kept: Tensor, *, exact: bool = False) -> Summary:
    """Moments over the batches that each row of ``kept`` [..., batches] keeps."""
    counts = kept * moments.count
    total = counts.sum(-1)
    error = counts @ moments.mean / total.unsqueeze(-1)
    spread = (moments.mean - error.unsqueeze(-2)).square_().sum(-1)
    squares = kept @ moments.square.sum(-1) + (counts * spread).sum(-1)
    # Parts whose sign means something: no ignored entries, no forbidden parts, no rounding.
    size = moments.gradient.abs()
    active = (size > 1e-12 * size.max()).double()
    signed = moments.nonzero @ active
    agreeing = (signed + moments.signs @ (active * moments.gradient.sign())) / 2
    sums = [moments.zero, moments.nonzero.sum(-1), moments.descents, moments.cosines, moments.quartics, agreeing, signed]
    if moments.information is not None:
        sums.append(moments.informed)
    singles = (kept @ torch.stack(sums, -1) / total.unsqueeze(-1)).unbind(-1)
    trace = squares / (total if exact else (total - 1).clamp(min=1))
    replicates = torch.full_like(total, math.inf) if exact else total
    return Summary(moments.gradient, error, trace, replicates, *singles)


def metric_values(summary: Summary, geometry: Geometry | None = None) -> dict[str, Tensor]:
    """The metrics that are functions of a summary, ``[...]``; NaN if one is not defined (a gradient of norm 0)."""
    gradient, noise = summary.gradient, summary.trace / summary.replicates
    norm = gradient.norm()
    mean = summary.error + gradient
    bias = summary.error.square().sum(-1) - noise
    length = mean.square().sum(-1) - noise
    along = mean @ gradient
    varies = summary.trace > intervals.NO_VARIANCE * mean.square().sum(-1)
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
        "mean_cosine": summary.cosine,
        "descent_probability": summary.descent,
        "sign_agreement": summary.agreeing / summary.signed,
        "kurtosis": summary.quartic / (length + summary.trace).square(),
    }
    if summary.informed is not None and geometry is not None:
        # E of the naive square of the mean is m'Fm + tr(FS)/N, and that of the single estimates m'Fm + tr(FS).
        naive, share = torch.linalg.vecdot(mean @ geometry.information, mean), 1 / summary.replicates
        trace = (summary.informed - naive) / (1 - share)
        averaged, root = naive - trace * share + trace / SAMPLES, math.sqrt(geometry.natural)
        values["fisher_rho"] = along / (root * summary.informed.clamp(min=0).sqrt())
        values[f"fisher_rho_{SAMPLES}"] = along / (root * averaged.clamp(min=0).sqrt())
    return values | {"zero_gradient_rate": summary.zero, "gradient_nonzeros": summary.nonzero}


def exact_metrics(summary: Summary, geometry: Geometry | None = None, *, floor: float = 0.0) -> dict[str, Interval]:
    """Metrics of an exact tier: no intervals.

    Without ``geometry``, metrics that need the Fisher information are left out. A gradient of norm up to ``floor`` counts as none: metrics
    that compare with it are None, and the absolute error is given.
    """
    norm, error = summary.gradient.norm(), summary.error
    unit = summary.gradient / norm.clamp(min=1e-300)
    values = metric_values(summary, geometry) | {"orthogonal_bias": (error - (error @ unit) * unit).norm() / norm}
    if geometry is not None:
        values["null_bias"] = (error @ geometry.null).norm() / norm
    if not float(norm) > floor:
        values[_ABSOLUTE] = summary.trace
    found = {name: Interval(value if math.isfinite(value) else None) for name, value in _numbers(values).items()}
    if _ABSOLUTE in found:
        found = _undirected(found, Interval(float(error.norm())))
    if bool(summary.zero.isnan()):
        found = {name: replace(one, method=U_STATISTIC) for name, one in found.items() if name not in TUPLE_METRICS}
    return found


def estimated_metrics(
    moments: Moments, geometry: Geometry | None = None, *, floor: float = 0.0, resolved: bool | None = None
) -> dict[str, Interval]:
    """Metrics of replicates, with 95 % intervals; all except shares are `UNRESOLVED` if too few replicates carry the spread.

    For ``geometry`` and ``floor`` see `exact_metrics`. ``resolved`` tells whether enough replicates carry the spread, or there is none; by
    default, `is_resolved` decides.
    """
    summary, others = summarise(moments), leave_one_out(moments)
    values, without = metric_values(summary, geometry), metric_values(others, geometry)
    whole = _numbers(values | {_ABSOLUTE: summary.trace})
    found = intervals.jackknives(whole, without | {_ABSOLUTE: others.trace})
    found |= {name: replace(found[name], method="t") for name in LINEAR if name in found and found[name].method}
    if (low := found["snr"].low) is not None:
        found["snr"] = replace(found["snr"], low=max(low, 0.0))
    found |= {name: intervals.wilson(whole[name], moments.total) for name in SHARES}
    found["sign_agreement"] = intervals.clustered_wilson(found["sign_agreement"], moments.total)
    errors, norm = intervals.Errors.of(moments), float(moments.gradient.norm())
    if directed := norm > floor:
        del found[_ABSOLUTE]
        orthogonal = errors.without(moments.gradient / norm)
        found |= _bias_metrics(errors, orthogonal, norm)
        if geometry is not None:
            found["null_bias"] = _norm_interval(errors.within(geometry.null), norm)
        (low, high), gain, cosine = intervals.profile(orthogonal), whole["gain"], found["cosine"].value
        # The jackknife if a bias orthogonal to the gradient is certain and large; else the interval of that bias, turned into cosines.
        if cosine is not None and not (low > 0 and abs(cosine) <= NEAR_ONE):
            squares = (max(orthogonal.square_norm(), 0.0), low, high)
            value, *bounds = [gain / math.hypot(gain, math.sqrt(square) / norm) if gain else 0.0 for square in squares]
            found["cosine"] = Interval(value, min(bounds), max(bounds), "profile")
    else:
        found = _undirected(found, _norm_interval(errors, 1.0))
    if not (intervals.is_resolved(moments) if resolved is None else resolved):
        return {name: interval if name in SHARES else intervals.UNRESOLVED for name, interval in found.items()}
    if directed and intervals.has_spread(moments):
        if not intervals.resolves_direction(moments):
            found |= dict.fromkeys(("cosine", "orthogonal_bias"), intervals.NO_ANGLE)
        elif not (found["snr"].low or 0.0) > 0:
            # An angle of noise, which exists in the half of the draws alone in which |m|² is positive.
            found["cosine"] = intervals.UNDIRECTED_MEAN
    return found


def without_each_batch(moments: Moments) -> dict[str, tuple[float, ...]]:
    """The metrics of `COMPARED` with one batch left out, 32 values each; a metric that is not defined has none.

    Two runs on the same random numbers differ, batch by batch, far less than each of them varies.
    """
    values = metric_values(leave_one_out(moments))
    kept = {name: tuple(float(f"{value:.{_DIGITS}g}") for value in values[name].tolist()) for name in COMPARED}
    return {name: numbers for name, numbers in kept.items() if all(map(math.isfinite, numbers))}


def metrics_against(moments: Moments | Summary, reference: NoisyGradient) -> dict[str, Interval]:
    """Bias of replicates, or of an exact mean, relative to another reference, such as the gradient of the estimator's own objective.

    The noise of the reference adds ``tr S/N`` to squared norms, which is subtracted from them. Only its trace is known, so it counts as if
    it lay in the worst direction. Intervals of 95 % ignore the rest of the noise of the norm. An exact mean has none if the reference is
    exact too.
    """
    gradient, exact = moments.gradient, isinstance(moments, Summary)
    if isinstance(moments, Summary):
        errors = intervals.Errors(moments.error, math.inf, 0.0, None, gradient.new_zeros(BATCHES, len(gradient)))
    else:
        errors = intervals.Errors.of(moments)
    other, noise = reference.gradient.flatten().double(), reference.noise
    square = float(other.square().sum()) - noise
    if not square > 0:
        return {name: Interval(None) for name in ("relative_bias", "relative_bias_squared", "gain", "orthogonal_bias")}
    shifted, unit = replace(errors, mean=errors.mean + gradient - other), other / other.norm()
    mean = shifted.mean + other
    gain = float(mean @ other) / square
    # The derivative of ⟨m, r⟩ / ‖r‖² in r is (m − 2 gain r) / ‖r‖².
    variance = shifted.along(unit) / shifted.replicates / square + noise * float((mean - 2 * gain * other).square().sum()) / square**2
    half = intervals.quantile() * math.sqrt(variance)
    found = _bias_metrics(shifted, shifted.without(unit), math.sqrt(square), noise)
    orthogonal = found.pop("orthogonal_bias")
    found |= {"gain": Interval(gain, gain - half, gain + half, "t"), "orthogonal_bias": orthogonal}
    return {name: Interval(interval.value) for name, interval in found.items()} if exact and noise == 0 else found


def _bias_metrics(errors: intervals.Errors, orthogonal: intervals.Errors, norm: float, noise: float = 0.0) -> dict[str, Interval]:
    """Norms of biases, with profile intervals; ``orthogonal`` are the errors orthogonal to the gradient."""
    square, (low, high) = errors.square_norm() - noise, intervals.profile(errors, noise=noise)
    return {
        "relative_bias": _norm_interval(errors, norm, noise),
        "relative_bias_squared": Interval(square / norm**2, low / norm**2, high / norm**2, "profile"),
        "orthogonal_bias": _norm_interval(orthogonal, norm, noise),
    }


def _norm_interval(errors: intervals.Errors, unit: float, noise: float = 0.0) -> Interval:
    """The norm of a bias in multiples of ``unit``, with the profile interval; ``noise`` is that of the reference."""
    low, high = intervals.profile(errors, noise=noise)
    value = math.sqrt(max(errors.square_norm() - noise, 0.0))
    return Interval(value / unit, math.sqrt(low) / unit, math.sqrt(high) / unit, "profile")


def _numbers(values: Mapping[str, Tensor]) -> dict[str, float]:
    return dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))


def _undirected(metrics: dict[str, Interval], bias: Interval) -> dict[str, Interval]:
    """Keep the metrics that need no gradient to compare with."""
    kept = {name: interval if name in UNDIRECTED else Interval(None) for name, interval in metrics.items()}
    return kept | {"absolute_bias": bias, _ABSOLUTE: metrics[_ABSOLUTE]}
