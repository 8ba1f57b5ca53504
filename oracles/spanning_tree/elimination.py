"""Sums over spanning trees by eliminating words one after the other, without a single subtraction.

Source: Grassmann, Taksar & Heyman 1985, "Regenerative analysis and steady state distributions for Markov chains"; the matrix-tree theorem
for dependency trees: Koo et al. 2007, "Structured prediction models via the matrix-tree theorem", section 3.

Word k, the last one that is left, has the weights ``a(h → k)`` of its heads, of sum s. It is taken out: an arc from h to j gains what
leads there over k, ``a'(h → j) = a(h → j) + a(h → k) a(k → j) / s``, and the sum over all trees is s times that over the trees that
remain. With a single root, s leaves the root out, and the last word takes its weight from the root alone. Every number is a sum of
products of weights, so that nothing cancels at any scale of the scores; a determinant would lose all digits there.

**Why it is right, and how it draws a tree.** Expand the weight of a tree without k: each of its arcs is either direct or leads over k.
Let V be the words whose arcs lead over k, and forget their heads, which were drawn from ``u(h) = a(h → k) / s`` independently, given
that they make a tree. These weights do not depend on the word that is attached, so that (weighted Cayley formula) the heads of V
complete the rest to a tree with probability u(component of the root). That is also the chance that k, drawing its head from u, becomes
the top of V: the trees in which k has the children V are in sum the same. And the path from any word of V to the root leaves the last
word of V by an arc whose head is drawn from u, restricted to the component of the root: just what k needs. So a tree on 0..k comes from
a tree on 0..k − 1: flip for each arc whether it leads over k; if none does, draw the head of k from u; else hang V under k, and give k
the head of the last word of V on the path from the first word of V to the root. With a single root the same holds with the root's own
arc among the flips: where it leads over k, k goes to the root.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..numerics import log_sum_exp, running_sums

TOP = 1 - 2**-53
"""The greatest uniform below 1."""


class Elimination(NamedTuple):
    """What is left of the elimination of rows [b, n + 1, n + 1], in logarithms.

    total: [b], of all trees; -inf where there is none.
    heads: n tensors [b, k]: the weights of the heads 0..k − 1 of word k when it was eliminated, divided by their sum.
    children: n tensors [b, k − 1]: the weights of the arcs from word k to the words 1..k − 1 at that time.
    """

    total: Tensor
    heads: list[Tensor]
    children: list[Tensor]


def eliminate(rows: Tensor, *, single_root: bool) -> Elimination:
    """Take out the words n, n − 1, ..., 1 of rows [b, n + 1, n + 1]; differentiable to any order. O(n³)."""
    weights = rows[:, :, 1:]
    total = weights.new_zeros(len(rows))
    heads, children = [], []
    for k in range(weights.shape[-1], 0, -1):
        column = weights[:, :k, k - 1]
        pivot = log_sum_exp(column[:, 1:] if single_root and k > 1 else column, 1)
        total = total + pivot
        heads.append(column - torch.where(pivot > -math.inf, pivot, 0).unsqueeze(-1))
        children.append(weights[:, k, : k - 1])
        over = heads[-1].unsqueeze(-1) + children[-1].unsqueeze(1)
        weights = log_sum_exp(torch.stack([weights[:, :k, : k - 1], over]), 0)
    return Elimination(torch.where(total > -math.inf, total, -math.inf), heads[::-1], children[::-1])


def last_word(rows: Tensor) -> Tensor:
    """The word [b] that must be eliminated last with a single root: the lowest one that is an ancestor of every word in some tree.

    Where the words above all others are few, they must not all be gone while others are left, because these lead nowhere else. 1 for an
    infeasible row.
    """
    words = rows[:, 1:, 1:]
    above = (words > -math.inf) | torch.eye(words.shape[-1], dtype=torch.bool, device=rows.device)
    for _ in range(words.shape[-1].bit_length()):
        above = (above.float() @ above.float()) > 0
    return above.all(-1).to(torch.uint8).argmax(-1) + 1


def exchange(size: int, word: Tensor) -> Tensor:
    """The permutation [b, size] of positions that exchanges word 1 with a word [b]; its own inverse."""
    positions = torch.arange(size, device=word.device)
    word = word.unsqueeze(-1)
    return torch.where(positions == 1, word, torch.where(positions == word, 1, positions))


def permuted(rows: Tensor, order: Tensor) -> Tensor:
    """Rows [b, n + 1, n + 1] with heads and modifiers in an order [b, n + 1]."""
    heads = rows.gather(1, order.unsqueeze(-1).expand_as(rows))
    return heads.gather(2, order.unsqueeze(1).expand_as(rows))


def draw_heads(rows: Tensor, uniforms: Tensor, *, single_root: bool) -> tuple[Tensor, Tensor]:
    """Heads [s, b, n] of exact samples from rows [b, n + 1, n + 1] and one uniform per word [s, b, n], and which rows are feasible [b].

    All samples of all items go back through the elimination in lockstep, n steps of O(n log n). Word m uses uniform m − 1 for all its
    choices: what a choice leaves of a uniform is again uniform, and independent of the choice.
    """
    elimination = eliminate(rows, single_root=single_root)
    walk = _Samples(rows, elimination, uniforms)
    for k in range(1, rows.shape[-1]):
        walk.add(k, first_head=int(single_root and k > 1))
    return walk.head[..., 1:], elimination.total > -math.inf


class _Samples:
    """Trees on the positions that have come back so far.

    head: [s, b, n + 1]; over: [s, b, n + 1], the word over which the arc from there leads, 0 where it is direct; rest: [s, b, n + 1], what
    is left of the uniform of each word.
    """

    def __init__(self, rows: Tensor, elimination: Elimination, uniforms: Tensor) -> None:
        self.rows, self.elimination = rows, elimination
        self.rest = torch.nn.functional.pad(uniforms, (1, 0))
        self.head = torch.zeros_like(self.rest, dtype=torch.int64)
        self.over = torch.zeros_like(self.head)

    def add(self, k: int, first_head: int) -> None:
        """Bring word k back; its head, where it has no children yet, is at least ``first_head``."""
        children = self.over[..., :k] == k
        some = children.any(-1)
        own, rest = (each.T for each in search(self.elimination.heads[k - 1][:, first_head:], self.rest[..., k].T.contiguous()))
        inherited = self._last(children)
        head, rest = torch.where(some, inherited, own + first_head), torch.where(some, self.rest[..., k], rest)
        # Over which word its arc leads, and what is left of its uniform.
        ways = self._ways(k, slice(k), slice(k, k + 1))[torch.arange(len(self.rows), device=head.device), head]
        number, rest = (each.squeeze(-1) for each in search(ways, rest.unsqueeze(-1)))
        self.head[..., k], self.over[..., k], self.rest[..., k] = head, torch.where(number > 0, number + k, 0), rest
        if k > 1:
            self._adopt(k, children)

    def _last(self, children: Tensor) -> Tensor:
        """The head [s, b] of the last of these words [s, b, k] on the way from the first of them to the root."""
        head = self.head[..., : children.shape[-1]]
        positions = torch.arange(children.shape[-1], device=head.device)
        last, ahead = torch.where(children, positions, 0).expand_as(head), head
        for _ in range((children.shape[-1] - 1).bit_length()):
            further = last.gather(-1, ahead)
            last = torch.where(further > 0, further, last)
            ahead = ahead.gather(-1, ahead)
        first = children.to(torch.uint8).argmax(-1, keepdim=True)
        return head.gather(-1, last.gather(-1, first)).squeeze(-1)

    def _adopt(self, k: int, children: Tensor) -> None:
        """Hang words [s, b, k] under word k, and choose over which word each of these arcs leads."""
        rest = self.rest[..., 1:k].permute(1, 2, 0).contiguous()
        number, rest = search(self._ways(k, slice(k, k + 1), slice(1, k)), rest)
        over = torch.where(number > 0, number + k, 0).permute(2, 0, 1)
        mine = children[..., 1:]
        self.over[..., 1:k] = torch.where(mine, over, self.over[..., 1:k])
        self.rest[..., 1:k] = torch.where(mine, rest.permute(2, 0, 1), self.rest[..., 1:k])
        self.head[..., 1:k] = torch.where(mine, k, self.head[..., 1:k])

    def _ways(self, k: int, heads: slice, words: slice) -> Tensor:
        """Log-weights [b, arcs, c] of arcs: directly, and over each word after k."""
        elimination, below = self.elimination, slice(words.start - 1, words.stop - 1)
        over = [elimination.heads[i - 1][:, heads] + elimination.children[i - 1][:, below] for i in range(k + 1, self.rows.shape[-1])]
        return torch.stack([self.rows[:, heads, words].flatten(1), *over], -1)


def search(logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Choices [..., s] among logits [..., c] by uniforms [..., s] in [0, 1), never of probability 0; and what is left of the uniforms."""
    ends = running_sums(logits)
    total = ends[..., -1:]
    point = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    number = torch.searchsorted(ends, point.contiguous(), right=True).clamp(max=logits.shape[-1] - 1)
    starts = torch.nn.functional.pad(ends, (1, 0))
    before = starts.gather(-1, number)
    return number, ((point - before) / (ends.gather(-1, number) - before)).nan_to_num().clamp(0, TOP)
