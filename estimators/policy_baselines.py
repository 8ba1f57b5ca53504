"""Exact and learned baselines of a policy: the mean loss after a prefix, that of least variance, and a value network."""

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from ..oracles.capabilities import EnumerableOracle, PolicyOracle
from ..oracles.capabilities.base import inner
from ..oracles.options import Count, NonNegative
from .base import Evaluations
from .learned_baseline import PooledNetwork, readable
from .policies import StepScoreFunction, Walks
from .surrogates import Loss, evaluate

MOST = 4096
"""The largest number of structures that is enumerated, unless the option ``limit`` says otherwise: each costs memory in every row."""


@dataclass(frozen=True)
class StepEnumerated(StepScoreFunction):
    """``b_t = E[w_t L | a_<t] / E[w_t | a_<t]``, exactly; a subclass says what the weight ``w_t`` of an action is."""

    num_samples: Count = 1
    limit: Count = MOST

    needs = (PolicyOracle, EnumerableOracle)

    def evaluations(self) -> Evaluations:
        return replace(super().evaluations(), enumerations=1)

    @abc.abstractmethod
    def _action_weights(self, log_probs: Tensor) -> Tensor:
        """[*batch, *event], at least 0, from ``log π(a|s)``."""

    def _baselines(self, loss: Loss, walks: Walks, generator: torch.Generator) -> Tensor:
        oracle: Any = walks.oracle
        batch = walks.scores.shape[: walks.scores.ndim - oracle.event_ndim]
        listed = oracle.enumerate(walks.event, dtype=walks.scores.dtype, device=walks.scores.device)
        structures = listed.reshape(-1, *[1] * len(batch), *walks.event).expand(-1, *batch, *walks.event)
        losses = evaluate(loss, structures, oracle.event_ndim).detach().movedim(0, -1)
        log_law = oracle.log_prob(structures, walks.scores).movedim(0, -1)
        action_weights = self._action_weights(walks.log_probs).flatten(len(batch))
        rows, steps, samples = listed.flatten(1), walks.steps.flatten(), walks.samples.flatten(len(batch) + 1)

        def mean_loss(step: int) -> Tensor:
            """The weighted mean over the structures that begin as the samples [N, *batch, parts] do before a step: [N, *batch]."""
            shared = samples @ (rows * (steps < step)).mT == step
            law = torch.where(shared, log_law, -math.inf)
            top = law.amax(-1, keepdim=True)
            weights = (law - torch.where(top > -math.inf, top, 0)).exp() * (action_weights @ (rows * (steps == step)).mT)
            total = weights.sum(-1)
            # As distances from one loss, so that a large offset does not cancel.
            excess = (weights * (losses - losses[..., :1])).sum(-1)
            return losses[..., 0] + torch.where(total > 0, excess / torch.where(total > 0, total, 1), 0)

        return walks.per_part(torch.stack([mean_loss(step) for step in range(walks.decisions)], -1))


@dataclass(frozen=True)
class StepConditionalMean(StepEnumerated, name="step_conditional_mean", references=("sutton2018reinforcement",)):
    """The mean loss given what was decided: ``b_t = E[L | a_<t]``, by enumeration.

    Unbiased. The factor ``L − b_t`` has the least mean square that any baseline of the prefix gives it. The estimate has the least
    variance where the actions of every state are equally likely and the policy is locally normalised; elsewhere it may have a larger one
    than with the mean of all losses: `StepOptimal` weighs the actions as the variance does.

    Cost: that of REINFORCE, and the loss and the probability of every structure, of which memory holds all at a time.

    References:
        Sutton & Barto 2018, "Reinforcement learning: an introduction", section 13.4 (the value of the state as the baseline).
    """

    def _action_weights(self, log_probs: Tensor) -> Tensor:
        return torch.ones_like(log_probs)


@dataclass(frozen=True)
class StepOptimal(StepEnumerated, name="step_optimal", references=("greensmith2004variance",)):
    """The baseline of least variance that may depend on what was decided: ``b_t = E[‖s_t‖² L | a_<t] / E[‖s_t‖² | a_<t]``.

    ``s_t = e_a − π(·|s)`` is the score of an action in the logits of its state. Under a locally normalised policy every decision has logits
    of its own, and no baseline of the prefix has a smaller variance; under a globally normalised one it is a heuristic. Unbiased.

    Cost: that of REINFORCE, and the loss and the probability of every structure, of which memory holds all at a time.

    References:
        Greensmith, Bartlett & Baxter 2004, "Variance reduction techniques for gradient estimates in reinforcement learning", section 5.
    """

    def _action_weights(self, log_probs: Tensor) -> Tensor:
        """``(1 − π_a)² + Σ_{b≠a} π_b²``, without differences, which would cancel."""
        chances = log_probs.exp()
        others = 1 - torch.eye(chances.shape[-1], dtype=chances.dtype, device=chances.device)
        return (chances @ others).square() + chances.square() @ others


WARM_UP = 64  # samples from which the means of states are fitted


