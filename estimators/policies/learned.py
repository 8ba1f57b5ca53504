"""A value network as the baseline of a policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ...oracles.capabilities import PolicyOracle
from ...oracles.capabilities.base import inner
from ...oracles.options import Count, NonNegative
from ..base import Loss, evaluate
from ..score_function.learned import PooledNetwork, readable
from .reinforce import StepScoreFunction, Walks

WARM_UP = 64
"""Samples from which the means of states are fitted."""


@dataclass(frozen=True)
class StepLearned(StepScoreFunction):
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
        num_samples: N, at least 1.
        regression_weight: λ, at least 0.

    References:
        Sutton & Barto 2018, "Reinforcement learning: an introduction", section 13.4; Mnih & Gregor 2014, "Neural variational inference and
        learning in belief networks", section 2.3, for whole structures.

    Example:
        >>> from structgrad.oracles import ShiftReduce
        >>> critic = torch.nn.Sequential(torch.nn.Flatten(-3), torch.nn.Linear(32, 16), torch.nn.Unflatten(-1, (4, 4)))
        >>> from structgrad.estimators import StructuredLayer, train_step
        >>> scores = torch.zeros(8, 4, 4, 2, requires_grad=True)
        >>> layer = StructuredLayer(ShiftReduce("local"), StepLearned(critic, num_samples=4))
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

    name: ClassVar[str] = "step_learned"
    references: ClassVar[tuple[str, ...]] = ("sutton2018reinforcement", "mnih2014neural")
    version: ClassVar[int] = 2

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
