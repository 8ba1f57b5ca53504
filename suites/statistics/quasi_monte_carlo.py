"""Metrics of quadrature: means over scrambled point sets, of which each scramble is one independent replicate."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from .geometry import Geometry
from .interval import EVENTS
from .intervals import LEVEL, UNRESOLVED, Errors, Interval, events, jackknives, profile
from .metrics import LINEAR, Summary, bias_metrics, cosine_interval, metric_values

__all__ = ["LEVEL", "Scrambles", "scramble_bias", "scramble_metrics"]


class Scrambles(Protocol):
    """Means ``[scrambles, d]`` of estimates over point sets; ``trace`` of the covariance of one estimate, [] or by scramble.

    ``zero``: share of estimates that are 0. ``nonzero``: mean number of non-zero parts; both [] or by scramble.
    """

    @property
    def means(self) -> Tensor:
        """[scrambles, d]."""

    @property
    def trace(self) -> Tensor:
        """Of the covariance of one estimate."""

    @property
    def zero(self) -> Tensor:
        """Share of estimates that are 0."""

    @property
    def nonzero(self) -> Tensor:
        """Mean number of non-zero parts."""


def scramble_metrics(found: Scrambles, gradient: Tensor, geometry: Geometry | None = None) -> dict[str, Interval]:
    """Metrics with 95 % intervals over scrambles; those of single estimates, such as the descent probability, are left to replicates."""
    exact = gradient.flatten().double()
    scrambles = len(found.means)
    every = torch.ones(1, scrambles, dtype=torch.float64, device=exact.device)
    whole = {name: float(value[0]) for name, value in metric_values(_combined(found, exact, every)).items()}
    without = metric_values(_combined(found, exact, every - torch.eye(scrambles, dtype=torch.float64, device=exact.device)))
    result = jackknives(whole, without)
    result = {name: _linear(interval) if name in LINEAR else interval for name, interval in result.items()}
    if events(found.trace.double().clamp(min=0), torch.full_like(found.trace, 2)) < EVENTS:
        return dict.fromkeys(result, UNRESOLVED)
    errors = _errors(found, exact)
    if not float(exact.norm()) > 0:
        return result
    beside = errors.without(exact / float(exact.norm()))
    cosine = cosine_interval(beside, exact, whole["gain"], result["cosine"])
    return result | bias_metrics(errors, beside, exact, geometry) | {"cosine": cosine}


def scramble_bias(found: Scrambles, gradient: Tensor, *, level: float = LEVEL) -> tuple[float, float]:
    """Interval of ``‖b‖²``."""
    return profile(_errors(found, gradient.flatten().double()), level=level)


def _errors(found: Scrambles, exact: Tensor) -> Errors:
    means = found.means.double() - exact
    mean = means.mean(0)
    centred = means - mean
    return Errors(mean, float(len(means)), float(centred.square().sum()) / (len(means) - 1), None, centred)


def _combined(found: Scrambles, exact: Tensor, kept: Tensor) -> Summary:
    """Over the scrambles that each row of ``kept`` [s, scrambles] keeps; N is what plain replicates would need for the same noise."""
    count = kept.sum(-1)
    means = found.means.double() - exact
    error = kept @ means / count.unsqueeze(-1)
    spread = (kept.unsqueeze(-1) * (means.unsqueeze(0) - error.unsqueeze(1)).square()).sum((-2, -1))
    noise = spread / (count - 1) / count
    trace, zero, nonzero = (_over(kept, values) for values in (found.trace, found.zero, found.nonzero))
    replicates = torch.where(noise > 0, trace / noise.clamp(min=1e-300), math.inf)
    return Summary(exact, error, trace, replicates, zero, nonzero)


def _over(kept: Tensor, values: Tensor) -> Tensor:
    by_scramble = torch.as_tensor(values, dtype=torch.float64, device=kept.device).expand(kept.shape[-1])
    return kept @ by_scramble / kept.sum(-1)


def _linear(interval: Interval) -> Interval:
    return Interval(interval.value, interval.low, interval.high, "t" if interval.method else "")
