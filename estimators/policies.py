"""The score function of a policy, decision by decision: a baseline may depend on the decisions before."""

import abc
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..oracles.capabilities import PolicyOracle
from ..oracles.capabilities.base import inner
from ..oracles.capabilities.derivatives import unsqueeze_event
from ..oracles.options import Count, Peers
from .base import Evaluations, UnbiasedEstimator
from .surrogates import Loss, carry, evaluate


@dataclass(frozen=True)
class Walks:
    """Samples of a policy, without gradients."""

    oracle: PolicyOracle
    scores: Tensor  # [*batch, *event]
    log_probs: Tensor  # log π(a|s), [*batch, *event]
    samples: Tensor  # [N, *batch, *event]
    losses: Tensor  # [N, *batch]

    @property
    def event(self) -> tuple[int, ...]:
        """The shape of one structure."""
        return tuple(self.scores.shape[self.scores.ndim - self.oracle.event_ndim :])

    @property
    def steps(self) -> Tensor:
        """The number of decisions before each part: ``[*event]``, -1 for an ignored entry."""
        return self.oracle.steps(self.event, self.scores.device)

    @property
    def decisions(self) -> int:
        """The largest number of decisions of a structure."""
        return int(self.oracle.steps(self.event, torch.device("cpu")).max()) + 1

    def per_part(self, values: Tensor) -> Tensor:
        """One value per decision, ``[..., decisions]``, to the parts that may be chosen then: ``[..., *event]``."""
        return values[..., self.steps.clamp(min=0)]

    def over_parts(self, values: Tensor) -> Tensor:
        """``[...]`` as ``[..., *event]`` of one entry, to be broadcast."""
        return unsqueeze_event(values, self.oracle.event_ndim)


class StepScoreFunction(UnbiasedEstimator[PolicyOracle]):
    """``ĝ = (1/N) Σ_i Σ_t (L(z_i) − b_t) ∇_θ log π(a_t|s_t)`` over the actions of exact samples; a subclass says what ``b_t`` is.

    Given what was decided before, the mean of ``∇ log π(a_t|s_t)`` is 0. So the estimate is unbiased for every baseline that depends on
    the prefix of its own sample and on other samples. One that does not depend on the prefix is a baseline of the whole structure, because
    the scores of all actions add up to that of the structure: these (`reinforce_running_mean`, `rloo`, ...) serve policies as they are.
    """

    num_samples: int

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
class StepReinforce(StepScoreFunction, name="step_reinforce", references=("williams1992simple",)):
    """REINFORCE, action by action: ``ĝ = (1/N) Σ_i (L(z_i) − b) Σ_t ∇ log π(a_t|s_t)`` with a constant b.

    Unbiased. It is the estimate of `reinforce_constant` from the same samples, up to rounding, because ``log p(z) = Σ_t log π(a_t|s_t)``;
    hence every baseline that does not depend on the step needs no policy: take `reinforce_running_mean`, `rloo` and so on.

    Args:
        value: b.

    References:
        Williams 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", section 5, on episodes.

    Example:
        >>> left_branching, policy = lambda z: -z[..., 2, 2, 1], "shift_reduce[normalization=local]"  # a reduction after two shifts
        >>> scores, generator = torch.zeros(4, 4, 2), torch.Generator().manual_seed(0)
        >>> for _ in range(100):
        ...     scores -= 0.5 * StepReinforce(value=-0.5).gradient(left_branching, policy, scores, generator=generator)
        >>> bool(scores[2, 2, 1] > scores[2, 2, 0] + 2)
        True
    """

    value: float = 0.0
    num_samples: Count = 1

    def _baselines(self, loss: Loss, walks: Walks, generator: torch.Generator) -> Tensor:
        return walks.losses.new_full((), self.value)


