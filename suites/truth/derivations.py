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
from ...oracles.derivations import UNIT, Builder, Derivations, StatedOracle

MAX_ASSIGNMENT = 18
"""The largest n of permutations, which have 2ⁿ sets of columns."""

MAX_CHOICES = 2**27
"""The most choices of a pass, which takes about 50 bytes for each."""


@lru_cache(maxsize=16)
def derivations_of(oracle: Oracle, event: tuple[int, ...]) -> Derivations | None:
    """The derivations of an oracle; None if there are none, or too many nodes.

    Example:
        >>> from structgrad.oracles import SpanningTree
        >>> derivations_of(Constituency(), (4, 4)).nodes, derivations_of(SpanningTree(), (4, 4))
        (12, None)
    """
    cubic = isinstance(oracle, Constituency | ProjectiveTree)
    choices = event[0] * oracle.k if isinstance(oracle, Subset) else event[0] ** 3 // 6 if cubic else math.prod(event)
    if choices > MAX_CHOICES or (isinstance(oracle, Assignment) and event[0] > MAX_ASSIGNMENT):
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


class Moments(NamedTuple):
    """Moments of ``y − centre`` [r] at whole structures: mean, and half the mean square, both differentiable."""

    centre: Tensor
    mean: Tensor
    half_square: Tensor


@dataclass(frozen=True, eq=False)
class GibbsLaw:
    """The Gibbs law of derivations.

    Attributes:
        derivations: all derivations.
        choices: per level [h, e], the probability of each edge below its node, as leaves of a graph.
        mass: by node, the total probability of its sub-derivations: 1, as a function of `choices`.
        log_partition: A(θ). ``marginals``: [d]. ``roundings``: how many units of rounding a probability may be off.
    """

    derivations: Derivations
    choices: tuple[Tensor, ...]
    mass: Tensor
    log_partition: float
    marginals: Tensor
    roundings: float

    def gradient(self, expectation: Tensor) -> Tensor:
        """The gradient [d] in the natural parameters of ``E f(z)``, made of `choices`: that is ``E[(f − E f) z]``.

        Each edge adds its probability times the slope of the expectation in it. These sums keep their relative precision if f is small at
        likely structures.
        """
        with torch.enable_grad():
            centred = expectation - float(expectation.detach()) * self.mass[self.derivations.root]
        slopes = torch.autograd.grad(centred, self.choices, allow_unused=True, materialize_grads=True, retain_graph=True)
        total = self.marginals.new_zeros(self.derivations.parts + 1)
        for level, choice, slope in zip(self.derivations.levels, self.choices, slopes, strict=True):
            spread(total, level.parts, choice.detach() * slope)
        return total[:-1]

    def moments(self, weights: Tensor) -> Moments:
        """The first two moments of ``y = weights z``, weights [r, d].

        Every node has them over its sub-derivations, as deviations from the most probable one. Where the law is peaked the deviations are
        rare, and a rare event keeps all its digits; moments about 0 would lose them.
        """
        nodes, padded = self.derivations.nodes, pad(weights, (0, 1)).mT
        centre, mean, half = (weights.new_zeros(nodes, len(weights)) for _ in range(3))
        with torch.enable_grad():
            for level, choice in zip(self.derivations.levels, self.choices, strict=True):
                tails = [level.first] if level.second is None else [level.first, level.second]
                values = padded[level.parts] + sum(centre[places] for places in tails)
                best = choice.argmax(1).reshape(-1, 1, 1).expand(-1, 1, values.shape[-1])
                centre[level.heads] = values.gather(1, best).squeeze(1)
                first = values - centre[level.heads].unsqueeze(1)
                second, zeroth = first.square() / 2, torch.ones_like(first)
                for places in tails:
                    mass = self.mass[places].unsqueeze(-1)
                    second = second * mass + first * mean[places] + zeroth * half[places]
                    first = first * mass + zeroth * mean[places]
                    zeroth = zeroth * mass
                mean[level.heads], half[level.heads] = (torch.einsum("he,her->hr", choice, part) for part in (first, second))
        root = self.derivations.root
        return Moments(centre[root], mean[root], half[root])

    def count(self, weights: Tensor, values: Tensor) -> tuple[Moments, float]:
        """The moments of ``values[⟨weights, z⟩]``, int64 [*event] and [size], and the size that rounding errors are relative to.

        Every node has the law of the count over its sub-derivations. Laws of independent items are convolved, and choices mixed: sums of
        products of probabilities, so that every probability keeps its relative precision; a Fourier transform keeps an absolute one.
        """
        nodes, size, padded = self.derivations.nodes, len(values), pad(weights.flatten(), (0, 1))
        laws, lengths = self.marginals.new_zeros(nodes, size), torch.ones(nodes, dtype=torch.int64)
        laws[UNIT, 0] = 1
        with torch.enable_grad():
            for level, choice in zip(self.derivations.levels, self.choices, strict=True):
                steps = padded[level.parts]
                reach = lengths[level.first] + steps + (0 if level.second is None else lengths[level.second] - 1)
                lengths[level.heads] = torch.where(choice > 0, reach, 1).amax(1).clamp(max=size)
                first = laws[:, : int(lengths[level.first].max())][level.first]
                second = None if level.second is None else laws[:, : int(lengths[level.second].max())][level.second]
                block = torch.zeros_like(laws[level.heads])
                for step in steps.unique().tolist():
                    # Edges that count the same, as mixtures of laws or of convolutions of laws.
                    mixed = torch.where(steps == step, choice, 0).unsqueeze(-1) * first
                    joint = mixed.sum(1) if second is None else _antidiagonal_sums(mixed.mT @ second)
                    block = block + pad(joint, (step, size))[:, :size]
                laws[level.heads] = block
            law = laws[self.derivations.root]
            centre = values[law.argmax()]
            changes = values - centre
            return Moments(centre, law @ changes, law @ changes.square() / 2), float(law.detach() @ changes.abs())


