"""Independent replicates of an estimator, into streaming moments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ...estimators.base import Estimator
from ..base import NonFiniteError
from ..statistics.metrics import Summary
from ..statistics.moments import BATCHES, Moments
from ..statistics.seeds import BLOCK
from ..truth import Target
from .draws import Draws

Tier = Literal["auto", "exact", "mc"]


@dataclass(frozen=True)
class Sampling:
    """Options of drawing replicates.

    Args:
        replicates: N; of the first look if an effort asks for more of them.
        seed: the root seed. ``key``: stable names of the stream, such as problem, stage and instance.
        batch_size: rows per launch, rounded up to whole blocks of 128; a GPU gets as many as fill it and fit its memory. No
            estimate depends on it; sums over estimates depend on it in rounding only.
        tier: ``auto`` is exact if the estimator can be replayed, Monte Carlo otherwise; ``mc`` forces replicates.
        dtype: in which the estimator runs; truth and moments are float64.
    """

    replicates: int = 4096
    seed: int = 0
    key: tuple[str, ...] = ()
    batch_size: int = 4096
    tier: Tier = "auto"
    dtype: torch.dtype = torch.float64

    def __post_init__(self) -> None:
        if self.replicates < 2 * BATCHES:
            raise ValueError(f"`Sampling` got replicates={self.replicates}; expected at least {2 * BATCHES}, two per batch")
        if self.batch_size < 1:
            raise ValueError(f"`Sampling` got batch_size={self.batch_size}; expected at least 1")
        if self.tier not in ("auto", "exact", "mc"):
            raise ValueError(f"`Sampling` got tier={self.tier!r}; expected auto, exact or mc")

    def draws(self, target: Target) -> Draws:
        """The random numbers at a target."""
        return Draws(target.oracle, target.loss, target.scores, self, self.key)

    def piece(self, row: int) -> int:
        """Replicates of the block from this row on that go into one batch together.

        It is a whole block, or less if N is so small that batches would stay empty. At every doubling, all batches have equal sizes.
        """
        return min(BLOCK, 1 << ((max(self.replicates, row) // BATCHES).bit_length() - 1))

    def blocks(self, first: int, number: int) -> list[tuple[int, int, int]]:
        """The pieces of the replicates from a block on, for `Moments.add_blocks`."""
        starts = [
            (start + place, self.piece(first + start))
            for start in range(0, number, BLOCK)
            for place in range(0, BLOCK, self.piece(first + start))
        ]
        return [(start, min(start + size, number), (first + start) // size % BATCHES) for start, size in starts if start < number]


def draw_moments(
    estimator: Estimator[Any], target: Target, sampling: Sampling, *, slot: str = "replicates", information: Tensor | None = None
) -> Moments:
    """Streaming moments of N independent replicates; memory does not grow with N."""
    moments = Moments.empty(target.truth.gradient, information)
    extend_moments(moments, estimator, target, sampling, stop=sampling.replicates, slot=slot)
    return moments


def extend_moments(  # noqa: PLR0913
    moments: Moments, estimator: Estimator[Any], target: Target, sampling: Sampling, *, stop: int, slot: str = "replicates"
) -> None:
    """Add the replicates from the last one so far, which ended a block, to ``stop`` (exclusive)."""
    for first, found in sampling.draws(target).estimates(estimator, (moments.total, stop), slot):
        moments.add_blocks(found, sampling.blocks(first, len(found)))


def finite(summary: Summary, estimator: Estimator[Any], target: Target, sampling: Sampling) -> Summary:
    """Return finite exact moments; else raise NonFiniteError, with a number of draws if replicates show it too."""
    if not bool(summary.error.isfinite().all()):
        draw_moments(estimator, target, sampling)
        raise NonFiniteError(f"`{estimator.name}` returned NaN or infinity in some of all possible draws")
    return summary


def warmed(estimator: Estimator[Any], target: Target, sampling: Sampling) -> Estimator[Any]:
    """The estimator in the state in which it is measured."""
    return sampling.draws(target).warmed(estimator)