@dataclass(frozen=True)
class StepLearned(StepScoreFunction, name="step_learned", references=("sutton2018reinforcement", "mnih2014neural")):
    """Actor and critic: ``b_t = v(s_t)``, the value that a network gives to the state, trained along with the scores.

    The surrogate carries the regression ``λ (1/N) Σ_i Σ_t (L(z_i) − v(s_t))²`` over the states that were visited: it adds a gradient in the
    parameters of the network, and changes neither the surrogate's value nor its gradient in the scores. Unbiased for every network, because
    a value knows the scores and the state and not the action. Without a network, the baseline is 0 until a `StructuredLayer` makes a small
    one, which is trained jointly, or `warmed_up` has fitted the mean loss of every state from 64 samples at the scores that it is given.
    That network reads the scores of the parts of each item, so that batches may be padded to different lengths.

    Cost: that of REINFORCE, and one pass through the network and back.

    Args:
        module: maps scores ``[*batch, *event]``, detached and with 0 for what is forbidden or ignored, to values of the states,
            ``[*batch, *event]`` without the last dimension; or the ``features`` that the layer was called with. A `torch.nn.Module` whose
            parameters are given to the optimiser.
        values: the values of the states, in the order of memory, where there is no module; `warmed_up` sets them.
        regression_weight: λ, at least 0.

    References:
        Sutton & Barto 2018, "Reinforcement learning: an introduction", section 13.4; Mnih & Gregor 2014, "Neural variational inference and
        learning in belief networks", section 2.3, for whole structures.

    Example:
        >>> critic = torch.nn.Sequential(torch.nn.Flatten(-3), torch.nn.Linear(32, 16), torch.nn.Unflatten(-1, (4, 4)))
        >>> from structgrad.estimators import StructuredLayer, train_step
        >>> scores = torch.zeros(8, 4, 4, 2, requires_grad=True)
        >>> layer = StructuredLayer("shift_reduce[normalization=local]", StepLearned(critic, num_samples=4))
        >>> optimiser = torch.optim.Adam([scores, *layer.parameters()], lr=0.1)
        >>> for _ in range(100):
        ...     values = train_step(layer, optimiser, lambda: scores, lambda z: 3 - z[..., 2, 2, 1])
        >>> bool(values.mean() < 2.1), bool((critic(scores)[:, 2, 2] - 2 < 0.2).all())
        (True, True)
    """

    module: Callable[[Tensor], Tensor] | None = None
    values: tuple[float, ...] = ()
    num_samples: Count = 1
    regression_weight: NonNegative = 1.0

    version = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.module is not None and self.values:
            raise ValueError(f"`{self.name}` got a module and {len(self.values)} values; expected one of them")

    def _limitation(self, oracle: Any, event_shape: tuple[int, ...]) -> str | None:
        states = torch.Size(event_shape[:-1]).numel()
        if len(self.values) in (0, states):
            return None
        return f"{self.name} has the values of {len(self.values)} states, and scores of shape {event_shape} have {states}"

    def _baselines(self, loss: Loss, walks: Walks, generator: torch.Generator) -> Tensor:
        if self.module is None:
            known = self.values or (0.0,)
            return walks.losses.new_tensor(known).reshape(*(walks.event[:-1] if self.values else ()), 1)
        seen = readable(walks.oracle, walks.scores)
        values = self.module(seen if isinstance(self.module, PooledNetwork) else seen.masked_fill(seen == -torch.inf, 0))
        if values.shape != walks.scores.shape[:-1]:
            raise ValueError(
                f"`{self.name}` got values of shape {tuple(values.shape)} from its module for scores of shape {tuple(walks.scores.shape)}; "
                f"expected one per state, {tuple(walks.scores.shape[:-1])}"
            )
        return values.to(walks.scores.dtype).unsqueeze(-1)

    def _carrier(self, walks: Walks, baselines: Tensor, log_probs: Tensor) -> Tensor:
        carrier = super()._carrier(walks, baselines, log_probs)
        if not baselines.requires_grad:
            return carrier
        errors = (walks.over_parts(walks.losses) - baselines).square().expand_as(walks.samples)
        return carrier + self.regression_weight * inner(walks.samples, errors, walks.oracle.event_ndim).mean(0)

    def prepared(self, oracle: PolicyOracle, event_shape: tuple[int, ...] | None, generator: torch.Generator) -> Self:
        """The estimator with a fresh network; itself where it has a module, or values."""
        if self.module is not None or self.values:
            return self
        return replace(self, module=PooledNetwork(oracle.event_ndim, generator, each_state=True))

    def warmed_up(self, loss: Loss, oracle: PolicyOracle, scores: Tensor, *, generator: torch.Generator) -> Self:
        """The estimator with the mean loss of every state at these scores; itself where it has a network or the batch is empty."""
        if self.module is not None or not scores.numel():
            return self
        with torch.no_grad():
            samples = oracle.sample(scores, WARM_UP, generator=generator)
            losses = evaluate(loss, samples, oracle.event_ndim)
        visits = samples.sum(-1).flatten(0, losses.ndim - 1).flatten(1).double()
        totals, counts = losses.flatten().double() @ visits, visits.sum(0)
        means = torch.where(counts > 0, totals / counts.clamp(min=1), losses.double().mean())
        return replace(self, values=tuple(means.tolist()))
