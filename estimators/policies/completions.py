"""Baselines of a policy that complete every prefix of a sample once more: by the best completion, or by another sample."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ...oracles.options import Count
from ..base import Evaluations, Loss, evaluate
from .reinforce import StepScoreFunction, Walks


class StepCompletions(StepScoreFunction):
    """``b_t = L(z'_t)``, where ``z'_t`` takes the first t actions of the sample and goes on in its own way; a subclass says how."""

    def evaluations(self) -> Evaluations:
        return replace(super().evaluations(), completions=self.num_samples)

    @abc.abstractmethod
    def _complete(self, walks: Walks, prefixes: Tensor, generator: torch.Generator) -> Tensor:
        """Structures of scores [*batch, N, decisions, *event] that leave one prefix each."""

    def _baselines(self, loss: Loss, walks: Walks, generator: torch.Generator) -> Tensor:
        completed = self._complete(walks, forced_prefixes(walks), generator)
        batch_dims = walks.losses.ndim - 1
        losses = evaluate(loss, completed.movedim((batch_dims, batch_dims + 1), (0, 1)), walks.oracle.event_ndim)
        return walks.per_part(losses.detach().movedim(1, -1))


def forced_prefixes(walks: Walks) -> Tensor:
    """``[*batch, N, decisions, *event]``: scores that forbid every other action than the sample's before each decision.

    Samples come after the batch, because seed blocks cut the batch.
    """
    event_ndim, batch_dims = walks.oracle.event_ndim, walks.losses.ndim - 1
    order = torch.arange(walks.decisions, device=walks.scores.device).reshape(-1, *[1] * event_ndim)
    earlier = walks.steps < order
    others = (walks.samples == 0).movedim(0, batch_dims).unsqueeze(batch_dims + 1)
    scores = walks.scores[(..., None, None, *[slice(None)] * event_ndim)]
    return torch.where(earlier & others, -math.inf, scores)


@dataclass(frozen=True)
class StepGreedy(StepCompletions):
    """Self-critical, action by action: ``b_t`` is the loss of the best completion of the prefix ``a_<t``.

    Unbiased; it can *raise* the variance where the best completion's loss is atypical. Before the first action it is the baseline of
    `reinforce_greedy`; near the end of a derivation, where most is decided, it is close to the sample's own loss.

    Cost: that of REINFORCE, and a pass over the prefixes of every sample: one argmax and one loss per decision.

    Args:
        num_samples: N, at least 1.

    References:
        Rennie et al. 2017, "Self-critical sequence training for image captioning", section 3, for whole sequences.

    Example:
        >>> from structgrad.oracles import ShiftReduce
        >>> left_branching = lambda z: -z[..., 2, 2, 1]
        >>> scores, generator = torch.zeros(4, 4, 2), torch.Generator().manual_seed(0)
        >>> for _ in range(50):
        ...     scores -= StepGreedy(4).gradient(left_branching, ShiftReduce("local"), scores, generator=generator)
        >>> bool(scores[2, 2, 1] > scores[2, 2, 0] + 2)
        True
    """

    num_samples: Count = 1

    name: ClassVar[str] = "step_greedy"
    references: ClassVar[tuple[str, ...]] = ("rennie2017self",)

    def _complete(self, walks: Walks, prefixes: Tensor, generator: torch.Generator) -> Tensor:
        return walks.oracle.argmax(prefixes)


@dataclass(frozen=True)
class StepSampled(StepCompletions):
    """A rollout per prefix: ``b_t`` is the loss of an independent completion of ``a_<t``, drawn from the policy.

    Unbiased, under either normalisation: the law of a structure given its prefix is that of the scores that forbid everything else.
    A difference of two losses of one law, so that an offset of the loss does not matter.

    Cost: that of REINFORCE, and a pass over the prefixes of every sample: one exact sample and one loss per decision.

    Args:
        num_samples: N, at least 1.

    References:
        Schulman et al. 2015, "Trust region policy optimization", section 5.2 (rollouts from the states of a trajectory).

    Example:
        >>> from structgrad.oracles import ShiftReduce
        >>> left_branching = lambda z: -z[..., 2, 2, 1]
        >>> scores, generator = torch.zeros(4, 4, 2), torch.Generator().manual_seed(0)
        >>> for _ in range(50):
        ...     scores -= StepSampled(4).gradient(left_branching, ShiftReduce("local"), scores, generator=generator)
        >>> bool(scores[2, 2, 1] > scores[2, 2, 0] + 2)
        True
    """

    num_samples: Count = 1

    name: ClassVar[str] = "step_sampled"
    references: ClassVar[tuple[str, ...]] = ("schulman2015trust",)

    def _complete(self, walks: Walks, prefixes: Tensor, generator: torch.Generator) -> Tensor:
        return walks.oracle.sample(prefixes, generator=generator)
