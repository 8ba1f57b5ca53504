"""Steps of equal size: the decrease of E L along an estimate, in mean KL divergence from the law before.

The step sizes of estimators cannot be compared, nor can the best of each: ``E L`` saturates at a vertex, and the longest step wins. At
equal mean ``KL(p_θ ‖ p_{θ − ηĝ}) = δ`` the decrease, relative to that of the exact gradient, tends with δ to

``m·g √(g'Hg) / (‖g‖² √(m'Hm + tr(HS)/M))``

for an estimate of mean m and covariance S, averaged over M samples, and the Fisher information H: bias, variance and scale in one number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import scipy
import torch
from torch import Tensor

from ...statistics.metrics import LEVEL, Interval
from .structure_table import CHUNK, StructureTable

ITERATIONS = 60

TOLERANCE = 1e-8
"""Of the logarithm of the mean divergence."""


@dataclass(frozen=True, eq=False)
class Step:
    """Steps of one size along many directions.

    Attributes:
        size: η.
        divergence: ``[n]``, KL from the law before. ``decrease``: ``[n]``, of E L.
        divergence_slope, decrease_slope: ``[n]``, their derivatives in the logarithm of the step size.
    """

    size: float
    divergence: Tensor
    decrease: Tensor
    divergence_slope: Tensor
    decrease_slope: Tensor


class Rays:
    """The lines ``θ − η ĝ`` from scores ``[parts]`` along directions ``[n, parts]``.

    Args:
        table: the structures and their losses.
        scores: θ.
        directions: ĝ.
    """

    def __init__(self, table: StructureTable, scores: Tensor, directions: Tensor) -> None:
        self.table, self.scores = table, scores
        self.directions = torch.where(table.free, directions, 0)
        self.before = table.log_probs(scores.unsqueeze(0))[0]
        self.start = self.before.exp()
        self.value = self.start @ table.losses
        self.slopes = self._rates(self.scores.expand_as(self.directions), self.directions) @ table.structures.mT

    @property
    def curvature(self) -> float:
        """``E ĝ'Hĝ``: twice the mean KL divergence of a small step, over η²; 0 where no direction moves the law."""
        mean = (self.slopes @ self.start).unsqueeze(-1)
        found = float(((self.slopes - mean).square() @ self.start).mean())
        return found if found > 1e-26 * float(self.directions.square().sum(-1).mean()) else 0.0

    def step(self, size: float) -> Step:
        """All steps of size η."""
        rows = max(1, CHUNK // len(self.start))
        found = [self._step(size, slice(first, first + rows)) for first in range(0, len(self.directions), rows)]
        return Step(size, *(torch.cat(parts) for parts in zip(*found, strict=True)))

    def _step(self, size: float, rows: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if self.table.linear:
            along = -size * self.slopes[rows]
            after = torch.log_softmax(self.before + along, -1)
        else:
            moved = self.scores - size * self.directions[rows]
            along = -size * self._rates(moved, self.directions[rows]) @ self.table.structures.mT
            after = self.table.log_probs(moved)
        probabilities = after.exp()
        # What log p gains when η grows by a factor e, to first order.
        gained = along - (probabilities * along).sum(-1, keepdim=True)
        divergence = (self.before - after) @ self.start
        return (
            divergence,
            self.value - probabilities @ self.table.losses,
            -(gained @ self.start),
            -(probabilities * gained) @ self.table.losses,
        )

    def _rates(self, at: Tensor, directions: Tensor) -> Tensor:
        """How natural parameters change along directions: as the scores do, or by a central difference where they are other functions."""
        if self.table.linear:
            return directions
        half = 1e-5 / directions.abs().amax(-1, keepdim=True).clamp(min=1e-300)
        return (self.table.parameters(at + half * directions) - self.table.parameters(at - half * directions)) / (2 * half)


def equal_step(rays: Rays, divergence: float) -> Step | None:
    """The steps of the one size whose mean KL divergence is ``divergence``; None where no size has it.

    The KL divergence is convex along a line of natural parameters and 0 at its start, so that it grows with the size: Newton's method on
    logarithms, which starts at the size that the Fisher information gives, needs a few steps.
    """
    curvature = rays.curvature
    if curvature == 0:
        return None
    log_size = 0.5 * math.log(2 * divergence / curvature)
    low, high = -math.inf, math.inf
    for _ in range(ITERATIONS):
        found = rays.step(math.exp(log_size))
        mean, slope = float(found.divergence.mean()), float(found.divergence_slope.mean())
        gap = math.log(max(mean, 1e-300) / divergence)
        if abs(gap) < TOLERANCE:
            break
        low, high = (log_size, high) if gap < 0 else (low, log_size)
        log_size = _next(log_size, gap * mean / slope if slope > 0 else math.copysign(1.0, gap), low, high)
    return found


def _next(here: float, move: float, low: float, high: float) -> float:
    """A Newton step, of at most 2; the middle of the bracket where it would leave it."""
    there = here - max(-2.0, min(2.0, move))
    if low < there < high:
        return there
    return (low + high) / 2 if math.isfinite(low) and math.isfinite(high) else here - math.copysign(2.0, move)


def relative_decrease(found: Step | None, exact: float) -> Interval:
    """The mean decrease relative to that of the exact gradient, with a t-interval that counts in that the size was fitted to the sample.

    An estimate that never moves the law decreases nothing: 0.
    """
    if found is None or exact <= 0:
        return Interval(0.0 if exact > 0 else None)
    number, mean = len(found.decrease), float(found.decrease.mean())
    if number < 2 or bool((found.decrease == found.decrease[0]).all()):
        return Interval(mean / exact)
    # To first order, the mean decrease at the fitted size is that of these influences.
    rate = float(found.decrease_slope.mean()) / float(found.divergence_slope.mean())
    influence = found.decrease - rate * (found.divergence - found.divergence.mean())
    half = float(scipy.stats.t.ppf((1 + LEVEL) / 2, number - 1)) * float(influence.std()) / math.sqrt(number)
    return Interval(mean / exact, (mean - half) / exact, (mean + half) / exact)


def natural_direction(table: StructureTable, scores: Tensor, gradient: Tensor) -> Tensor:
    """``H⁺ g``: the steepest descent where distance is the KL divergence."""
    inverse: Tensor = torch.linalg.pinv(table.fisher(scores), rtol=1e-10, hermitian=True)
    return inverse @ gradient
