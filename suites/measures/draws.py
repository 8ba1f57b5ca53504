"""Independent estimates at one score tensor, from streams that are named and not counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...estimators.base import Estimator, Loss
from ...oracles.capabilities.ragged import of_lengths
from ..base import check_finite
from ..device_memory import Launches, available
from ..statistics.seeds import BLOCK, generator, seed_blocks, seed_sequence

if TYPE_CHECKING:
    from .replicates import Sampling
    from .suite import Context

FILLING = 2**16
"""Rows of a launch that fill a GPU."""

COPIES = 64
"""Copies of the scores that an estimator is assumed to hold, until its first launch shows its memory."""

Range = tuple[int, int]
"""Rows from the first, which begins a block, up to the last (exclusive)."""


@dataclass(frozen=True, eq=False)
class Draws:
    """The point at which estimates are taken, and their random numbers.

    Attributes:
        oracle: the structures. ``loss``: ``[..., *event] -> [...]``. ``scores``: ``[*event]``, in the dtype that estimators run in.
        context: has the root seed and the rows per launch. ``key``: stable names, such as suite, problem, stage and instance.
        lengths: of the items of a batch, whose scores are padded; None if all have one size.
    """

    oracle: Any
    loss: Loss
    scores: Tensor
    context: Context | Sampling
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

    def launched(
        self, name: str, rows: Range, compute: Callable[[Tensor, torch.Generator], Tensor], slot: str = "replicates"
    ) -> Iterator[tuple[int, Tensor]]:
        """The first row and the results of ``compute(scores, streams)`` of every launch of a range of rows, which share the scores.

        The streams depend neither on the rows per launch nor on the estimator, whose ``name`` is for messages.
        """
        key = seed_sequence(self.context.seed, *self.key, slot)

        def launch(first: int, count: int) -> Tensor:
            return compute(self.scores.expand(count, *self.scores.shape), seed_blocks(key, first, count, self.scores.device))

        return launches_of(name, self.context.batch_size, self.scores).over(*rows, launch)

    def estimates(self, estimator: Estimator[Any], rows: Range, slot: str = "replicates") -> Iterator[tuple[int, Tensor]]:
        """The first row and the estimates ``[r, *event]`` of every launch of a range; a deterministic estimator is called once."""

        def gradient(theta: Tensor, streams: torch.Generator) -> Tensor:
            return estimator.gradient(self.loss, self.of_rows(theta), theta, generator=streams)

        if estimator.deterministic:
            once = check_finite(gradient(self.scores, torch.Generator(self.scores.device)).unsqueeze(0), estimator.name)
            yield from self.launched(estimator.name, rows, lambda theta, _: once.expand(len(theta), *once.shape[1:]), slot)
            return
        for first, found in self.launched(estimator.name, rows, gradient, slot):
            yield first, check_finite(found, estimator.name, first)


def estimates(estimator: Estimator[Any], draws: Draws, number: int) -> Tensor:
    """Float64 estimates ``[number, parts]`` of an estimator that is warmed up."""
    return torch.cat([found.double().flatten(1) for _, found in draws.estimates(estimator, (0, number))])


def launches_of(name: str, batch_size: int, scores: Tensor) -> Launches:
    """Whole blocks, as many as are asked for and fit the memory of a device; from the second launch on as many as fill it."""
    fitting = available(scores.device) / (COPIES * 8 * max(scores.numel(), 1))
    rows = -(-batch_size // BLOCK) * BLOCK
    rows = rows if rows <= fitting else max(int(fitting) // BLOCK, 1) * BLOCK
    return Launches(f"`{name}` on scores of shape {tuple(scores.shape)}", rows, scores.device, BLOCK, FILLING)
