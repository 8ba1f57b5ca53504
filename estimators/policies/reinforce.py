"""The score function of a policy, decision by decision: a baseline may depend on what was decided before."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import Oracle, PolicyOracle
from ...oracles.capabilities.base import inner
from ...oracles.capabilities.derivatives import unsqueeze_event
from ...oracles.options import Count, Peers
from ..base import Estimator, Evaluations, Loss, Objective, carry, evaluate


@dataclass(frozen=True)
class Walks:
    """Samples of a policy with what is known of them, without gradients.

    Attributes:
        oracle: the policy's oracle.
        scores: ``[*batch, *event]``.
        log_probs: ``log π(a|s)``, ``[*batch, *event]``.
        samples: ``[N, *batch, *event]``.
        losses: ``[N, *batch]``.
    """

    oracle: PolicyOracle
    scores: Tensor
    log_probs: Tensor
    samples: Tensor
    losses: Tensor

    @property
    def event(self) -> tuple[int, ...]:
        """The shape of one structure."""
        return tuple(self.scores.shape[self.scores.ndim - self.oracle.event_ndim :])

    @property
    def steps(self) -> Tensor:
        """How many decisions come before each part: ``[*event]``, -1 for an ignored entry."""
        return self.oracle.steps(self.event, self.scores.device)

    @property
    def decisions(self) -> int:
        """How many decisions a structure takes at most."""
        return int(self.oracle.steps(self.event, torch.device("cpu")).max()) + 1

    def per_part(self, values: Tensor) -> Tensor:
        """One value per decision, ``[..., decisions]``, to the parts that may be chosen then: ``[..., *event]``."""
        return values[..., self.steps.clamp(min=0)]

    def over_parts(self, values: Tensor) -> Tensor:
        """``[...]`` as ``[..., *event]`` of one entry, to be broadcast."""
        return unsqueeze_event(values, self.oracle.event_ndim)


class StepScoreFunction(Estimator[PolicyOracle]):
    """``ĝ = (1/N) Σ_i Σ_t (L(z_i) − b_t) ∇_θ log π(a_t|s_t)`` over the actions of exact samples; a subclass says what ``b_t`` is.

    Given what was decided before, the mean of ``∇ log π(a_t|s_t)`` is 0. So the estimate is unbiased for every baseline that depends on
    the prefix of its own sample and on other samples. One that does not depend on the prefix is a baseline of the whole structure, because
    the scores of all actions add up to that of the structure: these (`reinforce_running_mean`, `rloo`, ...) serve policies as they are.
    """

    num_samples: int

    needs: ClassVar[tuple[type[Oracle], ...]] = (PolicyOracle,)
    objective: ClassVar[Objective] = "expected"
    unbiased: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.num_samples, marginals=1, samples=self.num_samples)

    @abc.abstractmethod
    def _baselines(self, loss: Loss, walks: Walks, generator: torch.Generator) -> Tensor:
        """The baseline of every part, the same for all actions of a state: broadcastable to [N, *batch, *event]."""

    def surrogate(self, loss: Loss, oracle: PolicyOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        samples = oracle.sample(scores, self.num_samples, generator=generator)
        losses = evaluate(loss, samples, oracle.event_ndim)
        log_probs = oracle.step_log_probs(scores)
        walks = Walks(oracle, scores.detach(), log_probs.detach(), samples, losses.detach())
        return carry(losses.mean(0), self._carrier(walks, self._baselines(loss, walks, generator), log_probs))

    def _carrier(self, walks: Walks, baselines: Tensor, log_probs: Tensor) -> Tensor:
        """[*batch]: its gradient is the estimate."""
        weights = ((walks.over_parts(walks.losses) - baselines.detach()) * walks.samples).mean(0)
        return inner(weights, log_probs, walks.oracle.event_ndim)


@dataclass(frozen=True)
class StepReinforce(StepScoreFunction):
    """REINFORCE, action by action: ``ĝ = (1/N) Σ_i (L(z_i) − b) Σ_t ∇ log π(a_t|s_t)`` with a constant b.

    Unbiased. It is the estimate of `reinforce_constant` from the same samples, up to rounding, because ``log p(z) = Σ_t log π(a_t|s_t)``;
    hence every baseline that does not depend on the step needs no policy: take `reinforce_running_mean`, `rloo` and so on.

    Cost: N samples, N loss values, one pass for the probabilities of the actions and its gradient.

    Args:
        value: b.
        num_samples: N, at least 1.

    References:
        Williams 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", section 5, on episodes.

    Example:
        >>> from structgrad.oracles import ShiftReduce
        >>> left_branching = lambda z: -z[..., 2, 2, 1]  # reward a reduction after two shifts
        >>> scores, generator = torch.zeros(4, 4, 2), torch.Generator().manual_seed(0)
        >>> policy, step = ShiftReduce("local"), StepReinforce(value=-0.5)
        >>> for _ in range(100):
        ...     scores -= 0.5 * step.gradient(left_branching, policy, scores, generator=generator)
        >>> bool(scores[2, 2, 1] > scores[2, 2, 0] + 2)
        True
    """

    value: float = 0.0
    num_samples: Count = 1

    name: ClassVar[str] = "step_reinforce"
    references: ClassVar[tuple[str, ...]] = ("williams1992simple",)

    def _baselines(self, loss: Loss, walks: Walks, generator: torch.Generator) -> Tensor:
        return walks.losses.new_full((), self.value)


@dataclass(frozen=True)
class StepLeaveOneOut(StepScoreFunction):
    """Leave-one-out, state by state: ``b_t`` is the mean loss of the *other* samples that visit ``s_t``, of all others if none does.

    Unbiased: which of the others visit a state depends on them and on the prefix of the own sample alone. With the mean of all others at
    every state this would be `rloo`.

    Cost: N samples, N loss values, one pass for the probabilities of the actions and its gradient.

    Args:
        num_samples: N, at least 2.

    References:
        Kool, van Hoof & Welling 2019, "Buy 4 REINFORCE samples, get a baseline for free", equation 8, for whole structures.

    Example:
        >>> from structgrad.oracles import ShiftReduce
        >>> left_branching = lambda z: -z[..., 2, 2, 1]
        >>> scores, generator = torch.zeros(4, 4, 2), torch.Generator().manual_seed(0)
        >>> for _ in range(50):
        ...     scores -= StepLeaveOneOut(4).gradient(left_branching, ShiftReduce("local"), scores, generator=generator)
        >>> bool(scores[2, 2, 1] > scores[2, 2, 0] + 2)
        True
    """

    num_samples: Peers = 2

    name: ClassVar[str] = "step_leave_one_out"
    references: ClassVar[tuple[str, ...]] = ("kool2019buy",)

    def _baselines(self, loss: Loss, walks: Walks, generator: torch.Generator) -> Tensor:
        losses = walks.over_parts(walks.losses)
        visits = walks.samples.sum(-1, keepdim=True)
        others = (losses.sum(0) - losses) / (self.num_samples - 1)
        visitors = visits.sum(0) - visits
        # As a distance from a loss, so that a large offset does not cancel.
        excess = visits * (losses - losses[:1])
        mean = losses[:1] + (excess.sum(0) - excess) / visitors.clamp(min=1)
        return torch.where(visitors > 0, mean, others)
