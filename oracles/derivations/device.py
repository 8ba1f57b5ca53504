"""Which derivations the executor on a GPU serves, and where it finds them there: flat arrays of int32, packed once for a device.

Nothing of Triton is loaded before an operation is asked for on a device that it serves.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .. import kernels
from ..kernels.notices import say
from ..kernels.switch import SERVING
from .packing import ENTRIES, PLACES, STEPS, WAITING, Array, Packed, pack

if TYPE_CHECKING:
    from .oracle import DerivedOracle

OPERATIONS = ("argmax", "log_partition", "marginals", "covariance_product", "sample")
"""Those that the executor has, by their functions in `gpu`."""

MOST = 2**27
"""Nodes and edges together: numbers of one row then take two or three GiB, and places fit into int32."""

TILE = 1024
"""The most edges that a program looks at side by side."""

EXTENTS = (1, 4, 16, 64)
"""Of a tile, along the edges of one node: few, so that few programs are compiled for many structures."""


@dataclass(frozen=True, eq=False)
class Graph:
    """Derivations on a device, as `gpu` reads them. Node 0 is the empty item, and the last one the root.

    Attributes:
        levels: [l, 4], the first node, the first of the next level, the flags of `packing`, and the most edges below a node.
        begins: [nodes + 1], the first edge of each node.
        first, second: [edges], the nodes that it leads to; 0 where there is none.
        parts: [edges], the entry of the event that it takes, or -1. ``node_parts``: [nodes], what all edges of a node take, where they do.
        above_begins, above: [nodes + 1] and the edges that lead to each node.
        taking_begins, taking: [entries + 1] and the edges that take each entry, or the number of edges plus a node for all edges of that.
        drawing: [nodes], whether a sample takes a uniform there.
        entries, nodes, edges: their numbers. ``depth``: that of levels.
        steps: nodes in the longest derivation. ``waiting``: how many of them wait at most.
        edge_tile, above_tile, part_tile: nodes (or parts) side by side, and edges of each.
        widest: the most edges below a node.
    """

    levels: Tensor
    begins: Tensor
    first: Tensor
    second: Tensor
    parts: Tensor
    node_parts: Tensor
    above_begins: Tensor
    above: Tensor
    taking_begins: Tensor
    taking: Tensor
    drawing: Tensor
    entries: int
    nodes: int
    edges: int
    depth: int
    steps: int
    waiting: int
    edge_tile: tuple[int, int]
    above_tile: tuple[int, int]
    part_tile: tuple[int, int]
    widest: int


def kernel(oracle: DerivedOracle, operation: str, rows: Tensor) -> kernels.AnyKernel | None:
    """The kernel of an operation for rows [b, *event] on a GPU, or None where plain torch is to run."""
    served = operation in OPERATIONS and rows.dtype in kernels.FLOATING
    if not served or not SERVING.get() or not kernels.gpu.takes(rows):
        return None
    event = tuple(rows.shape[1:])
    # A walk of the kernels takes a part, and does not count it; sums do.
    if operation in ("argmax", "sample") and oracle._tables(event).binary is not None:
        return None
    graph = graph_of(oracle, event, rows.device)
    if graph is None:
        return None
    function = getattr(importlib.import_module(".gpu", __package__), operation)
    name = f"derivations.{oracle.name}.{operation} {str(rows.dtype).removeprefix('torch.')}"
    return kernels.gpu.serving(name, (graph.edge_tile, graph.above_tile, graph.part_tile), function, (graph,), rows.get_device())


@lru_cache(maxsize=64)
def graph_of(oracle: DerivedOracle, event: tuple[int, ...], device: torch.device) -> Graph | None:
    """The derivations of an event on a device; None, with a warning, where they are too large."""
    derivations = oracle._tables(event).derivations
    size = derivations.nodes + sum(level.first.numel() for level in derivations.levels)
    if size > MOST:
        cause = f"derivations of {oracle.name} {event}"
        say(f"the {cause} have {size} nodes and edges, and go on in plain torch, more slowly; kernels serve up to {MOST}", cause)
        return None
    packed = pack(derivations)
    # Made in inference mode, they could take part in nothing later.
    with torch.inference_mode(False):
        return None if packed is None or not len(packed.first) else packed_on(packed, device)


def packed_on(packed: Packed, device: torch.device) -> Graph:
    """Move derivations to a device, with the lists by which sums over edges are gathered there, always in the same order."""
    first, second, taken, of_nodes = packed.first, packed.second, packed.edge_parts, packed.node_parts
    entries, (nodes, edges) = int(packed.sizes[ENTRIES]), (len(packed.node_parts), len(first))
    entry = np.append(packed.used, np.full(packed.sizes[PLACES] - len(packed.used), -1))
    widths, number = np.diff(packed.begins), np.arange(edges)
    each = np.repeat(entry[of_nodes] < 0, widths)
    takers = np.concatenate([number[each], edges + np.arange(nodes)])
    taking_begins, taking = _grouped(np.concatenate([entry[taken[each]], entry[of_nodes]]), takers, entries)
    # The second node of an edge that leads to one alone is the empty item, of which nothing is asked.
    above_begins, above = _grouped(
        np.concatenate([np.where(first > 0, first, -1), np.where(second > 0, second, -1)]), np.tile(number, 2), nodes
    )
    starts, stops, flags = packed.levels.T
    widest = np.maximum.reduceat(widths, starts)
    tile = _tile(widths[1:], stops - starts)
    size, share = tile[0] * tile[1], _extent(np.diff(taking_begins))

    def placed(table: Array) -> Tensor:
        return torch.from_numpy(table.astype(np.int32)).to(device)

    return Graph(
        levels=placed(np.column_stack([starts, stops, flags, widest])),
        begins=placed(packed.begins),
        first=placed(first),
        second=placed(second),
        parts=placed(entry[taken]),
        node_parts=placed(entry[of_nodes]),
        above_begins=placed(above_begins),
        above=placed(above),
        taking_begins=placed(taking_begins),
        taking=placed(taking),
        # An item that is made of nothing in one way takes no uniform.
        drawing=placed((widths > 1) | (np.append(first + second, 0)[packed.begins[:-1]] > 0)),
        entries=entries,
        nodes=nodes,
        edges=edges,
        depth=len(starts),
        steps=int(packed.sizes[STEPS]),
        waiting=int(packed.sizes[WAITING]),
        edge_tile=tile,
        above_tile=(tile[0], min(_extent(np.diff(above_begins)), size // tile[0])),
        part_tile=(max(size // share, 1), share),
        widest=int(widest.max()),
    )


def _grouped(keys: Array, values: Array, groups: int) -> tuple[Array, Array]:
    """Where each group of values begins, and the values in the order of their keys; those below 0 have no group."""
    order = np.argsort(keys, kind="stable")
    begins = np.searchsorted(keys[order], np.arange(groups + 1))
    # A list is never empty, so that it has an address.
    return begins - begins[0], np.append(values[order][begins[0] :], 0)


def _tile(widths: Array, heads: Array) -> tuple[int, int]:
    """How many nodes side by side, and how many edges of each, for nodes of these widths in levels of so many."""
    width = _extent(widths)
    most = TILE // width
    wanted = min(_mean(heads), most)
    return min(most // fraction for fraction in (1, 4, 16, 64) if most // fraction >= wanted), width


def _extent(widths: Array) -> int:
    return min(EXTENTS, key=lambda extent: abs(np.log(extent / max(_mean(widths), 1))))


def _mean(sizes: Array) -> float:
    """Of the sizes that most of what they count belongs to."""
    return float((sizes.astype(float) ** 2).sum() / max(sizes.sum(), 1))
