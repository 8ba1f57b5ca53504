"""Looking at a growing sample as often as one likes, without raising more false alarms.

A bettor starts with capital 1 and bets, before every estimate, on which side of the exact gradient it falls. If the mean *is* the exact
gradient, no strategy makes money: the capital is a non-negative martingale, and by Ville's inequality it ever reaches 1/α with probability
at most α, at any sample size, however rare the structures that carry the variance. All it needs is a range that no estimate leaves.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...statistics.metrics import Interval, summarise
from ...statistics.moments import Moments
from .ranges import Ranges

BETS = 12
"""Sizes of bets, each half of the one before: from half the greatest that cannot ruin down to 1/4096 of it."""

PADDING = 1e-4
"""By which share a range is widened for rounding."""

ROWS = 1024
"""Estimates at a time."""


class BettingProcess:
    """An e-value, at any time, against "these columns have these means": the mean capital over columns, sides and sizes of bets.

    A mean of capitals is a capital, so no correction for the number of columns is due. Capital is infinite once a value leaves its range:
    under the hypothesis that cannot happen.

    Args:
        means: [c], under the hypothesis.
        low, high: [c], what values of the column never leave.

    Raises:
        ValueError: a mean outside its range.

    Reference: Waudby-Smith & Ramdas 2024, "Estimating means of bounded random variables by betting", sections 4 and 5.

    Example:
        >>> half, zero, one = (torch.tensor([value], dtype=torch.float64) for value in (0.5, 0.0, 1.0))
        >>> process = BettingProcess(half, zero, one)
        >>> process.update(torch.tensor([[1.0], [0.0]], dtype=torch.float64).repeat(50, 1))
        >>> process.e_value < 1
        True
        >>> process.update(torch.ones(50, 1, dtype=torch.float64))
        >>> process.e_value > 100
        True
    """

    def __init__(self, means: Tensor, low: Tensor, high: Tensor) -> None:
        width = high - low
        padding = PADDING * width + 1e-9 * width.max()
        self.means, self.low, self.high = means, low - padding, high + padding
        if bool(((means < self.low) | (means > self.high)).any()):
            raise ValueError("`BettingProcess` got a mean outside its range; expected low <= mean <= high in every column")
        moving = width > 0
        sizes = 0.5 ** torch.arange(1, BETS + 1, dtype=means.dtype, device=means.device).unsqueeze(-1)
        up, down = (torch.where(moving, 1 / reach.clamp(min=1e-300), 0) for reach in (means - self.low, self.high - means))
        self.bets = torch.stack([sizes * up, -sizes * down])
        self.log_capital = torch.zeros_like(self.bets)

    def update(self, values: Tensor) -> None:
        """Take independent values ``[r, c]`` into account."""
        if bool(((values < self.low) | (values > self.high)).any()):
            self.log_capital = torch.full_like(self.log_capital, math.inf)
        for rows in (values - self.means).split(ROWS):
            self.log_capital = self.log_capital + torch.log1p(self.bets.unsqueeze(-2) * rows).sum(-2)

    @property
    def e_value(self) -> float:
        """The capital: reject at level α once it reaches 1/α."""
        return math.exp(min(self.log_e_value, 700.0))

    @property
    def log_e_value(self) -> float:
        """Its logarithm, which does not overflow."""
        return float(self.log_capital.flatten().logsumexp(0)) - math.log(self.log_capital.numel())


class BiasBets:
    """The strict test for bias: half the capital bets along the exact gradient, half on the parts.

    Args:
        gradient: exact, ``[*event]``.
        ranges: of one estimate; see `score_function_ranges`.
    """

    def __init__(self, gradient: Tensor, ranges: Ranges) -> None:
        flat = gradient.flatten().double()
        self._unit = flat / flat.norm().clamp(min=1e-300)
        along = (flat @ self._unit).reshape(1)
        self.parts = BettingProcess(flat, ranges.low, ranges.high)
        self.along = BettingProcess(along, ranges.along[:1], ranges.along[1:])

    def update(self, estimates: Tensor) -> None:
        """Take independent estimates ``[r, *event]`` into account."""
        flat = estimates.flatten(1).double()
        self.parts.update(flat)
        self.along.update((flat @ self._unit).unsqueeze(-1))

    @property
    def e_value(self) -> float:
        """The capital: reject at level α once it reaches 1/α."""
        return (self.parts.e_value + self.along.e_value) / 2


def mixture_half_width(deviation: float, n: float, *, alpha: float = 0.05, tuned_for: float = 4096) -> float:
    """Half-width of a confidence sequence: the mean stays within it at *all* n at once, with probability 1 − α.

    ``s √((n r² + 1)/(n² r²) · log((n r² + 1)/α²))``, with r such that it is narrowest at ``tuned_for``. Asymptotic, as the standard
    deviation is estimated: for displays; `BettingProcess` holds at any n.

    Reference: Waudby-Smith, Arbour, Sinha, Kennedy & Ramdas 2024, "Time-uniform central limit theory and asymptotic confidence sequences",
    theorem 2.2 and appendix on tuning.

    Example:
        >>> round(mixture_half_width(1.0, 4096.0), 4), round(1.96 / 64, 4)
        (0.0474, 0.0306)
    """
    scale = (-2 * math.log(alpha) + math.log(-2 * math.log(alpha) + 1)) / tuned_for
    spread = n * scale + 1
    return deviation * math.sqrt(spread / (n * n * scale) * math.log(spread / alpha**2))


def gain_sequence(moments: Moments, *, alpha: float = 0.05, tuned_for: float = 4096) -> Interval:
    """The gain with a confidence sequence: may be looked at as often as one likes while replicates come in; empty where g is 0."""
    norm, summary = float(moments.gradient.norm()), summarise(moments)
    if norm == 0:
        return Interval(None)
    unit = moments.gradient / norm
    n = float(summary.replicates)
    square = float(moments.along.sum() + moments.count @ ((moments.mean - summary.error) @ unit).square())
    half = mixture_half_width(math.sqrt(square / (n - 1)), n, alpha=alpha, tuned_for=tuned_for) / norm
    gain = 1 + float(summary.error @ unit) / norm
    return Interval(gain, gain - half, gain + half)
