"""Small enough to be none: upper bounds of a bias, the other side of a test for it."""

from __future__ import annotations

import math

import scipy

from ..metrics import bias_interval, summarise
from ..moments import Moments

ERROR = 0.05
"""Chance of calling a bias of ε or more equivalent to none."""


def bias_bound(moments: Moments, *, error: float = ERROR) -> float | None:
    """Upper bound of ``‖b‖ / ‖g‖`` at confidence 1 − error: below ε, the bias is (two one-sided tests in one norm); None where g is 0.

    Reference: Schuirmann 1987, "A comparison of the two one-sided tests procedure and the power approach".
    """
    norm = float(moments.gradient.norm())
    return math.sqrt(bias_interval(moments, level=1 - 2 * error)[1]) / norm if norm > 0 else None


def gain_bound(moments: Moments, *, error: float = ERROR) -> float | None:
    """Upper bound of ``|gain − 1|`` at confidence 1 − error: says nothing of a bias orthogonal to g; None where g is 0.

    It needs a hundredth of the replicates of `bias_bound`, whose noise comes from all directions.
    """
    norm = float(moments.gradient.norm())
    if norm == 0:
        return None
    summary, unit = summarise(moments), moments.gradient / norm
    between = moments.count @ ((moments.mean - summary.error) @ unit).square()
    n = float(summary.replicates)
    standard = math.sqrt(float(moments.along.sum() + between) / (n - 1) / n)
    return (abs(float(summary.error @ unit)) + float(scipy.stats.norm.isf(error)) * standard) / norm
