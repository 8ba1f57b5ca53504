"""Marginals of spanning trees from chances of escape, without a subtraction: each is right to its own size.

Head h of word m has the weight ``a(h → m) e(h)``, where e(h) is the chance that a walk from h, which steps from words to heads in
proportion to their weights, comes to the root before m. For one m, eliminating all other words gives e by substituting back (see
`elimination`). For all of them: eliminate the second half of the words and go on with the first half alone, and the same the other way
round; so every word comes last once, in O(n³) altogether and n steps for whole batches.

With a single root the root's weights are taken as infinitely small, and e in units of them. Where a word has no other word left that may
head it, all walks end there: it takes the place of the root, beside which the root itself counts for nothing.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..numerics import log_sum_exp


def marginals(rows: Tensor, *, single_root: bool) -> Tensor:
    """Marginals [b, n + 1, n + 1] of rows of that shape; differentiable to any order, 0 for an infeasible row."""
    logits = rows[:, :, 1:] + log_escapes(rows, single_root=single_root)
    total = log_sum_exp(logits, 1).unsqueeze(1)
    possible = total > -math.inf
    expected = (logits - torch.where(possible, total, 0)).exp()
    return torch.nn.functional.pad(torch.where(possible.all(-1, keepdim=True), expected, 0), (1, 0))


def log_escapes(rows: Tensor, *, single_root: bool) -> Tensor:
    """Logarithms [b, n + 1, n] of the chances of escape from each position before each word; -inf from the word itself."""
    weights = rows[:, None, :, 1:]
    rooted = torch.full(weights.shape[:2], not single_root, device=rows.device)
    levels = []
    while weights.shape[-1] > 1:
        levels.append(_leave(weights, rooted))
        weights, rooted = levels[-1].weights, levels[-1].rooted
    escapes = torch.cat([torch.zeros_like(weights[..., :1, :]), torch.full_like(weights[..., 1:, :], -math.inf)], -2)
    for level in reversed(levels):
        escapes = _return(level, escapes)
    return escapes[:, 0]


class _Level(NamedTuple):
    """What is left where blocks of m words have been halved, c of them in all; the halves share a word where m is odd.

    weights: [b, c, h + 1, h], of the h = ⌈m / 2⌉ words that remain; in every other block in reversed order.
    rooted: [b, c] bool, whether the root's weights, or those of a word in its place, count.
    heads: m − h tensors [b, c, k]: logarithms of the chances of the heads 0..k − 1 of word k, for k from m downwards.
    ends: m − h tensors [b, c], whether the word took the place of the root.
    """

    weights: Tensor
    rooted: Tensor
    heads: list[Tensor]
    ends: list[Tensor]


def _reversed(values: Tensor) -> Tensor:
    """Words in reversed order in both of the last dimensions; the first place of the last but one is the root's."""
    return torch.cat([values[..., :1, :], values[..., 1:, :].flip(-2)], -2).flip(-1)


def _leave(weights: Tensor, rooted: Tensor) -> _Level:
    """Eliminate the second half of the words of blocks [b, c, m + 1, m], and in a copy of each block the first half."""
    weights = torch.stack([weights, _reversed(weights)], 2).flatten(1, 2)
    rooted = rooted.repeat_interleave(2, 1)
    heads, ends = [], []
    for k in range(weights.shape[-1], (weights.shape[-1] + 1) // 2, -1):
        column, children = weights[..., :k, k - 1], weights[..., k, : k - 1]
        total = torch.where(rooted, log_sum_exp(column, -1), log_sum_exp(column[..., 1:], -1))
        end = ~rooted & (total == -math.inf)
        chance = (column - torch.where(total > -math.inf, total, 0).unsqueeze(-1)).masked_fill(end.unsqueeze(-1), -math.inf)
        root = torch.where(end.unsqueeze(-1), children, weights[..., 0, : k - 1])
        direct = torch.cat([root.unsqueeze(-2), weights[..., 1:k, : k - 1]], -2)
        weights = log_sum_exp(torch.stack([direct, chance.unsqueeze(-1) + children.unsqueeze(-2)]), 0)
        rooted = rooted | end
        heads.append(chance)
        ends.append(end)
    return _Level(weights, rooted, heads, ends)


def _return(level: _Level, escapes: Tensor) -> Tensor:
    """From the chances in the halves [b, 2c, h + 1, h] to those in whole blocks [b, c, m + 1, m]."""
    size = escapes.shape[-1] + len(level.heads)
    for chance, end in zip(reversed(level.heads), reversed(level.ends), strict=True):
        onward = log_sum_exp(chance.unsqueeze(-1) + escapes, -2).masked_fill(end.unsqueeze(-1), 0)
        root = escapes[..., 0, :].masked_fill(end.unsqueeze(-1), -math.inf)
        escapes = torch.cat([root.unsqueeze(-2), escapes[..., 1:, :], onward.unsqueeze(-2)], -2)
    first, second = escapes.unflatten(1, (-1, 2)).unbind(2)
    return torch.cat([first, _reversed(second)[..., 2 * first.shape[-1] - size :]], -1)
