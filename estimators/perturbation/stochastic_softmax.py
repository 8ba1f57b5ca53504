"""Stochastic softmax tricks: a regularised maximum of noisy scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from ...oracles.capabilities import MarginalOracle, Oracle, ProjectionOracle
from ...oracles.options import Positive
from ..base import Evaluations, Objective, PathwiseEstimator
from ..noise import AnyNoise, Gumbel, Noise

O = TypeVar("O", bound=Oracle)  # noqa: E741 - as in the base class


class NoisyRelaxation(PathwiseEstimator[O]):
    """The loss sees ``X = argmax_{x ∈ conv Z} ⟨θ + ε, x⟩ − t Ω(x)``, and θ its derivative; a subclass says what Ω is.

    The estimate is the derivative of ``L(X)`` for one draw of the noise, and so unbiased for its own, relaxed, objective.
    """

    temperature: float
    noise: Noise

    objective: ClassVar[Objective] = "relaxed"
    unbiased: ClassVar[bool] = True
    inside_hull: ClassVar[bool] = True
    linear: ClassVar[bool] = True

    def _utilities(self, oracle: O, scores: Tensor, generator: torch.Generator) -> Tensor:
        return self.noise.perturb(oracle, scores, generator=generator) / self.temperature


@dataclass(frozen=True)
class StochasticSoftmax(NoisyRelaxation[MarginalOracle]):
    """Stochastic softmax trick with the entropy of the Gibbs law: the loss sees ``X = μ((θ + ε) / t)``, ``ĝ = Cov_{(θ+ε)/t}(z) γ(X) / t``.

    Unbiased for its relaxed objective ``E L(X)``, biased for that of structures; the smaller t, the less biased and the noisier. On
    `categorical` with Gumbel noise this is the Gumbel-softmax.

    Cost: one noise tensor, one pass for the marginals and one more for the backward, one loss gradient.

    Args:
        temperature: t, positive; the authors tune it, between .1 and 2.
        noise: any `Noise`.

    References:
        Paulus, Choi, Tarlow, Krause & Maddison 2020, "Gradient estimation with stochastic softmax tricks", definition 2.

    Example:
        >>> from structgrad.oracles import Subset
        >>> scores = torch.tensor([0.3, -0.2, 0.5]).expand(5, 3)
        >>> StochasticSoftmax().structure(Subset(2), scores, generator=torch.Generator()).sum(-1)
        tensor([2., 2., 2., 2., 2.])
    """

    temperature: Positive = 1.0
    noise: AnyNoise = Gumbel()

    name: ClassVar[str] = "stochastic_softmax"
    references: ClassVar[tuple[str, ...]] = ("paulus2020gradient",)
    needs: ClassVar[tuple[type[Oracle], ...]] = (MarginalOracle,)

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, marginals=1, perturbations=1)

    def structure(self, oracle: MarginalOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return oracle.marginals(self._utilities(oracle, scores, generator))


@dataclass(frozen=True)
class StochasticSparseMAP(NoisyRelaxation[ProjectionOracle]):
    """Stochastic softmax trick with ``Ω = ½‖x‖²``: the loss sees the projection ``X = P((θ + ε) / t)``, sparse in structures.

    Unbiased for its relaxed objective ``E L(X)``, biased for that of structures. Where X is a vertex, its derivative is 0.

    Cost: one noise tensor, one projection, one loss gradient.

    Args:
        temperature: t, positive.
        noise: any `Noise`.

    References:
        Paulus et al. 2020, "Gradient estimation with stochastic softmax tricks", definition 2.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> scores = torch.tensor([0.3, -0.2, 0.5]).expand(4, 3)
        >>> structure = StochasticSparseMAP().structure(Categorical(), scores, generator=torch.Generator().manual_seed(0))
        >>> structure.sum(-1), bool((structure == 0).any())
        (tensor([1., 1., 1., 1.]), True)
    """

    temperature: Positive = 1.0
    noise: AnyNoise = Gumbel()

    name: ClassVar[str] = "stochastic_sparsemap"
    references: ClassVar[tuple[str, ...]] = ("paulus2020gradient",)
    needs: ClassVar[tuple[type[Oracle], ...]] = (ProjectionOracle,)

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, projections=1, perturbations=1)

    def structure(self, oracle: ProjectionOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return oracle.project(self._utilities(oracle, scores, generator)).mean
