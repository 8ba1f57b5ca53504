"""Attention over independent categories: the loss sees what a mapping other than softmax makes of each category's scores."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import FactorisedOracle, Oracle
from ...oracles.numerics import share_rows
from ...oracles.options import Positive, Within
from ..base import Evaluations, Objective, PathwiseEstimator
from .constrained import csoftmax, csparsemax
from .entmax import entmax
from .fused import fusedmax, oscarmax

Bound = Annotated[float, Within(above=0, most=1)]


class Attention(PathwiseEstimator[FactorisedOracle]):
    """The loss sees ``p(θ)``, a mapping of every category's scores, with the exact gradient of ``L(p(θ))``.

    A subclass implements `mapping`.
    """

    needs: ClassVar[tuple[type[Oracle], ...]] = (FactorisedOracle,)
    objective: ClassVar[Objective] = "relaxed"
    unbiased: ClassVar[bool] = True
    deterministic: ClassVar[bool] = True
    inside_hull: ClassVar[bool] = True
    linear: ClassVar[bool] = True

    @abc.abstractmethod
    def mapping(self, scores: Tensor) -> Tensor:
        """Probabilities along the last dimension, differentiable; 0 where a row has no allowed part."""

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1)

    def structure(self, oracle: FactorisedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        probabilities = self.mapping(scores)
        some = (share_rows(scores.detach(), oracle.event_ndim) > -math.inf).any(-1, keepdim=True)
        feasible = some.flatten(some.ndim - oracle.event_ndim).all(-1)
        return torch.where(feasible.reshape(*feasible.shape, *[1] * oracle.event_ndim), probabilities, 0)


@dataclass(frozen=True)
class Entmax(Attention):
    """α-entmax attention: ``L(p)`` at ``p = argmax ⟨p, θ⟩ + H_α(p)`` of each category. Deterministic.

    The Jacobian is ``diag(s) − ssᵀ/Σs`` with ``s = p^(2−α)`` on the support. Exact for its own, relaxed, objective; α = 1 is structured
    attention, α = 2 SparseMAP.

    Cost: a sort for α of 1.5 and 2, else 60 halvings; one loss gradient. No oracle call.

    Args:
        alpha: α, at least 1. The authors use 1.5.

    References:
        Peters, Niculae & Martins 2019, "Sparse sequence-to-sequence models", section 3.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.6, -0.4, 1.0])
        >>> Entmax().gradient(loss, Categorical(), scores, generator=torch.Generator())
        tensor([-0.2610, -0.1873,  0.4482])
    """

    alpha: Annotated[float, Within(least=1)] = 1.5

    name: ClassVar[str] = "entmax"
    version: ClassVar[int] = 2
    references: ClassVar[tuple[str, ...]] = ("peters2019sparse", "correia2019adaptively")

    def mapping(self, scores: Tensor) -> Tensor:
        return entmax(scores, float(self.alpha))


@dataclass(frozen=True)
class Fusedmax(Attention):
    """Fusedmax attention: sparsemax of the nearest scores in total variation, so that neighbours share probabilities. Deterministic.

    Exact for its own, relaxed, objective; the Jacobian averages over runs of equal probability. A category whose scores differ by less than
    about 2λ is uniform and has no gradient, which is how training can stand still at its start: choose λ below the spread of the scores.

    Cost: O(n²) arithmetic for n parts of a category, one loss gradient. No oracle call.

    Args:
        strength: λ, positive. The authors use 1.

    References:
        Niculae & Blondel 2017, "A regularized framework for sparse and structured neural attention", section 3.2.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> Fusedmax(strength=0.1).gradient(loss, Categorical(), scores, generator=torch.Generator())
        tensor([ 0.1667, -1.3333,  1.1667])
    """

    strength: Positive = 1.0

    name: ClassVar[str] = "fusedmax"
    references: ClassVar[tuple[str, ...]] = ("niculae2017regularized",)

    def mapping(self, scores: Tensor) -> Tensor:
        return fusedmax(scores, self.strength)


@dataclass(frozen=True)
class Oscarmax(Attention):
    """Oscarmax attention: parts of similar scores share probabilities, wherever they stand. Deterministic.

    Exact for its own, relaxed, objective; the Jacobian averages over the groups. A category whose scores all lie within λ of each other is
    uniform and has no gradient: choose λ below their spread.

    Cost: a sort and O(n²) arithmetic for n parts of a category, one loss gradient. No oracle call.

    Args:
        strength: λ, positive. The authors use 1.
        magnitudes: sparsemax of the proximal operator of OSCAR, as the authors compute it; without, the maximum of
            ``⟨p, θ⟩ − ½‖p‖² − λ Σ_(i<j) max(p_i, p_j)``, which is the same where scores are positive and nothing is cut (see `oscarmax`).

    References:
        Niculae & Blondel 2017, "A regularized framework for sparse and structured neural attention", section 3.3.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.9, 0.2, 1.0])
        >>> Oscarmax(strength=0.05).gradient(loss, Categorical(), scores, generator=torch.Generator())
        tensor([-0.5000,  0.0000,  0.5000])
    """

    strength: Positive = 1.0
    magnitudes: bool = True

    name: ClassVar[str] = "oscarmax"
    references: ClassVar[tuple[str, ...]] = ("niculae2017regularized",)

    def mapping(self, scores: Tensor) -> Tensor:
        return oscarmax(scores, self.strength, magnitudes=self.magnitudes)


class _Constrained(Attention):
    """A mapping under one bound for all parts, raised where a category has too few of them."""

    upper: Bound

    def _bounds(self, scores: Tensor) -> Tensor:
        """[*batch, 1]: the bound, or 1/m where only m parts are allowed and m times the bound is below 1."""
        allowed = (share_rows(scores.detach(), 1) > -math.inf).sum(-1, keepdim=True)
        return (1 / allowed.clamp(min=1).double()).clamp(min=self.upper)


@dataclass(frozen=True)
class ConstrainedSparsemax(_Constrained):
    """Constrained sparsemax attention: the nearest probabilities to the scores that are at most u. Deterministic.

    Exact for its own, relaxed, objective: ``1_A (γ − mean_A γ)``, A the parts strictly between 0 and u.

    Cost: a sort, one loss gradient. No oracle call.

    Args:
        upper: u, above 0; raised to 1/m in a category of which only m parts are allowed, where m·u is below 1. The authors bound each word
            by what its fertility leaves, for which the function `csparsemax` takes a tensor.

    References:
        Malaviya, Ferreira & Martins 2018, "Sparse and constrained attention for neural machine translation", section 3.3.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, 0.1, 2.5])
        >>> ConstrainedSparsemax(upper=0.5).gradient(loss, Categorical(), scores, generator=torch.Generator())
        tensor([ 0.7500, -0.7500,  0.0000])
    """

    upper: Bound = 0.8

    name: ClassVar[str] = "csparsemax"
    references: ClassVar[tuple[str, ...]] = ("malaviya2018sparse",)

    def mapping(self, scores: Tensor) -> Tensor:
        return csparsemax(scores, self._bounds(scores))


@dataclass(frozen=True)
class ConstrainedSoftmax(_Constrained):
    """Constrained softmax attention: the probabilities nearest to softmax, in relative entropy, that are at most u. Deterministic.

    Exact for its own, relaxed, objective: ``1_A p (γ − m)``, A the parts below u, ``m = Σ_A pγ / Σ_A p``.

    Cost: a sort, one loss gradient. No oracle call.

    Args:
        upper: u, above 0; raised to 1/m in a category of which only m parts are allowed, where m·u is below 1.

    References:
        Martins & Kreutzer 2017, "Learning what's easy: fully differentiable neural easy-first taggers", section 3.1.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 2.5])
        >>> ConstrainedSoftmax(upper=0.4).gradient(loss, Categorical(), scores, generator=torch.Generator())
        tensor([ 0.2115, -0.2115,  0.0000])
    """

    upper: Bound = 0.8

    name: ClassVar[str] = "csoftmax"
    references: ClassVar[tuple[str, ...]] = ("martins2017learning",)

    def mapping(self, scores: Tensor) -> Tensor:
        return csoftmax(scores, self._bounds(scores))
