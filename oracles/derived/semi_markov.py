"""Segmentations with labels."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..derivations import UNIT, Builder, Derivations, DerivedOracle, Examples


@dataclass(frozen=True)
class SemiMarkov(DerivedOracle):
    """Labelled segmentations of n tokens: event ``[n, w, t, t]``, of segments of at most w tokens.

    ``scores[..., j, l, p, c]`` scores a segment of l + 1 tokens, the last of which is j, with label c, after one with label p. The first
    has none before it: where l = j, only row p = 0 is read. Segments that begin before token 0 are ignored. Neighbouring segments may share
    their label; forbid ``scores[..., c, c]`` where they must not. O(n w t²).

    References:
        Sarawagi & Cohen 2004, "Semi-Markov conditional random fields for information extraction", section 2.

    Example:
        >>> oracle, scores = SemiMarkov(), torch.zeros(3, 2, 2, 2)
        >>> scores[1, 1, :, 1] = 2.0
        >>> SemiMarkov.segments(oracle.argmax(scores))
        [(0, 1, 1), (2, 2, 0)]
        >>> oracle.count((3, 2, 2, 2))
        16
    """

    name: ClassVar[str] = "semi_markov"
    axes: ClassVar[tuple[str, ...]] = ("length", "width", "tags", "tags")
    references: ClassVar[tuple[str, ...]] = ("sarawagi2004semi",)
    examples: ClassVar[Examples] = Examples(
        small=((5, 3, 2), (6, 3, 2), (7, 3, 2)), usual=(32, 4, 8), like="linear_chain", counted="tokens"
    )

    @classmethod
    def segments(cls, structure: Tensor) -> list[tuple[int, int, int]]:
        """First and last token and label of every segment of one structure ``[n, w, t, t]``, in order."""
        return [(last - longer, last, tag) for last, longer, _, tag in structure.nonzero().tolist()]

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        """A node per token and label: the segmentations up to there whose last segment has that label."""
        length, width, tags = event_shape[:3]
        parts = torch.arange(length * width * tags * tags).reshape(event_shape)
        builder, nodes = Builder(parts.numel()), list[Tensor]()
        for last in range(length):
            # The segments that something precedes, from the shortest on, by the label before.
            before = [nodes[last - 1 - longer] for longer in range(min(width, last))]
            first, taken = [*before], [parts[last, : len(before)].reshape(-1, tags)]
            if last < width:
                first, taken = [*first, torch.tensor([UNIT])], [*taken, parts[last, last, :1]]
            nodes.append(builder.add(torch.cat(first).expand(tags, -1), torch.cat(taken).mT))
        return builder.finish(builder.add(nodes[-1].unsqueeze(0)))

    def _completion(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """Segments of one token and label 0."""
        token = torch.arange(event_shape[0], device=lengths.device).reshape(-1, 1, 1, 1)
        longer, before, tag = (torch.arange(size, device=lengths.device) for size in event_shape[1:])
        begins = token == lengths.reshape(*lengths.shape, 1, 1, 1, 1)
        return (longer.reshape(-1, 1, 1) == 0) & (begins | (before.reshape(-1, 1) == 0)) & (tag == 0)
