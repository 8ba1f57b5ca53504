"""Oracles and losses that know how long the items of a batch are, for code that is given padded scores and knows nothing of lengths."""

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from .base import Oracle

O = TypeVar("O", bound=Oracle)  # noqa: E741 - the field's letter for an oracle type


def of_lengths(oracle: O, lengths: Tensor) -> O:
    """The oracle for scores that `Oracle.pad` has padded to these lengths, ``[*batch]``, with further samples after the batch or none.

    Padded scores serve as they are wherever structures are weighed against each other. What measures them (a projection), or counts their
    parts, must leave the padding out.
    """
    return oracle._keeping(_lengths=lengths)


class Inside:
    """A function of structures ``[..., *batch, *event]``, which sees zeros in their padding; its attributes are those of the function.

    If the function has ``ignores_padding``, structures without a gradient come to it as they are: those that all items share may lie in
    memory once. If it has ``takes_indices``, it is one of indices ``[..., *batch, *index]``, and sees -1 in the padding.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], oracle: Oracle, lengths: Tensor, event_shape: tuple[int, ...]) -> None:
        self.function, self.oracle, self.inside = function, oracle, oracle.length_mask(event_shape, lengths)

    def __call__(self, structure: Tensor) -> Tensor:
        if getattr(self.function, "takes_indices", False):
            padded = self.oracle._padded_event(self.oracle._event(self.inside))  # indices come from there
            return self.function(self.oracle._cut_indices(structure, self.inside, padded))
        as_it_is = not structure.requires_grad and getattr(self.function, "ignores_padding", False)
        return self.function(structure if as_it_is else self.oracle._cut(structure, self.inside, structure.dtype))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.function, name)
