"""Intervals as values; how one is made is in `intervals`. Tables need no torch to hold them, and this module imports none."""

from __future__ import annotations

from dataclasses import dataclass, field

LEVEL = 0.95

BATCHES = 32
"""Means of replicates that intervals are made of."""

RARE, RARE_BESIDE = "rare events", "rare events orthogonal to the gradient"
"""The method of an interval that is absent, with its value: too few replicates carry the spread, or that of the direction."""

EVENTS = 30
"""Events that an interval needs: with 30, intervals of 95 % cover at least 93 %, see `docs/results/simulations.md`."""

NO_MEAN = "no direction"
"""The method of a cosine that is absent: the mean of the estimates is not significantly different from 0."""

ABSENT = {method: f"{method}: fewer than {EVENTS} replicates carry the variance" for method in (RARE, RARE_BESIDE)} | {
    NO_MEAN: f"{NO_MEAN}: the mean of the estimates is not significantly different from 0"
}
"""Why a number is absent, by method."""


@dataclass(frozen=True)
class Interval:
    """A value with its interval; bounds are None for an exact value, everything is None where the metric is not defined.

    ``method`` says how it was made: ``jackknife``, ``profile``, ``wilson``, ``t``, ``order-statistic``, ...; ``u-statistic`` for an
    exact value that comes from single structures; empty where there is none.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    method: str = field(default="", repr=False)

    @property
    def half_width(self) -> float | None:
        """Half the distance of the bounds; None without both of them."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2
