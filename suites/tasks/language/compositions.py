"""Compositions along trees: representations from the leaves up, at structures and between them."""

import abc
import math

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ....oracles import ShiftReduce

FAINT = 1e-12  # if the weights of the cuts of a span have a smaller sum, all cuts get the same weight


class Composition(nn.Module):
    """``(l, r) -> norm(l + r + W relu(U l + V r))``: one representation from two."""

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
    """Tokens of some kinds and a binary tree over them to logits; a subclass defines trees, and the composition between structures."""

    def __init__(self, tokens: int, size: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.leaves, self.composition, self.top = nn.Embedding(tokens, size), Composition(size, hidden), nn.Linear(size, classes)

    def forward(self, tokens: Tensor, lengths: Tensor, z: Tensor) -> Tensor:
        """``[b, n], [b], [..., b, *event] -> [..., b, classes]``: logits of the first l tokens."""
        return self.top(self._roots(self.leaves(tokens), lengths, z))  # type: ignore[no-any-return]

    @abc.abstractmethod
    def _roots(self, leaves: Tensor, lengths: Tensor, z: Tensor) -> Tensor:
        """``[..., b, size]``, at structures and between them."""


class ChartDecoder(TreeDecoder):
    """Trees as spans ``[n, n]``, composed span by span.

    Between structures a span is a mixture over its cuts. The weight of a cut is the product of the values of its two parts in z, divided by
    the sum over the cuts. At a tree one cut has all the weight, and the gradient is the change by each rotation of the tree. At marginals
    the weights are those of independent parts.
    """

    def _roots(self, leaves: Tensor, lengths: Tensor, z: Tensor) -> Tensor:
        length, compose = z.shape[-1], self.composition
        # First token, last token before the cut, and last token of every cut of a span in two, by width, first token and cut.
        places = [(i, i + k, i + w) for w in range(1, length) for i in range(length - w) for k in range(w)]
        first, cut, last = torch.tensor(places, device=z.device).reshape(-1, 3).unbind(-1)
        products = (z[..., first, cut] * z[..., cut + 1, last]).clamp(min=0)
        begins = [leaves[..., 0, :].expand(*z.shape[:-2], -1)]
        lefts, rights = ([side] for side in compose.sides(leaves))
        for w, weights in enumerate(products.split([w * (length - w) for w in range(1, length)], -1), 1):
            weights = weights.unflatten(-1, (length - w, w))
            total = weights.sum(-1, keepdim=True)
            known = total > FAINT
            shares = torch.where(known, weights / torch.where(known, total, 1), 1 / w).unsqueeze(-1)
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

    def _roots(self, leaves: Tensor, lengths: Tensor, z: Tensor) -> Tensor:
        compose, size = self.composition, z.shape[-2]
        # [..., b, 2n − 1, 2, n + 1]: actions by step and by the number of shifts before.
        step, action, shifts = torch.meshgrid(*(torch.arange(end, device=z.device) for end in (2 * size - 3, 2, size)), indexing="ij")
        depth = 2 * shifts - step
        within = (depth >= 0) & (depth <= shifts)
        places = torch.where(within, (shifts * size + depth) * 2 + action, 0)
        known = within & ShiftReduce().read_mask((size, size, 2), z.device).flatten()[places]
        actions = torch.where(known, z.flatten(-3)[..., places], 0)
        pushed = actions[..., 0, :-1] @ leaves
        shifted, reduced = actions.sum(-1, keepdim=True).unbind(-2)
        stack, tops = z.new_zeros(*z.shape[:-3], size - 1, leaves.shape[-1]), []
        for now in range(2 * size - 3):
            shift, reduce = shifted[..., now, :], reduced[..., now, :]
            (left, _), (_, right) = compose.sides(stack[..., 1, :]), compose.sides(stack[..., 0, :])
            top = pushed[..., now, :] + reduce * compose.finished(compose.pairs(left, right))
            below = shift.unsqueeze(-1) * stack[..., :-1, :] + reduce.unsqueeze(-1) * pad(stack[..., 2:, :], (0, 0, 0, 1))
            stack = torch.cat([top.unsqueeze(-2), below], -2)
            tops.append(top)
        place = (2 * lengths - 2).reshape(-1, 1, 1).expand(*z.shape[:-3], 1, leaves.shape[-1])
        return torch.stack(tops, -2).gather(-2, place).squeeze(-2)


def spans_of(derivations: Tensor) -> Tensor:
    """Boolean spans ``[..., n, n]`` of the trees of shift-reduce derivations ``[..., n + 1, n + 1, 2]``."""
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
    reductions = spans.sum(-2).long() - 1  # after each token: the spans of several tokens that end there
    shifts = torch.arange(spans.shape[-1], device=spans.device) + reductions.cumsum(-1) - reductions
    actions = torch.ones(*shifts.shape[:-1], 2 * spans.shape[-1] - 1, dtype=torch.long, device=spans.device)
    return ShiftReduce.structure(actions.scatter(-1, shifts, 0), spans.dtype)
