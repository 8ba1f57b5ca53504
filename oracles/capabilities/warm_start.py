"""A memory of projections, with which training begins where it was at the step before."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, TypeVar

from torch import Tensor

from ..active_set.solution import SparseSolution
from ..transforms import transforming
from .projection import ProjectionOracle

P = TypeVar("P", bound=ProjectionOracle)


class WarmStart:
    """Keeps the last projection, as the start of the next one: a memory for each batch that comes again while scores change little.

    Called with an oracle, it gives an oracle that is equal in everything, but whose `project` begins with what is kept here, and is then
    kept in its place. Whatever projects can be given that oracle: estimators, losses, `StructuredLayer` by its argument ``warm``. Where
    the solution is one of another oracle, shape or lengths, and under `torch.func`, the projection begins anew.

    Results are those without a memory, up to rounding; but of several sets of atoms with the same mean, the one that is found depends on
    what was kept.

    Cost: memory for the atoms of one solution: for an item, four bytes for each part of each of its atoms, and its scores.

    Attributes:
        solution: the last one, without a graph; None before the first.

    Example:
        >>> import torch
        >>> from structgrad.oracles import LinearChain, WarmStart
        >>> scores, memory = torch.linspace(-1, 1, 90).sin().reshape(2, 5, 3, 3), WarmStart()
        >>> for step in range(3):
        ...     mean = memory(LinearChain()).project(scores * (1 + 0.01 * step)).mean
        >>> torch.allclose(mean, LinearChain().project(scores * 1.02).mean, atol=1e-6), memory.solution.support.shape
        (True, torch.Size([2]))
    """

    def __init__(self) -> None:
        self.solution: SparseSolution | None = None

    def __call__(self, oracle: P) -> P:
        """The oracle, whose projections begin and end here; ValueError for one without projections."""
        if not isinstance(oracle, ProjectionOracle):
            raise ValueError(
                f"`WarmStart` got an oracle of type {type(oracle).__name__}; expected an oracle with projections, such as LinearChain: "
                "train without a warm start"
            )
        twin: Any = object.__new__(_kind(type(oracle)))
        twin.__dict__.update(oracle.__dict__, _warm=self)
        result: P = twin
        return result


@functools.cache
def _kind(kind: type[ProjectionOracle]) -> type[ProjectionOracle]:
    """A subclass that begins a projection with the last one."""

    def project(self: Any, scores: Tensor, *, lengths: Tensor | None = None, start: SparseSolution | None = None) -> SparseSolution:
        memory: WarmStart = self._warm
        if transforming():
            return kind.project(self, scores, lengths=lengths, start=start)
        if start is None and memory.solution is not None and self._start_refusal(memory.solution, scores, lengths) is None:
            start = memory.solution
        solution = kind.project(self, scores, lengths=lengths, start=start)
        memory.solution = dataclasses.replace(solution, scores=solution.scores.detach())
        return solution

    return type(kind.__name__, (kind,), {"project": project})
