"""Means over scrambled Sobol points in place of random numbers, for estimators that draw a few uniforms per estimate.

A mean over points that fill the unit cube evenly varies less than over as many random ones. Each scramble of the points is an independent
replicate of that mean, without bias; so the spread over scrambles gives an honest error, and all points together give the variance of one
estimate, of which every single point is a fair draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor

from ...estimators.base import Estimator
from ...oracles.random_streams import RowGenerator, SeedBlocks
from ..base import check_finite
from ..device_memory import Launches
from ..statistics.seeds import seed_sequence
from .enumeration import Target

MOST_DIMENSIONS = 20
"""Uniforms per estimate beyond which Sobol points gain next to nothing."""

BITS = 53
"""Of a coordinate: all that a float64 below 1 has, so that tails are those of random numbers."""

LAUNCH = 4096
"""Rows at a time; numbers depend on it in their rounding alone."""


@dataclass(frozen=True, eq=False)
class ScrambleMeans:
    """What `sobol_moments` finds, by scramble.

    Attributes:
        means: float64 ``[scrambles, d]``, of estimates.
        trace: ``[scrambles]``, each with the trace of the covariance of one estimate as its mean.
        points: of each scramble.
        zero: ``[scrambles]``, share of estimates that are 0. ``nonzero``: ``[scrambles]``, mean number of non-zero parts.
    """

    means: Tensor
    trace: Tensor
    points: int
    zero: Tensor
    nonzero: Tensor


def noise_dimensions(estimator: Estimator[Any], target: Target) -> int | None:
    """How many uniforms one estimate draws; None where it draws in another way too, or now more and now less.

    Two trial runs tell, with different numbers.
    """
    counts = {_count(estimator, target, seed) for seed in (0, 1)}
    return counts.pop() if len(counts) == 1 else None


def sobol_moments(
    estimator: Estimator[Any], target: Target, *, points: int = 4096, scrambles: int = 32, key: tuple[str, ...] = ()
) -> ScrambleMeans:
    """The mean and the variance of an estimator by randomised quadrature.

    Args:
        estimator: draws at most `MOST_DIMENSIONS` uniforms per estimate, all through the package.
        target: the instance.
        points: per scramble, a power of two.
        scrambles: independent ones, at least two.
        key: stable names of the scrambles; they do not depend on the estimator.

    Raises:
        ValueError: another number of points, or an estimator that draws nothing, too much or in another way.

    Example:
        >>> from structgrad.estimators import Reinforce
        >>> from structgrad.oracles import Categorical
        >>> from structgrad.suites.truth import exact_truth
        >>> scores, loss = torch.zeros(3, dtype=torch.float64), lambda z: z[..., 0]
        >>> target = Target(Categorical(), loss, scores, exact_truth(loss, Categorical(), scores))
        >>> found = sobol_moments(Reinforce(), target, points=1024)
        >>> bool((found.means.mean(0) - target.truth.gradient).norm() < 1e-4)
        True
    """
    if points < 2 or points & (points - 1) or scrambles < 2:
        raise ValueError(f"`sobol_moments` got points={points}, scrambles={scrambles}; expected a power of two and at least 2 scrambles")
    dimensions = noise_dimensions(estimator, target)
    if dimensions is None or not 1 <= dimensions <= MOST_DIMENSIONS:
        drawn = "draws in another way than by `random_uniform`" if dimensions is None else f"draws {dimensions} uniforms per estimate"
        raise ValueError(
            f"`sobol_moments` got {estimator.name}, which {drawn}; expected 1 to {MOST_DIMENSIONS} of them: choose tier='mc' or 'exact'"
        )
    results = [_scramble(estimator, target, cube) for cube in _cubes(dimensions, points, scrambles, key)]
    errors, squares, zero, nonzero = (torch.stack(column) for column in zip(*results, strict=True))
    # The mean square less the square of the mean, with another scramble's mean as the second factor: nothing is counted twice.
    others = (errors.sum(0) - errors) / (scrambles - 1)
    return ScrambleMeans(errors + target.truth.gradient.flatten().double(), squares - (errors * others).sum(-1), points, zero, nonzero)


def _cubes(dimensions: int, points: int, scrambles: int, key: tuple[str, ...]) -> list[np.ndarray]:
    """Scrambled points ``[points, dimensions]``, each by a seed of its own."""
    root = seed_sequence(0, *key, "sobol")
    seeds = [np.random.SeedSequence(root.entropy, spawn_key=(*root.spawn_key, scramble)) for scramble in range(scrambles)]
    engines = [scipy.stats.qmc.Sobol(dimensions, scramble=True, bits=BITS, seed=np.random.default_rng(seed)) for seed in seeds]
    return [engine.random_base2(points.bit_length() - 1) for engine in engines]


def _scramble(estimator: Estimator[Any], target: Target, cube: np.ndarray) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Means over the points of one scramble: of errors ``[d]``, of their square, of being 0, and of non-zero parts."""
    gradient, scores = target.truth.gradient.flatten().double(), target.scores
    points = torch.from_numpy(cube).to(scores.device)

    def sums(first: int, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        served = ServedPoints(points[first : first + count])
        flat = estimator.gradient(target.loss, target.oracle, scores.expand(count, *scores.shape), generator=served).flatten(1)
        errors = check_finite(flat, estimator.name, first).double() - gradient
        return errors.sum(0), errors.square().sum(), (flat == 0).all(-1).sum().double(), (flat != 0).sum().double()

    launches = Launches(f"`{estimator.name}` on points and scores of shape {tuple(scores.shape)}", LAUNCH, scores.device)
    totals = [found for _, found in launches.over(0, len(points), sums)]
    errors, square, zero, nonzero = (torch.stack(column).sum(0) / len(cube) for column in zip(*totals, strict=True))
    return errors, square, zero, nonzero


class ServedPoints(RowGenerator):
    """Serves every row the coordinates of a point, draw after draw.

    Args:
        points: float64 ``[rows, dimensions]`` in [0, 1).
    """

    def __new__(cls, points: Tensor) -> ServedPoints:
        return super().__new__(cls, points.device)  # type: ignore[call-arg]  # torch's stub does not know the device

    def __init__(self, points: Tensor) -> None:
        self.points, self.served = points, 0

    def uniforms(self, rows: int, width: int, device: torch.device) -> Tensor:
        first, self.served = self.served, self.served + width
        if rows != self.points.shape[0] or self.served > self.points.shape[1]:
            raise ValueError(
                f"`ServedPoints` got a draw of {width} uniforms for each of {rows} rows after {first}; "
                f"expected {self.points.shape[0]} rows and {self.points.shape[1]} uniforms in all"
            )
        return self.points[:, first : self.served].to(device, copy=True)


class _Counting(SeedBlocks):
    """Counts the uniforms of a row."""

    def __init__(self, seeds: tuple[int, ...], size: int, device: torch.device | str = "cpu") -> None:
        super().__init__(seeds, size, device)
        self.width = 0

    def uniforms(self, rows: int, width: int, device: torch.device) -> Tensor:
        self.width += width
        return super().uniforms(rows, width, device)


def _count(estimator: Estimator[Any], target: Target, seed: int) -> int | None:
    generator = _Counting((seed,), 4, target.scores.device)
    before = generator.get_state()
    estimator.gradient(target.loss, target.oracle, target.scores.expand(4, *target.scores.shape), generator=generator)
    return generator.width if torch.equal(before, generator.get_state()) else None
