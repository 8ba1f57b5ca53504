"""The Gibbs law of spanning trees at any scale of scores: the elimination with sums of numbers in place of logarithms.

A logarithm of a weight is here the exact sum of three numbers, so that differences of two keep their digits however large both are. Every
sum of weights gives probabilities of its terms. Given these, means over trees follow the same elimination, where they are linear.
"""

import math

import torch
from torch import Tensor

from ..capabilities.derivatives import exchanged_for
from ..numerics import exact_sum, log_sum_exp
from .elimination import exchange, last_word, permuted


class TreeLaw:
    """The law of float64 rows ``[b, n + 1, n + 1]``, differentiable.

    Attributes:
        offsets: ``[b, 3 n]``, whose exact sum is the log-partition; -inf in an infeasible row.
    """

    def __init__(self, rows: Tensor, single_root: bool, order: Tensor | None = None) -> None:
        with torch.inference_mode(False):
            rows = rows.clone()
            self.rows, self.single_root = rows, single_root
            if order is None:
                order = exchange(rows.shape[-1], last_word(rows.detach()) if single_root else last_word(torch.zeros_like(rows)))
            self.order = order
            self.logs, offsets = list[Tensor](), []
            scores = permuted(rows, self.order)[:, :, 1:]
            exact, moved = scores.detach().unsqueeze(-1), exchanged_for(torch.zeros_like(scores), scores)
            for k in range(scores.shape[-1], 0, -1):
                first = int(single_root and k > 1)
                pivot, moves = self._summed(exact[:, first:k, k - 1], moved[:, first:k, k - 1], 1)
                offsets.append(pivot)
                heads = _joined(exact[:, :k, k - 1], -torch.where(pivot > -math.inf, pivot, 0).unsqueeze(1))
                over = _joined(heads.unsqueeze(2), exact[:, k, : k - 1].unsqueeze(1))
                onward = (moved[:, :k, k - 1] - moves.unsqueeze(1)).unsqueeze(2) + moved[:, k, : k - 1].unsqueeze(1)
                direct = _joined(exact[:, :k, : k - 1], torch.zeros_like(over))
                exact, moved = self._summed(torch.stack([direct, over]), torch.stack([moved[:, :k, : k - 1], onward]), 0)
            self.offsets = torch.cat(offsets, -1)

    def _summed(self, exact: Tensor, moved: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """The sum of weights along a dimension, and its derivative as a number that is 0; the probabilities of its terms are kept."""
        best = exact_sum(exact).argmax(dim, keepdim=True) if exact.numel() else exact.new_zeros(exact.sum(dim, True).shape[:-1]).long()
        top = exact.gather(dim, best.unsqueeze(-1).expand(*best.shape, exact.shape[-1]))
        logits = exact_sum(torch.cat([exact, -torch.where(top > -math.inf, top, 0).expand_as(exact)], -1)) + moved
        total = log_sum_exp(logits, dim)
        possible = total > -math.inf
        self.logs.append(logits - torch.where(possible, total, 0).unsqueeze(dim))
        return _joined(top.squeeze(dim), total.detach().unsqueeze(-1)), exchanged_for(torch.zeros_like(total), total)

    @property
    def marginals(self) -> Tensor:
        """``[b, n + 1, n + 1]``, 0 in an infeasible row."""
        with torch.inference_mode(False), torch.enable_grad():
            parts = torch.zeros_like(self.rows, requires_grad=True)
            total = self._mean([torch.zeros_like(log) for log in self.logs], parts).sum()
            (marginals,) = torch.autograd.grad(total, parts, create_graph=self.rows.requires_grad)
        feasible = (self.offsets > -math.inf).all(-1).reshape(-1, 1, 1)
        return torch.where(feasible, marginals, 0).clamp(0, 1)

    def entropy(self) -> Tensor:
        """``[b]``: the mean surprise of the terms."""
        return -self._mean(self.logs, torch.zeros_like(self.rows))

    def kl(self, other: "TreeLaw") -> Tensor:
        """``[b]``, without what the other law forbids."""
        other = other if torch.equal(self.order, other.order) else TreeLaw(other.rows, self.single_root, self.order)
        pairs = zip(self.logs, other.logs, strict=True)
        return self._mean([here - torch.where(there > -math.inf, there, here) for here, there in pairs], torch.zeros_like(self.rows))

    def _mean(self, values: list[Tensor], parts: Tensor) -> Tensor:
        """``[b]``: of what parts ``[b, n + 1, n + 1]`` and the terms of every sum add up to."""
        left, total = permuted(parts, self.order)[:, :, 1:], parts.new_zeros(len(parts))
        for i, k in enumerate(range(left.shape[-1], 0, -1)):
            column, first = left[:, :k, k - 1], int(self.single_root and k > 1)
            pivot = self._weighed(2 * i, column[:, first:], values, 1)
            total = total + pivot
            over = (column - pivot.unsqueeze(1)).unsqueeze(2) + left[:, k, : k - 1].unsqueeze(1)
            left = self._weighed(2 * i + 1, torch.stack([left[:, :k, : k - 1], over]), values, 0)
        return total

    def _weighed(self, place: int, terms: Tensor, values: list[Tensor], dim: int) -> Tensor:
        chances = self.logs[place].exp()
        # A term of probability 0 may be forbidden.
        return (chances * (terms + torch.where(chances > 0, values[place], 0))).sum(dim)


def _joined(first: Tensor, second: Tensor) -> Tensor:
    """Three numbers in the last dimension whose sum is that of all; -inf and zeros for the logarithm of 0."""
    shape = torch.broadcast_shapes(first.shape[:-1], second.shape[:-1])
    terms = torch.cat([each.expand(*shape, -1) for each in (first, second)], -1)
    whole = exact_sum(terms)
    terms = terms.masked_fill((whole == -math.inf).unsqueeze(-1), 0)
    found = [whole]
    for _ in range(2):
        taken = torch.stack(found, -1)
        found.append(exact_sum(torch.cat([terms, -torch.where(taken > -math.inf, taken, 0)], -1)))
    return torch.stack(found, -1)
