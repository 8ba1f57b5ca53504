"""Tables of a hypergraph: its levels on a device, edges by node, sizes of derivations, exact counts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from .hypergraph import DEAD, UNIT, Derivations, Level

MOST = 2**62
"""Counts above it are cut off in tables of int64, where no structure of a valid rank meets them."""


@dataclass(frozen=True, eq=False)
class Tables:
    """A hypergraph on one device.

    Attributes:
        derivations: the hypergraph itself, on the host. ``levels``: its levels on the device.
        above: per level [h, m], the edges that lead to each node; ``taking``: [parts, m], those that take each part. Edges are numbered
            level by level; their number stands for none. So sums over them are gathered, always in the same order, unlike scattered ones.
        edges: three tables [nodes, e], first and second node and part of every edge, in order, padded with edges to `DEAD`.
        joins: boolean [nodes], whether the edges of a node lead to two nodes. ``given``: whether it is made in one way, of nothing.
        steps: how many nodes the longest derivation has. ``waiting``: how many of them, at most, wait while others are gone through.
        counts: exact integers [nodes], how many derivations each node has. ``possible``: the first edge of each that has any.
        read: boolean [parts], which parts are in some structure.
        binary: boolean [parts], which are 0/1; None where all are, and none is counted.
    """

    derivations: Derivations
    levels: tuple[Level, ...]
    above: tuple[Tensor, ...]
    taking: Tensor
    edges: tuple[Tensor, Tensor, Tensor]
    joins: Tensor
    given: Tensor
    steps: int
    waiting: int
    counts: np.ndarray
    possible: Tensor
    read: Tensor
    binary: Tensor | None = None

    @property
    def nodes(self) -> int:
        """Their number."""
        return self.derivations.nodes

    @property
    def root(self) -> int:
        """The node of whole structures."""
        return self.derivations.root

    @property
    def parts(self) -> int:
        """Number of entries of an event."""
        return self.derivations.parts

    @cached_property
    def ranking(self) -> tuple[Tensor, Tensor]:
        """int64 [nodes, e], how many derivations of a node come before those of each edge; and [nodes], how many there are."""
        first, second, _ = (table.numpy() for table in _edges(self.derivations))
        ways = self.counts[first] * self.counts[second]
        starts = np.cumsum(ways, axis=1) - ways
        with torch.inference_mode(False):
            cut = (torch.from_numpy(np.minimum(table, MOST + 1).astype(np.int64)) for table in (starts, self.counts))
            return tuple(table.to(self.joins.device) for table in cut)  # type: ignore[return-value]


def tables_of(derivations: Derivations, device: torch.device, binary: Tensor | None = None) -> Tables:
    """The tables of a hypergraph, of whose parts [parts] those that are 0/1 may be said."""
    counts, sizes, waiting = _measured(derivations)
    first, second, parts = _edges(derivations)
    joins = torch.zeros(derivations.nodes, dtype=torch.bool)
    for level in derivations.levels:
        joins[level.heads] = level.second is not None
    possible = torch.from_numpy((counts > 0).astype(bool))
    ways = possible[first] & possible[second]
    given = (ways.sum(1) == 1) & (ways & (first == UNIT) & (second == UNIT)).any(1)
    return Tables(
        derivations,
        tuple(_moved(level, device) for level in derivations.levels),
        *_sums(derivations, device),
        (first.to(device), second.to(device), parts.to(device)),
        joins.to(device),
        given.to(device),
        max(int(sizes[derivations.root]), 1),
        max(int(waiting[derivations.root]), 1),
        counts,
        ways.int().argmax(1).to(device),
        _read(derivations, counts).to(device),
        None if binary is None or bool(binary.all()) else binary.to(device),
    )


def _sums(derivations: Derivations, device: torch.device) -> tuple[tuple[Tensor, ...], Tensor]:
    """`Tables.above` and `Tables.taking`."""
    levels, none = derivations.levels, np.zeros(0, np.int64)
    first = np.concatenate([none, *(level.first.flatten().numpy() for level in levels)])
    second = [np.zeros(level.first.numel(), np.int64) if level.second is None else level.second.flatten().numpy() for level in levels]
    parts = np.concatenate([none, *(level.parts.expand_as(level.first).flatten().numpy() for level in levels)])
    number = np.arange(len(first))
    nodes = np.concatenate([first, *second])
    above = _grouped(nodes, np.concatenate([number, number]), derivations.nodes, len(first))
    taking = _padded(_grouped(parts, number, derivations.parts + 1, len(first)), 0, derivations.parts, device)
    return tuple(_padded(above, level.start, level.start + len(level.first), device) for level in levels), taking


def _grouped(keys: np.ndarray, values: np.ndarray, groups: int, missing: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Values in the order of their keys, with what stands for none at the end, and where each group of them begins."""
    order = np.argsort(keys, kind="stable")
    return np.append(values[order], missing), np.searchsorted(keys[order], np.arange(groups + 1)), missing


