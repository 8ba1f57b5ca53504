"""Oracles and losses that know how long the items of a batch are, for code that is given padded scores and knows nothing of lengths."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..active_set.solution import SparseSolution
from .base import Oracle
from .derivatives import unsqueeze_event

O = TypeVar("O", bound=Oracle)  # noqa: E741 - the field's letter for an oracle type


def of_lengths(oracle: O, lengths: Tensor) -> O:
    """The oracle for scores that `Oracle.pad` has padded to these lengths, ``[*batch]``, with further samples after the batch or none.

    Padded scores serve as they are wherever structures are weighed against each other. What measures them (a projection), or counts their
    parts, must leave the padding out.
    """
    twin: Any = object.__new__(_kind(type(oracle)))
    twin.__dict__.update(oracle.__dict__, _lengths=lengths)
    result: O = twin
    return result


class Inside:
    """A function of structures, which sees zeros in the padding of those that it is given; whatever else it has is its own.

    Args:
        function: of ``[..., *batch, *event]``. Where it says that it ``ignores_padding``, structures without a gradient come to it as they
            are: those that all items share may lie in memory once, which it can make use of. Where it says that it ``takes_indices``,
            it is one of indices ``[..., *batch, *index]``, and sees -1 in the padding.
        oracle: of the structures.
        lengths: ``[*batch]``.
        event_shape: of the padded structures.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], oracle: Oracle, lengths: Tensor, event_shape: tuple[int, ...]) -> None:
        inside = oracle._inside(event_shape, lengths)
        self.function, self.oracle = function, oracle
        self.inside = inside.expand(*inside.shape[: inside.ndim - len(event_shape)], *event_shape)

    def __call__(self, structure: Tensor) -> Tensor:
        if getattr(self.function, "takes_indices", False):
            return self.function(self.oracle._cut_indices(structure, self.inside, self._padded_event()))
        as_it_is = not structure.requires_grad and getattr(self.function, "ignores_padding", False)
        return self.function(structure if as_it_is else self.oracle._cut(structure, self.inside, structure.dtype))

    def _padded_event(self) -> tuple[int, ...]:
        """What `Oracle.pad` makes of the event, whatever the lengths: indices come from there, where the function takes these."""
        event = tuple(self.inside.shape[self.inside.ndim - self.oracle.event_ndim :])
        limits = self.oracle.length_limits(event)
        shortest = torch.ones(() if len(limits) == 1 else (len(limits),), dtype=torch.int64)
        return tuple(self.oracle.pad(torch.zeros(event), shortest).shape)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.function, name)


@functools.cache
def _kind(kind: type[Oracle]) -> type[Oracle]:
    """A subclass whose operations that measure leave the padding out."""

    def project(self: Any, scores: Tensor, *, lengths: Tensor | None = None, start: SparseSolution | None = None) -> SparseSolution:
        sizes = _sizes(self, scores) if lengths is None else lengths
        solution: SparseSolution = kind.project(self, scores, lengths=sizes, start=start)  # type: ignore[attr-defined]
        return solution

    def within(self: Any, parts: Tensor, scores: Tensor) -> Tensor:
        inside: Tensor = self._inside_padded(self._event(scores), _sizes(self, scores))
        return parts & inside

    changed = {"parts_within": within} | ({"project": project} if hasattr(kind, "project") else {})
    return type(kind.__name__, (kind,), changed)


def _sizes(oracle: Any, scores: Tensor) -> Tensor:
    """The lengths of the rows of scores ``[*batch, ..., *event]``."""
    lengths: Tensor = oracle._lengths
    each = lengths.ndim - (len(oracle.length_limits(oracle._event(scores))) > 1)
    rows = scores.shape[: scores.ndim - oracle.event_ndim]
    samples = unsqueeze_event(lengths.movedim(-1, 0) if each < lengths.ndim else lengths, len(rows) - each)
    if each < lengths.ndim:
        return samples.expand(-1, *rows).movedim(0, -1)
    return samples.expand(rows)
