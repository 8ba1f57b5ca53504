"""What trees mean: representations composed from the leaves up, along structures and along points between them."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ...oracles.transforms import transforming


class Composition(nn.Module):
    """``(l, r) -> norm(l + r + W relu(U l + V r))``: one representation from two.

    Args:
        size: of a representation. ``hidden``: units.
    """

    least: Tensor

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.size = size
        self.inner, self.outer, self.norm = nn.Linear(size, 2 * hidden), nn.Linear(hidden, size), nn.LayerNorm(size)
        self.register_buffer("least", torch.cat([torch.full((size,), -math.inf), torch.zeros(hidden)]), persistent=False)

    def sides(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """What nodes ``[..., size]`` contribute as left and as right children: ``[..., size + hidden]`` each."""
        left, right = self.inner(nodes).chunk(2, -1)
        return torch.cat([nodes, left], -1), torch.cat([nodes, right], -1)

    def pairs(self, left: Tensor, right: Tensor) -> Tensor:
        """``[..., size + hidden]`` of pairs, which may be mixed before they are `finished`."""
        return torch.maximum(left + right, self.least)

    def finished(self, pairs: Tensor) -> Tensor:
        """``[..., size]``."""
        residual, hidden = pairs[..., : self.size], pairs[..., self.size :]
        result: Tensor = self.norm(residual + self.outer(hidden))
        return result


class ChartDecoder(nn.Module):
    """Tokens and a binary tree over them to logits, by composition of every span from its parts.

    Between structures a span is composed of all its pairs of parts, each with the product of their values in z as its weight, relative to
    those of the other cuts. On a tree one cut has it all. There the gradient says what each rotation of the tree would change; at marginals
    a span is composed as its cuts would be if parts were independent.

    Args:
        tokens: how many kinds there are. ``size, hidden``: of the representations and of their composition. ``classes``: of the label.
    """

    def __init__(self, tokens: int, size: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.leaves, self.composition, self.top = nn.Embedding(tokens, size), Composition(size, hidden), nn.Linear(size, classes)

    def forward(self, tokens: Tensor, lengths: Tensor, z: Tensor) -> Tensor:
        """``[b, n], [b], [..., b, n, n] -> [..., b, classes]``: logits of the span of the first l tokens."""
        leaves, forest = self.leaves(tokens), None if z.requires_grad or transforming() else _forest(z)
        logits: Tensor = self.top(self._roots(leaves, lengths, z) if forest is None else self._shared_roots(leaves, lengths, forest))
        return logits

    def _roots(self, leaves: Tensor, lengths: Tensor, z: Tensor) -> Tensor:
        """``[..., b, size]``, by composition of every span."""
        length, compose = z.shape[-1], self.composition
        cuts = _cuts(length, z.device)
        products = (z[..., cuts.first, cuts.cut] * z[..., cuts.cut + 1, cuts.last]).clamp(min=0)
        begins = [leaves[..., 0, :].expand(*z.shape[:-2], -1)]
        lefts, rights = ([side] for side in compose.sides(leaves))
        for w, weights in enumerate(products.split([w * (length - w) for w in range(1, length)], -1), 1):
            shares = _relative(weights.unflatten(-1, (length - w, w))).unsqueeze(-1)
            # Left parts by their first token, right parts by their last.
            mixed = shares[..., 0, :] * compose.pairs(lefts[0][..., : length - w, :], rights[w - 1][..., 1:, :])
            for k in range(1, w):
                mixed = mixed + shares[..., k, :] * compose.pairs(lefts[k][..., : length - w, :], rights[w - 1 - k][..., k + 1 :, :])
            nodes = compose.finished(mixed)
            begins.append(nodes[..., 0, :])
            for sides, side in zip((lefts, rights), compose.sides(nodes), strict=True):
                sides.append(side)
        place = (lengths - 1).reshape(-1, 1, 1).expand(*z.shape[:-2], 1, begins[0].shape[-1])
        return torch.stack(begins, -2).gather(-2, place).squeeze(-2)

    def _shared_roots(self, leaves: Tensor, lengths: Tensor, forest: Forest) -> Tensor:
        """``[..., b, size]``, by composition of every distinct subtree."""
        items, length = leaves.shape[:2]
        compose, parts = self.composition, [leaves.transpose(0, 1) if forest.shared else leaves.reshape(items * length, 1, -1)]
        lefts, rights = ([side] for side in compose.sides(parts[0]))
        for left, right in forest.pairs:
            nodes = compose.finished(compose.pairs(torch.cat(lefts).index_select(0, left), torch.cat(rights).index_select(0, right)))
            parts.append(nodes)
            if len(parts) < length:
                for sides, side in zip((lefts, rights), compose.sides(nodes), strict=True):
                    sides.append(side)
        item, nodes = torch.arange(items, device=leaves.device), torch.cat(parts)
        roots = forest.begins[..., item if not forest.shared else 0, lengths - 1]
        return nodes[roots, item if forest.shared else 0]


FAINT = 1e-12
"""Of the weights of all cuts of a span together: below, all its cuts have the same."""


def _relative(weights: Tensor) -> Tensor:
    """Weights ``[..., cuts]`` of sum 1."""
    total = weights.sum(-1, keepdim=True)
    known = total > FAINT
    return torch.where(known, weights / torch.where(known, total, 1), 1 / weights.shape[-1])


class Cuts(NamedTuple):
    """All ways to cut spans of n tokens in two, by width, first token and cut: first and last tokens, and the last one before the cut."""

    first: Tensor
    cut: Tensor
    last: Tensor


@functools.lru_cache(maxsize=32)
def _cuts(length: int, device: torch.device) -> Cuts:
    places = [(i, i + k, i + w) for w in range(1, length) for i in range(length - w) for k in range(w)]
    return Cuts(*torch.tensor(places, device=device).reshape(-1, 3).unbind(-1))


class Forest(NamedTuple):
    """The distinct subtrees of trees over n tokens, each made of two that are numbered before it.

    Attributes:
        pairs: for every width from 2 on, the numbers of the left and of the right parts of its subtrees, ``[2, subtrees]``.
        begins: ``[..., b, n]``: the subtree of the tokens up to each; the whole tree where there is none.
        shared: the trees are the same in all items, ``b`` is 1, and the subtrees 0 to n − 1 are the leaves; else these are the n leaves of
            the first item, and those of the others follow.
    """

    pairs: tuple[Tensor, ...]
    begins: Tensor
    shared: bool


def _forest(z: Tensor) -> Forest | None:
    """The forest of trees ``[..., b, n, n]``; None where some are no trees."""
    shared = z.ndim > 3 and z.stride(-3) == 0
    trees = (z[..., :1, :, :] if shared else z).cpu().numpy()
    hard = trees != 0
    if not (trees == hard).all():
        return None
    return _enumerated(hard.tobytes(), hard.shape, z.device) if shared else _planted(hard, z.device, shared=False)


@functools.lru_cache(maxsize=32)
def _enumerated(trees: bytes, shape: tuple[int, ...], device: torch.device) -> Forest | None:
    """The same lists of structures come in every step of training."""
    return _planted(np.frombuffer(trees, dtype=bool).reshape(shape), device, shared=True)


def _planted(hard: np.ndarray, device: torch.device, *, shared: bool) -> Forest | None:
    """The forest of booleans [..., b, n, n]; None where one is no tree."""
    *batch, items, length, _ = hard.shape
    trees = hard.reshape(-1, length, length)
    leaves = np.tile(np.arange(items * length).reshape(items, length), (len(trees) // items, 1))
    numbers = np.where(np.eye(length, dtype=bool) & trees, leaves[:, None], -1)
    total, pairs = items * length, []
    for w in range(1, length):
        tree, first = (place[:, None] for place in np.nonzero(trees.diagonal(w, 1, 2)))
        left, right = numbers[tree, first, first + np.arange(w)], numbers[tree, first + 1 + np.arange(w), first + w]
        cuts = (left >= 0) & (right >= 0)
        if not (cuts.sum(-1) == 1).all():
            return None
        distinct, places = np.unique(left[cuts] << 32 | right[cuts], return_inverse=True)
        numbers[tree[:, 0], first[:, 0], first[:, 0] + w] = total + places
        total += len(distinct)
        pairs.append(torch.tensor(np.stack([distinct >> 32, distinct & 0xFFFFFFFF]), device=device))
    begins = np.where(numbers[:, 0] < 0, numbers[:, 0, -1:], numbers[:, 0])
    if (begins < 0).any():
        return None
    return Forest(tuple(pairs), torch.tensor(begins.reshape(*batch, items, length), device=device), shared)
