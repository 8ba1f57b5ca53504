"""Straight-through for policies: forward an exact sample, backward the softmax of every choice that was made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import Oracle, PolicyOracle
from ...oracles.options import Positive
from ..base import Evaluations, Objective, PathwiseEstimator
from ..factorised.common import conditional_race
from ..noise import Gumbel
from ..straight_through import replace_value


class StepRelaxed(PathwiseEstimator[PolicyOracle]):
    """At every state that the sample visits, the backward of the softmax of the choice there."""

    temperature: float

    needs: ClassVar[tuple[type[Oracle], ...]] = (PolicyOracle,)
    objective: ClassVar[Objective] = "expected"
    linear: ClassVar[bool] = True

    def _relaxed(self, sample: Tensor, logits: Tensor) -> Tensor:
        """The sample, with the gradient of ``softmax(logits / τ)`` at the states that it visits; -inf where an action is impossible."""
        visited = sample.any(-1, keepdim=True)
        choices = torch.where(visited, logits / self.temperature, 0).softmax(-1)
        return replace_value(choices.to(sample.dtype), sample)


@dataclass(frozen=True)
class StepStraightThrough(StepRelaxed):
    """Straight-through, action by action: forward an exact sample, backward ``Σ_s 1[s visited] (∂π_τ(·|s)/∂θ)ᵀ γ(s)``. Biased.

    ``π_τ = softmax(log π / τ)``. Under a locally normalised policy the Jacobian is ``(diag π_τ − π_τ π_τᵀ)/τ`` on the scores of the state
    itself. Under a globally normalised one the probabilities of the next action depend on the scores of all that may follow, and the
    gradient flows on to these.

    What an action does to the states that follow is left out: for a linear loss ``⟨w, z⟩`` and τ = 1 the mean of the estimate is
    ``∇E L − Σ_s ⟨π(·|s), w(s)⟩ ∇P(s visited)``.

    Cost: one exact sample, one pass for the probabilities of the actions and its gradient, one loss gradient.

    Args:
        temperature: τ, positive.

    References:
        Bengio, Léonard & Courville 2013, "Estimating or propagating gradients through stochastic neurons", section 4, for one choice.

    Example:
        >>> from structgrad.oracles import ShiftReduce
        >>> scores, generator = torch.zeros(4, 4, 2, requires_grad=True), torch.Generator().manual_seed(0)
        >>> optimiser = torch.optim.SGD([scores], lr=0.5)
        >>> for _ in range(100):
        ...     optimiser.zero_grad()
        ...     z = StepStraightThrough().structure(ShiftReduce("local"), scores, generator=generator)
        ...     (1 - z[2, 2, 1]).backward()
        ...     optimiser.step()
        >>> bool(scores[2, 2, 1] > scores[2, 2, 0] + 2)
        True
    """

    temperature: Positive = 1.0

    name: ClassVar[str] = "step_ste"
    references: ClassVar[tuple[str, ...]] = ("bengio2013estimating",)

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, samples=1, marginals=1)

    def structure(self, oracle: PolicyOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        sample = oracle.sample(scores, generator=generator)
        return self._relaxed(sample, oracle.step_log_probs(scores))


@dataclass(frozen=True)
class StepStraightThroughGumbel(StepRelaxed):
    """Straight-through Gumbel-softmax, action by action: forward an exact sample, backward ``softmax((log π + G)/τ)`` on its way. Biased.

    At each visited state the Gumbel variables are drawn from their law *given* the action, so that their race has the winner that the
    sample says: ``x_a = −log E_a`` for the action and ``x_b = −log(E_a + E_b/π_b)`` for the others, E exponential. Sample and noise have
    the joint law of a walk that decides by a race at each state, but the walk is the oracle's. The noise is held fixed in θ; the
    gradient flows through ``log π`` as in `StepStraightThrough`.

    Cost: one exact sample, one noise tensor, one pass for the probabilities of the actions and its gradient, one loss gradient.

    Args:
        temperature: τ, positive.

    References:
        Jang, Gu & Poole 2017, "Categorical reparameterization with Gumbel-softmax", section 2.2; Paulus, Maddison & Krause 2021,
        "Rao-Blackwellizing the straight-through Gumbel-softmax gradient estimator", section 3.1 (the law given the winner).

    Example:
        >>> from structgrad.oracles import ShiftReduce
        >>> scores, generator = torch.zeros(4, 4, 2, requires_grad=True), torch.Generator().manual_seed(0)
        >>> optimiser = torch.optim.SGD([scores], lr=0.5)
        >>> for _ in range(100):
        ...     optimiser.zero_grad()
        ...     z = StepStraightThroughGumbel().structure(ShiftReduce("local"), scores, generator=generator)
        ...     (1 - z[2, 2, 1]).backward()
        ...     optimiser.step()
        >>> bool(scores[2, 2, 1] > scores[2, 2, 0] + 2)
        True
    """

    temperature: Positive = 1.0

    name: ClassVar[str] = "step_st_gumbel"
    references: ClassVar[tuple[str, ...]] = ("jang2017categorical", "paulus2021rao")

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, samples=1, marginals=1, perturbations=1)

    def structure(self, oracle: PolicyOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        sample = oracle.sample(scores, generator=generator)
        log_probs = oracle.step_log_probs(scores).double()
        noisy = conditional_race(log_probs.detach(), sample, Gumbel().draw(oracle, scores, generator=generator))
        possible = log_probs > -math.inf
        shift = torch.where(possible, noisy - torch.where(possible, log_probs.detach(), 0), 0)
        return self._relaxed(sample, log_probs + shift)
