"""Errors that are put into an estimator on purpose, to see whether they are found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy import optimize, stats
from torch import Tensor

from ....estimators.score_function.reinforce import ScoreFunction
from ...measures.testing.bias_tests import ALPHA, FILTER, FLAT, predicted_replicates
from ...truth import Truth
from .laws import EstimateLaw

NAMES = ("scale", "own sample in the baseline", "one part", "sign of the smallest part", "temperature", "two structures swapped")

NOTHING = 1e-9
"""A bias below this share of the standard deviation is none."""


@dataclass(frozen=True)
class BatchMeanBaseline(ScoreFunction):
    """The mean loss of *all* samples as the baseline, the sample's own included: the gradient shrinks by 1/N. A known error."""

    num_samples: int = 2

    name: ClassVar[str] = "batch_mean"

    def _weights(self, losses: Tensor) -> Tensor:
        return losses - losses.mean(0)


def with_error(law: EstimateLaw, name: str, size: float = 0.01) -> EstimateLaw:
    """The law of an unbiased estimator with an error in it.

    ``scale``: estimates too long by 1 %. ``own sample in the baseline``: too short by 1/64, the mean effect at 64 samples. ``one part``:
    1 % of ‖g‖ is added to the part of the greatest gradient. ``sign of the smallest part``: flipped, of those parts where that matters by
    1 %. ``temperature``: samples at 1.01. ``two structures swapped``: the sampler exchanges the two most probable ones.

    Args:
        law: of an unbiased estimator.
        name: one of `NAMES`.
        size: of the errors that are given as 1 % here.
    """
    estimates, weights, gradient = law.estimates.clone(), law.probabilities.copy(), law.gradient
    if name == "scale":
        estimates *= 1 + size
    elif name == "own sample in the baseline":
        estimates *= 63 / 64
    elif name == "one part":
        estimates[:, int(gradient.abs().argmax())] += size * gradient.norm()
    elif name == "sign of the smallest part":
        relevant = torch.where(2 * gradient.abs() >= size * gradient.norm(), gradient.abs(), torch.inf)
        estimates[:, int(relevant.argmin())] *= -1
    elif name == "temperature":
        weights = weights ** (1 / (1 + size))
    elif name == "two structures swapped":
        first, second = np.argsort(weights)[-2:]
        weights[[first, second]] = weights[[second, first]]
    else:
        raise ValueError(f"`with_error` got {name!r}; expected one of {', '.join(NAMES)}")
    return law.changed(estimates, weights)


def needed_replicates(law: EstimateLaw, truth: Truth) -> dict[str, int]:
    """Replicates at which each of the three tests, which share the level, applies and finds the law's bias with power 0.9."""
    along, deviation = float(law.bias @ law.direction), float((law.direction @ law.covariance @ law.direction).sqrt())
    spread = law.covariance.diagonal().sqrt()
    varying = spread > 1e-9 * spread.max()
    ratios, kurtosis = (law.bias[varying] / spread[varying]).abs(), truth.kurtosis.flatten()[varying]
    best = int(ratios.argmax())
    values, vectors = torch.linalg.eigh(law.covariance)
    kept = values > 1e-10 * values[-1]
    distance = float(((vectors.mT @ law.bias)[kept].square() / values[kept]).sum())
    needed = {
        "along": predicted_replicates(deviation, max(abs(along), NOTHING * deviation), tests=3),
        "parts": predicted_replicates(1.0, max(float(ratios[best]), NOTHING), tests=3 * len(ratios)),
        "joint": math.ceil(_noncentrality(int(kept.sum())) / max(distance, NOTHING**2)),
    }
    least = {"along": FILTER * truth.kurtosis_along, "parts": FILTER * float(kurtosis[best]), "joint": FLAT * float(kurtosis.max())}
    return {name: max(count, math.ceil(least[name])) for name, count in needed.items()}


def _noncentrality(rank: int) -> float:
    """Of the χ² distribution that exceeds the critical value with probability 0.9."""
    critical = float(stats.chi2.isf(ALPHA / 3, rank))
    return float(optimize.brentq(lambda distance: stats.ncx2.sf(critical, rank, distance) - 0.9, 1e-3, 1e4))
