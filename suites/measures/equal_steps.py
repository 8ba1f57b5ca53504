"""Steps of equal size: the decrease of E L along an estimate, in mean KL divergence from the law before.

The step sizes of estimators cannot be compared, nor can the best of each: ``E L`` saturates at a vertex, and the longest step wins. Here
steps have equal mean ``KL(p_θ ‖ p_{θ − ηĝ}) = δ``. The limit for small δ of the decrease relative to that of the exact gradient is
``m·g √(g'Hg) / (‖g‖² √(m'Hm + tr(HS)/M))``. Here m and S are the mean and covariance of an estimate, M is the number of averaged samples,
and H the Fisher information. So one number holds bias, variance and scale.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...estimators.base import Loss
from ...oracles.magnitudes import counted
from ..statistics.interval import LEVEL, Interval
from ..statistics.intervals import quantile
from ..truth.loss_checks import checked, values

ITERATIONS = 60

TOLERANCE = 1e-8
"""The greatest error of the logarithm of the mean divergence."""

CAP = 20_000
"""The largest space that is tabled: steps are many, and each takes the whole table."""

CHUNK = 2**21
"""Entries of one block of log-probabilities."""


def too_many(oracle: Any, event: tuple[int, ...]) -> str | None:
    """The reason why there is no table of structures of a shape; None if there is one."""
    count = oracle.count(event)
    if count <= CAP:
        return None
    return f"`StructureTable` got a space of {counted(count)} structures; expected at most {counted(CAP)}, choose smaller sizes"


@dataclass(frozen=True, eq=False)
class StructureTable:
    """The feasible structures of an instance, with their losses; all in float64.

    Attributes:
        oracle: whose structures they are.
        structures: ``[s, parts]``. ``losses``: ``[s]``.
        scores: ``[parts]``, the instance's own. ``free``: ``[parts]`` bool, the parts that may move: read, and not forbidden.
        event: the shape of one score tensor.
    """

    oracle: Any
    structures: Tensor
    losses: Tensor
    scores: Tensor
    free: Tensor
    event: tuple[int, ...]

    @classmethod
    def of(cls, oracle: Any, loss: Loss, scores: Tensor) -> StructureTable:
        """The table of an instance.

        Raises:
            ValueError: more than `CAP` structures, or a loss that cannot be measured.

        Example:
            >>> from structgrad.oracles import Categorical
            >>> weights = torch.tensor([1.0, -0.5, 2.0]).double()
            >>> table = StructureTable.of(Categorical(), lambda z: z @ weights, torch.zeros(3).double())
            >>> table.expected(torch.zeros(1, 3).double()), table.least
            (tensor([0.8333], dtype=torch.float64), -0.5)
        """
        event, theta = tuple(scores.shape), scores.detach().double()
        reason = too_many(oracle, event)
        if reason is not None:
            raise ValueError(reason)
        structures = oracle.enumerate(event, 0, oracle.count(event), dtype=torch.float64, device=theta.device)
        forbidden = (theta == -math.inf).flatten()
        feasible = structures.flatten(1) @ forbidden.double() == 0
        structures = structures[feasible]
        losses = checked(values(loss, structures, oracle.event_ndim))
        return cls(oracle, structures.flatten(1), losses, theta.flatten(), oracle.free_parts(theta).flatten(), event)

    @functools.cached_property
    def linear(self) -> bool:
        """Whether the natural parameters are the scores themselves."""
        rows = self.shaped(self.scores.unsqueeze(0))
        return self.oracle.natural_parameters(rows) is rows

    @property
    def least(self) -> float:
        """min L."""
        return float(self.losses.min())

    def shaped(self, rows: Tensor) -> Tensor:
        """[b, parts] -> [b, *event], with the scores of forbidden parts at -inf."""
        return torch.where(self.free | (self.scores > -math.inf), rows, self.scores).reshape(-1, *self.event)

    def parameters(self, rows: Tensor) -> Tensor:
        """[b, parts]: natural parameters, 0 for forbidden parts, which no structure of the table holds."""
        flat = self.oracle.natural_parameters(self.shaped(rows)).flatten(1)
        return torch.where(flat > -math.inf, flat, 0)

    def log_probs(self, rows: Tensor) -> Tensor:
        """[b, s], of scores [b, parts]."""
        return torch.log_softmax(self.parameters(rows) @ self.structures.mT, -1)

    def expected(self, rows: Tensor) -> Tensor:
        """E L of scores [b, parts]: [b]."""
        blocks = rows.split(max(1, CHUNK // len(self.losses)))
        return torch.cat([self.log_probs(block).exp() @ self.losses for block in blocks])

    def gradient(self, row: Tensor) -> Tensor:
        """The exact gradient of E L at scores [parts]: ``Cov(L, z)``, pulled back if parameters are not the scores."""
        probabilities = self.log_probs(row.unsqueeze(0))[0].exp()
        centred = probabilities * (self.losses - probabilities @ self.losses)
        return self._pulled_back(row, (centred @ self.structures).unsqueeze(0))[0]

    def fisher(self, row: Tensor) -> Tensor:
        """The Fisher information [parts, parts] at scores [parts]: the covariance of structures, pulled back to the scores."""
        probabilities = self.log_probs(row.unsqueeze(0))[0].exp()
        centred = self.structures - probabilities @ self.structures
        covariance = (probabilities.unsqueeze(-1) * centred).mT @ centred
        return self._pulled_back(row, self._pulled_back(row, covariance).mT)

    def _pulled_back(self, row: Tensor, vectors: Tensor) -> Tensor:
        """Vectors [v, parts] times the Jacobian of the natural parameters in the scores, 0 for fixed parts."""
        with torch.enable_grad():
            leaf = self.shaped(row.unsqueeze(0)).expand(len(vectors), *self.event).clone().requires_grad_()
            parameters = self.oracle.natural_parameters(leaf)
            if parameters is not leaf:
                finite = torch.where(parameters > -math.inf, vectors.reshape(parameters.shape), 0)
                (vectors,) = torch.autograd.grad(parameters, leaf, finite)
        return torch.where(self.free, vectors.flatten(1), 0)


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
        self.slopes = self._rates(self.scores.expand_as(self.directions), self.directions) @ table.structures.mT

    @property
    def curvature(self) -> float:
        """``E ĝ'Hĝ``: twice the mean KL divergence of a small step, over η²; 0 if no direction moves the law."""
        mean = (self.slopes @ self.start).unsqueeze(-1)
        found = float(((self.slopes - mean).square() @ self.start).mean())
        return found if found > 1e-26 * float(self.directions.square().sum(-1).mean()) else 0.0

    def step(self, size: float) -> Step:
        """All steps of size η."""
        found = []
        for slopes, directions in zip(
            *(rows.split(max(1, CHUNK // len(self.start))) for rows in (self.slopes, self.directions)), strict=True
        ):
            if self.table.linear:
                along = -size * slopes
                after = torch.log_softmax(self.before + along, -1)
            else:
                moved = self.scores - size * directions
                along, after = -size * self._rates(moved, directions) @ self.table.structures.mT, self.table.log_probs(moved)
            probabilities = after.exp()
            # The gain of log p when η grows by a factor e, to first order.
            gained = along - (probabilities * along).sum(-1, keepdim=True)
            decrease = self.start @ self.table.losses - probabilities @ self.table.losses
            slopes_found = -(gained @ self.start), -(probabilities * gained) @ self.table.losses
            found.append(((self.before - after) @ self.start, decrease, *slopes_found))
        return Step(size, *(torch.cat(parts) for parts in zip(*found, strict=True)))

    def _rates(self, at: Tensor, directions: Tensor) -> Tensor:
        """The change of natural parameters along directions: that of the scores, or a central difference for other functions."""
        if self.table.linear:
            return directions
        half = 1e-5 / directions.abs().amax(-1, keepdim=True).clamp(min=1e-300)
        return (self.table.parameters(at + half * directions) - self.table.parameters(at - half * directions)) / (2 * half)


def equal_step(rays: Rays, divergence: float) -> Step | None:
    """The steps of the one size whose mean KL divergence is ``divergence``; None if no size has it.

    The KL divergence is convex along a line of natural parameters and 0 at its start, so it grows with the size. Newton's method on
    logarithms needs a few steps from the size that the Fisher information gives.
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
        # A Newton step, of at most 2; the middle of the bracket if it would leave the bracket.
        move = max(-2.0, min(2.0, gap * mean / slope if slope > 0 else math.copysign(1.0, gap)))
        if not low < log_size - move < high:
            move = log_size - (low + high) / 2 if math.isfinite(low) and math.isfinite(high) else math.copysign(2.0, move)
        log_size -= move
    return found


def relative_decrease(found: Step | None, exact: float) -> Interval:
    """The mean decrease relative to that of the exact gradient, with a t-interval that includes the fit of the size to the sample.

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
    half = quantile(LEVEL, number - 1) * float(influence.std()) / math.sqrt(number)
    return Interval(mean / exact, (mean - half) / exact, (mean + half) / exact, "t")


def natural_direction(table: StructureTable, scores: Tensor, gradient: Tensor) -> Tensor:
    """``H⁺ g``, the steepest descent if distance is the KL divergence."""
    inverse: Tensor = torch.linalg.pinv(table.fisher(scores), rtol=1e-10, hermitian=True)
    return inverse @ gradient
