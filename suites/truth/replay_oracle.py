"""Oracles whose samples are dealt from a script, and the number of samples that an estimator draws."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ...estimators.base import Estimator, Loss
from ...estimators.score_function.without_replacement import draw_set
from ...oracles.capabilities import DistinctSamplingOracle, DrawnSet, MarginalOracle, SamplingOracle
from ...oracles.random_streams import RowGenerator
from ..oracle_proxy import hooked


@dataclass
class Script:
    """Samples that replace those of an oracle, and a record of the calls.

    Attributes:
        oracle: the real oracle.
        samples: ``[slots, rows, *event]``, dealt slot by slot; None deals the best structure and counts.
        drawn_set: the result of every `sample_distinct`; None draws a fixed one.
        law: the scores ``[*event]`` that samples must be drawn from; None allows all.
        taken: the number of samples dealt. ``set_sizes``: the sizes of the sets dealt.
        strayed: whether a call had other scores, or another generator.
    """

    oracle: Any
    samples: Tensor | None = None
    drawn_set: DrawnSet | None = None
    law: Tensor | None = None
    taken: int = 0
    set_sizes: list[int] = field(default_factory=list)
    strayed: bool = False

    def __call__(self, name: str, _: Any, scores: Tensor, size: int | None = None, **named: Any) -> Any:
        """Answer a call of `sample` or of `sample_distinct`."""
        # Samples of a generator of the estimator's own share random numbers; rows repeated by hand are several samples of one call.
        own = isinstance(named["generator"], RowGenerator) or scores.shape[: scores.ndim - self.oracle.event_ndim].numel() > 1
        self.strayed |= self.law is not None and (own or not bool((scores == self.law).all()))
        if name == "sample":
            return self._sample(scores, named.get("num_samples", size), as_indices=named.get("as_indices", False))
        return self._set(scores, named["k"] if size is None else size)

    def _sample(self, scores: Tensor, num_samples: int | None, *, as_indices: bool) -> Tensor:
        first, self.taken = self.taken, self.taken + (1 if num_samples is None else num_samples)
        if self.samples is None:
            dealt = self.oracle.argmax(scores).expand(self.taken - first, *scores.shape)
        else:
            dealt = self.samples[first : self.taken].to(scores.dtype)
        result: Tensor = dealt[0] if num_samples is None else dealt
        return self.oracle.indices(result) if as_indices else result

    def _set(self, scores: Tensor, k: int) -> DrawnSet:
        self.set_sizes.append(min(k, self.oracle.count(tuple(scores.shape[scores.ndim - self.oracle.event_ndim :]))))
        if self.drawn_set is not None:
            return replace(self.drawn_set, structures=self.drawn_set.structures.to(scores.dtype))
        fixed = torch.Generator(scores.device).manual_seed(0)
        if isinstance(self.oracle, DistinctSamplingOracle):
            return self.oracle.sample_distinct(scores, k, generator=fixed)
        return draw_set(self.oracle, scores, k, generator=fixed)


def scripted(oracle: Any, samples: Tensor | None = None, **script: Any) -> Any:
    """A copy of an oracle whose samples come from the `Script` of these arguments, its attribute ``hook``."""
    return hooked(oracle, ("sample", "sample_distinct"), Script(oracle, samples, **script), SamplingOracle, DistinctSamplingOracle)


def slots_of(estimator: Estimator[Any], oracle: Any, loss: Loss, scores: Tensor) -> int | None:
    """The number of structures that one estimate draws through `sample`; None if it is random in another way too."""
    drawn = draws_of(estimator, oracle, loss, scores)
    return None if drawn is None or drawn[1] else drawn[0]


def draws_of(estimator: Estimator[Any], oracle: Any, loss: Loss, scores: Tensor) -> tuple[int, int] | None:
    """The numbers of structures that one estimate draws through `sample`, and through one call of `sample_distinct`.

    A trial run counts the samples of these scores, and checks that the generator was not used otherwise.

    Returns:
        Both numbers; None if the estimate is random in another way too.
    """
    if not isinstance(oracle, SamplingOracle | MarginalOracle):
        return None
    generator = torch.Generator(scores.device).manual_seed(0)
    before = generator.get_state()
    copy = scripted(oracle, law=scores)
    script: Script = copy.hook
    estimator.gradient(loss, copy, scores.unsqueeze(0), generator=generator)
    if not torch.equal(before, generator.get_state()) or script.strayed or len(script.set_sizes) > 1:
        return None
    return script.taken, sum(script.set_sizes)
