"""Kinds of oracles: independent categories, subsets of a known size, decisions of a policy.

Estimators that serve such structures alone name these as what they need, as they name the operations of
`structgrad.oracles.capabilities`.
"""

from __future__ import annotations

import abc

import torch
from torch import Tensor

from .sampling import SamplingOracle


class FactorisedOracle(SamplingOracle):
    """One or more independent categories: along the last event dimension, every structure uses exactly one part.

    The Gibbs law is the product of the softmax along that dimension, so that a Gumbel race, a conditional law or an antithetic pair has a
    closed form. A category of two parts is a bit.

    Example:
        >>> from structgrad.oracles import Categorical, Subset
        >>> isinstance(Categorical(), FactorisedOracle), isinstance(Subset(1), FactorisedOracle)
        (True, False)
    """


class SubsetOracle(SamplingOracle):
    """Exactly ``k`` of n parts, any of them: event ``[n]``.

    Example:
        >>> from structgrad.oracles import Subset
        >>> isinstance(Subset(3), SubsetOracle), Subset(3).k
        (True, 3)
    """

    k: int


class PolicyOracle(SamplingOracle):
    """Structures that are built by a sequence of decisions: every part is an action at a state, the last event dimension the choice there.

    A structure passes a state at most once, and uses exactly one action at each state that it passes.

    Example:
        >>> from structgrad.oracles import ShiftReduce
        >>> ShiftReduce("local").steps((4, 4, 2))[2, 2]  # after two shifts, with a stack of two: the third decision
        tensor([2, 2])
    """

    @abc.abstractmethod
    def step_log_probs(self, scores: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """Log-probability of each action at its state, ``[*batch, *event]``; ``-inf`` where impossible; differentiable."""

    @abc.abstractmethod
    def steps(self, event_shape: tuple[int, ...], device: torch.device | None = None) -> Tensor:
        """Int64 ``[*event]``: how many decisions come before the state of each part; -1 for an ignored entry."""
