"""Tables of projective dependency trees, filled in any semiring.

Source: Eisner 1996, "Three new probabilistic models for dependency parsing", section 3. Positions 0..n; position 0 is the root. Four tables
hold the total weight of what may lie between positions i and j:

* right complete: i heads everything up to j;            left complete: j heads everything down to i;
* right arc: the same, and j is a child of i;             left arc: the same, and i is a child of j.

An arc joins ``right(i, r)`` and ``left(r + 1, j)`` over a seam r; a complete item is an arc to its farthest child k and what lies beyond:
``right arc(i, k) right(k, j)`` or ``left(i, k) left arc(k, j)``. Every tree has exactly one derivation, which begins at ``right(0, n)``.
"""

from __future__ import annotations

import abc
import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..device_tables import pairs_of_best
from ..numerics import log_sum_exp


class Semiring(abc.ABC):
    """How the weights of alternatives (along dimension 0) and of joint parts combine."""

    zero: float
    one: float

    @abc.abstractmethod
    def plus(self, values: Tensor) -> Tensor:
        """What alternatives [w, ...] come to."""

    @abc.abstractmethod
    def times(self, first: Tensor, second: Tensor) -> Tensor:
        """What two parts of one item come to."""

    def weigh(self, items: Tensor, arcs: Tensor) -> Tensor:
        """Items with the weights of their arcs."""
        return self.times(items, arcs)

    def units(self, like: Tensor) -> Tensor:
        """Items of weight one, as many as there are entries."""
        return torch.full_like(like, self.one)


class LogSum(Semiring):
    """Logarithms of sums of products."""

    zero, one = -math.inf, 0.0

    def plus(self, values: Tensor) -> Tensor:
        return log_sum_exp(values, 0)

    def times(self, first: Tensor, second: Tensor) -> Tensor:
        return first + second


class Maximum(Semiring):
    """The best alternative."""

    zero, one = -math.inf, 0.0

    def plus(self, values: Tensor) -> Tensor:
        return values.amax(0)

    def times(self, first: Tensor, second: Tensor) -> Tensor:
        return first + second


class EisnerCount(Semiring):
    """Integers."""

    zero, one = 0, 1

    def plus(self, values: Tensor) -> Tensor:
        return values.sum(0)

    def times(self, first: Tensor, second: Tensor) -> Tensor:
        return first * second


class KBest(Semiring):
    """The k best alternatives, in a last dimension, best first; where fewer exist, zero.

    What each of them was made of is kept: per width above 0 one tensor [n + 1 − width, b, k] for seams, right and left items, which encodes
    the alternative and the ranks of its two parts.
    """

    zero, one = -math.inf, 0.0

    def __init__(self, k: int) -> None:
        self.k = k
        self._origins: list[Tensor] = []

    def plus(self, values: Tensor) -> Tensor:
        joint = values.movedim(0, -2).flatten(-2)
        joint = torch.nn.functional.pad(joint, (0, max(0, self.k - joint.shape[-1])), value=self.zero)
        order = joint.sort(dim=-1, descending=True, stable=True)
        self._origins.append(order.indices[..., : self.k])
        return order.values[..., : self.k]

    def times(self, first: Tensor, second: Tensor) -> Tensor:
        here, there = pairs_of_best(self.k, first.device)
        return first[..., here] + second[..., there]

    def weigh(self, items: Tensor, arcs: Tensor) -> Tensor:
        return items + arcs.unsqueeze(-1)

    def units(self, like: Tensor) -> Tensor:
        nothing = like.new_full((*like.shape, self.k - 1), self.zero)
        return torch.cat([torch.full_like(like, self.one).unsqueeze(-1), nothing], -1)

    def origins(self) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """For seams, right and left items by width: where each of the k best came from."""
        none = self._origins[0].new_zeros(len(self._origins) // 3 + 1, *self._origins[0].shape[1:])
        seams, right, left = ([none, *self._origins[kind::3]] for kind in range(3))
        return seams, right, left


class EisnerTable:
    """One of the four tables: entries ``[n + 1 − width, ...]`` by width, in the order of the first position."""

    def __init__(self, narrowest: Tensor, zero: float) -> None:
        self.zero = zero
        self.entries: list[Tensor] = []
        self._by_first: list[Tensor] = []
        self._by_last: list[Tensor] = []
        self.append(narrowest)

    def append(self, entries: Tensor) -> None:
        """Add the entries of the next width."""
        missing = entries.new_full((len(self.entries), *entries.shape[1:]), self.zero)
        self._by_first.append(torch.cat([entries, missing]))
        self._by_last.append(torch.cat([missing, entries]))
        self.entries.append(entries)

    def beginning(self, width: int, least: int) -> Tensor:
        """The ``width`` items of widths from ``least`` up that begin where those of this width begin: [width, n + 1 − width, ...]."""
        return torch.stack(self._by_first[least : least + width])[:, : len(self._by_first[0]) - width]

    def ending(self, width: int, least: int) -> Tensor:
        """The ``width`` items of widths down to ``least`` that end where those of this width end."""
        return torch.stack(self._by_last[least : least + width][::-1])[:, width:]


class EisnerTables(NamedTuple):
    """The four tables: right and left complete items, right and left arcs."""

    right: EisnerTable
    left: EisnerTable
    right_arc: EisnerTable
    left_arc: EisnerTable

    @property
    def total(self) -> Tensor:
        """The weight of all trees: [b, ...]."""
        return self.right.entries[-1][0]


def fill(scores: Tensor, semiring: Semiring, *, single_root: bool) -> EisnerTables:
    """The tables of arc weights [b, n + 1, n + 1] by increasing width: O(n) batched steps, O(n³) in all.

    With a single root, the root must be bare when it takes its child: all that it heads, but for the whole, is struck out.
    """
    size = scores.shape[-1]
    into_root = (torch.arange(size, device=scores.device) == 0).unsqueeze(-1)
    weights = torch.where(into_root, semiring.zero, scores.movedim(0, -1))
    units = semiring.units(weights[0])
    nothing = torch.full_like(units, semiring.zero)
    tables = EisnerTables(*(EisnerTable(first, semiring.zero) for first in (units, units, nothing, nothing)))
    for width in range(1, size):
        seams = semiring.plus(semiring.times(tables.right.beginning(width, 0), tables.left.ending(width, 0)))
        tables.right_arc.append(semiring.weigh(seams, weights.diagonal(width, 0, 1).mT))
        tables.left_arc.append(semiring.weigh(seams, weights.diagonal(-width, 0, 1).mT))
        right = semiring.plus(semiring.times(tables.right_arc.beginning(width, 1), tables.right.ending(width, 0)))
        tables.left.append(semiring.plus(semiring.times(tables.left.beginning(width, 0), tables.left_arc.ending(width, 1))))
        tables.right.append(torch.cat([nothing[:1], right[1:]]) if single_root and width < size - 1 else right)
    return tables
