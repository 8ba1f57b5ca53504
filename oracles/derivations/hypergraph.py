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
        """A level of edges [h, e], and its nodes [h]."""
        taken = torch.full((len(first), 1), self.parts) if parts is None else parts
        self.levels.append(Level(self.nodes, first, second, taken))
        self.nodes += len(first)
        return torch.arange(self.nodes - len(first), self.nodes)

    def finish(self, root: Tensor | int) -> Derivations:
        """The derivations whose whole structures are at one node."""
        return Derivations(tuple(self.levels), self.nodes, int(root), self.parts)
