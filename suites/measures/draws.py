"""Independent estimates at one score tensor, from streams that are named and not counted, and their moments."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ...estimators import Estimator, Loss
from ...oracles.capabilities.ragged import of_lengths
from ..base import NonFiniteError, check_finite
from ..device_memory import available, launched
from ..statistics.metrics import Summary, single
from ..statistics.moments import BATCHES, Moments
from ..statistics.seeds import BLOCK, generator, seed_blocks, seed_sequence
from ..truth import Target

if TYPE_CHECKING:
    from .suite import Context

COPIES = 64  # copies of the scores that an estimator is assumed to hold, to choose the rows of a launch
Range = tuple[int, int]  # rows from the first, which begins a block, up to the last (exclusive)

Tier = Literal["auto", "exact", "mc"]


@dataclass(frozen=True, eq=False)
class Draws:
    """The point at which estimates are taken, and their random numbers."""

    oracle: Any  # the structures
    loss: Loss  # ``[..., *event] -> [...]``
    scores: Tensor  # ``[*event]``, in the dtype that estimators run in
    context: "Context | Sampling"  # has the root seed and the rows per launch
    key: tuple[str, ...]  # stable names, such as suite, problem, stage and instance
    lengths: Tensor | None = None  # of the items of a batch, whose scores are padded; None if all have one size

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

        A launch has whole blocks, as many as are asked for and fit the memory of a device. The streams depend neither on the rows per
        launch nor on the estimator, whose ``name`` is for messages.
        """
        key, device = seed_sequence(self.context.seed, *self.key, slot), self.scores.device
        fitting = available(device) / (COPIES * 8 * max(self.scores.numel(), 1))
        size = -(-self.context.batch_size // BLOCK) * BLOCK
        size = size if size <= fitting else max(int(fitting) // BLOCK, 1) * BLOCK

        def launch(first: int, count: int) -> Tensor:
            return compute(self.scores.expand(count, *self.scores.shape), seed_blocks(key, first, count, device))

        return launched(f"`{name}` on scores of shape {tuple(self.scores.shape)}", size, device, rows, launch, block=BLOCK)

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


@dataclass(frozen=True)
class Sampling:
    """Options of drawing replicates.

    Args:
        replicates: N; of the first look if an effort asks for more of them.
        seed: the root seed. ``key``: stable names of the stream, such as problem, stage and instance.
        batch_size: rows per launch, rounded up to whole blocks of 128; fewer if the memory of a GPU is scarce. No estimate depends on it;
            sums over estimates depend on it in rounding only.
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

    def batches(self, first: int, stop: int) -> list[int]:
        """The batches of the replicates from the first of a block on up to ``stop`` (exclusive)."""
        starts = range(first, stop, BLOCK)
        return [row // self.piece(start) % BATCHES for start in starts for row in range(start, min(start + BLOCK, stop))]


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
        moments.add(found, sampling.batches(first, first + len(found)))


def finite(summary: Summary, estimator: Estimator[Any], target: Target, sampling: Sampling) -> Summary:
    """Return finite exact moments; else raise NonFiniteError, with a number of draws if replicates show it too."""
    if not bool(summary.error.isfinite().all()):
        draw_moments(estimator, target, sampling)
        raise NonFiniteError(f"`{estimator.name}` returned NaN or infinity in some of all possible draws")
    return summary


def deterministic_moments(estimator: Estimator[Any], target: Target, sampling: Sampling, information: Tensor | None = None) -> Summary:
    """The exact moments of an estimator without randomness: of its one estimate."""
    unused = torch.Generator(target.scores.device).manual_seed(0)
    estimate = estimator.gradient(target.loss, target.oracle, target.scores, generator=unused)
    return finite(single(estimate, target.truth.gradient, information), estimator, target, sampling)
