"""From a wrong mean to what most likely made it wrong: factors that are made of an estimator's own options, and known formulas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

EXACT = 1e-6
"""Relative distance below which two exact numbers are the same."""

RESOLVED = 0.05
"""Half-width relative to the gain up to which an interval may name a factor."""

SIGN = "the estimate has the wrong sign: is the loss treated as a reward?"

LENGTH = "the direction is right, the length is not: look for a factor that is left out or taken twice"

_DECAYS = ("decay", "momentum", "ema", "beta", "alpha", "smoothing")
_SCALES = ("sigma", "tau", "temperature", "scale", "lambda", "eta", "step", "epsilon", "eps", "lr")


@dataclass(frozen=True)
class Gain:
    """The gain of a mean, exact where the half-width is 0."""

    value: float
    half_width: float = 0.0

    def is_factor(self, factor: float) -> bool:
        """Whether the gain is this factor, as far as it is known."""
        return abs(self.value - factor) <= max(self.half_width, EXACT * max(1.0, abs(factor)))


def cause_of_gain(gain: Gain, numbers: Mapping[str, float], losses: float | None) -> str:
    """What a mean that points the right way but is too long or too short most likely comes from; empty where nothing fits.

    Args:
        gain: ``⟨m, g⟩ / ‖g‖²`` of the mean m against the target g.
        numbers: the estimator's numeric options by name.
        losses: how many losses one estimate takes: N where no option says it.

    Example:
        >>> cause_of_gain(Gain(0.5), {"num_samples": 2}, 2)
        'gain 0.5 = (N − 1)/N with N = 2: the baseline of a sample includes the sample itself'
    """
    if gain.half_width > RESOLVED * max(abs(gain.value), EXACT):
        return SIGN if gain.value + gain.half_width < 0 else ""
    if gain.is_factor(-1):
        return SIGN
    if gain.value < 0:
        mirrored = cause_of_gain(Gain(-gain.value, gain.half_width), numbers, losses)
        return f"{SIGN} And beside it, {mirrored}"
    found = (
        f"gain {factor:.4g} = {text}" for factor, text in _factors(numbers, losses) if abs(factor - 1) > EXACT and gain.is_factor(factor)
    )
    return next(found, LENGTH)


def _factors(numbers: Mapping[str, float], losses: float | None) -> Iterator[tuple[float, str]]:
    """Factors with what they mean, the most specific first."""
    counts = {value for name, value in numbers.items() if "sample" in name or name in ("n", "num", "k", "m") if value >= 1}
    counts |= {losses} if losses is not None and losses >= 1 else set()
    for n in sorted(counts, reverse=True):
        if n > 1:
            yield (n - 1) / n, f"(N − 1)/N with N = {n:g}: the baseline of a sample includes the sample itself"
            yield n / (n - 1), f"N/(N − 1) with N = {n:g}: the correction for leaving one out is made twice, or where none is due"
        for name, value in numbers.items():
            if name.rpartition(".")[2] in _DECAYS and 0 < value < 1:
                yield (
                    1 - (1 - value) / n,
                    f"1 − (1 − {name})/N with {name} = {value:g}, N = {n:g}: the running mean is updated before it is used",
                )
                yield 1 - value / n, f"1 − {name}/N with {name} = {value:g}, N = {n:g}: the running mean is updated before it is used"
    for name, value in sorted(numbers.items(), key=lambda item: item[0].rpartition(".")[2] not in _SCALES):
        if value > 0 and "sample" not in name:
            yield value, f"{name}: the estimate is not divided by {name}"
            yield 1 / value, f"1/{name} with {name} = {value:g}: the estimate is divided by {name} once too often"
            yield value**2, f"{name}² with {name} = {value:g}: the estimate is multiplied by {name} where it should be divided"
            yield 1 / value**2, f"1/{name}² with {name} = {value:g}: the estimate is divided by {name} twice too often"
    for n in sorted(counts, reverse=True):
        if n > 1:
            yield n, f"N with N = {n:g}: the samples are summed, not averaged"
            yield 1 / n, f"1/N with N = {n:g}: the mean over the samples is taken twice"
    yield 2.0, "2: counted twice, or the derivative of a square without its ½"
    yield 0.5, "½: one of two terms is missing, or a ½ too many"


def cause_of_mean(mean: Tensor, wanted: Tensor, marginals: Tensor, noise: float) -> str:
    """Known formulas of a mean that points elsewhere.

    Args:
        mean: of the estimates, ``[*event]``.
        wanted: what it should be.
        marginals: of the structure, ``[*event]``.
        noise: standard error of the mean, 0 where it is exact.
    """
    excess = (mean - wanted).flatten()
    ratio = float(excess @ marginals.flatten()) / float(marginals.square().sum())
    size = float(excess.norm())
    if float((excess - ratio * marginals.flatten()).norm()) <= 1e-6 * size + 3 * noise and size > 6 * noise:
        return "the mean is off by a multiple of μ: the score of a sample is z − μ; is its log-probability ⟨θ, z⟩ without the normaliser?"
    return ""


def diagonal_estimate(marginals: Tensor, gamma: Tensor) -> Tensor:
    """``diag(J) γ`` with ``J = Cov(z)``: parts are 0 or 1, so that the diagonal is ``μ(1 − μ)``."""
    return marginals * (1 - marginals) * gamma


def parallel(first: Tensor, second: Tensor) -> bool:
    """Whether two rows of estimates ``[rows, ...]`` are the same up to one factor above 0."""
    ratio = float((first * second).sum()) / max(float(second.square().sum()), 1e-300)
    return ratio > 0 and bool(torch.allclose(first, ratio * second, rtol=1e-6, atol=1e-9 * float(first.abs().max())))
