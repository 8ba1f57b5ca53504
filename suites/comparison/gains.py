"""Errors at the same gain: an estimate that is made smaller has smaller errors, and is no better for it.

Where the gain γ changed, or may have, the errors of ``ĝ / γ`` are compared, whose expectation has the right length on both sides.
"""

from __future__ import annotations

from collections.abc import Callable

from ..base import Row
from .contrasts import Estimate
from .matching import Key

AT_GAIN: dict[str, Callable[[float, float], float]] = {
    "relative_variance": lambda error, gain: error / gain**2,
    "relative_mse": lambda error, gain: (error - (gain - 1) ** 2) / gain**2,
    "orthogonal_bias": lambda error, gain: error / abs(gain),
    "null_bias": lambda error, gain: error / abs(gain),
}
"""The metrics that shrink with the estimate, each of ``ĝ`` and the gain to that of ``ĝ / γ``."""

SURE = 5.0
"""So many standard errors a gain that is divided by lies from 0; a ratio is else no number that has an error."""

LEAST = 1e-6
"""A gain below it is rounding, or as good as none."""


def estimates_at(key: Key) -> Key:
    """What numbers of the same estimates have in common: all but the metric."""
    return key._replace(metric="")


def known_gain(row: Row | None) -> bool:
    """Whether a gain is surely not 0."""
    found = None if row is None else Estimate.of(row)
    return found is not None and abs(found.value) > max(LEAST, SURE * found.error)


def at_gain(row: Row, gain: Row) -> Estimate | None:
    """An error at the gain 1, which is known; None where what both share is not.

    Example:
        >>> names = dict.fromkeys(("cell", "suite", "problem", "stage", "source", "oracle", "loss", "estimator", "family"), "")
        >>> variance, gain = (Row(**names, metric=metric, value=0.5, tier="exact") for metric in ("relative_variance", "gain"))
        >>> at_gain(variance, gain).value
        2.0
    """
    error, size, function = Estimate.of(row), Estimate.of(gain), AT_GAIN[row.metric]
    if error is None or size is None or len(error.batches) != len(size.batches):
        return None
    value = function(error.value, size.value)
    if error.batches:
        return Estimate.jackknifed(value, tuple(map(function, error.batches, size.batches)))
    return None if error.error or size.error else Estimate(value)
