"""Bias against another reference than the exact gradient: the gradient of an estimator's own objective, which may be noisy itself.

A reference that is a mean of N estimates of covariance S adds ``tr S/N`` to ``‖m̂ − r̂‖²``, in addition to the noise of the replicates.
Both are subtracted. Intervals contain it as noise too. Only its trace is known, so it counts as if it lay in the worst direction.
"""

from __future__ import annotations

import math
from typing import Protocol

from torch import Tensor

from .intervals import Errors, Interval, profile, t_quantile
from .metrics import Summary, norm_interval
from .moments import BATCHES, Moments


class NoisyGradient(Protocol):
    """A gradient ``[*event]`` with the trace of the covariance of its own error: 0 if it is exact."""

    @property
    def gradient(self) -> Tensor:
        """``[*event]``."""

    @property
    def noise(self) -> float:
        """tr S/N, of its mean."""


def estimated_against(moments: Moments, reference: NoisyGradient) -> dict[str, Interval]:
    """Bias of replicates against a reference, with 95 % intervals."""
    return _against(Errors.of(moments), moments.gradient, reference)


def exact_against(summary: Summary, reference: NoisyGradient) -> dict[str, Interval]:
    """Bias of an exact mean against a reference; intervals come from the noise of the reference alone."""
    size = len(summary.gradient)
    nothing = summary.gradient.new_zeros(BATCHES, size)
    metrics = _against(Errors(summary.error, math.inf, 0.0, None, nothing), summary.gradient, reference)
    return metrics if reference.noise > 0 else {name: Interval(interval.value) for name, interval in metrics.items()}


def _against(errors: Errors, gradient: Tensor, reference: NoisyGradient) -> dict[str, Interval]:
    """Metrics relative to the norm of the reference, corrected for its noise; intervals ignore the remaining noise of the norm."""
    other, noise = reference.gradient.flatten().double(), reference.noise
    square = float(other.square().sum()) - noise
    if not square > 0:
        return {name: Interval(None) for name in ("relative_bias", "relative_bias_squared", "gain", "orthogonal_bias")}
    norm, shifted = math.sqrt(square), errors.shifted(gradient - other)
    unit = other / other.norm()
    low, high = profile(shifted, noise=noise)
    return {
        "relative_bias": norm_interval(shifted, norm, noise=noise),
        "relative_bias_squared": Interval((shifted.square_norm() - noise) / square, low / square, high / square, "profile"),
        "gain": _gain(shifted, other, square, noise),
        "orthogonal_bias": norm_interval(shifted.without(unit), norm, noise=noise),
    }


def _gain(shifted: Errors, other: Tensor, square: float, noise: float) -> Interval:
    """``⟨m, r⟩ / ‖r‖²``, whose derivative in r is ``(m − 2 gain r) / ‖r‖²``."""
    mean = shifted.mean + other
    gain = float(mean @ other) / square
    variance = shifted.along(other / other.norm()) / shifted.replicates / square
    variance += noise * float((mean - 2 * gain * other).square().sum()) / square**2
    half = t_quantile() * math.sqrt(variance)
    return Interval(gain, gain - half, gain + half, "t")
