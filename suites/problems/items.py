"""Item sets: scores by index and stage, and gold structures by index.

Gold and loss do not depend on the stage, so stages differ in the scores alone. Nothing random depends on order: every stream is keyed by
names.
"""

from __future__ import annotations

import abc
import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...oracles.capabilities import Oracle, SamplingOracle
from ..base import ProblemLoss

STAGES = ("init", "early", "final")  # stages of training: before the first step, after a few, and at the end
NUM_REDRAWS = 1000  # samples that replace one without parts


def number_of(stage: str, key: str, most: float = math.inf) -> float | None:
    """The number of a stage ``key=<number>`` with 0 < number < most; None for any other stage."""
    name, _, text = stage.partition("=")
    try:
        number = float(text)
    except ValueError:
        return None
    return number if name == key and 0 < number < most else None


class Items(abc.ABC):
    """An item set: the ``name`` of its problem, the ``seed`` of everything random, and a ``source`` for people."""

    name: str
    seed: int
    source: str
    oracle: Oracle
    default_loss: str

    def key(self, *names: str) -> np.random.SeedSequence:
        """A seed that depends on names alone: the problem, the user's seed and the purpose."""
        text = "\x1f".join((self.name, str(self.seed), *names))
        return np.random.SeedSequence(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little"))

    def random(self, *names: str) -> np.random.Generator:
        """A stream for one purpose."""
        return np.random.default_rng(self.key(*names))

    def sampled(self, index: int, scores: Tensor) -> Tensor:
        """One exact sample, always the same for an item; its best structure if the oracle does not sample, or not at this size.

        The structure without parts, which some oracles have, is drawn again: losses are tied to parts.
        """
        if not isinstance(self.oracle, SamplingOracle) or not self.oracle.sums_in_reach(tuple(scores.shape)):
            return self.oracle.argmax(scores)
        state = self.key("gold", self.item_name(index)).generate_state(1, np.uint64)[0]
        generator = torch.Generator().manual_seed(int(state) >> 1)
        drawn = self.oracle.sample(scores, generator=generator)
        if bool(drawn.any()):
            return drawn
        again = self.oracle.sample(scores, NUM_REDRAWS, generator=generator)
        again = again[again.flatten(1).any(-1)]
        if not len(again):
            raise ValueError(
                f"item {self.item_name(index)}: {NUM_REDRAWS} samples have no part; expected a gold structure, or other scores"
            )
        return again[0]

    def prepare(self, stage: str, indices: Sequence[int]) -> None:  # noqa: B027, most sets have nothing to prepare
        """Compute many items at once, if that is cheaper; no number depends on it."""

    @abc.abstractmethod
    def chosen(self, instances: int) -> list[int]:
        """The indices of a number of items."""

    @abc.abstractmethod
    def item_name(self, index: int) -> str:
        """Unique in the set."""

    @abc.abstractmethod
    def scores(self, index: int, stage: str) -> Tensor:
        """Float64 ``[*event]``."""

    @abc.abstractmethod
    def gold(self, index: int) -> Tensor:
        """A structure, float64 ``[*event]`` of 0/1."""

    def downstream(self, index: int, stage: str) -> ProblemLoss | None:
        """The item's own loss ``downstream``, if it has one."""
        return None


class FileItems(Items):
    """Items of a file: a selection is spread evenly over them by length."""

    lengths: np.ndarray  # integers [items], or [items, 2] if an item has two

    def chosen(self, instances: int) -> list[int]:
        order = np.argsort(self.lengths.reshape(len(self.lengths), -1).sum(-1), kind="stable")
        if not 1 <= instances <= len(order):
            raise ValueError(f"got instances={instances}; expected 1 to {len(order)}, the number of items in {self.source}")
        return [int(order[(2 * i + 1) * len(order) // (2 * instances)]) for i in range(instances)]
