"""Binary trees over the spans of a sentence."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .derivations import DEAD, UNIT, Builder, Derivations, DerivedOracle


@dataclass(frozen=True)
class Constituency(DerivedOracle):
    """Binary trees over n leaves: event ``[n, n]``, ``scores[..., i, j]`` scores the span of tokens i to j, both inclusive.

    A tree holds 2n − 1 spans: the n of width 1 and the whole sentence, which are in every tree and whose scores count, and n − 2 others.
    Indices ``[2n − 1]`` are the spans ``i n + j``, in ascending order.

    Entries below the diagonal are ignored. Ties go to the lowest split: of two ways to cut a span, the one with the shorter left part.

    CKY (inside, outside and max-plus) and top-down sampling, O(n³); the projection is the active set over CKY calls. Structures are
    enumerated by the split of the widest span, then by its left part, then by its right part.

    References:
        Kasami 1965; Baker 1979, "Trainable grammars for speech recognition" (inside–outside); Huang & Chiang 2005, "Better k-best
        parsing", section 3.

    Example:
        >>> oracle, scores = Constituency(), torch.zeros(4, 4)
        >>> scores[1, 2] = scores[1, 3] = 1.0
        >>> oracle.argmax(scores)
        tensor([[1., 0., 0., 1.],
                [0., 1., 1., 1.],
                [0., 0., 1., 0.],
                [0., 0., 0., 1.]])
        >>> oracle.count((4, 4))
        5
    """

    name: ClassVar[str] = "constituency"
    axes: ClassVar[tuple[str, ...]] = ("length", "length")
    references: ClassVar[tuple[str, ...]] = ("kasami1965efficient", "baker1979trainable", "huang2005better")

    def count(self, event_shape: tuple[int, ...]) -> int:
        leaves = event_shape[0]
        return math.comb(2 * leaves - 2, leaves - 1) // leaves

    def read_mask(self, event_shape: tuple[int, ...], device: torch.device | None = None) -> Tensor:
        return torch.ones(event_shape, dtype=torch.bool, device=device).triu()

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        """A node per span, an edge per cut."""
        size = event_shape[0]
        parts = torch.arange(size * size).reshape(event_shape)
        builder = Builder(parts.numel())
        nodes = torch.full(event_shape, DEAD)
        start = torch.arange(size)
        nodes[start, start] = builder.add(torch.full((size, 1), UNIT), parts.diagonal().unsqueeze(1))
        for width in range(1, size):
            i = torch.arange(size - width)
            cuts = i.unsqueeze(1) + torch.arange(width)
            j = (i + width).unsqueeze(1)
            nodes[i, i + width] = builder.add(nodes[i.unsqueeze(1), cuts], parts[i, i + width].unsqueeze(1), nodes[cuts + 1, j])
        return builder.finish(nodes[0, -1])

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        if len(event_shape) != 2 or event_shape[0] != event_shape[1]:
            raise ValueError(f"`{call}` got event shape {event_shape}; expected (n, n), the first and last token of each span")

    def _inside(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        within = torch.arange(event_shape[0], device=lengths.device) < lengths.unsqueeze(-1)
        return within.unsqueeze(-1) & within.unsqueeze(-2)

    def _completion(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """The tree of the item is the left part of every wider span: its right part is one token of the padding."""
        start = torch.arange(event_shape[0], device=lengths.device).unsqueeze(-1)
        return (start == 0) | (start == start.mT)

    def _most_parts(self, event_shape: tuple[int, ...]) -> int:
        return 2 * event_shape[0] - 1

    def _noise_size(self, event_shape: tuple[int, ...]) -> int:
        """One uniform for each span that is cut; a single token takes none."""
        return event_shape[0] - 1
