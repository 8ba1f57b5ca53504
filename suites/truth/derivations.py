"""The Gibbs law of derivations, moments of linear functions of them, and the law of an integer count.

A derivation is a top-down choice of edges, whose probabilities are ratios of inside weights. They are at most 1, so nothing overflows, and
all expectations are sums of products of probabilities, which keep their relative precision, however small they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...oracles import Assignment, Categorical, Constituency, IndependentCategoricals, ProjectiveTree, Subset
from ...oracles.capabilities import Oracle
from ...oracles.derivations import DEAD, UNIT, Builder, Derivations, Level, StatedOracle

LARGEST_ASSIGNMENT = 18
"""The largest n of permutations, which have 2ⁿ sets of columns."""

LARGEST_PASS = 2**27
"""The most choices of a pass, which takes about 50 bytes for each."""


@lru_cache(maxsize=16)
def derivations_of(oracle: Oracle, event: tuple[int, ...]) -> Derivations | None:
    """The derivations of an oracle; None where there are none, or too many nodes.

    Example:
        >>> from structgrad.oracles import SpanningTree
        >>> derivations_of(Constituency(), (4, 4)).nodes, derivations_of(SpanningTree(), (4, 4))
        (12, None)
    """
    cubic = isinstance(oracle, Constituency | ProjectiveTree)
    choices = event[0] * oracle.k if isinstance(oracle, Subset) else event[0] ** 3 // 6 if cubic else math.prod(event)
    if choices > LARGEST_PASS or (isinstance(oracle, Assignment) and event[0] > LARGEST_ASSIGNMENT):
        return None
    if isinstance(oracle, StatedOracle):
        return oracle.derivations(event)
    if type(oracle) in (Categorical, IndependentCategoricals):
        return _categories((1, *event)[-2:])
    return _permutations(event[0]) if type(oracle) is Assignment else None


def _categories(event: tuple[int, ...]) -> Derivations:
    """One part of each of n categories; a node per category."""
    length, tags = event
    builder = Builder(length * tags)
    node = torch.tensor([UNIT])
    for parts in torch.arange(length * tags).reshape(length, 1, tags):
        node = builder.add(node.reshape(1, 1).expand(1, tags), parts)
    return builder.finish(node)


def _permutations(size: int) -> Derivations:
    """A node per set of columns, taken by as many rows: 2ⁿ nodes."""
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


@dataclass(frozen=True, eq=False)
class GibbsLaw:
    """The Gibbs law of derivations.

    Attributes:
        derivations: all derivations. ``choices``: per level [h, e], the probability of each edge below its node.
        log_partition: A(θ). ``marginals``: [d]. ``roundings``: how many units of rounding a probability may be off.
    """

    derivations: Derivations
    choices: tuple[Tensor, ...]
    log_partition: float
    marginals: Tensor
    roundings: float


def gibbs_law(derivations: Derivations, scores: Tensor) -> GibbsLaw:
    """Inside weights bottom up, and probabilities of nodes top down.

    Args:
        derivations: whose law.
        scores: natural parameters, flat [d], with 0 at ignored entries.
    """
    padded = pad(scores, (0, 1))
    inside = scores.new_full((derivations.nodes,), -math.inf)
    inside[UNIT] = 0
    choices, largest = [], 0.0
    for level in derivations.levels:
        weights = inside[level.first] + padded[level.parts]
        if level.second is not None:
            weights = weights + inside[level.second]
        total = weights.logsumexp(1)
        possible = total > -math.inf
        inside[level.heads] = total
        choices.append((weights - torch.where(possible, total, 0).unsqueeze(1)).exp())
        choices[-1] = choices[-1] / torch.where(possible, choices[-1].sum(1), 1).unsqueeze(1)
        largest = max(largest, float(torch.where(possible, total.abs(), 0).max()))
    roundings = len(derivations.levels) * (largest + 8)
    return GibbsLaw(derivations, tuple(choices), float(inside[derivations.root]), _marginals(derivations, choices), roundings)


def _marginals(derivations: Derivations, choices: list[Tensor]) -> Tensor:
    outside = choices[0].new_zeros(derivations.nodes)
    outside[derivations.root] = 1
    taken = choices[0].new_zeros(derivations.parts + 1)
    for level, choice in zip(reversed(derivations.levels), reversed(choices), strict=True):
        edges = outside[level.heads].unsqueeze(1) * choice
        spread(taken, level.parts, edges)
        spread(outside, level.first, edges)
        if level.second is not None:
            spread(outside, level.second, edges)
    return taken[:-1]


def spread(totals: Tensor, places: Tensor, edges: Tensor) -> None:
    """Add values [h, e] to totals at places [h, e], or their sums by node at places [h, 1]."""
    values = edges if places.shape[1] == edges.shape[1] else edges.sum(1, keepdim=True)
    totals.index_add_(0, places.flatten(), values.flatten())


class QuadraticMoments(NamedTuple):
    """Of ``y − centre`` [r] at whole structures: mean, and half the mean square."""

    centre: Tensor
    mean: Tensor
    half_square: Tensor


class MomentPass:
    """The moments of all nodes, bottom up; and the gradient of a function of those of the root, top down.

    Args:
        law: of the derivations.
        weights: A, [r, d].
    """

    def __init__(self, law: GibbsLaw, weights: Tensor) -> None:
        self.law, self.weights = law, pad(weights, (0, 1))
        # By node and row: a reference value of y, the mean of what y exceeds it by, and half the mean square.
        nodes = law.derivations.nodes
        self.centre, self.mean, self.half = (weights.new_zeros(nodes, len(weights)) for _ in range(3))
        for level, choice in zip(law.derivations.levels, law.choices, strict=True):
            self._add(level, choice)

    @property
    def root(self) -> QuadraticMoments:
        """The moments at whole structures."""
        root = self.law.derivations.root
        return QuadraticMoments(self.centre[root], self.mean[root], self.half[root])

    def _add(self, level: Level, choice: Tensor) -> None:
        values = self._values(level)
        best = choice.argmax(1).reshape(-1, 1, 1).expand(-1, 1, values.shape[-1])
        self.centre[level.heads] = values.gather(1, best).squeeze(1)
        mean, half = self._joint(level)
        self.mean[level.heads] = torch.einsum("he,her->hr", choice, mean)
        self.half[level.heads] = torch.einsum("he,her->hr", choice, half)

    def _values(self, level: Level) -> Tensor:
        """What y is at the centres of the edges: [h, e, r]."""
        values = self.centre[level.first] + self.weights.mT[level.parts]
        return values if level.second is None else values + self.centre[level.second]

    def _joint(self, level: Level, *, without: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean and half mean square [h, e, r] of every edge about the centre of its node; of all but one of its nodes where named."""
        mean = self._values(level) - self.centre[level.heads].unsqueeze(1)
        half = mean.square() / 2
        for tails in (level.first, level.second):
            if tails is not None and tails is not without:
                half = half + mean * self.mean[tails] + self.half[tails]
                mean = mean + self.mean[tails]
        return mean, half

    def gradient(self, first: Tensor, second: Tensor) -> Tensor:
        """Of ``Σ_r first_r E y_r + second_r E y_r² / 2``, y about the centre: [d]."""
        moments, nodes = self.root, self.law.derivations.nodes
        functional = self.mean.new_zeros(3, nodes, len(first))
        # The expectation is taken off first, so that what is summed is a covariance.
        at_root = torch.stack([-(first * moments.mean + second * moments.half_square), first, second])
        functional[:, self.law.derivations.root] = at_root
        gradient = self.mean.new_zeros(self.law.derivations.parts + 1)
        for level, choice in zip(reversed(self.law.derivations.levels), reversed(self.law.choices), strict=True):
            outer = functional[:, level.heads].unsqueeze(2) * choice.unsqueeze(-1)
            mean, half = self._joint(level)
            spread(gradient, level.parts, (outer[0] + outer[1] * mean + outer[2] * half).sum(-1))
            for tails in (level.first, level.second):
                if tails is not None:
                    self._push(functional, tails, outer, self._joint(level, without=tails))
        return gradient[:-1]

    @staticmethod
    def _push(functional: Tensor, tails: Tensor, outer: Tensor, rest: tuple[Tensor, Tensor]) -> None:
        """What a functional of an edge is as one of a node of it, given the moments of all else there."""
        mean, half = rest
        pushed = torch.stack([outer[0] + outer[1] * mean + outer[2] * half, outer[1] + outer[2] * mean, outer[2]])
        functional.index_add_(1, tails.flatten(), pushed.flatten(1, 2))
        functional[:, DEAD] = 0


class CountPass:
    """The laws of a count at all nodes, bottom up; and the gradient of an expectation, top down.

    Args:
        law: of the derivations.
        weights: int64 [d], what each part counts.
        size: counts are below this at whole structures.
    """

    def __init__(self, law: GibbsLaw, weights: Tensor, size: int) -> None:
        self.law, self.size = law, size
        self.weights = pad(weights, (0, 1))
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
        return pad(values, (0, length - values.shape[-1]))


def _antidiagonal_sums(matrices: Tensor) -> Tensor:
    """Sums over i + j = k of matrices [h, m, n]: [h, m + n − 1]."""
    rows, columns = matrices.shape[1:]
    padded = pad(matrices, (0, rows)).flatten(1)
    skewed: Tensor = padded[:, : rows * (rows + columns - 1)].unflatten(1, (rows, rows + columns - 1))
    return skewed.sum(1)
