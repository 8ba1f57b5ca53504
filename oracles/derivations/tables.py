"""Tables of derivations on a device, level by level, for batched torch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .hypergraph import UNIT
from .packing import EACH, ENTRIES, JOINS, Array, Packed, ranking


class LevelTables(NamedTuple):
    """A level of h nodes with up to e edges each.

    Attributes:
        heads: its nodes. ``edges``: its edges, h e of them.
        first: [h, e], the node that an edge leads to. ``second``: another one, or None for all edges.
        parts: the part that an edge takes, [h, e]; or [h, 1], for all edges of a node.
        above: [h, m], the edges that lead to each node.
    """

    heads: slice
    edges: slice
    first: Tensor
    second: Tensor | None
    parts: Tensor
    above: Tensor


@dataclass(frozen=True, eq=False)
class Tables:
    """Derivations on one device.

    Nodes have the numbers of `Packed`, and one more node holds no item. Edges are numbered level by level, with as many for each node of a
    level as one of them has: those that are not there lead to no item. One more edge stands for none, and the number of parts for no part.
    Sums by node and by part are gathered, always in the same order, unlike scattered ones.

    Attributes:
        first: [edges], the node that an edge leads to. ``second``: the other one, or the empty item. ``part``: what it takes.
        begins: [nodes + 1], the first edge of each node. ``widths``: how many there are.
        taking: [parts, m], the edges that take each part.
        given: boolean [nodes + 1], whether a node is made in one way, of nothing.
        read: boolean [parts], which parts are in some structure.
        binary: boolean [parts], which are 0/1; None where all are, and none is counted.
    """

    packed: Packed
    levels: tuple[LevelTables, ...]
    first: Tensor
    second: Tensor
    part: Tensor
    begins: Tensor
    widths: Tensor
    taking: Tensor
    given: Tensor
    read: Tensor
    binary: Tensor | None
    order: Array  # [edges], their numbers in `packed`

    @property
    def root(self) -> int:
        """The node of whole structures, which is the last one that holds an item."""
        return len(self.packed.node_parts) - 1

    @property
    def parts(self) -> int:
        """Number of entries of an event."""
        return int(self.packed.sizes[ENTRIES])

    @cached_property
    def ranking(self) -> tuple[Tensor, Tensor]:
        """int64 [edges], how many derivations of its node come before those of each; and [nodes], how many there are."""
        found = ranking(self.packed)
        with torch.inference_mode(False):
            starts, counts = (torch.from_numpy(table) for table in (np.append(found.starts, 0)[self.order], found.counts))
            return starts.to(self.first.device), counts.to(self.first.device)


def tables_of(packed: Packed, device: torch.device, binary: Tensor) -> Tables:
    """The tables of packed derivations, of whose parts [parts] it is said which are 0/1."""

    def moved(table: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(table)).to(device)

    dead, none = len(packed.node_parts), int(packed.sizes[ENTRIES])
    rows = [_rows(np.arange(len(packed.first) + 1), packed.begins[start : stop + 1]) for start, stop, _ in packed.levels]
    ends = np.cumsum([0, *(row.size for row in rows)])
    order = np.concatenate([*(row.ravel() for row in rows), [len(packed.first)]])
    first, second = (np.append(nodes, end)[order].astype(np.int64) for nodes, end in ((packed.first, dead), (packed.second, UNIT)))
    part = np.append(np.where(packed.edge_entries < 0, none, packed.edge_entries), none)[order].astype(np.int64)
    # The last edge stands for none.
    number = np.arange(ends[-1])
    above = _by_key(np.concatenate([first[:-1], second[:-1]]), np.concatenate([number, number]), ends[-1])
    begins, widths, levels = np.full(dead + 1, ends[-1]), np.zeros(dead + 1, np.int64), []
    for (start, stop, flags), row, begin, end in zip(packed.levels, rows, ends[:-1], ends[1:], strict=True):
        begins[start:stop], widths[start:stop] = np.arange(begin, end, row.shape[1]), row.shape[1]
        one, other, taken = (table[begin:end].reshape(row.shape) for table in (first, second, part))
        levels.append(
            LevelTables(
                slice(int(start), int(stop)),
                slice(int(begin), int(end)),
                moved(one),
                moved(other) if flags & JOINS else None,
                moved(taken if flags & EACH else taken[:, :1]),
                moved(above(start, stop)),
            )
        )
    # Ends of walks take no uniform, and need none.
    given = (np.diff(packed.begins, append=packed.begins[-1]) == 1) & (first[begins] + second[begins] == UNIT)
    first[-1] = UNIT  # a walk at its end stays there
    return Tables(
        packed,
        tuple(levels),
        first=moved(first),
        second=moved(second),
        part=moved(part),
        begins=moved(begins),
        widths=moved(widths),
        taking=moved(_by_key(part[:-1], number, ends[-1])(0, none)),
        given=moved(given),
        read=moved(np.isin(np.arange(none), packed.used)),
        binary=None if bool(binary.all()) else binary.to(device),
        order=order,
    )


def _rows(values: Array, begins: Array) -> Array:
    """Groups of values, each from where it begins, as rows of one table; the last value stands for none."""
    sizes = np.diff(begins)[:, None]
    place = np.arange(max(int(sizes.max()), 1))
    found: Array = values[np.where(place < sizes, begins[:-1, None] + place, len(values) - 1)]
    return found


def _by_key(keys: Array, values: Array, none: int) -> Callable[[int, int], Array]:
    """Tables of the values of all keys from one to another."""
    order = np.argsort(keys, kind="stable")
    ordered, values = keys[order], np.append(values[order], none)
    return lambda start, stop: _rows(values, np.searchsorted(ordered, np.arange(start, stop + 1)))
