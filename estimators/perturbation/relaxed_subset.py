"""Relaxed top-k: subsets as a sum of k successive softmaxes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import Oracle, SubsetOracle
from ...oracles.capabilities.base import at_least_single
from ...oracles.numerics import log_sum_exp
from ...oracles.options import Positive
from ..base import Evaluations, Objective, PathwiseEstimator
from ..noise import Gumbel
from ..straight_through import replace_value


@dataclass(frozen=True)
class RelaxedTopK(PathwiseEstimator[SubsetOracle]):
    """Relaxed top-k: the loss sees ``y = Σ_j a_j``, k softmaxes ``a_j = softmax(x_j / t)`` of noisy scores, each masked by those before.

    ``x_1 = θ + Gumbel`` and ``x_{j+1} = x_j + log(1 − a_j)``. For t → 0 this is the best subset of the noisy scores. The sum of y is k;
    where the softmaxes are soft a part can have more than 1, outside the hull, and there is a gradient even where only one subset is
    possible.
    Unbiased for its relaxed objective ``E L(y)``, biased for that of subsets.

    Cost: one noise tensor, k softmaxes, one loss gradient.

    Args:
        temperature: t, positive. The authors' code has .1; published experiments use .5 and 2.

    References:
        Xie & Ermon 2019, "Reparameterizable subset sampling via continuous relaxations", algorithm 2.

    Example:
        >>> from structgrad.oracles import Subset
        >>> scores = torch.tensor([0.3, -0.2, 0.5]).expand(5, 3)
        >>> RelaxedTopK(temperature=0.5).structure(Subset(2), scores, generator=torch.Generator()).sum(-1)
        tensor([2.0000, 2.0000, 2.0000, 2.0000, 2.0000])
    """

    temperature: Positive = 0.1

    name: ClassVar[str] = "relaxed_top_k"
    references: ClassVar[tuple[str, ...]] = ("xie2019reparameterizable",)
    needs: ClassVar[tuple[type[Oracle], ...]] = (SubsetOracle,)
    objective: ClassVar[Objective] = "relaxed"
    unbiased: ClassVar[bool] = True
    inside_hull: ClassVar[bool] = True
    linear: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, perturbations=1)

    def structure(self, oracle: SubsetOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return successive_softmaxes(Gumbel().perturb(oracle, scores, generator=generator), oracle.k, self.temperature)


@dataclass(frozen=True)
class StraightThroughTopK(PathwiseEstimator[SubsetOracle]):
    """Straight-through relaxed top-k: forward ``z = argmax(θ + Gumbel)``, backward that of `RelaxedTopK` at the same noise. Biased.

    Cost: one argmax, one noise tensor, k softmaxes, one loss gradient.

    Args:
        temperature: t of the backward, positive.

    References:
        Xie & Ermon 2019, "Reparameterizable subset sampling via continuous relaxations", algorithm 2; the straight-through step is that of
        Jang, Gu & Poole 2017, section 2.2.

    Example:
        >>> from structgrad.oracles import Subset
        >>> scores = torch.tensor([0.3, -0.2, 0.5]).expand(5, 3)
        >>> StraightThroughTopK().structure(Subset(2), scores, generator=torch.Generator().manual_seed(0))[0]
        tensor([1., 1., 0.])
    """

    temperature: Positive = 0.1

    name: ClassVar[str] = "relaxed_top_k_st"
    references: ClassVar[tuple[str, ...]] = ("xie2019reparameterizable", "jang2017categorical")
    needs: ClassVar[tuple[type[Oracle], ...]] = (SubsetOracle,)
    objective: ClassVar[Objective] = "perturbed"
    linear: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, argmax=1, perturbations=1)

    def structure(self, oracle: SubsetOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        perturbed = Gumbel().perturb(oracle, scores, generator=generator)
        return replace_value(successive_softmaxes(perturbed, oracle.k, self.temperature), oracle.argmax(perturbed))


def successive_softmaxes(scores: Tensor, k: int, temperature: float) -> Tensor:
    """``Σ_j a_j`` along the last dimension; 0, with gradient 0, in rows that allow fewer than k parts."""
    feasible = (scores > -math.inf).sum(-1, keepdim=True) >= k
    x = torch.where(feasible, at_least_single(scores), 0)
    total = (x / temperature).softmax(-1)
    for _ in range(k - 1):
        x = x + log_of_the_rest(x / temperature)
        total = total + (x / temperature).softmax(-1)
    return torch.where(feasible, total, 0).to(scores.dtype)


def log_of_the_rest(logits: Tensor) -> Tensor:
    """``log(1 − softmax)``, exact where an entry of the softmax rounds to 1; finite where two logits are.

    Only the greatest entry can pass ½. Its rest is the sum of the others; the rest of the others is far from 0.
    """
    greatest = torch.zeros_like(logits, dtype=torch.bool).scatter_(-1, logits.argmax(-1, keepdim=True), True)
    others = log_sum_exp(logits.masked_fill(greatest, -math.inf), -1).unsqueeze(-1)
    whole = log_sum_exp(logits, -1).unsqueeze(-1)
    small = torch.where(greatest, 0, logits.softmax(-1))
    return torch.where(greatest, others - whole, torch.log1p(-small))
