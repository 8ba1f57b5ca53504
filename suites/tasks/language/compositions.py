"""Compositions along trees: representations from the leaves up, at structures and between them."""

from __future__ import annotations

import abc
import functools
import math
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ....oracles import ShiftReduce
from ....oracles.transforms import transforming


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
        """Contributions of nodes ``[..., size]`` as left and as right children: ``[..., size + hidden]`` each."""
        left, right = self.inner(nodes).chunk(2, -1)
        return torch.cat([nodes, left], -1), torch.cat([nodes, right], -1)

    def pairs(self, left: Tensor, right: Tensor) -> Tensor:
        """Sums ``[..., size + hidden]`` of pairs, which may be mixed before `finished`."""
        return torch.maximum(left + right, self.least)

    def finished(self, pairs: Tensor) -> Tensor:
        """``[..., size]``."""
        residual, hidden = pairs[..., : self.size], pairs[..., self.size :]
        return self.norm(residual + self.outer(hidden))  # type: ignore[no-any-return]


class TreeDecoder(nn.Module):
    """Tokens and a binary tree over them to logits; a subclass defines trees, and the composition between structures.

    Trees without a gradient are composed by their distinct subtrees, which is faster and returns the same.

    Args:
        tokens: number of kinds of tokens.
        size, hidden: sizes of the representations and of their composition.
        classes: number of labels.
    """

    event_ndim: ClassVar[int]

    def __init__(self, tokens: int, size: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.leaves, self.composition, self.top = nn.Embedding(tokens, size), Composition(size, hidden), nn.Linear(size, classes)

    def forward(self, tokens: Tensor, lengths: Tensor, z: Tensor) -> Tensor:
        """``[b, n], [b], [..., b, *event] -> [..., b, classes]``: logits of the first l tokens."""
        leaves, forest = self.leaves(tokens), None if z.requires_grad or transforming() else self._forest(z)
        return self.top(self._roots(leaves, lengths, z) if forest is None else self._shared_roots(leaves, lengths, forest))  # type: ignore[no-any-return]

    @abc.abstractmethod
    def spans(self, structures: Tensor) -> Tensor:
        """Trees ``[..., n, n]`` from structures ``[..., *event]``; any booleans from other points."""

    @abc.abstractmethod
    def _roots(self, leaves: Tensor, lengths: Tensor, z: Tensor) -> Tensor:
        """``[..., b, size]``, at structures and between them."""

    def _forest(self, z: Tensor) -> CompositionForest | None:
        """The forest of structures ``[..., b, *event]``; None if some points are no structures."""
        item = z.ndim - self.event_ndim - 1
        shared = item > 0 and z.stride(item) == 0
        structures = (z.narrow(item, 0, 1) if shared else z).cpu()
        hard = structures != 0
        if not torch.equal(structures, hard.to(structures.dtype)):
            return None
        trees = self.spans(hard).numpy()
        return _enumerated(trees.tobytes(), trees.shape, z.device) if shared else _planted(trees, z.device, shared=False)

    def _shared_roots(self, leaves: Tensor, lengths: Tensor, forest: CompositionForest) -> Tensor:
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


class ChartDecoder(TreeDecoder):
    """Trees as spans ``[n, n]``, composed span by span.

    Between structures a span is a mixture over its cuts. The weight of a cut is the product of the values of its two parts in z, divided by
    the sum over the cuts. At a tree one cut has all the weight, and the gradient is the change by each rotation of the tree. At marginals
    the weights are those of independent parts.
    """

    event_ndim: ClassVar[int] = 2

    def spans(self, structures: Tensor) -> Tensor:
        return structures

    def _roots(self, leaves: Tensor, lengths: Tensor, z: Tensor) -> Tensor:
        length, compose = z.shape[-1], self.composition
        first, cut, last = _cuts(length, z.device)
        products = (z[..., first, cut] * z[..., cut + 1, last]).clamp(min=0)
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


class StackDecoder(TreeDecoder):
    """Trees as shift-reduce derivations ``[n + 1, n + 1, 2]``, composed action by action on a stack.

    Between structures every step does both actions and mixes the two stacks, position by position from the top. The weight of an action is
    the sum of its entries of z at that step. So the gradient of an action is its effect if the later actions stay the same.

    References:
        Joulin & Mikolov 2015, "Inferring algorithmic patterns with stack-augmented recurrent nets", section 3.2 (the mixture of stacks).
    """

    event_ndim: ClassVar[int] = 3

    def spans(self, structures: Tensor) -> Tensor:
        return spans_of(structures)

    def _roots(self, leaves: Tensor, lengths: Tensor, z: Tensor) -> Tensor:
        compose, size = self.composition, z.shape[-2]
        places, known = _by_steps(size, z.device)
        # [..., b, 2n − 1, 2, n + 1]: actions by step and by the number of shifts before.
        actions = torch.where(known, z.flatten(-3)[..., places], 0)
        pushed = actions[..., 0, :-1] @ leaves
        shifts, reduces = actions.sum(-1, keepdim=True).unbind(-2)
        stack, tops = z.new_zeros(*z.shape[:-3], size - 1, leaves.shape[-1]), []
        for step in range(2 * size - 3):
            shift, reduce = shifts[..., step, :], reduces[..., step, :]
            (left, _), (_, right) = compose.sides(stack[..., 1, :]), compose.sides(stack[..., 0, :])
            top = pushed[..., step, :] + reduce * compose.finished(compose.pairs(left, right))
            below = shift.unsqueeze(-1) * stack[..., :-1, :] + reduce.unsqueeze(-1) * pad(stack[..., 2:, :], (0, 0, 0, 1))
            stack = torch.cat([top.unsqueeze(-2), below], -2)
            tops.append(top)
        place = (2 * lengths - 2).reshape(-1, 1, 1).expand(*z.shape[:-3], 1, leaves.shape[-1])
        return torch.stack(tops, -2).gather(-2, place).squeeze(-2)


@functools.lru_cache(maxsize=32)
def _by_steps(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Indices into flat events for n + 1 = size, and whether they are read: ``[2n − 1, 2, n + 1]`` by step, action and shifts."""
    step, action, shifts = torch.meshgrid(*(torch.arange(end, device=device) for end in (2 * size - 3, 2, size)), indexing="ij")
    depth = 2 * shifts - step
    within = (depth >= 0) & (depth <= shifts)
    place = torch.where(within, (shifts * size + depth) * 2 + action, 0)
    return place, within & ShiftReduce().read_mask((size, size, 2), device).flatten()[place]


def spans_of(derivations: Tensor) -> Tensor:
    """Boolean spans ``[..., n, n]`` of the trees of shift-reduce derivations ``[..., n + 1, n + 1, 2]``.

    Example:
        >>> from structgrad.oracles import ShiftReduce
        >>> spans_of(ShiftReduce.structure(torch.tensor([0, 0, 0, 1, 1]))).long()
        tensor([[1, 0, 1],
                [0, 1, 1],
                [0, 0, 1]])
    """
    chosen, size = derivations > 0, derivations.shape[-2]
    place = torch.arange(size, device=derivations.device)
    # A reduction from depth d begins with the last shift from depth d − 2.
    began = torch.where(chosen[..., 0], place.unsqueeze(-1), -1).cummax(-2).values
    first = began[..., :-1, :-2].clamp(min=0)
    reduced = chosen[..., 1:, 2:, 1]
    spans = torch.zeros(*chosen.shape[:-3], size - 1, size - 1, dtype=torch.long, device=derivations.device)
    # By last token, then by first.
    spans.scatter_add_(-1, first, reduced.long())
    return (spans.mT > 0) | torch.eye(size - 1, dtype=torch.bool, device=derivations.device)


def derivations_of(spans: Tensor) -> Tensor:
    """Derivations ``[..., n + 1, n + 1, 2]`` of the trees of spans ``[..., n, n]``, in the dtype of these; the inverse of `spans_of`."""
    size = spans.shape[-1] + 1
    place = torch.arange(size, device=spans.device)
    reductions = spans.sum(-2).long() - 1
    before = pad((1 - reductions).cumsum(-1), (1, 0)).unsqueeze(-1)
    # SHIFT after i shifts at the depth that is left; REDUCE at those from one above the depth before the last shift, down to it.
    shift = (place == before) & (place.unsqueeze(-1) < size - 1)
    reduce = pad((place <= before[..., :-1, :] + 1) & (place > before[..., 1:, :]), (0, 0, 1, 0))
    return torch.stack([shift, reduce], -1).to(spans.dtype)


FAINT = 1e-12  # if the weights of the cuts of a span have a smaller sum, all cuts get the same weight


def _relative(weights: Tensor) -> Tensor:
    """Weights ``[..., cuts]`` divided by their sum."""
    total = weights.sum(-1, keepdim=True)
    known = total > FAINT
    return torch.where(known, weights / torch.where(known, total, 1), 1 / weights.shape[-1])


@functools.lru_cache(maxsize=32)
def _cuts(length: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """First tokens, last tokens before the cut, and last tokens of all cuts of spans in two, by width, first token and cut."""
    places = [(i, i + k, i + w) for w in range(1, length) for i in range(length - w) for k in range(w)]
    first, cut, last = torch.tensor(places, device=device).reshape(-1, 3).unbind(-1)
    return first, cut, last


class CompositionForest(NamedTuple):
    """The distinct subtrees of trees over n tokens, each made of two that are numbered before it.

    Attributes:
        pairs: for every width from 2 on, the numbers of the left and of the right parts of its subtrees, ``[2, subtrees]``.
        begins: ``[..., b, n]``: the subtree from the first token to each; the whole tree if there is none.
        shared: whether the trees are the same in all items. Then ``b`` is 1, and the subtrees 0 to n − 1 are the leaves. Else the leaves
            of all items come first.
    """

    pairs: tuple[Tensor, ...]
    begins: Tensor
    shared: bool


@functools.lru_cache(maxsize=32)
def _enumerated(trees: bytes, shape: tuple[int, ...], device: torch.device) -> CompositionForest | None:
    """The forest of a list of all structures, cached because every step of training uses the same list."""
    return _planted(np.frombuffer(trees, dtype=bool).reshape(shape), device, shared=True)


def _planted(hard: np.ndarray, device: torch.device, *, shared: bool) -> CompositionForest | None:
    """The forest of booleans ``[..., b, n, n]``; None if one is no tree."""
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
    return CompositionForest(tuple(pairs), torch.tensor(begins.reshape(*batch, items, length), device=device), shared)