def _padded(grouped: tuple[np.ndarray, np.ndarray, int], start: int, stop: int, device: torch.device) -> Tensor:
    """Some groups as rows of one table."""
    values, begins, missing = grouped
    first, sizes = begins[start:stop, None], np.diff(begins[start : stop + 1])[:, None]
    place = np.arange(max(int(sizes.max()), 1))
    table = np.where(place < sizes, values[np.minimum(first + place, len(values) - 1)], missing)
    return torch.from_numpy(table).to(device)


def _edges(derivations: Derivations) -> tuple[Tensor, Tensor, Tensor]:
    widest = max((level.first.shape[1] for level in derivations.levels), default=1)
    first = torch.full((derivations.nodes, widest), DEAD)
    second, parts = torch.full_like(first, UNIT), torch.full_like(first, derivations.parts)
    first[UNIT, 0] = UNIT
    for level in derivations.levels:
        width = level.first.shape[1]
        first[level.heads, :width], parts[level.heads, :width] = level.first, level.parts
        if level.second is not None:
            second[level.heads, :width] = level.second
    return first, second, parts


def _moved(level: Level, device: torch.device) -> Level:
    # Of their own memory, and not views into what the author made them of.
    first, parts = level.first.to(device).contiguous(), level.parts.to(device).contiguous()
    return Level(level.start, first, None if level.second is None else level.second.to(device).contiguous(), parts)


def _measured(derivations: Derivations) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By node: exact numbers of derivations, nodes in the longest, and how many of these must be kept at a time."""
    counts = np.array([1, 0] + [0] * (derivations.nodes - 2), dtype=object)
    sizes, waiting = (np.zeros(derivations.nodes, dtype=np.int64) for _ in range(2))
    for level in derivations.levels:
        first = level.first.numpy()
        second = np.full_like(first, UNIT) if level.second is None else level.second.numpy()
        ways = counts[first] * counts[second]
        counts[level.heads] = ways.sum(1)
        possible = ways > 0
        sizes[level.heads] = 1 + np.where(possible, sizes[first] + sizes[second], 0).max(1)
        below = np.maximum(waiting[first] + (second > DEAD), waiting[second])
        waiting[level.heads] = np.maximum(np.where(possible, below, 0).max(1), 1)
    return counts, sizes, waiting


def _read(derivations: Derivations, counts: np.ndarray) -> Tensor:
    """Boolean [parts]: those on an edge that a whole structure goes through."""
    possible = torch.from_numpy((counts > 0).astype(bool))
    reached, read = torch.zeros(derivations.nodes, dtype=torch.bool), torch.zeros(derivations.parts + 1, dtype=torch.bool)
    reached[derivations.root] = True
    for level in reversed(derivations.levels):
        used = possible[level.first] & reached[level.heads].unsqueeze(1)
        if level.second is not None:
            used = used & possible[level.second]
            reached[level.second[used]] = True
        reached[level.first[used]] = True
        read[level.parts.expand_as(used)[used]] = True
    return read[:-1]
