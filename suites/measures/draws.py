"""Independent estimates at one score tensor, from streams that are named and not counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...estimators.base import Estimator, Loss
from ...oracles.capabilities.ragged import of_lengths
from ..base import check_finite
from ..statistics.seeds import generator, seed_blocks, seed_sequence
from .replicates import launches_of
from .suite import Context


@dataclass(frozen=True, eq=False)
class Draws:
    """The point at which estimates are taken, and their random numbers.

    Attributes:
        oracle: the structures. ``loss``: ``[..., *event] -> [...]``. ``scores``: ``[*event]``, in the dtype that estimators run in.
        context: root seed and rows per launch. ``key``: stable names, such as suite, problem, stage and instance.
        lengths: of the items of a batch, whose scores are padded; None if all have one size.
    """

    oracle: Any
    loss: Loss
    scores: Tensor
    context: Context
    key: tuple[str, ...]
    lengths: Tensor | None = None

    def of_rows(self, rows: Tensor) -> Any:
        """The oracle, as training uses it on the scores or on copies of them."""
        if self.lengths is None:
            return self.oracle
        return of_lengths(self.oracle, self.lengths.expand(*rows.shape[: rows.ndim - self.scores.ndim], *self.lengths.shape))

    def generator(self, slot: str) -> torch.Generator:
        """The stream of a purpose."""
        return generator(self.context.seed, *self.key, slot, device=self.scores.device)

    def warmed(self, estimator: Estimator[Any]) -> Estimator[Any]:
        """The estimator in the state in which it is measured."""
        return estimator.warmed_up(self.loss, self.of_rows(self.scores), self.scores, generator=self.generator("warm-up"))

    def launched(self, name: str, number: int, compute: Callable[[Tensor, torch.Generator], Tensor]) -> Tensor:
        """The results of ``compute(rows, streams)`` for a number of rows that share the scores.

        Their streams depend neither on the rows per launch nor on the estimator, whose ``name`` is for messages.
        """
        key = seed_sequence(self.context.seed, *self.key, "replicates")

        def launch(first: int, count: int) -> Tensor:
            return compute(self.scores.expand(count, *self.scores.shape), seed_blocks(key, first, count, self.scores.device))

        launches = launches_of(name, self.context.batch_size, self.scores)
        return torch.cat([found for _, found in launches.over(0, number, launch)])


def estimates(estimator: Estimator[Any], draws: Draws, number: int) -> Tensor:
    """Float64 estimates ``[number, parts]`` of an estimator that is warmed up; a deterministic one is asked once."""
    if estimator.deterministic:
        once = estimator.gradient(draws.loss, draws.of_rows(draws.scores), draws.scores, generator=draws.generator("replicates"))
        return check_finite(once.double().reshape(1, -1), estimator.name).expand(number, -1)

    def launch(rows: Tensor, streams: torch.Generator) -> Tensor:
        return estimator.gradient(draws.loss, draws.of_rows(rows), rows, generator=streams).double().flatten(1)

    return check_finite(draws.launched(estimator.name, number, launch), estimator.name)