@dataclass(frozen=True)
class StepLeaveOneOut(StepScoreFunction, name="step_leave_one_out", references=("kool2019buy",)):
    """Leave-one-out, state by state: ``b_t`` is the mean loss of the *other* samples that visit ``s_t``, of all others if none does.

    Unbiased: which of the others visit a state depends on them and on the prefix of the own sample alone. With the mean of all others at
    every state this would be `rloo`.

    References:
        Kool, van Hoof & Welling 2019, "Buy 4 REINFORCE samples, get a baseline for free", equation 8, for whole structures.
    """

    num_samples: Peers = 2

    def _baselines(self, loss: Loss, walks: Walks, generator: torch.Generator) -> Tensor:
        losses = walks.over_parts(walks.losses)
        visits = walks.samples.sum(-1, keepdim=True)
        others = (losses.sum(0) - losses) / (self.num_samples - 1)
        visitors = visits.sum(0) - visits
        # As a distance from a loss, so that a large offset does not cancel.
        excess = visits * (losses - losses[:1])
        mean = losses[:1] + (excess.sum(0) - excess) / visitors.clamp(min=1)
        return torch.where(visitors > 0, mean, others)


@dataclass(frozen=True)
class StepCompletions(StepScoreFunction):
    """``b_t = L(z'_t)``, where ``z'_t`` takes the first t actions of the sample and goes on in its own way; a subclass says how."""

    num_samples: Count = 1

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
class StepGreedy(StepCompletions, name="step_greedy", references=("rennie2017self",)):
    """Self-critical, action by action: ``b_t`` is the loss of the best completion of the prefix ``a_<t``.

    Unbiased; it can *raise* the variance where the best completion's loss is atypical. Before the first action it is the baseline of
    `reinforce_greedy`; near the end of a derivation, where most is decided, it is close to the sample's own loss.

    Cost: that of REINFORCE, and a pass over the prefixes of every sample: one argmax and one loss per decision.

    References:
        Rennie et al. 2017, "Self-critical sequence training for image captioning", section 3, for whole sequences.
    """

    def _complete(self, walks: Walks, prefixes: Tensor, generator: torch.Generator) -> Tensor:
        return walks.oracle.argmax(prefixes)


@dataclass(frozen=True)
class StepSampled(StepCompletions, name="step_sampled", references=("schulman2015trust",)):
    """A rollout per prefix: ``b_t`` is the loss of an independent completion of ``a_<t``, drawn from the policy.

    Unbiased, under either normalisation: the law of a structure given its prefix is that of the scores that forbid everything else.
    A difference of two losses of one law, so that an offset of the loss does not matter.

    Cost: that of REINFORCE, and a pass over the prefixes of every sample: one exact sample and one loss per decision.

    References:
        Schulman et al. 2015, "Trust region policy optimization", section 5.2 (rollouts from the states of a trajectory).
    """

    def _complete(self, walks: Walks, prefixes: Tensor, generator: torch.Generator) -> Tensor:
        return walks.oracle.sample(prefixes, generator=generator)


@dataclass(frozen=True)
class StepLocalExpectation(
    UnbiasedEstimator[PolicyOracle], name="step_local_expectation", references=("titsias2015local", "schulman2015trust")
):
    """Local expectations, action by action: ``ĝ = (1/N) Σ_i Σ_t Σ_a ∇π(a|s_t) Q_t(a)`` over *all* actions of the states that were visited.

    ``Q_t(a)`` is the loss of the sample for the action that it took, and for every other the loss of an independent completion of
    ``a_<t, a``. Given the prefix each has the mean loss of its action, so that the estimate is unbiased, under either normalisation. What
    `local_expectation` keeps as it was drawn, the rest of the sample, does not fit another action here, and is drawn again.

    Cost: N samples, one pass for the probabilities of the actions and its gradient; after every prefix, for each other action, one exact
    sample and one loss value.

    References:
        Titsias & Lázaro-Gredilla 2015, "Local expectation gradients for black box variational inference", whose idea it is; Schulman et al.
        2015, "Trust region policy optimization", section 5.2 (rollouts of several actions from the states of a trajectory).
    """

    num_samples: Count = 1

    def evaluations(self) -> Evaluations:
        return Evaluations(marginals=1, samples=self.num_samples, alternatives=self.num_samples)

    def surrogate(self, loss: Loss, oracle: PolicyOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        samples = oracle.sample(scores, self.num_samples, generator=generator)
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
