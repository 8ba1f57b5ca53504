"""Independent estimates at one score tensor, from streams that are named and not counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...estimators.base import Estimator, Loss
from ..statistics.seeds import generator, seed_blocks, seed_sequence
from ..suite import Context
from .replicates import rows_per_launch


@dataclass(frozen=True, eq=False)
class Draws:
    """Where estimates are taken, and which random numbers they use.

    Attributes:
        oracle: the structures. ``loss``: ``[..., *event] -> [...]``. ``scores``: ``[*event]``, in the dtype that estimators run in.
        context: root seed and rows per launch. ``key``: stable names, such as suite, problem, stage and instance.
    """

    oracle: Any
    loss: Loss
    scores: Tensor
    context: Context
    key: tuple[str, ...]

    def generator(self, slot: str) -> torch.Generator:
        """The stream of a purpose."""
        return generator(self.context.seed, *self.key, slot, device=self.scores.device)

    def warmed(self, estimator: Estimator[Any]) -> Estimator[Any]:
        """The estimator in the state in which it is measured."""
        return estimator.warmed_up(self.loss, self.oracle, self.scores, generator=self.generator("warm-up"))

    def rows(self, number: int) -> Iterator[tuple[Tensor, torch.Generator]]:
        """Launches: rows that share the scores, and their streams. Neither depends on the rows per launch, nor on the estimator."""
        key, step = seed_sequence(self.context.seed, *self.key, "replicates"), rows_per_launch(self.context.batch_size, self.scores)
        for first in range(0, number, step):
            rows = min(step, number - first)
            yield self.scores.expand(rows, *self.scores.shape), seed_blocks(key, first, rows, self.scores.device)


def estimates(estimator: Estimator[Any], draws: Draws, number: int) -> Tensor:
    """Float64 estimates ``[number, parts]`` of an estimator that is warmed up; a deterministic one is asked once."""
    if estimator.deterministic:
        once = estimator.gradient(draws.loss, draws.oracle, draws.scores, generator=draws.generator("replicates"))
        return once.double().flatten().expand(number, -1)
    launches = [estimator.gradient(draws.loss, draws.oracle, rows, generator=streams) for rows, streams in draws.rows(number)]
    return torch.cat([launch.double().flatten(1) for launch in launches])
