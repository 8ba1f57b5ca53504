"""Exact laws of estimates on small instances, from which moments of many replicates are drawn at once, and planted errors.

An estimator that draws structures through its oracle alone takes finitely many values. They come from the shipped code, with every tuple
of samples; a sample of N replicates is then a multinomial draw of counts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structgrad.estimators.base import Estimator
from structgrad.oracles import Assignment, Categorical, EnumerableOracle, SpanningTree, Subset
from structgrad.suites.problems import make_loss
from structgrad.suites.statistics.moments import BATCHES, Moments
from structgrad.suites.truth import Target, exact_truth
from structgrad.suites.truth.enumeration import geometry
from structgrad.suites.truth.replay import scripted, slots_of


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
        """The law of the shipped code, on all tuples of samples.

        Raises:
            ValueError: an estimator that draws other random numbers than samples.
        """
        slots = slots_of(estimator, target.oracle, target.loss, target.scores)
        if slots is None:
            raise ValueError(
                f"`EstimateLaw.of` got {estimator.name}, which draws other random numbers than samples; expected one that is replayed"
            )
        structures = target.oracle.enumerate(tuple(target.scores.shape), dtype=torch.float64)
        weights = target.oracle.log_prob(structures, target.scores).exp()
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
        """Copy the law with other estimates or other probabilities, as a planted error."""
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
        """The covariance of one estimate, [d, d]."""
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
        """Columns whose sums over a sample are one product: four numbers of every part, six of every estimate, [s, 4 d + 6]."""
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
        """Multinomial counts of every value, float64 [batches, s], by the faster of two ways."""
        size, each = len(self.probabilities), replicates // batches
        if each > size:
            return random.multinomial(each, self.probabilities, size=batches).astype(float)
        index = self.draw(each * batches, random) + size * np.repeat(np.arange(batches), each)
        return np.bincount(index, minlength=batches * size).reshape(batches, size).astype(float)

    def moments(self, replicates: int, random: np.random.Generator, *, batches: int = BATCHES) -> Moments:
        """Moments as `Moments.add` finds them in as many replicates, up to rounding; ``batches`` beyond the first ones stay empty."""
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
        if result.products is not None:
            centred, between = self.errors - result.total_mean, result.mean - result.total_mean
            result.products = (centred * table.sum(0).unsqueeze(-1)).mT @ centred - (between * result.count.unsqueeze(-1)).mT @ between
        return result


SPACES: dict[str, tuple[EnumerableOracle, tuple[int, ...]]] = {
    "trees5": (SpanningTree(single_root=False), (6, 6)),
    "categorical10": (Categorical(), (10,)),
    "subset10": (Subset(3), (10,)),
    "assignment5": (Assignment(), (5, 5)),
}
"""Spaces of 1296, 10, 120 and 120 structures."""


@functools.lru_cache(maxsize=64)
def instance(space: str, deviation: float) -> Target:
    """Independent normal scores of a standard deviation, with a tanh network as the loss: it is of no degree in the parts."""
    oracle, event = SPACES[space]
    random = np.random.default_rng(list(SPACES).index(space))
    direction = torch.from_numpy(random.standard_normal(event))
    gold = oracle.argmax(torch.from_numpy(random.standard_normal(event)))
    scores = deviation * torch.where(oracle.read_mask(event), direction, 0)
    loss = make_loss("mlp", gold, oracle, seed=1)
    return Target(oracle, loss, scores, exact_truth(loss, oracle, scores))


@functools.lru_cache(maxsize=256)
def law(estimator: Estimator[EnumerableOracle], space: str, deviation: float) -> EstimateLaw:
    """The exact law of an estimator on an instance."""
    return EstimateLaw.of(estimator, instance(space, deviation))


def _flipped(law: EstimateLaw) -> EstimateLaw:
    """The sign of the smallest part of those whose sign matters by 1 %."""
    estimates, size = law.estimates.clone(), law.gradient.abs()
    relevant = torch.where(2 * size >= 0.01 * law.gradient.norm(), size, torch.inf)
    estimates[:, int(relevant.argmin())] *= -1
    return law.changed(estimates)


def _longer_part(law: EstimateLaw) -> EstimateLaw:
    """1 % of ‖g‖ is added to the part of the greatest gradient."""
    estimates = law.estimates.clone()
    estimates[:, int(law.gradient.abs().argmax())] += 0.01 * law.gradient.norm()
    return law.changed(estimates)


def _swapped(law: EstimateLaw) -> EstimateLaw:
    """The sampler exchanges the two most probable structures."""
    weights = law.probabilities.copy()
    first, second = np.argsort(weights)[-2:]
    weights[[first, second]] = weights[[second, first]]
    return law.changed(probabilities=weights)


ERRORS: dict[str, Callable[[EstimateLaw], EstimateLaw]] = {
    "scale": lambda law: law.changed(1.01 * law.estimates),
    "own sample in the baseline": lambda law: law.changed(63 / 64 * law.estimates),  # the mean effect at 64 samples
    "one part": _longer_part,
    "sign of the smallest part": _flipped,
    "temperature": lambda law: law.changed(probabilities=law.probabilities ** (1 / 1.01)),
    "two structures swapped": _swapped,
}
"""Errors of about 1 %, planted in the law of an unbiased estimator."""