def gibbs_law(derivations: Derivations, scores: Tensor) -> GibbsLaw:
    """Inside weights bottom up, and probabilities of nodes top down.

    Args:
        derivations: all derivations.
        scores: natural parameters, flat [d], with 0 at ignored entries.
    """
    padded = pad(scores, (0, 1))
    inside, mass = scores.new_full((derivations.nodes,), -math.inf), scores.new_ones(derivations.nodes)
    inside[UNIT] = 0
    choices, largest = [], 0.0
    for level in derivations.levels:
        weights = inside[level.first] + padded[level.parts]
        if level.second is not None:
            weights = weights + inside[level.second]
        total = weights.logsumexp(1)
        possible = total > -math.inf
        inside[level.heads] = total
        choice = (weights - torch.where(possible, total, 0).unsqueeze(1)).exp()
        choices.append((choice / torch.where(possible, choice.sum(1), 1).unsqueeze(1)).requires_grad_())
        with torch.enable_grad():
            below = mass[level.first] if level.second is None else mass[level.first] * mass[level.second]
            mass[level.heads] = (choices[-1] * below).sum(1)
        largest = max(largest, float(torch.where(possible, total.abs(), 0).max()))
    outside = scores.new_zeros(derivations.nodes)
    outside[derivations.root] = 1
    marginals = scores.new_zeros(derivations.parts + 1)
    for level, choice in zip(reversed(derivations.levels), reversed(choices), strict=True):
        edges = outside[level.heads].unsqueeze(1) * choice.detach()
        spread(marginals, level.parts, edges)
        for tails in (level.first, level.second):
            if tails is not None:
                spread(outside, tails, edges)
    roundings = len(derivations.levels) * (largest + 8)
    return GibbsLaw(derivations, tuple(choices), mass, float(inside[derivations.root]), marginals[:-1], roundings)


def spread(totals: Tensor, places: Tensor, edges: Tensor) -> None:
    """Add values [h, e] to totals at places [h, e], or their sums by node at places [h, 1]."""
    values = edges if places.shape[1] == edges.shape[1] else edges.sum(1, keepdim=True)
    totals.index_add_(0, places.flatten(), values.flatten())


def _antidiagonal_sums(matrices: Tensor) -> Tensor:
    """Sums over i + j = k of matrices [h, m, n]: [h, m + n − 1]."""
    rows, columns = matrices.shape[1:]
    padded = pad(matrices, (0, rows)).flatten(1)
    skewed: Tensor = padded[:, : rows * (rows + columns - 1)].unflatten(1, (rows, rows + columns - 1))
    return skewed.sum(1)
