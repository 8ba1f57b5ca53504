"""Exact baselines of a policy, by enumeration of the structures that share a prefix: the mean loss, and the one of least variance."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import EnumerableOracle, Oracle, PolicyOracle
from ...oracles.options import Count
from ..base import Evaluations, Loss, evaluate
from ..enumeration import too_many
from .reinforce import StepScoreFunction, Walks

MOST = 4096
"""The largest number of structures that is enumerated, unless the option ``limit`` says otherwise: each costs memory in every row."""


class StepEnumerated(StepScoreFunction):
    """``b_t = E[w_t L | a_<t] / E[w_t | a_<t]``, exactly; a subclass says what the weight ``w_t`` of an action is."""

    limit: int

    needs: ClassVar[tuple[type[Oracle], ...]] = (PolicyOracle, EnumerableOracle)

    def evaluations(self) -> Evaluations:
        return replace(super().evaluations(), enumerations=1)

    @abc.abstractmethod
    def _action_weights(self, log_probs: Tensor) -> Tensor:
        """[*batch, *event], at least 0, from ``log π(a|s)``."""

    def _limitation(self, oracle: Any, event_shape: tuple[int, ...]) -> str | None:
        return too_many(self.name, oracle, event_shape, self.limit)

    def _baselines(self, loss: Loss, walks: Walks, generator: torch.Generator) -> Tensor:
        oracle: Any = walks.oracle
        batch = walks.scores.shape[: walks.scores.ndim - oracle.event_ndim]
        listed = oracle.enumerate(walks.event, dtype=walks.scores.dtype, device=walks.scores.device)
        structures = listed.reshape(-1, *[1] * len(batch), *walks.event).expand(-1, *batch, *walks.event)
        losses = evaluate(loss, structures, oracle.event_ndim).detach().movedim(0, -1)
        log_law = oracle.log_prob(structures, walks.scores).movedim(0, -1)
        weights = self._action_weights(walks.log_probs).flatten(len(batch))
        space = _Space(listed.flatten(1), walks.steps.flatten(), losses, log_law, weights)
        samples = walks.samples.flatten(len(batch) + 1)
        return walks.per_part(torch.stack([space.mean_loss(samples, step) for step in range(walks.decisions)], -1))


@dataclass(frozen=True)
class _Space:
    """All structures [s, parts], the step of every part, and per batch row: losses [*batch, s], log-law, weights [*batch, parts]."""

    structures: Tensor
    steps: Tensor
    losses: Tensor
    log_law: Tensor
    weights: Tensor

    def mean_loss(self, samples: Tensor, step: int) -> Tensor:
        """The weighted mean over the structures that begin as the samples [N, *batch, parts] do before a step: [N, *batch]."""
        before = self.structures * (self.steps < step)
        shared = samples @ before.mT == step
        log_law = torch.where(shared, self.log_law, -math.inf)
        top = log_law.amax(-1, keepdim=True)
        weights = (log_law - torch.where(top > -math.inf, top, 0)).exp() * (self.weights @ (self.structures * (self.steps == step)).mT)
        total = weights.sum(-1)
        # As distances from one loss, so that a large offset does not cancel.
        excess = (weights * (self.losses - self.losses[..., :1])).sum(-1)
        return self.losses[..., 0] + torch.where(total > 0, excess / torch.where(total > 0, total, 1), 0)


@dataclass(frozen=True)
class StepConditionalMean(StepEnumerated):
    """The mean loss given what was decided: ``b_t = E[L | a_<t]``, by enumeration.

    Unbiased. The factor ``L − b_t`` has the least mean square that any baseline of the prefix gives it. The estimate has the least
    variance where the actions of every state are equally likely and the policy is locally normalised; elsewhere it may have a larger one
    than with the mean of all losses: `StepOptimal` weighs the actions as the variance does.

    Cost: that of REINFORCE, and the loss and the probability of every structure, of which memory holds all at a time.

    Args:
        num_samples: N, at least 1.
        limit: the most structures that are enumerated; spaces with more are refused.

    References:
        Sutton & Barto 2018, "Reinforcement learning: an introduction", section 13.4 (the value of the state as the baseline).

    Example:
        >>> from structgrad.oracles import ShiftReduce
        >>> left_branching = lambda z: -z[..., 2, 2, 1]
        >>> scores, generator = torch.zeros(4, 4, 2), torch.Generator().manual_seed(0)
        >>> for _ in range(50):
        ...     scores -= StepConditionalMean(4).gradient(left_branching, ShiftReduce("local"), scores, generator=generator)
        >>> bool(scores[2, 2, 1] > scores[2, 2, 0] + 2)
        True
    """

    num_samples: Count = 1
    limit: Count = MOST

    name: ClassVar[str] = "step_conditional_mean"
    references: ClassVar[tuple[str, ...]] = ("sutton2018reinforcement",)

    def _action_weights(self, log_probs: Tensor) -> Tensor:
        return torch.ones_like(log_probs)


@dataclass(frozen=True)
class StepOptimal(StepEnumerated):
    """The baseline of least variance that may depend on what was decided: ``b_t = E[‖s_t‖² L | a_<t] / E[‖s_t‖² | a_<t]``.

    ``s_t = e_a − π(·|s)`` is the score of an action in the logits of its state. Under a locally normalised policy every decision has logits
    of its own, and no baseline of the prefix has a smaller variance; under a globally normalised one it is a heuristic. Unbiased.

    Cost: that of REINFORCE, and the loss and the probability of every structure, of which memory holds all at a time.

    Args:
        num_samples: N, at least 1.
        limit: the most structures that are enumerated; spaces with more are refused.

    References:
        Greensmith, Bartlett & Baxter 2004, "Variance reduction techniques for gradient estimates in reinforcement learning", section 5.

    Example:
        >>> from structgrad.oracles import ShiftReduce
        >>> left_branching = lambda z: -z[..., 2, 2, 1]
        >>> scores, generator = torch.zeros(4, 4, 2), torch.Generator().manual_seed(0)
        >>> for _ in range(50):
        ...     scores -= StepOptimal(4).gradient(left_branching, ShiftReduce("local"), scores, generator=generator)
        >>> bool(scores[2, 2, 1] > scores[2, 2, 0] + 2)
        True
    """

    num_samples: Count = 1
    limit: Count = MOST

    name: ClassVar[str] = "step_optimal"
    references: ClassVar[tuple[str, ...]] = ("greensmith2004variance",)

    def _action_weights(self, log_probs: Tensor) -> Tensor:
        """``(1 − π_a)² + Σ_{b≠a} π_b²``, without differences, which would cancel."""
        chances = log_probs.exp()
        others = 1 - torch.eye(chances.shape[-1], dtype=chances.dtype, device=chances.device)
        return (chances @ others).square() + chances.square() @ others
