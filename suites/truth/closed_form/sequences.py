"""Derivations of categories and of permutations, one item at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from ....oracles.derivations import UNIT, Builder, Derivations


def categorical(event: tuple[int, ...]) -> Derivations:
    """One of n parts."""
    (size,) = event
    return categories((1, size))


def categories(event: tuple[int, ...]) -> Derivations:
    """One part of each of n categories; a node per category."""
    length, tags = event
    builder = Builder(length * tags)
    node = torch.tensor([UNIT])
    for parts in torch.arange(length * tags).reshape(length, 1, tags):
        node = builder.add(node.reshape(1, 1).expand(1, tags), parts)
    return builder.finish(node)


def assignment(event: tuple[int, ...]) -> Derivations:
    """Permutations; a node per set of columns, taken by as many rows: 2ⁿ nodes."""
    size = event[0]
    builder = Builder(size * size)
    sets = torch.arange(2**size)
    holds = (sets.unsqueeze(1) >> torch.arange(size) & 1).bool()
    sizes = holds.sum(1)
    nodes = torch.full((2**size,), UNIT)
    for row in range(size):
        chosen = sizes == row + 1
        columns = holds[chosen].nonzero()[:, 1].reshape(-1, row + 1)
        before: Tensor = sets[chosen].unsqueeze(1) - (1 << columns)
        nodes[chosen] = builder.add(nodes[before], row * size + columns)
    return builder.finish(nodes[-1])
