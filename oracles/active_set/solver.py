"""SparseMAP from argmax calls: the two loops over the compiled steps of the active set, and what they find.

`solve_compiled` runs a structure's ``project``, in which the steps and the argmax are compiled together. `solve` calls any argmax from
outside, for all items of a batch that are not done at once: of oracles without such a kernel.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import kernels
from ..numerics import grown
from .atoms import AtomLists
from .solution import Projection, Start, StartLists

MAP_CALLS = 32
"""How many MAP calls one projection is worth where only its order of magnitude counts."""

EVERY_PART = np.zeros(0, np.bool_)
"""Which parts count: all of them."""


def solve(
    argmax: Callable[[Tensor, Tensor], Tensor],
    rows: Tensor,
    *,
    empty: Callable[[], bool] = lambda: False,
    start: Start | None = None,
) -> Projection:
    """Project rows [b, *event] on the convex hull of the structures that ``argmax`` can return.

    Args:
        argmax: MAP of float64 directions [i, *event] for the rows of these indices [i]; forbidden parts are given as -inf.
        rows: float64 scores on the CPU, -inf where a part is forbidden.
        empty: whether having no part is a structure, asked once such an argmax is met; else it says that the row has none.
        start: atoms to begin with, of rows that differ little.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> rows = torch.tensor([[1.0, 0.8, -1.0]], dtype=torch.float64)
        >>> solve(lambda directions, items: Categorical().argmax(directions), rows).mean
        tensor([[0.6000, 0.4000, 0.0000]], dtype=torch.float64)
    """
    cpu = kernels.module_of("active_set")
    event, (begin, known), (mean, gap, support) = rows.shape[1:], _beginning(rows, start), _results(rows)
    flat, starts = rows.flatten(1).contiguous().numpy(), begin.numpy()
    spaces = [cpu.start(cpu.workspace(len(row), 16), row, EVERY_PART, first, known) for row, first in zip(flat, starts, strict=True)]
    items, holds_empty = list(range(len(rows))), functools.cache(empty)
    while items:
        residuals = torch.from_numpy(np.stack([spaces[item].residual for item in items])).unflatten(1, event)
        chosen = argmax(residuals, torch.tensor(items)).flatten(1).round().long().numpy()
        structures, parts = chosen.nonzero()
        counts, still = chosen.sum(1), []
        listed = np.split(parts.repeat(chosen[structures, parts]), counts.cumsum()[:-1])
        for item, own in zip(items, listed, strict=True):
            space, count = spaces[item], len(own)
            atoms, slots = space.counters[cpu.ATOMS] + 1, min(space.counters[cpu.SLOTS] + count, len(space.slot))
            if atoms > len(space.weights) or slots > len(space.incidence) or count > len(space.parts):
                spaces[item] = space = cpu.with_room_for(space, atoms, slots, count)
            space.parts[:count] = own
            if cpu.advance(space, EVERY_PART, count if count or holds_empty() else -1):
                still.append(item)
        items = still
    found = cpu.nothing_found()
    for item, space in enumerate(spaces):
        found = cpu.record(space, found, mean[item].numpy(), gap.numpy(), support.numpy(), item)
    parts, sizes, weights = cpu.result(found)
    return _projection(AtomLists(parts, sizes, torch.from_numpy(weights), support, event), mean, gap, event)


def solve_compiled(kernel: kernels.Kernel, rows: Tensor, inside: Tensor | None = None, start: Start | None = None) -> Projection:
    """Project rows [b, *event] with the compiled active set of a structure; the mean is known at once, the atoms are decoded on first use.

    Args:
        kernel: ``project`` of the structure's module in `structgrad.oracles.kernels`.
        rows: float64 scores with their padding completed, so that every structure of a short item goes on there in one way.
        inside: [b, *event] bool, the parts that count; all where it is None. Its event may be smaller than that of the completed rows.
        start: atoms to begin with, of rows that differ little.

    Cost: per step one MAP, and O(m²) for the m atoms; memory for the atoms of the answers alone.
    """
    event, count, (begin, atoms), (mean, gap, support) = rows.shape[1:], len(rows), _beginning(rows, start), _results(rows)
    counted = torch.zeros(count, 0, dtype=torch.bool) if inside is None else grown(inside, event).flatten(1)
    found: dict[int, tuple[Any, ...]] = {}
    solver: Callable[..., Any] = kernel.function

    @functools.wraps(solver)
    def project(items: Any, *arrays: Any) -> None:
        found[items[0] if len(items) else 0] = solver(*arrays)

    arrays = (torch.arange(count), rows.contiguous(), counted.contiguous(), begin, mean, gap, support)
    kernels.launch(project, [*map(Tensor.numpy, arrays)], (atoms, *kernel.options), MAP_CALLS * kernel.operations)
    columns = zip(*(found[item] for item in sorted(found)), strict=True)
    # In memory of torch, like all results.
    parts, sizes, weights = (torch.cat([torch.from_numpy(piece) for piece in column]) for column in columns)
    lists = AtomLists(parts.numpy(), sizes.numpy(), weights, support, event)
    return _projection(lists, mean, gap, event if inside is None else inside.shape[1:])


def _beginning(rows: Tensor, start: Start | None) -> StartLists:
    """The atoms to begin with, none of which are there without a start."""
    if start is not None:
        return start.lists(rows.shape[1:])
    return torch.zeros(len(rows), 3, dtype=torch.int64), (np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0))


def _results(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Room for means [b, d], gaps [b] and numbers of atoms [b]."""
    gap = torch.zeros(len(rows), dtype=torch.float64)
    return torch.zeros(len(rows), rows.shape[1:].numel(), dtype=torch.float64), gap, gap.long()


def _projection(lists: AtomLists, mean: Tensor, gap: Tensor, event: torch.Size) -> Projection:
    """The solution of rows whose padding was completed, cut to the event of their items."""
    lists, mean = dataclasses.replace(lists, parts=lists.parts_in(event), event=event), mean.unflatten(1, lists.event)
    return Projection(gap=gap, decompose=lists.decompose, mean=mean[(slice(None), *map(slice, event))], lists=lists)
