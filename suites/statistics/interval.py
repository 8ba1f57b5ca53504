"""Intervals as values, without torch, for tables and pages; `intervals` computes them."""

from dataclasses import dataclass, field

LEVEL = 0.95
BATCHES = 32  # of replicates per cell; intervals are delete-one-batch jackknives over them, about 1 % wider than with many

RARE, RARE_ORTHOGONAL = "rare events", "rare events orthogonal to the gradient"
"""Methods of an absent value and interval: too few replicates carry the spread, or that of the direction."""

EVENTS = 30  # events that an interval needs: with 30, intervals of 95 % cover at least 93 %, see `docs/results/simulations.md`
NO_MEAN = "no direction"  # the method of an absent cosine: the mean of the estimates is not significantly different from 0

ABSENT = {  # the reason why a number is absent, by method
    RARE: f"{RARE}: fewer than {EVENTS} replicates carry the variance, or it is too small compared with that of the loss",
    RARE_ORTHOGONAL: f"{RARE_ORTHOGONAL}: fewer than {EVENTS} replicates carry the variance",
    NO_MEAN: f"{NO_MEAN}: the mean of the estimates is not significantly different from 0",
}


@dataclass(frozen=True)
class Interval:
    """A value with its interval; bounds are None for an exact value, and everything is None if the metric is not defined.

    ``method``: ``jackknife``, ``profile``, ``wilson``, ``t``, ``order-statistic``, ...; ``u-statistic`` for an exact value from single
    structures; empty without an interval.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    method: str = field(default="", repr=False)

    @property
    def half_width(self) -> float | None:
        """Half the distance of the bounds; None without both of them."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2
