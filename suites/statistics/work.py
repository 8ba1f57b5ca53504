"""Work of an estimate: variance × seconds, and the budget at which one estimator overtakes another.

With a budget T, an estimator of cost c is averaged over T/c estimates. Its error is then ``floor + slope / T``.

- Squared error: the floor is the squared bias, and the slope the variance times c.
- rho: ``1/ρ² = (‖m‖² + tr S c/T) ‖g‖² / ⟨m, g⟩²`` does not depend on scale. Both are divided by the squared gain, and the floor is that of
  the squared norm of the mean.

The estimator with the lower slope wins at small budgets, the one with the lower floor at large ones. In between they break even. The
squared error alone penalises an error of scale, which any learning rate absorbs, so both are given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import scipy

from .interval import BATCHES, LEVEL, Interval

if TYPE_CHECKING:
    from ...estimators.base import Evaluations

Criterion = Literal["mse", "rho"]

GRADIENT_WORK = 2
"""Loss evaluations that the backward of one counts as."""


@dataclass(frozen=True)
class Uncertain:
    """A number with its standard error."""

    value: float
    error: float = 0.0

    @classmethod
    def of(cls, interval: Interval) -> Uncertain:
        """Make it from an interval that has a value; exact if it has no bounds."""
        half = interval.half_width
        return cls(interval.value or 0.0, 0.0 if half is None else half / _QUANTILE)

    @property
    def relative(self) -> float:
        """The standard error of the logarithm."""
        return self.error / abs(self.value) if self.value else 0.0

    def minus(self, other: Uncertain) -> Uncertain:
        """The difference of independent numbers."""
        return Uncertain(self.value - other.value, math.hypot(self.error, other.error))

    def times(self, other: Uncertain, power: float = 1.0) -> Uncertain:
        """The product with a power of an independent number."""
        value = self.value * other.value**power
        return Uncertain(value, abs(value) * math.hypot(self.relative, power * other.relative))

    @property
    def bounds(self) -> tuple[float, float]:
        """Ends of the 95 % interval."""
        return self.value - _QUANTILE * self.error, self.value + _QUANTILE * self.error


@dataclass(frozen=True)
class Curve:
    """The error of an estimator as a function of the budget T: ``floor + slope / T``."""

    floor: Uncertain
    slope: Uncertain


def loss_evaluations(evaluations: Evaluations, **sizes: int) -> float:
    """Evaluations of the loss that one estimate takes; the backward of one counts as `GRADIENT_WORK` more.

    Args:
        evaluations: declared by the estimator.
        sizes: number of losses of a declared pass: ``enumerations``, ``support_losses``, ``completions``,
            ``swap_losses``, ``alternatives``.

    Raises:
        ValueError: a pass is declared whose size is not given.

    Example:
        >>> from structgrad.estimators import Evaluations
        >>> loss_evaluations(Evaluations(losses=4, loss_gradients=1))
        6.0
        >>> loss_evaluations(Evaluations(enumerations=1), enumerations=120)
        120.0
    """
    total = float(evaluations.losses + GRADIENT_WORK * evaluations.loss_gradients)
    for name in ("enumerations", "support_losses", "completions", "swap_losses", "alternatives"):
        passes = getattr(evaluations, name)
        if passes and name not in sizes:
            raise ValueError(f"`loss_evaluations` got no {name}=; expected how many losses one of the {passes} declared takes")
        total += passes * sizes.get(name, 0)
    return total


def variance_seconds(metrics: Mapping[str, Interval], seconds: Interval) -> Interval:
    """Relative variance × seconds of one estimate, the figure of merit of an unbiased estimator."""
    variance = metrics["relative_variance"]
    if variance.value is None or seconds.value is None:
        return Interval(None)
    value = Uncertain.of(variance).times(Uncertain.of(seconds))
    return _logarithmic(value.value, value.relative)


def error_curve(metrics: Mapping[str, Interval], cost: Interval, criterion: Criterion) -> Curve | None:
    """Error against budget, from the metrics of an estimator and the cost of one estimate (seconds, or loss evaluations).

    None if a metric is not defined, or if the estimator does not descend: no budget makes it useful.
    """
    needed = [metrics[name] for name in ("relative_bias_squared", "relative_variance", "gain", "cosine")] + [cost]
    if any(interval.value is None for interval in needed):
        return None
    squared, variance, gain, cosine, price = (Uncertain.of(interval) for interval in needed)
    slope = variance.times(price)
    if criterion == "mse":
        return Curve(Uncertain(max(squared.value, 0.0), squared.error), slope)
    if gain.value <= 0 or cosine.value <= 0:
        return None
    # An estimated cosine may exceed 1.
    angle = Uncertain(min(cosine.value, 1.0), cosine.error)
    return Curve(Uncertain(1.0).times(angle, -2), slope.times(gain, -2))


def break_even(candidate: Curve | None, reference: Curve | None) -> Interval:
    """The budget from which on the reference has the smaller error: ``(slope_r − slope_c) / (floor_c − floor_r)``.

    Returns:
        0 if the reference wins at every budget, None if it never wins; ``high`` is None if that cannot be excluded.
        The interval propagates errors on the log scale, as long as both differences are certain to be positive.

    Example:
        >>> straight_through = Curve(floor=Uncertain(0.04), slope=Uncertain(0.8))
        >>> reinforce = Curve(floor=Uncertain(0.0), slope=Uncertain(26.8))
        >>> break_even(straight_through, reinforce).value
        650.0
    """
    if candidate is None or reference is None:
        return Interval(None)
    work, gap = reference.slope.minus(candidate.slope), candidate.floor.minus(reference.floor)
    if gap.value <= 0:
        return Interval(None)
    (work_low, work_high), (gap_low, gap_high) = work.bounds, gap.bounds
    value = max(work.value, 0.0) / gap.value
    if work_low > 0 and gap_low > 0:
        return _logarithmic(value, math.hypot(work.relative, gap.relative))
    return Interval(value, max(work_low, 0.0) / gap_high, max(work_high, 0.0) / gap_low if gap_low > 0 else None, "t")


def _logarithmic(value: float, relative: float) -> Interval:
    factor = math.exp(_QUANTILE * relative)
    return Interval(value, value / factor, value * factor, "t")


_QUANTILE = float(scipy.special.stdtrit(BATCHES - 1, (1 + LEVEL) / 2))
