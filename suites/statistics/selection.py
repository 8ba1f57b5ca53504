"""The worth of the estimates that a budget buys; the best of several estimators, and those that may be just as good; adjusted p-values.

All quantities of a worth are relative to the exact gradient g. For the mean m of an estimate, ``b² = ‖m − g‖² / ‖g‖²``,
``V = tr S / ‖g‖²`` and ``gain = ⟨m, g⟩ / ‖g‖²``. Then ``‖m‖² / ‖g‖² = b² + 2 gain − 1``. A budget of M estimates divides V by M. M need
not be whole, since a batch of training may hold any number of rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import scipy

from .interval import LEVEL, Interval

if TYPE_CHECKING:
    from ...estimators.base import Evaluations

Array = np.ndarray
K = TypeVar("K")

GRADIENT_WORK = 2  # loss evaluations that the backward of one counts as
MAX_RATIO_ERROR = 0.2  # a ratio of times with a 95 % interval beyond ± this share buys no budget: it is timed again, or work counts


@dataclass(frozen=True)
class Selection:
    """The best of several contenders."""

    winner: int  # its position
    score: Interval  # its mean score over instances, with a 95 % interval
    tied: tuple[int, ...]  # positions of all others that are not significantly different from it, best first


def best(scores: Array, common: Array | None = None, *, fewest: int = 2) -> Selection:
    """The contender with the largest mean score, and a set of rivals such that the truly best one is among them all.

    Scores are compared in pairs on the same instances: ``d = score of the winner − score of the rival``, with ``mean d ± t s(d) / √n``. The
    rivals share the level (Bonferroni). The truly best contender is missed with a chance of 5 % at most, for any number of rivals.

    Scores are finite, [contenders, instances], at least one of each, the larger the better. ``common``, [contenders], is the standard
    error that all scores of a contender share, such as that of its cost. With fewer than ``fewest`` instances all rivals are tied, and
    there is no interval.
    """
    common = np.zeros(len(scores)) if common is None else common
    means = scores.mean(1)
    winner = int(means.argmax())
    rivals = np.argsort(-means, kind="stable")
    rivals = rivals[rivals != winner]
    tail = (1 - LEVEL) / 2 / max(len(rivals), 1)
    halves = _half_widths(scores[winner] - scores[rivals], np.hypot(common[winner], common[rivals]), tail, fewest)
    tied = tuple(int(rival) for rival in rivals[halves >= means[winner] - means[rivals]])
    (middle,), (low,), (high,) = mean_intervals(scores[[winner]], common[[winner]], fewest=fewest)
    return Selection(winner, interval_of(middle, low, high), tied)


def interval_of(middle: float, low: float, high: float) -> Interval:
    """A mean with the ends of its interval; without an interval if these are not finite."""
    return Interval(float(middle), float(low), float(high), "t") if np.isfinite(low) else Interval(float(middle))


def mean_intervals(scores: Array, common: Array, *, fewest: int = 2) -> tuple[Array, Array, Array]:
    """The mean of every contender over instances, and the ends of its 95 % interval; infinite ends with too few instances. See `best`."""
    means, halves = scores.mean(1), _half_widths(scores, common, (1 - LEVEL) / 2, fewest)
    return means, means - halves, means + halves


def student_mean(values: Array) -> Interval:
    """The mean of independent numbers with the interval of Student's t; NaN are left out, and one number has no interval."""
    known = values[np.isfinite(values)]
    return interval_of(*(end[0] for end in mean_intervals(known[None], np.zeros(1)))) if len(known) else Interval(None)


def _half_widths(values: Array, common: Array, tail: float, fewest: int) -> Array:
    """Half-widths of the intervals of means over instances [contenders, instances], with probability ``tail`` on each side."""
    count = values.shape[1]
    if count < max(fewest, 2):
        return np.full(len(values), np.inf)
    # Rows one behind the other: the sum of a row has the same bits with other rows as alone.
    spread = np.ascontiguousarray(values).std(axis=1, ddof=1)
    own, shared = scipy.special.stdtrit(count - 1, tail) * spread / np.sqrt(count), scipy.special.ndtri(tail) * common
    return np.asarray(np.where(shared == 0, -own, np.hypot(own, shared)))


def holm(p_values: Mapping[K, float]) -> dict[K, float]:
    """Adjusted p-values: rejecting those below α keeps the chance of *any* false rejection below α, under any dependence.

    They are ``max over the smaller ones of (m − i) p_(i)``, at most 1. Cells without a test are left out, not counted as 1.

    Reference: Holm 1979, "A simple sequentially rejective multiple test procedure", section 3.
    """
    for key, p in p_values.items():
        if not 0 <= p <= 1:
            raise ValueError(f"`holm` got the p-value {p} for {key!r}; expected numbers from 0 to 1, leave cells without a test out")
    return dict(zip(p_values, holm_values(np.array(list(p_values.values()), dtype=float)).tolist(), strict=True))


def holm_values(p_values: Array, others: Sequence[float] = ()) -> Array:
    """`holm` of an array ``[tests]``, over ``others`` too; NaN is no test."""
    tests = np.concatenate([p_values, others])
    order = np.argsort(tests, kind="stable")  # NaN come last
    left = np.count_nonzero(~np.isnan(tests)) - np.arange(len(order))
    adjusted = np.empty(len(order))
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, left * tests[order]))
    return adjusted[: len(p_values)]


@dataclass(frozen=True, eq=False)
class Worth:
    """Bias, variance and gain of one estimate, relative to the exact gradient; arrays of one shape."""

    bias_squared: Array
    variance: Array
    gain: Array

    def rho(self, count: Array) -> Array:
        """``ρ = E⟨ĝ, g⟩ / (‖g‖ √E‖ĝ‖²)`` for the mean ĝ of M estimates; 0 for an estimate that is always 0."""
        length = np.maximum(self.bias_squared + 2 * self.gain - 1, self.gain**2) + self.variance / count
        alive = length > 0
        return np.where(alive, self.gain / np.sqrt(np.where(alive, length, 1.0)), 0.0)

    def squared_error(self, count: Array) -> Array:
        """``b² + V / M``."""
        return np.asarray(np.maximum(self.bias_squared, 0) + self.variance / count)


def loss_evaluations(evaluations: "Evaluations", **sizes: int) -> float:
    """Evaluations of the loss by one estimate; ValueError unless ``sizes`` has the losses of each declared pass, by its name."""
    total = float(evaluations.losses + GRADIENT_WORK * evaluations.loss_gradients)
    for name in ("enumerations", "support_losses", "completions", "swap_losses", "alternatives"):
        passes = getattr(evaluations, name)
        if passes and name not in sizes:
            raise ValueError(f"`loss_evaluations` got no {name}=; expected how many losses one of the {passes} declared takes")
        total += passes * sizes.get(name, 0)
    return total
