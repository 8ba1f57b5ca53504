"""The score function of a policy with every action of a state summed out, by a rollout of each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import Oracle, PolicyOracle
from ...oracles.capabilities.base import inner
from ...oracles.options import Count
from ..base import Estimator, Evaluations, Loss, Objective, carry, evaluate
from .completions import forced_prefixes
from .reinforce import Walks


@dataclass(frozen=True)
class StepLocalExpectation(Estimator[PolicyOracle]):
    """Local expectations, action by action: ``ĝ = (1/N) Σ_i Σ_t Σ_a ∇π(a|s_t) Q_t(a)`` over *all* actions of the states that were visited.

    ``Q_t(a)`` is the loss of the sample for the action that it took, and for every other the loss of an independent completion of
    ``a_<t, a``. Given the prefix each has the mean loss of its action, so that the estimate is unbiased, under either normalisation. What
    `local_expectation` keeps as it was drawn, the rest of the sample, does not fit another action here, and is drawn anew.

    Cost: N samples, one pass for the probabilities of the actions and its gradient; after every prefix, for each other action, one exact
    sample and one loss value.

    Args:
        num_samples: N, at least 1.

    References:
        Titsias & Lázaro-Gredilla 2015, "Local expectation gradients for black box variational inference", whose idea it is; Schulman et al.
        2015, "Trust region policy optimization", section 5.2 (rollouts of several actions from the states of a trajectory).

    Example:
        >>> from structgrad.oracles import ShiftReduce
        >>> left_branching = lambda z: -z[..., 2, 2, 1]
        >>> scores, generator = torch.zeros(4, 4, 2), torch.Generator().manual_seed(0)
        >>> for _ in range(50):
        ...     scores -= StepLocalExpectation(4).gradient(left_branching, ShiftReduce("local"), scores, generator=generator)
        >>> bool(scores[2, 2, 1] > scores[2, 2, 0] + 2)
        True
    """

    num_samples: Count = 1

    name: ClassVar[str] = "step_local_expectation"
    references: ClassVar[tuple[str, ...]] = ("titsias2015local", "schulman2015trust")
    needs: ClassVar[tuple[type[Oracle], ...]] = (PolicyOracle,)
    objective: ClassVar[Objective] = "expected"
    unbiased: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(marginals=1, samples=self.num_samples, alternatives=self.num_samples)

    def surrogate(self, loss: Loss, oracle: PolicyOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        samples = oracle.sample(scores, self.num_samples, generator=generator)
        return self.from_samples(loss, oracle, scores, samples, generator=generator)

    def from_samples(self, loss: Loss, oracle: PolicyOracle, scores: Tensor, samples: Tensor, *, generator: torch.Generator) -> Tensor:
        """The surrogate of samples that were drawn already; the generator is that of the completions."""
        losses = evaluate(loss, samples, oracle.event_ndim)
        log_probs = oracle.step_log_probs(scores)
        walks = Walks(oracle, scores.detach(), log_probs.detach(), samples, losses.detach())
        distances = _of_other_actions(walks, loss, generator)
        chances = walks.log_probs.exp()
        visited = samples.sum(-1, keepdim=True)
        weights = visited * chances * (distances - (chances * distances).sum(-1, keepdim=True))
        return carry(losses.mean(0), inner(weights.mean(0), log_probs, oracle.event_ndim))


def _of_other_actions(walks: Walks, loss: Loss, generator: torch.Generator) -> Tensor:
    """``Q_t(a) − L(z)``, ``[N, *batch, *event]``: 0 for the action that was taken, and for impossible ones."""
    oracle, batch_dims = walks.oracle, walks.losses.ndim - 1
    distances, prefixes = torch.zeros_like(walks.samples), forced_prefixes(walks)
    order = torch.arange(walks.decisions, device=walks.scores.device).reshape(-1, *[1] * oracle.event_ndim)
    here, possible = walks.steps == order, walks.log_probs > -math.inf
    for shift in range(1, walks.event[-1]):
        # The action that follows the own one so far, in a circle; where it is impossible the own one stands in, for nothing.
        others = (walks.samples.roll(shift, -1) > 0) & possible
        chosen = torch.where(others.any(-1, keepdim=True), others, walks.samples > 0)
        refused = ((walks.samples.sum(-1, keepdim=True) > 0) & ~chosen).movedim(0, batch_dims).unsqueeze(batch_dims + 1)
        completed = oracle.sample(torch.where(here & refused, -math.inf, prefixes), generator=generator)
        found = evaluate(loss, completed.movedim((batch_dims, batch_dims + 1), (0, 1)), oracle.event_ndim).detach().movedim(1, -1)
        distances = torch.where(others, walks.per_part(found - walks.losses.unsqueeze(-1)), distances)
    return distances
