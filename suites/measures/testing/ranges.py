"""Ranges that estimates of the score-function family never leave, by enumeration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ....estimators.base import Estimator
from ....estimators.score_function.baselines import ConstantBaseline, GreedyBaseline, RunningMeanBaseline, SampledBaseline
from ....estimators.score_function.conditional_mean import ConditionalMeanBaseline
from ....estimators.score_function.reinforce import LeaveOneOut, Reinforce, VarGrad, scores_of

if TYPE_CHECKING:
    from ...truth import Target

CHUNK = 4096

RANGED = (
    Reinforce,
    ConstantBaseline,
    RunningMeanBaseline,
    GreedyBaseline,
    ConditionalMeanBaseline,
    SampledBaseline,
    LeaveOneOut,
    VarGrad,
)
"""Estimators whose estimates have a range that enumeration guarantees; a subclass may do anything."""


@dataclass(frozen=True, eq=False)
class Ranges:
    """Of one estimate: ``low``, ``high`` [d] by part, ``along`` [2] of its projection on the direction of the exact gradient."""

    low: Tensor
    high: Tensor
    along: Tensor

    def joined(self, other: Ranges) -> Ranges:
        """The smallest ranges that hold both."""
        along = torch.stack([torch.minimum(self.along[0], other.along[0]), torch.maximum(self.along[1], other.along[1])])
        return Ranges(torch.minimum(self.low, other.low), torch.maximum(self.high, other.high), along)


def ranges_of(estimates: Tensor, gradient: Tensor) -> Ranges:
    """The ranges of a table of all possible estimates ``[s, *event]``."""
    flat, direction = estimates.flatten(1).double(), gradient.flatten().double()
    along = flat @ (direction / direction.norm().clamp(min=1e-300))
    return Ranges(flat.amin(0), flat.amax(0), torch.stack([along.min(), along.max()]))


def score_function_ranges(estimator: Estimator[Any], target: Target) -> Ranges:
    """Ranges of ``(L(z) − b) ∇ log p(z)`` over all structures and baselines; an average of such terms stays within them.

    Args:
        estimator: REINFORCE, with a constant, running, greedy, sampled, exact or leave-one-out baseline.
        target: enumerable.

    Raises:
        ValueError: an estimator whose estimates are no such averages, so that nothing guarantees a range.

    Cost: the loss and the score of every structure.
    """
    if type(estimator) not in RANGED:
        raise ValueError(
            f"`score_function_ranges` got {estimator.name}, whose estimates have no range that enumeration guarantees; expected REINFORCE "
            "with a constant, running, greedy, sampled, exact or leave-one-out baseline, or leave the strict mode out"
        )
    table = list(_chunks(target))
    losses = torch.cat([chunk[0] for chunk in table])
    found: Ranges | None = None
    for baseline in _baselines(estimator, target, losses):
        for values, directions in table:
            estimates = (values - baseline).unsqueeze(-1) * directions
            ranges = ranges_of(estimates, target.truth.gradient)
            found = ranges if found is None else found.joined(ranges)
    assert found is not None, "there is at least one structure"
    return found


def _chunks(target: Target) -> list[tuple[Tensor, Tensor]]:
    """Losses [s] and scores [s, d] of the possible structures."""
    oracle, event = target.oracle, tuple(target.scores.shape)
    theta, result = target.scores.double(), []
    for start in range(0, target.truth.count, CHUNK):
        structures = oracle.enumerate(event, start, min(start + CHUNK, target.truth.count), dtype=torch.float64, device=theta.device)
        possible = oracle.log_prob(structures, theta) > -math.inf
        chosen = structures[possible]
        if len(chosen):
            result.append((target.loss(chosen).detach().double(), scores_of(oracle, chosen, theta).flatten(1)))
    return result


def _baselines(estimator: Estimator[Any], target: Target, losses: Tensor) -> tuple[float, ...]:
    """The extreme baselines: an estimate is linear in them."""
    match estimator:
        case ConstantBaseline():
            return (estimator.value,)
        case RunningMeanBaseline():
            return (estimator.mean,)
        case GreedyBaseline():
            return (float(target.loss(target.oracle.argmax(target.scores))),)
        case ConditionalMeanBaseline():
            return (target.truth.value,)
        case LeaveOneOut() | VarGrad() | SampledBaseline():
            return (float(losses.min()), float(losses.max()))
    return (0.0,)
