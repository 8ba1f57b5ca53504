"""The law of an integer count over derivations, and the exact gradient of the expectation of any function of it.

Every node carries the law of the count over its sub-derivations. Laws of independent items are convolved, and choices mixed: sums of
products of probabilities, so that every probability keeps its relative precision, however small; a Fourier transform keeps an absolute one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ....oracles.derivations import DEAD, UNIT, Level
from .derivations import GibbsLaw, spread


class CountPass:
    """The laws of a count at all nodes, bottom up; and the gradient of an expectation, top down.

    Args:
        law: of the derivations.
        weights: int64 [d], what each part counts.
        size: counts are below this at whole structures.
    """

    def __init__(self, law: GibbsLaw, weights: Tensor, size: int) -> None:
        self.law, self.size = law, size
        self.weights = torch.nn.functional.pad(weights, (0, 1))
        self.laws = law.marginals.new_zeros(law.derivations.nodes, size)
        self.laws[UNIT, 0] = 1
        self.lengths = torch.ones(law.derivations.nodes, dtype=torch.int64)
        for level, choice in zip(law.derivations.levels, law.choices, strict=True):
            self._add(level, choice)

    @property
    def root(self) -> Tensor:
        """P(count = k): [size]."""
        return self.laws[self.law.derivations.root]

    def _add(self, level: Level, choice: Tensor) -> None:
        steps = self.weights[level.parts]
        lengths = self.lengths[level.first] + steps
        if level.second is not None:
            lengths = lengths + self.lengths[level.second] - 1
        self.lengths[level.heads] = torch.where(choice > 0, lengths, 1).amax(1).clamp(max=self.size)
        first = self._of(level.first)
        if level.second is None:
            for step, weights in self._by_step(steps, choice):
                added = (weights.unsqueeze(1) @ first).squeeze(1)
                self._ahead(self.laws[level.heads], step, first.shape[-1]).add_(added[:, : self.size - step])
            return
        second = self._of(level.second)
        for step, weights in self._by_step(steps, choice):
            some = weights.any(1)
            joint = _antidiagonal_sums((weights[some].unsqueeze(-1) * first[some]).mT @ second[some])
            self._ahead(self.laws[level.heads], step, joint.shape[-1])[some] += joint[:, : self.size - step]

    def _of(self, nodes: Tensor) -> Tensor:
        """The laws of nodes [h, e], as far as any of them reaches."""
        return self.laws[:, : int(self.lengths[nodes].max())][nodes]

    @staticmethod
    def _by_step(steps: Tensor, weights: Tensor) -> list[tuple[int, Tensor]]:
        """Weights [h, e] of what counts the same, 0 elsewhere."""
        return [(step, torch.where(steps == step, weights, 0)) for step in steps.unique().tolist()]

    def _ahead(self, laws: Tensor, step: int, length: int) -> Tensor:
        """Counts ``step .. step + length``, as far as there are any."""
        return laws[:, step : min(step + length, self.size)]

    def gradient(self, values: Tensor) -> Tensor:
        """Of ``E values[count]``: [d]. Values that are small where the count is likely keep the relative precision."""
        functional = torch.zeros_like(self.laws)
        functional[self.law.derivations.root] = values - values @ self.root
        gradient = self.laws.new_zeros(self.law.derivations.parts + 1)
        for level, choice in zip(reversed(self.law.derivations.levels), reversed(self.law.choices), strict=True):
            outer = functional[level.heads]
            edges = self._back_one(level, choice, outer, functional) if level.second is None else self._back_two(level, choice, functional)
            spread(gradient, level.parts, edges)
            functional[DEAD] = 0
        return gradient[:-1]

    def _back_one(self, level: Level, choice: Tensor, outer: Tensor, functional: Tensor) -> Tensor:
        """The expectations [h, e] of edges to one node each; their functionals go on to these."""
        first = self._of(level.first)
        length, edges = first.shape[-1], torch.zeros_like(choice)
        for step, weights in self._by_step(self.weights[level.parts], choice):
            here = self._padded(self._ahead(outer, step, length), length)
            edges = edges + weights * (first @ here.unsqueeze(-1)).squeeze(-1)
            self._push(functional, level.first, weights.unsqueeze(-1) * here.unsqueeze(1))
        return edges

    def _back_two(self, level: Level, choice: Tensor, functional: Tensor) -> Tensor:
        """The same of edges to two nodes."""
        assert level.second is not None
        first, second = self._of(level.first), self._of(level.second)
        length, edges = first.shape[-1] + second.shape[-1] - 1, torch.zeros_like(choice)
        for step, weights in self._by_step(self.weights[level.parts], choice):
            some = weights.any(1)
            here = self._padded(self._ahead(functional[level.heads][some], step, length), length)
            # [h, count of the first, count of the second]
            joint = here.unfold(1, second.shape[-1], 1)
            of_first, of_second = (weights[some].unsqueeze(-1) * rest for rest in (second[some] @ joint.mT, first[some] @ joint))
            self._push(functional, level.first[some], of_first)
            self._push(functional, level.second[some], of_second)
            edges[some] += (of_first * first[some]).sum(-1)
        return edges

    @staticmethod
    def _push(functional: Tensor, nodes: Tensor, values: Tensor) -> None:
        functional[:, : values.shape[-1]].index_add_(0, nodes.flatten(), values.flatten(0, 1))

    @staticmethod
    def _padded(values: Tensor, length: int) -> Tensor:
        return torch.nn.functional.pad(values, (0, length - values.shape[-1]))


def _antidiagonal_sums(matrices: Tensor) -> Tensor:
    """Sums over i + j = k of matrices [h, m, n]: [h, m + n − 1]."""
    rows, columns = matrices.shape[1:]
    padded = torch.nn.functional.pad(matrices, (0, rows)).flatten(1)
    skewed: Tensor = padded[:, : rows * (rows + columns - 1)].unflatten(1, (rows, rows + columns - 1))
    return skewed.sum(1)
