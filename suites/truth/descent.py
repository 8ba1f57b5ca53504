"""Descent of the loss of the best structure along an estimate: its gradient is 0 almost everywhere."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...estimators.base import Loss, evaluate
from ...oracles.capabilities import Oracle


def descent_profile(oracle: Oracle, loss: Loss, scores: Tensor, direction: Tensor, steps: Sequence[float]) -> Tensor:
    """``L(argmax(θ − η d))`` for every η: what a step along an estimate does to the loss of the best structure; exact.

    This function of θ is piecewise constant. Its derivative says nothing, and a difference quotient has no limit; but an estimate is useful
    to it if the loss falls within the steps that one takes.

    Args:
        oracle: the structures.
        loss: ``[..., *event] -> [...]``.
        scores: one instance, ``[*event]``.
        direction: d, ``[*event]``, finite.
        steps: every η; 0 gives the loss as it is.

    Returns:
        Float64 ``[steps]``, at a cost of one MAP each.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> scores, losses = torch.tensor([1.0, 0.0]), torch.tensor([3.0, 2.0])
        >>> descent_profile(Categorical(), lambda z: z @ losses, scores, torch.tensor([1.0, -1.0]), [0.0, 0.4, 0.6])
        tensor([3., 3., 2.], dtype=torch.float64)
    """
    if direction.shape != scores.shape or scores.ndim != oracle.event_ndim or not bool(direction.isfinite().all()):
        raise ValueError(
            f"`descent_profile` got scores of shape {tuple(scores.shape)} and a direction of shape {tuple(direction.shape)}; "
            "expected one instance, [*event], and a finite direction of its shape"
        )
    lengths = torch.tensor(steps, dtype=torch.float64, device=scores.device).reshape(-1, *[1] * oracle.event_ndim)
    with torch.no_grad():
        best = oracle.argmax(scores.detach().double() - lengths * direction.double())
        return evaluate(loss, best.to(scores.dtype), oracle.event_ndim).double()
