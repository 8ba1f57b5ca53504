"""Tag sequences of a second-order chain."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..derivations import UNIT, Builder, Derivations, DerivedOracle, Examples


@dataclass(frozen=True)
class SecondOrderChain(DerivedOracle):
    """Tag sequences: event ``[n, t, t, t]``, ``scores[..., i, a, b, c]`` scores tag c at i after tag b at i − 1 and tag a at i − 2.

    At i = 0 only a = b = 0 is read, at i = 1 only a = 0; the other entries are ignored. O(n t³).

    References:
        Thede & Harper 1999, "A second-order hidden Markov model for part-of-speech tagging", section 2.

    Example:
        >>> oracle, scores = SecondOrderChain(), torch.zeros(4, 2, 2, 2)
        >>> scores[2:, 0, 1, 1] = scores[2:, 1, 1, 0] = 1.0
        >>> SecondOrderChain.tags(oracle.argmax(scores))
        tensor([0, 1, 1, 0])
        >>> oracle.count((4, 2, 2, 2))
        16
    """

    name: ClassVar[str] = "second_order_chain"
    axes: ClassVar[tuple[str, ...]] = ("length", "tags", "tags", "tags")
    references: ClassVar[tuple[str, ...]] = ("thede1999second",)
    examples: ClassVar[Examples] = Examples(small=((4, 3), (5, 3), (6, 3)), usual=(32, 8), like="linear_chain", counted="positions")

    @classmethod
    def tags(cls, structure: Tensor) -> Tensor:
        """Tag indices ``[*batch, n]`` of structures ``[*batch, n, t, t, t]``."""
        return structure.sum((-3, -2)).argmax(-1)

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        """A node per token and pair of tags: what comes before the last two."""
        length, tags = event_shape[:2]
        parts = torch.arange(length * tags**3).reshape(event_shape)
        builder = Builder(parts.numel())
        # [last but one, last]; before the first token stands tag 0 alone.
        nodes = builder.add(torch.full((tags, 1), UNIT), parts[0, 0, 0].unsqueeze(1)).unsqueeze(0)
        for i in range(1, length):
            earlier = len(nodes)
            first = nodes.mT.unsqueeze(1).expand(tags, tags, earlier)
            taken = parts[i, :earlier].permute(1, 2, 0)
            nodes = builder.add(first.reshape(-1, earlier), taken.reshape(-1, earlier)).reshape(tags, tags)
        return builder.finish(builder.add(builder.add(nodes.mT).unsqueeze(0)))

    def _completion(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """On with tag 0 to the end."""
        token = torch.arange(event_shape[0], device=lengths.device).reshape(-1, 1, 1, 1)
        tag, length = torch.arange(event_shape[1], device=lengths.device), lengths.reshape(*lengths.shape, 1, 1, 1, 1)
        earlier = (tag.reshape(-1, 1, 1) == 0) | (token <= length + 1)
        return earlier & ((tag.reshape(-1, 1) == 0) | (token == length)) & (tag == 0)
