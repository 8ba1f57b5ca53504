"""An oracle with an estimator, as a module: one way to train with every estimator, with its state and its random numbers inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..oracles.base import Oracle
from .base import Estimator, Loss, PathwiseEstimator


class StructuredLayer(nn.Module):
    """An oracle with an estimator of the gradient through its structures.

    Args:
        oracle: of the structures.
        estimator: which gradient.
        seed: of all random numbers that training draws.
    """

    def __init__(self, oracle: Oracle, estimator: Estimator[Any], *, seed: int = 0) -> None:
        super().__init__()
        self.oracle, self.estimator = oracle, estimator
        self.generator = torch.Generator().manual_seed(seed)

    def forward(self, scores: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """A structure ``[*batch, *event]``: differentiable in training, the best one in evaluation."""
        padded = scores if lengths is None else self.oracle.pad(scores, lengths)
        if not self.training:
            return self.oracle.argmax(padded)
        if not isinstance(self.estimator, PathwiseEstimator):
            raise ValueError(f"`{self.estimator.name}` gives no structure; train with `surrogate` or `train_step`")
        return self.estimator.structure(self.oracle, padded, generator=self.generator)

    def surrogate(self, loss: Loss, scores: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """``[*batch]``: the objective's estimate, whose gradient in scores and decoder is what training follows."""
        padded = scores if lengths is None else self.oracle.pad(scores, lengths)
        return self.estimator.surrogate(loss, self.oracle, padded, generator=self.generator)


def train_step(  # noqa: PLR0913
    layer: StructuredLayer,
    optimiser: torch.optim.Optimizer,
    scores: Callable[[], Tensor],
    loss: Loss,
    *,
    lengths: Tensor | None = None,
    regulariser: Callable[[Tensor], Tensor] | None = None,
    clip: float | None = None,
) -> Tensor:
    """One step of training, the same for every estimator: ``[*batch]``, the values of the surrogate.

    Args:
        layer: in training mode.
        optimiser: of encoder, decoder and the layer's own parameters.
        scores: gives ``[*batch, *event]`` with the parameters as they are; called once for each inner step.
        loss: of structures, with the parameters as they are.
        lengths: of the items, where they differ.
        regulariser: ``[*batch]``, of the scores, which is added to the loss: an entropy bonus, or a Kullback–Leibler divergence.
        clip: the longest gradient, over all parameters of the optimiser.
    """
    optimiser.zero_grad()
    theta = scores()
    values = layer.surrogate(loss, theta, lengths=lengths)
    total = values if regulariser is None else values + regulariser(theta)
    total.mean().backward()
    if clip is not None:
        nn.utils.clip_grad_norm_([parameter for group in optimiser.param_groups for parameter in group["params"]], clip)
    optimiser.step()
    return values.detach()
