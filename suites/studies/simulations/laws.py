"""The exact law of an estimate, and moments of replicates drawn from it: thousands of simulated measurements a minute.

An estimator that draws structures through its oracle alone takes finitely many values. They come from the shipped code, dealt every tuple
of samples; a sample of N replicates is then a multinomial draw of counts, and its moments are products of the counts with the table.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....estimators.base import Estimator
from ...statistics.moments import BATCHES, Moments
from ...truth import Target
from ...truth.geometry import geometry
from ...truth.replay import structures_and_probabilities
from ...truth.replay_oracle import scripted, slots_of


@dataclass(frozen=True, eq=False)
class EstimateLaw:
    """All values of an estimate with their probabilities.

    Attributes:
        gradient: exact, [d]. ``estimates``: [s, d]. ``probabilities``: float64 [s]. ``information``: Fisher's, [d, d].
    """

    gradient: Tensor
    estimates: Tensor
    probabilities: np.ndarray
    information: Tensor | None = None

    @classmethod
    def of(cls, estimator: Estimator[Any], target: Target) -> EstimateLaw:
        """From the shipped code, on all tuples of samples.

        Raises:
            ValueError: an estimator that draws other random numbers than samples.
        """
        slots = slots_of(estimator, target.oracle, target.loss, target.scores)
        if slots is None:
            raise ValueError(
                f"`EstimateLaw.of` got {estimator.name}, which draws other random numbers than samples; expected one that is replayed"
            )
        structures, weights = structures_and_probabilities(target)
        index = torch.arange(len(weights) ** slots)
        ranks = torch.stack([index // len(weights) ** slot % len(weights) for slot in range(slots)])
        script, rows = scripted(target.oracle, structures[ranks]), target.scores.expand(len(index), *target.scores.shape)
        estimates = estimator.gradient(target.loss, script, rows, generator=torch.Generator())
        probabilities = weights[ranks].prod(0).numpy()
        information = geometry(target.oracle, target.scores, target.truth)
        return cls(
            target.truth.gradient.flatten(),
            estimates.reshape(len(index), -1),
            probabilities / probabilities.sum(),
            None if information is None else information.information,
        )

    def changed(self, estimates: Tensor | None = None, probabilities: np.ndarray | None = None) -> EstimateLaw:
        """The same with other estimates or other probabilities: an error that is put in."""
        return EstimateLaw(
            self.gradient,
            self.estimates if estimates is None else estimates,
            self.probabilities if probabilities is None else probabilities / probabilities.sum(),
            self.information,
        )

    @functools.cached_property
    def errors(self) -> Tensor:
        """``ĝ − g``, [s, d]."""
        return self.estimates - self.gradient

    @functools.cached_property
    def bias(self) -> Tensor:
        """``E ĝ − g``, [d]."""
        return torch.from_numpy(self.probabilities) @ self.errors

    @functools.cached_property
    def covariance(self) -> Tensor:
        """Of one estimate, [d, d]."""
        centred = self.errors - self.bias
        product: Tensor = (centred * torch.from_numpy(self.probabilities).unsqueeze(-1)).mT @ centred
        return product

    @functools.cached_property
    def direction(self) -> Tensor:
        """The unit vector along the exact gradient, [d]."""
        unit: Tensor = self.gradient / self.gradient.norm().clamp(min=1e-300)
        return unit

    @functools.cached_property
    def _columns(self) -> Tensor:
        """What is summed over a sample, in one product: four numbers of every part, six of every estimate, [s, 4 d + 6]."""
        along, square, signs = self.estimates @ self.direction, self.estimates.square().sum(-1), self.estimates.sign()
        cosines = torch.where(square > 0, along / square.sqrt(), 0)
        informed = torch.zeros_like(along) if self.information is None else ((self.estimates @ self.information) * self.estimates).sum(-1)
        zero, descent = (square == 0).double(), (along > 0).double()
        single = [(self.errors @ self.direction).square(), zero, descent, cosines, square.square(), informed]
        return torch.cat([self.errors, self.errors.square(), signs.abs(), signs, torch.stack(single, -1)], -1)

    def draw(self, replicates: int, random: np.random.Generator) -> np.ndarray:
        """The indices of independent estimates in order, [replicates]."""
        cumulative = self.probabilities.cumsum()
        drawn: np.ndarray = np.searchsorted(cumulative, random.random(replicates) * cumulative[-1], side="right")
        return drawn.clip(max=len(cumulative) - 1)

    def counts(self, replicates: int, random: np.random.Generator, *, batches: int = BATCHES) -> np.ndarray:
        """How often every value occurs, float64 [batches, s]: multinomial, by whichever of two ways is faster."""
        size, each = len(self.probabilities), replicates // batches
        if each > size:
            return random.multinomial(each, self.probabilities, size=batches).astype(float)
        index = self.draw(each * batches, random) + size * np.repeat(np.arange(batches), each)
        return np.bincount(index, minlength=batches * size).reshape(batches, size).astype(float)

    def moments(self, replicates: int, random: np.random.Generator, *, batches: int = BATCHES) -> Moments:
        """As `Moments.add` would find them in as many replicates, up to rounding; ``batches`` beyond the first ones stay empty."""
        return self.moments_of(self.counts(replicates, random, batches=batches))

    def moments_of(self, counts: np.ndarray) -> Moments:
        """The moments of a sample in which value s occurs ``counts[batch, s]`` times."""
        table, size = torch.from_numpy(counts), len(self.gradient)
        result, used, n = Moments.empty(self.gradient, self.information), len(counts), table.sum(-1)
        mean, squares, nonzero, signs, single = (table @ self._columns).split([size, size, size, size, 6], -1)
        mean = mean / n.unsqueeze(-1)
        result.count[:used], result.mean[:used], result.nonzero[:used], result.signs[:used] = n, mean, nonzero, signs
        result.square[:used] = (squares - n.unsqueeze(-1) * mean.square()).clamp(min=0)
        result.along[:used] = (single[:, 0] - n * (mean @ self.direction).square()).clamp(min=0)
        for column, name in enumerate(("zero", "descents", "cosines", "quartics", "informed"), start=1):
            getattr(result, name)[:used] = single[:, column]
        everything = table.sum(0)
        result.total, result.total_mean = int(n.sum()), everything @ self.errors / n.sum()
        if result.comoment is not None:
            centred = self.errors - result.total_mean
            result.comoment = (centred * everything.unsqueeze(-1)).mT @ centred
        return result
