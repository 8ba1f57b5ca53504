"""Proximal policy optimisation with a ratio per action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import Oracle, PolicyOracle
from ...oracles.capabilities.base import inner
from ...oracles.capabilities.derivatives import unsqueeze_event
from ...oracles.options import Count, Positive, Within
from ..score_function.ppo import ClippedUpdates, Rollout


@dataclass(frozen=True)
class StepPPO(ClippedUpdates[PolicyOracle]):
    """PPO, clipped action by action: descend ``(1/N) Σ_i Σ_t max(r_t R_i, clip(r_t, 1 − ε, 1 + ε) R_i)`` several times on the same samples.

    ``r_t = π_new(a_t|s_t) / π_old(a_t|s_t)`` and ``R = L − b``. An action adds nothing once it has become less likely by more than ε where
    R > 0, or more likely where R < 0. The estimate is the mean of ``inner_steps`` gradients: the first at the scores, which is
    `step_reinforce` exactly, the others after steps of size ``step_size`` down the gradients before. Biased after the first.

    A model is trained by `train_step`, which takes the inner steps in its parameters; by hand, `rollout` and `inner_objective` do.

    Cost: N samples and loss values; per inner step one pass for the probabilities of the actions and its gradient.

    Args:
        inner_steps: gradients that are averaged, at least 1.
        step_size: of the steps between them in the scores, positive.
        clip: ε, between 0 and 1.
        value: b.
        num_samples: N, at least 1.

    References:
        Schulman et al. 2017, "Proximal policy optimization algorithms", equation 7; Havrylov, Kruszewski & Joulin 2019, "Cooperative
        learning of disjoint syntax and semantics", section 3.3 (ε = 0.2, 15 steps).

    Example:
        >>> from structgrad.oracles import ShiftReduce
        >>> left_branching = lambda z: -z[..., 2, 2, 1]
        >>> from structgrad.estimators import StructuredLayer, train_step
        >>> scores = torch.zeros(4, 4, 2, requires_grad=True)
        >>> layer = StructuredLayer(ShiftReduce("local"), StepPPO(value=-0.5, num_samples=8))
        >>> optimiser = torch.optim.SGD([scores], lr=0.5)
        >>> for _ in range(30):
        ...     values = train_step(layer, optimiser, lambda: scores, left_branching)
        >>> bool(scores[2, 2, 1] > scores[2, 2, 0] + 2)
        True
    """

    inner_steps: Count = 4
    step_size: Positive = 0.1
    clip: Annotated[float, Within(above=0, below=1)] = 0.2
    value: float = 0.0
    num_samples: Count = 1

    name: ClassVar[str] = "step_ppo"
    references: ClassVar[tuple[str, ...]] = ("schulman2017proximal", "havrylov2019cooperative")
    needs: ClassVar[tuple[type[Oracle], ...]] = (PolicyOracle,)

    def _log_probs(self, oracle: PolicyOracle, samples: Tensor, scores: Tensor) -> Tensor:
        return oracle.step_log_probs(scores)

    def _clipped(self, rollout: Rollout, log_probs: Tensor, event_ndim: int) -> Tensor:
        taken = rollout.samples != 0
        ratios = (torch.where(taken, log_probs, 0) - torch.where(taken, rollout.log_probs, 0)).exp()
        advantages = unsqueeze_event(rollout.advantages, event_ndim)
        worse = torch.maximum(ratios * advantages, ratios.clamp(1 - self.clip, 1 + self.clip) * advantages)
        return inner(rollout.samples, worse, event_ndim).mean(0)
