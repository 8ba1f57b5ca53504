"""An oracle whose samples are dealt from a script, and how many of them an estimator asks for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ...estimators.base import Estimator, Loss
from ...estimators.score_function.without_replacement import draw_set
from ...oracles.active_set.solution import Projection
from ...oracles.active_set.start import Start
from ...oracles.capabilities import (
    DistinctSamplingOracle,
    DrawnSet,
    EnumerableOracle,
    FactorisedOracle,
    KBestOracle,
    MarginalOracle,
    PolicyOracle,
    ProjectionOracle,
    RelaxedOracle,
    SamplingOracle,
    SubsetOracle,
)
from ...oracles.capabilities.projection import RowArgmax
from ...oracles.capabilities.relaxation import Maximum
from ...oracles.kernels import AnyKernel
from ...oracles.random_streams import RowGenerator


@dataclass(eq=False)
class ReplayOracle(
    FactorisedOracle, SubsetOracle, PolicyOracle, SamplingOracle, RelaxedOracle, ProjectionOracle, EnumerableOracle, KBestOracle
):
    """An oracle whose samples are dealt from a script; everything else is the real oracle's.

    Args:
        real: the oracle that answers everything but `sample`.
        script: structures ``[slots, rows, *event]``, taken slot by slot; None counts the slots that are asked for.
        law: the scores ``[*event]`` whose law a script weighs; `strayed` tells whether samples of other scores were asked for,
            or from another generator than the one that was given.
    """

    real: Any
    script: Tensor | None = None
    law: Tensor | None = None
    taken: int = field(default=0, init=False)
    strayed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.name, self.event_ndim = self.real.name, self.real.event_ndim  # type: ignore[misc]
        self.index_ndim, self._indices_are_parts = self.real.index_ndim, self.real._indices_are_parts  # type: ignore[misc]
        self.kernel, self._ignores_entries = self.real.kernel, self.real._ignores_entries  # type: ignore[misc]
        if isinstance(self.real, SubsetOracle):
            self.k = self.real.k

    @classmethod
    def event_shape(cls, **sizes: int) -> tuple[int, ...]:
        raise TypeError("a scripted oracle has no sizes of its own")

    def count(self, event_shape: tuple[int, ...]) -> int:
        return int(self.real.count(event_shape))

    def read_mask(self, event_shape: tuple[int, ...], device: torch.device | None = None) -> Tensor:
        mask: Tensor = self.real.read_mask(event_shape, device)
        return mask

    def sample(
        self,
        scores: Tensor,
        num_samples: int | None = None,
        *,
        generator: torch.Generator,
        lengths: Tensor | None = None,
        as_indices: bool = False,
    ) -> Tensor:
        slots = 1 if num_samples is None else num_samples
        first, self.taken = self.taken, self.taken + slots
        self._watch(scores, generator)
        if self.script is None:
            dealt = self.real.argmax(scores).expand(slots, *scores.shape)
        else:
            dealt = self.script[first : self.taken].to(scores.dtype)
        result: Tensor = dealt[0] if num_samples is None else dealt
        return self.indices(result) if as_indices else result

    def _watch(self, scores: Tensor, generator: torch.Generator) -> None:
        # A stream of the estimator's own: samples that share random numbers are not independent.
        # Rows that are repeated by hand are several samples of one call.
        repeated = scores.shape[: scores.ndim - self.event_ndim].numel() > 1
        self.strayed |= self.law is not None and (isinstance(generator, RowGenerator) or repeated or not bool((scores == self.law).all()))

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        self.real._check_event(call, event_shape)

    def _kernel(self, operation: str, rows: Tensor) -> AnyKernel | None:
        return self.real._kernel(operation, rows)  # type: ignore[no-any-return]

    def kernel_options(self) -> tuple[Any, ...]:
        return self.real.kernel_options()  # type: ignore[no-any-return]

    def natural_parameters(self, scores: Tensor) -> Tensor:
        return self.real.natural_parameters(scores)  # type: ignore[no-any-return]

    def _log_partition_of(self, valid: Tensor) -> Tensor:
        return self.real._log_partition_of(valid)  # type: ignore[no-any-return]

    def _argmax(self, rows: Tensor) -> Tensor:
        return self.real._argmax(rows)  # type: ignore[no-any-return]

    def _log_partition(self, rows: Tensor) -> Tensor:
        return self.real._log_partition(rows)  # type: ignore[no-any-return]

    def _sample(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        raise AssertionError("samples are dealt by `sample`")

    def _noise_size(self, event_shape: tuple[int, ...]) -> int:
        return 0

    def _project(self, rows: Tensor, argmax: RowArgmax, inside: Tensor | None, start: Start | None) -> Projection:
        return self.real._project(rows, argmax, inside, start)  # type: ignore[no-any-return]

    def _kbest(self, rows: Tensor, k: int) -> Tensor:
        return self.real._kbest(rows, k)  # type: ignore[no-any-return]

    def _best_parts(self, rows: Tensor, k: int) -> Tensor | None:
        return self.real._best_parts(rows, k)  # type: ignore[no-any-return]

    def _value(self, rows: Tensor, maximum: Maximum) -> Tensor:
        return self.real._value(rows, maximum)  # type: ignore[no-any-return]

    def step_log_probs(self, scores: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        return self.real.step_log_probs(scores, lengths=lengths)  # type: ignore[no-any-return]

    def steps(self, event_shape: tuple[int, ...], device: torch.device | None = None) -> Tensor:
        return self.real.steps(event_shape, device)  # type: ignore[no-any-return]

    def index_shape(self, event_shape: tuple[int, ...]) -> tuple[int, ...]:
        return self.real.index_shape(event_shape)  # type: ignore[no-any-return]

    def _index_limit(self, event_shape: tuple[int, ...]) -> int:
        return self.real._index_limit(event_shape)  # type: ignore[no-any-return]

    def _parts(self, indices: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        return self.real._parts(indices, event_shape)  # type: ignore[no-any-return]

    def _from_parts(self, parts: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        return self.real._from_parts(parts, event_shape)  # type: ignore[no-any-return]

    def _indices_of(self, structures: Tensor) -> Tensor:
        return self.real._indices_of(structures)  # type: ignore[no-any-return]

    def _rank(self, structures: Tensor) -> Tensor:
        return self.real._rank(structures)  # type: ignore[no-any-return]

    def _unrank(self, ranks: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        return self.real._unrank(ranks, event_shape)  # type: ignore[no-any-return]


@dataclass(eq=False)
class DistinctReplayOracle(ReplayOracle, DistinctSamplingOracle):
    """An oracle whose draws without replacement are dealt too.

    Args:
        dealt: the set that every call of `sample_distinct` returns; None draws a fixed one.
        drawn: the sizes of the sets that were asked for.
    """

    dealt: DrawnSet | None = None
    drawn: list[int] = field(default_factory=list, init=False)

    def sample_distinct(  # type: ignore[misc]
        self, scores: Tensor, k: int, *, generator: torch.Generator, lengths: Tensor | None = None
    ) -> DrawnSet:
        self.drawn.append(min(k, self.count(tuple(scores.shape[scores.ndim - self.event_ndim :]))))
        self._watch(scores, generator)
        if self.dealt is not None:
            return replace(self.dealt, structures=self.dealt.structures.to(scores.dtype))
        fixed = torch.Generator(scores.device).manual_seed(0)
        if isinstance(self.real, DistinctSamplingOracle):
            return self.real.sample_distinct(scores, k, generator=fixed)
        return draw_set(self.real, scores, k, generator=fixed)

    def _distinct_noise_size(self, event_shape: tuple[int, ...], k: int) -> int:
        return 0

    def _sample_distinct(self, rows: Tensor, items: Tensor, k: int, uniforms: Tensor) -> DrawnSet:
        raise AssertionError("sets are dealt by `sample_distinct`")


def slots_of(estimator: Estimator[Any], oracle: Any, loss: Loss, scores: Tensor) -> int | None:
    """How many structures one estimate draws through `sample`; None where it is random in another way too."""
    drawn = draws_of(estimator, oracle, loss, scores)
    return None if drawn is None or drawn[1] else drawn[0]


def draws_of(estimator: Estimator[Any], oracle: Any, loss: Loss, scores: Tensor) -> tuple[int, int] | None:
    """How many structures one estimate draws through `sample`, and through one call of `sample_distinct`.

    A trial run counts the samples that are asked for, of these scores alone, and looks whether the generator was touched.

    Returns:
        None where the estimate is random in another way too.
    """
    if not isinstance(oracle, SamplingOracle | MarginalOracle):
        return None
    generator = torch.Generator(scores.device).manual_seed(0)
    before = generator.get_state()
    scripted = DistinctReplayOracle(oracle, law=scores)
    estimator.gradient(loss, scripted, scores.unsqueeze(0), generator=generator)
    if not torch.equal(before, generator.get_state()) or scripted.strayed or len(scripted.drawn) > 1:
        return None
    return scripted.taken, sum(scripted.drawn)
