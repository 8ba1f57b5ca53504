"""Estimates with their errors, and how much a number changed between two estimates, for many pairs at once.

Two estimates from the same random numbers are compared batch by batch, so that their common noise cancels. Estimates from different random
numbers keep both errors: a stored baseline is an estimate too.

Reference:
    Efron & Tibshirani 1993, "An introduction to the bootstrap", section 11.5 (delete-one-group jackknife).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from ..metrics import RTOL
from ..statistics.interval import BATCHES, LEVEL
from .pairs import Pairs

_NORMAL = 1e9
"""Degrees of freedom at which Student's law is the normal law."""

AT_GAIN = {"relative_variance": 2, "relative_mse": 2, "orthogonal_bias": 1, "null_bias": 1}
"""Errors that shrink with the estimate, and the power of the gain by which they do."""

Statistic = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""A function of the numbers of the base and the head ``[pair, batch]``."""


@dataclass(frozen=True)
class Estimates:
    """Numbers with their errors, one per pair.

    Attributes:
        value: the numbers; NaN for none.
        error: standard errors; 0 if exact, NaN if unknown.
        degrees: degrees of freedom of the errors.
        batches: the numbers without each batch of replicates ``[pair, batch]``, NaN if there are fewer.
        exact: whether the row has no sampling error.
    """

    value: np.ndarray
    error: np.ndarray
    degrees: np.ndarray
    batches: np.ndarray
    exact: np.ndarray

    @property
    def known(self) -> np.ndarray:
        """Whether number and error are known."""
        return np.asarray(np.isfinite(self.error) & ~np.isnan(self.value))

    @property
    def count(self) -> np.ndarray:
        """The number of batches of each."""
        return np.asarray((~np.isnan(self.batches)).sum(1))

    def __getitem__(self, rows: np.ndarray) -> Estimates:
        return Estimates(*(one[rows] for one in (self.value, self.error, self.degrees, self.batches, self.exact)))

    @classmethod
    def of(cls, pairs: Pairs, places: np.ndarray) -> Estimates:
        """The estimates in some rows.

        The error follows from the batches; else it is 0 for exact numbers; else it follows from the interval.
        """
        value, low, high = (pairs.column(name, places) for name in ("value", "low", "high"))
        batches = batches_of(pairs, places)
        count = (~np.isnan(batches)).sum(1)
        exact = is_exact(pairs, places)
        by_batches = np.isin(pairs.column("interval", places), ("jackknife", "profile"))
        quantile = np.where(by_batches, special.stdtrit(BATCHES - 1, (1 + LEVEL) / 2), special.ndtri((1 + LEVEL) / 2))
        with np.errstate(invalid="ignore"):
            error = np.where(count > 1, jackknife(batches), np.where(exact, 0.0, (high - low) / 2 / quantile))
        degrees = np.where(count > 1, count - 1.0, np.where(by_batches & ~exact, BATCHES - 1.0, _NORMAL))
        return cls(value, error, degrees, batches, exact)

    def at_gain(self, gain: Estimates, metric: np.ndarray, known: np.ndarray) -> Estimates:
        """Errors ``[pair]`` of ``ĝ / γ``, whose expectation has the right length, for known gains γ and the same batches of both."""
        square = np.array([AT_GAIN[name] == 2 for name in metric], bool)[:, None]
        mse = (metric == "relative_mse")[:, None]

        def divided(error: np.ndarray, size: np.ndarray) -> np.ndarray:
            return np.where(mse, error - (size - 1) ** 2, error) / np.where(square, size**2, np.abs(size))

        width = min(self.batches.shape[1], gain.batches.shape[1])
        with np.errstate(divide="ignore", invalid="ignore"):
            value = divided(self.value[:, None], gain.value[:, None])[:, 0]
            batches = divided(self.batches[:, :width], gain.batches[:, :width])
        same, several = self.count == gain.count, self.count > 1
        exactly = (self.error == 0) & (gain.error == 0)
        error = np.where(known & same & several, jackknife(batches), np.where(known & same & exactly, 0.0, np.nan))
        return Estimates(value, error, np.where(several, self.count - 1.0, _NORMAL), batches, self.exact)


def is_exact(pairs: Pairs, places: np.ndarray) -> np.ndarray:
    """Whether rows have no sampling error: the exact tier, a count, or bytes."""
    tier = pairs.column("tier", places)
    plain = (tier == "") & np.isnan(pairs.column("replicates", places))
    counted = np.isnan(pairs.column("low", places)) & (plain | (pairs.column("unit", places) == "count"))
    return np.asarray((tier == "exact") | counted)


def batches_of(pairs: Pairs, places: np.ndarray) -> np.ndarray:
    """The batches of rows ``[row, batch]``; NaN in rows that have fewer than two, or one that is not finite."""
    column = pairs.rows["batches"].to_numpy()
    lists = [column[place] if place >= 0 else () for place in places]
    sizes = np.array([0 if one is None else len(one) for one in lists], int)
    found = np.full((len(places), sizes.max(initial=0)), np.nan)
    for size in np.unique(sizes[sizes > 1]):
        rows = np.flatnonzero(sizes == size)
        numbers = np.array([lists[row] for row in rows], float)
        found[rows, :size] = np.where(np.isfinite(numbers).all(1, keepdims=True), numbers, np.nan)
    return found


def jackknife(without: np.ndarray) -> np.ndarray:
    """Standard errors ``[pair]`` of numbers without each batch ``[pair, batch]``; NaN batches do not count."""
    count = (~np.isnan(without)).sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        centred = without - (np.nansum(without, 1) / count)[:, None]
        return np.asarray(np.sqrt((count - 1) / count * np.nansum(np.square(centred), 1)))


def contrast(statistic: Statistic, base: Estimates, head: Estimates, paired: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A statistic of two numbers, its standard error and degrees of freedom, each ``[pair]``.

    Batches are compared one by one if ``paired``. Else the errors of both sides add up in squares, with Welch's degrees of freedom.
    """

    def spread(side: Estimates, of_side: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        step = np.minimum(side.error, np.abs(side.value) / 2)
        step = np.where(step == 0, side.error, step)
        slope = np.abs(of_side((side.value + step)[:, None]) - of_side((side.value - step)[:, None]))[:, 0] / 2 * (side.error / step)
        return np.where(side.error == 0, 0.0, np.where(side.count > 1, jackknife(of_side(side.batches)), slope))

    with np.errstate(all="ignore"):
        estimate = statistic(base.value[:, None], head.value[:, None])[:, 0]
        width = min(base.batches.shape[1], head.batches.shape[1])
        together = jackknife(statistic(base.batches[:, :width], head.batches[:, :width]))
        errors = spread(base, lambda x: statistic(x, head.value[:, None])), spread(head, lambda x: statistic(base.value[:, None], x))
        weights = sum(np.where(error > 0, error**4 / side.degrees, 0.0) for error, side in zip(errors, (base, head), strict=True))
        welch = np.where(weights > 0, (errors[0] ** 2 + errors[1] ** 2) ** 2 / weights, _NORMAL)
    return estimate, np.where(paired, together, np.hypot(*errors)), np.where(paired, base.count - 1.0, welch)


def p_above(estimate: np.ndarray, error: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """p-values ``[pair]`` of "it is not above 0"."""
    certain = (error == 0) | ~np.isfinite(estimate)
    with np.errstate(all="ignore"):
        return np.where(certain, np.where(estimate > 0, 0.0, 1.0), special.stdtr(degrees, -estimate / np.where(certain, 1.0, error)))


def is_close(first: np.ndarray, second: np.ndarray, absolute: float | np.ndarray = 1e-12, relative: float = RTOL) -> np.ndarray:
    """Whether numbers agree up to rounding, as `math.isclose`."""
    with np.errstate(invalid="ignore"):
        near = np.abs(first - second) <= np.maximum(relative * np.maximum(np.abs(first), np.abs(second)), absolute)
    return np.asarray((first == second) | (near & np.isfinite(first) & np.isfinite(second)))
