"""Independent replicates of an estimator, into streaming moments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ...estimators.base import Estimator
from ..base import NonFiniteError, check_finite
from ..device_memory import Launches, available
from ..statistics.metrics import Summary
from ..statistics.moments import BATCHES, Moments
from ..statistics.seeds import BLOCK, generator, seed_blocks, seed_sequence
from ..truth import Target

Tier = Literal["auto", "exact", "mc"]

FILLING = 2**16
"""Rows of a launch that fill a GPU."""

COPIES = 64
"""Copies of the scores that an estimator is assumed to hold, until its first launch shows its memory."""


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

    def piece(self, row: int) -> int:
        """Replicates of the block from this row on that go into one batch together.

        It is a whole block, or less if N is so small that batches would stay empty. At every doubling, all batches have equal sizes.
        """
        return min(BLOCK, 1 << ((max(self.replicates, row) // BATCHES).bit_length() - 1))


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
    for first, estimates in launches(estimator, target, sampling, (moments.total, stop), slot):
        moments.add_blocks(estimates, list(_blocks(first, len(estimates), sampling)))


def _blocks(first: int, number: int, sampling: Sampling) -> Iterator[tuple[int, int, int]]:
    """The pieces of the blocks of a launch, from this replicate on, see `Sampling.piece`: their rows, and the batch that takes them."""
    for start in range(0, number, BLOCK):
        size, end = sampling.piece(first + start), min(start + BLOCK, number)
        for place in range(start, end, size):
            yield place, min(place + size, end), ((first + place) // size) % BATCHES


def launches_of(name: str, batch_size: int, scores: Tensor) -> Launches:
    """Whole blocks, as many as are asked for and fit the memory of a device; from the second launch on as many as fill it."""
    fitting = available(scores.device) / (COPIES * 8 * max(scores.numel(), 1))
    rows = -(-batch_size // BLOCK) * BLOCK
    rows = rows if rows <= fitting else max(int(fitting) // BLOCK, 1) * BLOCK
    return Launches(f"`{name}` on scores of shape {tuple(scores.shape)}", rows, scores.device, BLOCK, FILLING)


def finite(summary: Summary, estimator: Estimator[Any], target: Target, sampling: Sampling) -> Summary:
    """Return finite exact moments; else raise NonFiniteError, with a number of draws if replicates show it too."""
    if not bool(summary.error.isfinite().all()):
        draw_moments(estimator, target, sampling)
        raise NonFiniteError(f"`{estimator.name}` returned NaN or infinity in some of all possible draws")
    return summary


def warmed(estimator: Estimator[Any], target: Target, sampling: Sampling) -> Estimator[Any]:
    """The estimator in the state in which it is measured."""
    stream = generator(sampling.seed, *sampling.key, "warm-up", device=target.scores.device)
    return estimator.warmed_up(target.loss, target.oracle, target.scores, generator=stream)


def launches(
    estimator: Estimator[Any], target: Target, sampling: Sampling, rows: tuple[int, int], slot: str
) -> Iterator[tuple[int, Tensor]]:
    """Estimates of the replicates of a range, which begins with a block, launch by launch; deterministic estimators are called once."""
    key = seed_sequence(sampling.seed, *sampling.key, slot)
    scores = target.scores
    if estimator.deterministic:
        once = estimator.gradient(target.loss, target.oracle, scores, generator=torch.Generator(scores.device))
        check_finite(once.unsqueeze(0), estimator.name)
        return launches_of(estimator.name, sampling.batch_size, scores).over(*rows, lambda _, count: once.expand(count, *scores.shape))

    def estimates(first: int, count: int) -> Tensor:
        streams = seed_blocks(key, first, count, scores.device)
        found = estimator.gradient(target.loss, target.oracle, scores.expand(count, *scores.shape), generator=streams)
        return check_finite(found, estimator.name, first)

    return launches_of(estimator.name, sampling.batch_size, scores).over(*rows, estimates)
