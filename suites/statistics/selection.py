"""Selection of the best of several estimators on the instances that were measured, and of those that may be just as good."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from .interval import BATCHES, LEVEL, Interval

Array = np.ndarray


@dataclass(frozen=True)
class Selection:
    """The best of several contenders.

    Attributes:
        winner: its position.
        score: its mean score over instances, with a 95 % interval.
        tied: positions of all others that the measurement cannot tell from it, best first.
    """

    winner: int
    score: Interval
    tied: tuple[int, ...]


def best(scores: Array, errors: Array) -> Selection:
    """The contender with the largest mean score, and a set of rivals such that the truly best one is among them all.

    Scores are compared in pairs on the same instances: ``d = score of the winner − score of the rival``, with ``mean d ± t s(d) / √n``. The
    level is shared out over the rivals (Bonferroni), so that the truly best contender is missed with a chance of 5 % at most, however many
    there are. A single instance says nothing about the next one; there the errors of its own measurement are compared.

    Args:
        scores: float64 [contenders, instances], finite, the larger the better.
        errors: the standard error of each; used where there is one instance only.

    Raises:
        ValueError: no contender, or no instance.

    Example:
        >>> scores = np.array([[0.1, 0.2, 0.3, 0.2], [0.8, 0.9, 1.0, 0.9], [0.6, 1.0, 0.9, 1.0]])
        >>> found = best(scores, np.zeros_like(scores))
        >>> found.winner, round(found.score.value, 2), found.tied
        (1, 0.9, (2,))
    """
    if scores.ndim != 2 or 0 in scores.shape:
        raise ValueError(f"`best` got scores of shape {scores.shape}; expected [contenders, instances], at least one of each")
    means = scores.mean(1)
    winner = int(means.argmax())
    rivals = np.argsort(-means, kind="stable")
    rivals = rivals[rivals != winner]
    halves = _half_widths(scores[winner] - scores[rivals], np.hypot(errors[winner], errors[rivals]), (1 - LEVEL) / 2 / max(len(rivals), 1))
    tied = tuple(int(rival) for rival in rivals[halves >= means[winner] - means[rivals]])
    return Selection(winner, mean_interval(scores[winner], errors[winner]), tied)


def mean_interval(scores: Array, errors: Array) -> Interval:
    """The mean of one contender over instances with a 95 % interval; of a single instance with that of its own measurement.

    Args:
        scores: float64 [instances].
        errors: the standard error of each.

    Example:
        >>> found = mean_interval(np.array([0.5, 0.7]), np.zeros(2))
        >>> round(found.value, 2), round(found.low, 2), round(found.high, 2)
        (0.6, -0.67, 1.87)
    """
    mean, half = scores.mean(), _half_width(scores, errors, (1 - LEVEL) / 2)
    return Interval(float(mean), float(mean - half), float(mean + half), "t")


def mean_intervals(scores: Array, errors: Array) -> tuple[Array, Array, Array]:
    """`mean_interval` of every contender [contenders, instances]: means, lower and upper ends.

    Example:
        >>> [ends.round(2).tolist() for ends in mean_intervals(np.array([[0.5, 0.7]]), np.zeros((1, 2)))]
        [[0.6], [-0.67], [1.87]]
    """
    scores = np.ascontiguousarray(scores)
    means, halves = scores.mean(1), _half_widths(scores, errors, (1 - LEVEL) / 2)
    return means, means - halves, means + halves


def student_mean(values: Array) -> Interval:
    """The mean of independent numbers, NaN where there is none, with the interval of Student's t.

    Example:
        >>> round(student_mean(np.array([1.0, 1.0, 2.0])).value, 3)
        1.333
    """
    known = values[np.isfinite(values)]
    if not len(known):
        return Interval(None)
    middle = float(known.mean())
    if len(known) < 2:
        return Interval(middle)
    half = _half_width(known, known, (1 - LEVEL) / 2)
    return Interval(middle, middle - half, middle + half, "t")


def _half_width(values: Array, errors: Array, tail: float) -> float:
    """Of the interval of a mean over instances, with a chance of ``tail`` on each side."""
    return float(_half_widths(values[None], errors[None], tail)[0])


def _half_widths(values: Array, errors: Array, tail: float) -> Array:
    """The same of several means [contenders, instances]."""
    count = values.shape[1]
    if count == 1:
        return -np.asarray(scipy.special.stdtrit(BATCHES - 1, tail) * errors[:, 0])
    # Rows one behind the other: the sum of a row has the same bits beside other rows as alone.
    spread = np.ascontiguousarray(values).std(axis=1, ddof=1)
    return -np.asarray(scipy.special.stdtrit(count - 1, tail) * spread / np.sqrt(count))
