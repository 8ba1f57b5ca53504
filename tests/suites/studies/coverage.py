"""Coverage of 95 % intervals: flat laws, peaked laws, and peaked laws that the rule of rare events was not chosen on.

``python -m tests.suites.studies.coverage [REPETITIONS]`` prints the table; `docs/results/simulations.md` shows a run of it.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

from structgrad.estimators import UnorderedSet, make_estimator
from structgrad.estimators.base import Estimator
from structgrad.oracles import Assignment, Categorical, EnumerableOracle, LinearChain, SpanningTree, Subset
from structgrad.suites.measures.bias_tests import averaged_losses, resolved
from structgrad.suites.problems import make_loss
from structgrad.suites.statistics.metrics import estimated_metrics, exact_metrics
from structgrad.suites.statistics.moments import Moments
from structgrad.suites.statistics.seeds import seed_sequence
from structgrad.suites.truth import Target, exact_truth
from structgrad.suites.truth.replay import replay, slots_of
from tests.suites.studies.laws import EstimateLaw, instance

SHARES = (1e-2, 1e-3, 1e-4, 1e-6)
"""Probability outside of the most probable structure."""

ENTROPIES = (0.95, 0.7, 0.4, 0.2, 0.1)

METRICS = ("relative_variance", "relative_bias", "gain", "cosine", "rho")
MIN_COVERAGE = 0.93
EQUAL = 1e-6
"""Distance from the exact value that is rounding."""

ESTIMATORS = ("reinforce", "reinforce_constant", "rloo[num_samples=2]", "ste_sample", "simple")
SPACES: dict[str, tuple[EnumerableOracle, tuple[int, ...], str]] = {
    "categorical5": (Categorical(), (5,), "mlp"),
    "subset10": (Subset(3), (10,), "mlp"),
    "chain3": (LinearChain(), (2, 3, 3), "quadratic"),
    "trees4": (SpanningTree(single_root=False), (5, 5), "squared_distance"),
    "assignment4": (Assignment(), (4, 4), "exact_match"),
}
"""The rule of rare events was chosen on the first two."""

Cell = tuple[str, float, str, int]
"""A space, the probability outside of the mode, an estimator, and a number of replicates."""


def cells() -> Iterator[Cell]:
    """All cells of the table."""
    for share in SHARES:
        yield from ((space, share, name, 2**power) for space in SPACES for name in ESTIMATORS for power in (12, 16, 20))


@functools.lru_cache(maxsize=32)
def peaked_instance(space: str, share: float) -> Target:
    """Normal scores, multiplied until so much of the law lies outside of its mode."""
    oracle, event, loss_name = SPACES[space]
    random = np.random.default_rng(list(SPACES).index(space))
    direction, gold = torch.from_numpy(random.standard_normal(event)), oracle.argmax(torch.from_numpy(random.standard_normal(event)))
    direction = torch.where(oracle.read_mask(event), direction, 0)
    low, high = 0.0, 1000.0
    for _ in range(80):
        scale = (low + high) / 2
        outside = -float(torch.expm1(oracle.log_prob(oracle.argmax(direction), scale * direction)))  # type: ignore[attr-defined]
        low, high = (scale, high) if outside > share else (low, scale)
    loss = make_loss(loss_name, gold, oracle, seed=1)
    return Target(oracle, loss, low * direction, exact_truth(loss, oracle, low * direction))


def covered(cell: Cell, repetitions: int) -> dict[str, tuple[int, int]]:
    """Covered and given intervals by metric; a share of at least 1 is the standard deviation of a flat instance."""
    space, share, name, replicates = cell
    target, estimator = instance(space, share) if share >= 0.5 else peaked_instance(space, share), make_estimator(name)
    slots = slots_of(estimator, target.oracle, target.loss, target.scores)
    assert slots is not None, "every estimator here draws samples alone"
    exact, law = exact_metrics(replay(estimator, target, slots)), EstimateLaw.of(estimator, target)
    random, hits = np.random.default_rng(seed_sequence(0, "coverage", *map(str, cell))), dict.fromkeys(METRICS, (0, 0))
    for _ in range(repetitions):
        _count(hits, law.moments(replicates, random), target, estimator, {name: exact[name].value for name in METRICS})
    return hits


def covered_of_sets(entropy: float, replicates: int, repetitions: int) -> dict[str, tuple[int, int]]:
    """Covered and given intervals of four categories of ten without replacement, over eight instances of one entropy level."""
    estimator, hits = UnorderedSet(4), dict.fromkeys(METRICS, (0, 0))
    for seed in range(8):
        random = np.random.default_rng([seed, replicates])
        oracle, direction = Categorical(), torch.from_numpy(random.standard_normal(10))
        scores = scaled_to(entropy, direction)
        loss = make_loss("mlp", oracle.argmax(torch.from_numpy(random.standard_normal(10))), oracle, seed=1)
        target = Target(oracle, loss, scores, exact_truth(loss, oracle, scores))
        law = EstimateLaw.of_sets(estimator, target)
        norm, trace = float(law.gradient.norm()), float(law.covariance.trace())
        exact = {"relative_variance": trace / norm**2, "relative_bias": 0.0, "gain": 1.0, "rho": norm / (norm**2 + trace) ** 0.5}
        for _ in range(repetitions):
            _count(hits, law.moments(replicates, random), target, estimator, exact)
    return hits


def scaled_to(entropy: float, direction: Tensor) -> Tensor:
    """Multiply scores of categories until the entropy of their softmax is this share of its maximum."""

    def excess(scale: float) -> float:
        return float(torch.distributions.Categorical(logits=scale * direction).entropy()) / math.log(len(direction)) - entropy

    return float(optimize.brentq(excess, 0, 1000)) * direction


def _count(
    hits: dict[str, tuple[int, int]], moments: Moments, target: Target, estimator: Estimator[Any], exact: dict[str, float | None]
) -> None:
    losses = averaged_losses(estimator) if estimator.unbiased else None
    known = resolved(moments, target.truth, torch.float64, losses=losses)
    for metric, interval in estimated_metrics(moments, resolved=known).items():
        value = exact.get(metric)
        if value is not None and interval.low is not None and interval.high is not None:
            room, (right, given) = EQUAL * max(1.0, abs(value)), hits[metric]
            hits[metric] = right + (interval.low - room <= value <= interval.high + room), given + 1


def main(repetitions: int = 60) -> int:
    """Print the table; 1 if a coverage is too low."""
    totals: dict[tuple[float, str], list[tuple[int, int]]] = defaultdict(list)
    every = list(cells())
    for cell in every:
        for metric, pair in covered(cell, repetitions).items():
            totals[cell[1], metric].append(pair)
    for entropy, replicates in itertools.product(ENTROPIES, (2**10, 2**12, 2**16)):
        for metric, pair in covered_of_sets(entropy, replicates, repetitions // 3).items():
            totals[entropy, f"{metric}, sets"].append(pair)
    lines, low = [], False
    for (share, metric), pairs in totals.items():
        right, given = (sum(pair[side] for pair in pairs) for side in (0, 1))
        rate = right / given if given else 1.0
        low |= rate < MIN_COVERAGE
        lines.append(f"| {share:g} | {metric} | {rate:.3f} | {given} |")
    sys.stdout.write("\n".join(["| 1 − max p, or entropy level | metric | coverage | given |", "|--:|---|--:|--:|", *lines]) + "\n")
    return int(low)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
