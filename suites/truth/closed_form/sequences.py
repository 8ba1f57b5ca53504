"""Derivations with one item at a time: categories, subsets, chains, alignments, permutations."""

from __future__ import annotations

import torch
from torch import Tensor

from ....oracles.derivations import DEAD, UNIT, Builder, Derivations


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


def subset(event: tuple[int, ...], k: int) -> Derivations:
    """k of n parts; node j of level i: j of the first i parts are taken."""
    (size,) = event
    builder = Builder(size)
    nodes = torch.full((k + 2,), DEAD)
    nodes[1] = UNIT  # place j + 1 holds j, so that there is one before the first
    for part in range(size):
        first = torch.stack([nodes[1:], nodes[:-1]], 1)
        added = builder.add(first, torch.tensor([[size, part]]).expand(k + 1, 2))
        nodes = torch.cat([torch.tensor([DEAD]), added])
    return builder.finish(nodes[-1])


def chain(event: tuple[int, ...]) -> Derivations:
    """Tag sequences; node c of level i: the tags up to i, the last of which is c."""
    length, tags, _ = event
    parts = torch.arange(length * tags * tags).reshape(event)
    builder = Builder(parts.numel())
    nodes = builder.add(torch.full((tags, 1), UNIT), parts[0, 0].unsqueeze(1))
    for i in range(1, length):
        nodes = builder.add(nodes.expand(tags, tags), parts[i].mT)
    return builder.finish(builder.add(nodes.unsqueeze(0)))


def alignment(event: tuple[int, ...]) -> Derivations:
    """Monotone paths; a node per cell, a level per antidiagonal."""
    rows, columns = event
    parts = torch.arange(rows * columns).reshape(event)
    builder = Builder(parts.numel())
    # One row and one column before the first; the corner is where paths begin.
    nodes = torch.full((rows + 1, columns + 1), DEAD)
    nodes[0, 0] = UNIT
    for diagonal in range(rows + columns - 1):
        i = torch.arange(max(0, diagonal - columns + 1), min(rows, diagonal + 1))
        j = diagonal - i
        first = torch.stack([nodes[i, j], nodes[i, j + 1], nodes[i + 1, j]], 1)
        nodes[i + 1, j + 1] = builder.add(first, parts[i, j].unsqueeze(1))
    return builder.finish(nodes[-1, -1])


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
