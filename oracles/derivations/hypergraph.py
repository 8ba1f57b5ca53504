"""Hypergraphs of derivations: every structure is built in exactly one way, bottom up, from smaller items.

A node is an item; an edge below it is one rule that makes it, out of one or two other nodes and perhaps one part. Nodes come in levels, so
that a level needs only earlier ones.

Source: Klein & Manning 2001, "Parsing and hypergraphs"; Goodman 1999, "Semiring parsing", section 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

UNIT, DEAD = 0, 1
"""The nodes that hold the empty item, and none at all: an edge to the latter does not exist."""


@dataclass(frozen=True, eq=False)
class Level:
    """Nodes ``start .. start + h``, each with e edges.

    Attributes:
        start: the first node.
        first: [h, e], the node that an edge leads to. ``second``: another one, or None for all edges.
        parts: the part that an edge takes, [h, e]; or [h, 1], for all edges of a node. The number of parts stands for none.
    """

    start: int
    first: Tensor
    second: Tensor | None
    parts: Tensor

    @property
    def heads(self) -> slice:
        """The nodes of this level."""
        return slice(self.start, self.start + len(self.first))


@dataclass(frozen=True, eq=False)
class Derivations:
    """All derivations of an oracle at one event shape.

    Attributes:
        levels: bottom up. ``nodes``: their number, with `UNIT` and `DEAD`. ``root``: the node of whole structures.
        parts: number of entries of an event.
    """

    levels: tuple[Level, ...]
    nodes: int
    root: int
    parts: int


class Builder:
    """Collects levels and numbers their nodes."""

    def __init__(self, parts: int) -> None:
        self.parts, self.levels, self.nodes = parts, list[Level](), 2

    def add(self, first: Tensor, parts: Tensor | None = None, second: Tensor | None = None) -> Tensor:
        """A level of edges [h, e], and its nodes [h].

        Raises:
            ValueError: shapes that do not fit, a node of this level or beyond, or a part that there is not.
        """
        taken = torch.full((len(first), 1), self.parts) if parts is None else parts
        self._check(first, taken, second)
        self.levels.append(Level(self.nodes, first, second, taken))
        self.nodes += len(first)
        return torch.arange(self.nodes - len(first), self.nodes)

    def _check(self, first: Tensor, parts: Tensor, second: Tensor | None) -> None:
        edges, each = tuple(first.shape), (len(first), 1)
        if len(edges) != 2 or 0 in edges:
            raise ValueError(f"`Builder.add` got edges of shape {edges}; expected [h, e], the edges of each node of a level")
        if tuple(parts.shape) not in (edges, each):
            raise ValueError(
                f"`Builder.add` got parts of shape {tuple(parts.shape)} for edges of shape {edges}; expected that shape, or {each}"
            )
        if second is not None and tuple(second.shape) != edges:
            raise ValueError(
                f"`Builder.add` got second nodes of shape {tuple(second.shape)} for edges of shape {edges}; expected that shape"
            )
        greatest = max(int(nodes.max()) for nodes in (first, second) if nodes is not None)
        if greatest >= self.nodes:
            raise ValueError(f"`Builder.add` got an edge to node {greatest} from a level that begins there; expected nodes below it")
        if int(parts.min()) < 0 or int(parts.max()) > self.parts:
            wrong = int(parts.min() if int(parts.min()) < 0 else parts.max())
            raise ValueError(f"`Builder.add` got part {wrong}; expected 0 to {self.parts - 1}, or {self.parts} for none")

    def finish(self, root: Tensor | int) -> Derivations:
        """The derivations whose whole structures are at one node."""
        return Derivations(tuple(self.levels), self.nodes, int(root), self.parts)
