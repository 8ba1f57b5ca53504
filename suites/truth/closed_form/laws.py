"""Gibbs laws for expectations: moments of linear functions, and laws of counts, by derivations or by determinants."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ....oracles.capabilities import Oracle
from ....oracles.derivations import Derivations
from ....oracles.spanning_tree import SpanningTree
from . import tree_counts
from .counts import CountPass
from .derivations import gibbs_law
from .deviations import Deviations
from .families import derivations_of
from .moments import MomentPass, QuadraticMoments
from .reductions import Count
from .tree_moments import TreeMoments

LARGEST_TABLE = 2**25
"""The most numbers in a table of counts by node."""


class MomentGradient(Protocol):
    """The moments of ``y = A z`` about some centre, and the gradient of a function of them."""

    @property
    def root(self) -> QuadraticMoments:
        """The moments at whole structures."""

    def gradient(self, first: Tensor, second: Tensor) -> Tensor:
        """Of ``Σ_r first_r E y_r + second_r E y_r² / 2``, y about the centre: [d]."""


class CountExpectation(NamedTuple):
    """The law [size] of a count, the gradient [d] of the expectation of a function of it, and what its rounding errors are relative to."""

    law: Tensor
    gradient: Tensor
    noise: float


class Law(Protocol):
    """A Gibbs law. ``marginals``: [d]. ``roundings``: how many units of rounding its probabilities may be off, relative to themselves."""

    log_partition: float
    marginals: Tensor
    roundings: float

    def moments(self, weights: Tensor) -> MomentGradient:
        """Of ``weights z``, weights [r, d]."""

    def expected_changes(self, count: Count) -> CountExpectation:
        """Of ``values[k]`` less its value at the most probable count."""


class DerivationLaw:
    """By dynamic programmes over derivations."""

    def __init__(self, derivations: Derivations, parameters: Tensor) -> None:
        self._law = gibbs_law(derivations, parameters.flatten())
        self.log_partition, self.marginals, self.roundings = self._law.log_partition, self._law.marginals, self._law.roundings

    def moments(self, weights: Tensor) -> MomentPass:
        """Of ``weights z``."""
        return MomentPass(self._law, weights)

    def expected_changes(self, count: Count) -> CountExpectation:
        """Of ``values[k]`` less its value at the most probable count."""
        counts = CountPass(self._law, count.weights.flatten(), len(count.values))
        changes = count.values - count.values[counts.root.argmax()]
        return CountExpectation(counts.root, counts.gradient(changes), float(counts.root @ changes.abs()))


class TreeLaw:
    """Of spanning trees, by determinants around the best one."""

    def __init__(self, oracle: SpanningTree, parameters: Tensor) -> None:
        self._oracle, self._scores = oracle, parameters
        tree = oracle.heads(oracle.argmax(parameters))
        self._deviations = Deviations.of(tree, single_root=oracle.single_root)
        self.log_partition = float(oracle.log_partition(parameters))
        self.marginals = oracle.marginals(parameters).flatten()
        largest = float(self._deviations.relative(parameters).clamp(min=-1e3).abs().max())
        self.roundings = len(tree) * (2 * largest + 8 * len(tree))

    def moments(self, weights: Tensor) -> TreeMoments:
        """Of ``weights z``."""
        return TreeMoments(self._deviations, self._scores, weights.unflatten(1, self._scores.shape))

    def expected_changes(self, count: Count) -> CountExpectation:
        """Of ``values[k]`` less its value at the most probable count."""
        size = len(count.values)
        law = tree_counts.count_law(self._oracle, self._scores, count.weights, size)
        changes = count.values - count.values[law.argmax()]
        magnitude = float(law @ changes.abs())
        result = tree_counts.expected_changes(self._oracle, self._scores, count.weights, changes, magnitude=magnitude)
        return CountExpectation(law, result.gradient.flatten(), result.noise)


def law_of(oracle: Oracle, parameters: Tensor) -> Law | None:
    """The law of natural parameters [*event] with 0 at ignored entries; None where the oracle has no sums in closed form."""
    if isinstance(oracle, SpanningTree):
        return TreeLaw(oracle, parameters)
    derivations = derivations_of(oracle, tuple(parameters.shape))
    return None if derivations is None else DerivationLaw(derivations, parameters)


def has_law(oracle: Oracle, event: tuple[int, ...]) -> bool:
    """Whether `law_of` finds one for scores of a shape."""
    return isinstance(oracle, SpanningTree) or derivations_of(oracle, event) is not None


def holds_counts(oracle: Oracle, event: tuple[int, ...], size: int) -> bool:
    """Whether the law of a count of so many values fits, for an oracle that has a law."""
    derivations = derivations_of(oracle, event)
    return tree_counts.affordable(event[-1], size) if derivations is None else derivations.nodes * size <= LARGEST_TABLE


def entropy_of(law: Law, parameters: Tensor, best: Tensor) -> float:
    """``A(θ) − ⟨θ, μ⟩``, both relative to the best structure."""
    allowed = torch.where(parameters > -math.inf, parameters, 0).flatten()
    return law.log_partition - float(allowed @ best.flatten()) - float(allowed @ (law.marginals - best.flatten()))
