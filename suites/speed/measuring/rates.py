"""Replicates with moments, and enumeration: seconds of each, beside a floor or a peer that is timed in the same run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....estimators import make_estimator
from ....oracles import Assignment, IndependentCategoricals, LinearChain, SpanningTree, Subset
from ...measures.replicates import Sampling, draw_moments
from ...truth import Target, exact_truth
from ...truth.geometry import geometry
from ...truth.space import Space

CHAIN = (LinearChain(), (6, 5, 5))
"""Where replicates are timed."""

SPACES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "assignment 10": (Assignment(), (10, 10)),
    "categories 10x5": (IndependentCategoricals(), (10, 5)),
    "spanning_tree 9": (SpanningTree(), (10, 10)),
    "subset 12 of 24": (Subset(12), (24,)),
}
"""What is enumerated."""


@dataclass(frozen=True)
class Rate:
    """Seconds of one unit of work, and of what it is held against.

    Attributes:
        case: what is done.
        seconds: of one unit.
        floor: of the least that has to be done for it, or of the peer.
    """

    case: str
    seconds: float
    floor: float

    @property
    def ratio(self) -> float:
        """How many floors it takes."""
        return self.seconds / self.floor


@dataclass(frozen=True)
class Costs:
    """A linear loss that other processes can be sent.

    Attributes:
        weights: ``[*event]``.
    """

    weights: Tensor

    def __call__(self, structure: Tensor) -> Tensor:
        rows: Tensor = structure.flatten(structure.ndim - self.weights.ndim) @ self.weights.flatten()
        return rows


def drawn(event: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Standard normal scores and weights of this shape, always the same."""
    stream = torch.Generator().manual_seed(0)
    scores, weights = (torch.randn(event, generator=stream, dtype=torch.float64) for _ in range(2))
    return scores, weights


def replicate_rate(name: str, replicates: int, rounds: int = 5) -> Rate:
    """CPU seconds of one replicate of an estimator on a chain, with its moments; the floor is one product of its parts with each other.

    Example:
        >>> replicate_rate("ste", 128, rounds=1).case
        'ste'
    """
    oracle, event = CHAIN
    scores, aim = drawn(event)

    def loss(structure: Tensor) -> Tensor:
        return (structure - aim).square().flatten(-3).sum(-1)

    estimator = make_estimator(name)
    target = Target(oracle, loss, scores, exact_truth(loss, oracle, scores, kurtosis=False))
    shape = geometry(oracle, scores, target.truth)
    sampling = Sampling(replicates=replicates, tier="mc")
    block = torch.randn(128, scores.numel(), dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def measured() -> object:
        return draw_moments(estimator, target, sampling, information=None if shape is None else shape.information)

    seconds, floor = interleaved([measured, lambda: [block.mT @ block for _ in range(8)]], rounds)
    return Rate(name, seconds / replicates, floor / 8 / len(block))


def enumeration_rate(name: str, chunks: int = 16, rounds: int = 15) -> Rate:
    """CPU seconds of a structure that is enumerated with a linear loss; the floor is to write its parts in float64, and the loss.

    Example:
        >>> enumeration_rate("subset 12 of 24", chunks=1, rounds=1).case
        'subset 12 of 24'
    """
    oracle, event = SPACES[name]
    scores, weights = drawn(event)
    loss = Costs(weights)
    space = Space(loss, oracle, scores)
    chunk = min(space.chunk, space.count // (3 * chunks))
    first, number = space.count // 3, chunks * chunk
    small = oracle.enumerate(event, first, first + chunk, dtype=torch.uint8)
    room = torch.empty(small.shape, dtype=torch.float64)

    def least() -> object:
        return [loss(room.copy_(small)) for _ in range(chunks)]

    seconds, floor = interleaved([lambda: space.sums(first, first + number), least], rounds)
    return Rate(name, seconds / number, floor / number)


def interleaved(calls: Sequence[Callable[[], object]], rounds: int, clock: Callable[[], float] = time.process_time) -> list[float]:
    """Median seconds of each call, in turns, after a first one of each that compiles what is to be compiled."""
    timings: list[list[float]] = [[] for _ in calls]
    for turn in range(rounds + 1):
        for call, found in zip(calls, timings, strict=True):
            start = clock()
            call()
            if turn:
                found.append(clock() - start)
    return [statistics.median(found) for found in timings]
