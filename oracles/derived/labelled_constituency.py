"""Binary trees with labels on their spans."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..derivations import DEAD, UNIT, Builder, Derivations, DerivedOracle, Examples


@dataclass(frozen=True)
class LabelledConstituency(DerivedOracle):
    """Labelled binary trees over n leaves: event ``[n, n, t]``.

    ``scores[..., i, j, c]`` scores the span of tokens i to j, both inclusive, with label c. A tree holds 2n − 1 spans, those of one token
    and the whole sentence among them, and each has one label. Entries with i > j are ignored. Ties go to the lowest label, then to the
    lowest split. O(n³ + n² t).

    References:
        Stern, Andreas & Klein 2017, "A minimal span-based neural constituency parser", section 3.

    Example:
        >>> oracle, scores = LabelledConstituency(), torch.zeros(3, 3, 2)
        >>> scores[1, 2, 1] = 1.0
        >>> oracle.argmax(scores).nonzero().tolist()
        [[0, 0, 0], [0, 2, 0], [1, 1, 0], [1, 2, 1], [2, 2, 0]]
        >>> oracle.count((3, 3, 2))
        64
    """

    name: ClassVar[str] = "labelled_constituency"
    axes: ClassVar[tuple[str, ...]] = ("length", "length", "tags")
    references: ClassVar[tuple[str, ...]] = ("stern2017minimal",)
    examples: ClassVar[Examples] = Examples(small=((3, 2), (4, 2), (5, 2)), usual=(10, 8), like="constituency", counted="tokens")

    @classmethod
    def from_potentials(cls, spans: Tensor, labels: Tensor) -> Tensor:
        """Scores ``[*batch, n, n, t]`` from those of spans and of their labels; differentiable in both.

        Args:
            spans: [*batch, n, n], of a span whatever its label.
            labels: [*batch?, n, n, t], of a label given its span; or [t], of a label wherever it stands.

        Example:
            >>> scores = LabelledConstituency.from_potentials(torch.zeros(3, 3), torch.tensor([0.0, 1.0]))
            >>> LabelledConstituency().marginals(scores)[0, 2]
            tensor([0.2689, 0.7311])
        """
        if spans.ndim < 2 or spans.shape[-1] != spans.shape[-2]:
            raise ValueError(f"`from_potentials` got spans of shape {tuple(spans.shape)}; expected [*batch, n, n]")
        if labels.ndim != 1 and tuple(labels.shape[-3:-1]) != tuple(spans.shape[-2:]):
            size = spans.shape[-1]
            raise ValueError(f"`from_potentials` got labels of shape {tuple(labels.shape)}; expected (..., {size}, {size}, t) or (t,)")
        return spans.unsqueeze(-1) + labels

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        """Two nodes per span: cut anywhere, and with any label."""
        size, _, labels = event_shape
        parts = torch.arange(size * size * labels).reshape(event_shape)
        builder, spans = Builder(parts.numel()), torch.full((size, size), DEAD)
        cut = torch.full((size,), UNIT)
        for width in range(size):
            i = torch.arange(size - width)
            if width:
                last = i.unsqueeze(1) + torch.arange(width)
                cut = builder.add(spans[i.unsqueeze(1), last], None, spans[last + 1, (i + width).unsqueeze(1)])
            spans[i, i + width] = builder.add(cut.unsqueeze(1).expand(-1, labels), parts[i, i + width])
        return builder.finish(spans[0, -1])

    def _inside(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        within = torch.arange(event_shape[0], device=lengths.device) < lengths.unsqueeze(-1)
        return (within.unsqueeze(-1) & within.unsqueeze(-2)).unsqueeze(-1)

    def _completion(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """The tree of the item is the left part of every wider span, whose right part is one token; all with label 0."""
        token, label = (torch.arange(size, device=lengths.device) for size in event_shape[1:])
        start = token.reshape(-1, 1, 1)
        return ((start == 0) | (start == token.reshape(-1, 1))) & (label == 0)
