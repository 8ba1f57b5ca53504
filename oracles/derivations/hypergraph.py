"""Hypergraphs of derivations: every structure is built in exactly one way, bottom up, from smaller items.

A node is an item; an edge below it is one rule that makes it, out of one or two other nodes and perhaps one part. Nodes come in levels, so
that a level needs only earlier ones.

Source: Klein & Manning 2001, "Parsing and hypergraphs"; Goodman 1999, "Semiring parsing", section 2.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

UNIT = 0
"""The node that holds the empty item alone."""

DEAD = 1
"""The node that holds no item: an edge to it does not exist."""


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
        sizes: int64 [parts], numbers that add up to the same over the parts of every structure; None where nothing is said.
    """

    levels: tuple[Level, ...]
    nodes: int
    root: int
    parts: int
    sizes: Tensor | None = None


class Builder:
    """Collects levels and numbers their nodes, for events of so many parts (entries, in row-major order).

    Where structures differ in their number of parts, ``sizes`` may say what adds up to the same for all of them, int64 [parts], at least 0:
    for segments, how many tokens each has. Sums over large structures are then scaled part by part, and several times as fast.

    Example:
        >>> builder = Builder(2)  # exactly one of two parts
        >>> first = builder.add(torch.tensor([[UNIT, UNIT]]), torch.tensor([[0, 1]]))
        >>> builder.finish(first).nodes
        3
    """

    def __init__(self, parts: int, sizes: Tensor | None = None) -> None:
        if not isinstance(parts, int) or parts < 1:
            raise ValueError(f"`Builder` got {parts!r} parts; expected an integer >= 1, the number of entries of an event")
        if sizes is not None and (sizes.dtype != torch.int64 or tuple(sizes.shape) != (parts,) or int(sizes.min()) < 0):
            raise ValueError(
                f"`Builder` got sizes of shape {tuple(sizes.shape)} and {sizes.dtype}, from {sizes.min().item()} on; expected torch.int64, "
                f"({parts},), from 0 on"
            )
        self.parts, self.sizes, self.levels, self.nodes = parts, sizes, list[Level](), 2

    def add(self, first: Tensor, parts: Tensor | None = None, second: Tensor | None = None) -> Tensor:
        """A level of h nodes with e edges each, int64 on the CPU; its nodes [h]. Costs what it holds, h e.

        Args:
            first: [h, e], the earlier node that an edge leads to: `UNIT` for the empty item, `DEAD` where there is no edge.
            parts: [h, e], or [h, 1] for all edges of a node, the part that an edge takes; ``Builder.parts`` for none, as where not given.
            second: [h, e], another earlier node that an edge leads to.

        Raises:
            ValueError: shapes or dtypes that do not fit, a node of this level or beyond, or a part that there is not.

        Example:
            >>> builder = Builder(2)
            >>> builder.add(torch.tensor([[UNIT], [UNIT]]), torch.tensor([[0], [1]]))
            tensor([2, 3])
        """
        for what, table in {"first nodes": first, "parts": parts, "second nodes": second}.items():
            if table is None and what != "first nodes":
                continue
            if not isinstance(table, Tensor) or table.dtype != torch.int64 or table.device.type != "cpu":
                got = f"a tensor of {table.dtype} on {table.device}" if isinstance(table, Tensor) else type(table).__name__
                raise ValueError(f"`Builder.add` got {what}: {got}; expected a torch.int64 tensor on the CPU")
        taken = torch.full((len(first) if first.ndim else 1, 1), self.parts) if parts is None else parts
        self._check(first, taken, second)
        self.levels.append(Level(self.nodes, first, second, taken))
        self.nodes += len(first)
        return torch.arange(self.nodes - len(first), self.nodes)

    def _check(self, first: Tensor, parts: Tensor, second: Tensor | None) -> None:
        edges, each = tuple(first.shape), (first.shape[0] if first.ndim else 1, 1)
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
        least = min(int(nodes.min()) for nodes in (first, second) if nodes is not None)
        if least < 0:
            raise ValueError(f"`Builder.add` got an edge to node {least}; expected nodes from 0, which is UNIT")
        if greatest >= self.nodes:
            raise ValueError(f"`Builder.add` got an edge to node {greatest} from a level that begins there; expected nodes below it")
        if int(parts.min()) < 0 or int(parts.max()) > self.parts:
            wrong = int(parts.min() if int(parts.min()) < 0 else parts.max())
            raise ValueError(f"`Builder.add` got part {wrong}; expected 0 to {self.parts - 1}, or {self.parts} for none")

    def finish(self, root: Tensor | int) -> Derivations:
        """The derivations whose whole structures are at one node, given as a number or as the tensor of one that `add` returned.

        Raises:
            ValueError: several nodes, or one that was never added.
        """
        if isinstance(root, Tensor) and root.numel() != 1:
            raise ValueError(f"`Builder.finish` got {root.numel()} nodes; expected one: add a node with an edge to each of them")
        if not 2 <= int(root) < self.nodes:
            raise ValueError(f"`Builder.finish` got node {int(root)}; expected one that `add` returned, 2 to {self.nodes - 1}")
        return Derivations(tuple(self.levels), self.nodes, int(root), self.parts, self.sizes)


def walked(derivations: Derivations, most: int = 10_000) -> list[tuple[int, ...]]:
    """The parts of every derivation, in plain Python, for checks: a part comes as often as it is taken, a structure as often as derived.

    Raises:
        ValueError: a node with more than ``most`` derivations.
    """
    below: list[list[tuple[int, ...]]] = [[()], []]
    for level in derivations.levels:
        parts = level.parts.expand_as(level.first).tolist()
        second = [[UNIT] * level.first.shape[1]] * len(parts) if level.second is None else level.second.tolist()
        for firsts, seconds, takens in zip(level.first.tolist(), second, parts, strict=True):
            ways = [
                left + right + ((taken,) if taken < derivations.parts else ())
                for one, other, taken in zip(firsts, seconds, takens, strict=True)
                for left in below[one]
                for right in below[other]
            ]
            if len(ways) > most:
                raise ValueError(f"got a node with {len(ways)} derivations; expected at most {most}: take a smaller event")
            below.append(ways)
    return below[derivations.root]
