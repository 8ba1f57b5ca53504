"""Dependency trees, crossing or not: their events, their heads and their padding."""

import abc
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .capabilities import Oracle
from .capabilities.derivatives import unsqueeze_event
from .capabilities.indices import NONE, chosen, placed
from .tensor_kinds import inside_lengths, labels_below


@dataclass(frozen=True)
class WordTrees(Oracle, abc.ABC):
    """Trees over a root and n words, with or without labels on their arcs. Index 0 is the root."""

    single_root: bool = True

    _indices_are_parts: ClassVar[bool] = False
    rooted: ClassVar[bool] = True

    def index_shape(self, event_shape: tuple[int, ...]) -> tuple[int, ...]:
        return (event_shape[0] - 1,)

    def length_limits(self, event_shape: tuple[int, ...]) -> tuple[int, ...]:
        return (event_shape[0] - 1,)

    def _inside(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """The arcs between the root and the words of an item."""
        used = torch.arange(event_shape[0], device=lengths.device) <= lengths.unsqueeze(-1)
        return unsqueeze_event(used.unsqueeze(-1) & used.unsqueeze(-2), len(event_shape) - 2)

    def _completion(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """Every word of the padding hangs on the word before it."""
        position = torch.arange(event_shape[0], device=lengths.device)
        arcs = (position == position.unsqueeze(-1) + 1) & (position > lengths.unsqueeze(-1)).unsqueeze(-2)
        return unsqueeze_event(arcs, len(event_shape) - 2)


@dataclass(frozen=True)
class DependencyTree(WordTrees):
    """Trees without labels, crossing or not. Indices ``[n]`` are the heads of the words."""

    layout: ClassVar[str] = "Dependency-tree scores have an extra row and column for the root: [*batch, n + 1, n + 1]"

    @classmethod
    def event_shape(cls, **sizes: int) -> tuple[int, ...]:
        (length,) = cls._sizes(sizes, "length")
        return (length + 1, length + 1)

    @classmethod
    def structure(cls, heads: Tensor, dtype: torch.dtype | None = None, lengths: Tensor | None = None) -> Tensor:
        """Heads ``[*batch, n]`` of the words 1..n to structures ``[*batch, n + 1, n + 1]``; the inverse of `heads`.

        Words beyond ``lengths`` have no arc, whatever padding the heads have there, such as -100.
        """
        inside = inside_lengths("structure", lengths, heads.shape[-1])
        arcs = torch.nn.functional.one_hot(labels_below("structure", "heads", heads, heads.shape[-1] + 1, inside), heads.shape[-1] + 1)
        arcs = (arcs if inside is None else arcs * inside.unsqueeze(-1)).mT
        return torch.nn.functional.pad(arcs, (1, 0)).to(dtype or torch.get_default_dtype())

    @classmethod
    def heads(cls, structure: Tensor) -> Tensor:
        """The head of each word 1..n, 0 for the root: ``[*batch, n]`` of structures ``[*batch, n + 1, n + 1]``."""
        return structure[..., 1:].to(torch.uint8).argmax(-2)

    def read_mask(self, event_shape: tuple[int, ...], device: torch.device | None = None) -> Tensor:
        position = torch.arange(event_shape[0], device=device)
        return (position != position.unsqueeze(-1)) & (position > 0)

    def _index_limit(self, event_shape: tuple[int, ...]) -> int:
        return event_shape[0]

    def _parts(self, indices: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        size = event_shape[0]
        return torch.where(indices < 0, NONE, indices * size + torch.arange(1, size, device=indices.device))

    def _from_parts(self, parts: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        size = event_shape[0]
        return placed(parts // size, torch.where(parts < 0, size, parts % size - 1), size - 1)

    def _indices_of(self, structures: Tensor) -> Tensor:
        return chosen(structures[..., 1:], -2)

    def kernel_options(self) -> tuple[Any, ...]:
        return (self.single_root,)

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        if len(event_shape) != 2 or event_shape[0] != event_shape[1] or event_shape[0] < 2:
            raise ValueError(
                f"`{call}` got event shape {event_shape}; expected (n + 1, n + 1) for n >= 1 words, "
                "scores of arcs from head to modifier with the root at index 0"
            )
