"""First-order expansions of a loss: what control variates take away from the losses of samples, and must put back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...estimators.base import evaluate
from ...estimators.score_function.reinforce import scores_of
from ...oracles.capabilities import EnumerableOracle, SamplingOracle
from ...oracles.capabilities.base import inner
from ..truth import Target

MOST = 4096
"""Structures that are summed over at most."""


@dataclass(frozen=True, eq=False)
class Expansions:
    """Means ``[d]`` of ``⟨γ, z − μ⟩ ∇ log p(z)``, with several gradients γ of the loss.

    Attributes:
        at_mean: γ at μ: the gradient of the expansion of the loss there.
        own: γ at z itself, beyond what its mean gives: 0 were γ that of another sample.
    """

    at_mean: Tensor
    own: Tensor


def expansions(aim: Target) -> Expansions | None:
    """Those of an instance, by a sum over all structures; None where there are too many, or the loss has no gradient."""
    oracle, scores = aim.oracle, aim.scores
    if not isinstance(oracle, EnumerableOracle) or not isinstance(oracle, SamplingOracle) or oracle.count(tuple(scores.shape)) > MOST:
        return None
    structures = oracle.enumerate(tuple(scores.shape), dtype=scores.dtype)
    chances = oracle.log_prob(structures, scores).exp()
    structures, chances = structures[chances > 0], chances[chances > 0]
    flat = chances.reshape(-1, *[1] * oracle.event_ndim)
    mean = (flat * structures).sum(0)
    try:
        slopes, centre = _slopes(aim, structures), _slopes(aim, mean.unsqueeze(0))
    except RuntimeError:  # no gradient goes through the loss
        return None
    directions = scores_of(oracle, structures, scores)

    def returned(gamma: Tensor) -> Tensor:
        weights = chances * inner(structures - mean, gamma, oracle.event_ndim)
        moved: Tensor = (weights.reshape(flat.shape) * directions).sum(0)
        return moved.flatten()

    return Expansions(returned(centre), returned(slopes) - returned((flat * slopes).sum(0, keepdim=True)))


def _slopes(aim: Target, points: Tensor) -> Tensor:
    leaf = points.detach().clone().requires_grad_()
    with torch.enable_grad():
        (found,) = torch.autograd.grad(evaluate(aim.loss, leaf, aim.oracle.event_ndim).sum(), leaf)
    return found
