"""Losses of compact structures, and samples in the form that a loss takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..oracles.capabilities import Oracle, SamplingOracle
from ..oracles.numerics import HALF

IndexLoss = Callable[[Tensor], Tensor]
"""``[..., *batch, *index] -> [..., *batch]``: one value per structure, from its indices; -1 beyond an item's length."""


class OfIndices:
    """A loss that says that it takes indices; see `of_indices`."""

    takes_indices: ClassVar[bool] = True

    def __init__(self, function: IndexLoss) -> None:
        self.function = function

    def __call__(self, indices: Tensor) -> Tensor:
        return self.function(indices)


def of_indices(function: IndexLoss) -> OfIndices:
    """A loss of compact structures, int64 ``[..., *batch, *index]``, for every estimator that asks a loss for values alone.

    Estimators of the score-function family draw, weigh and differentiate samples in that form, and make no dense ones; the others hand on
    the indices of theirs. Those that need the gradient of a loss in the structure, or its value between structures, refuse it. An attribute
    ``takes_indices = True`` of a loss of one's own says the same.

    Args:
        function: one value per structure, ``[..., *batch]``. What indices mean is said by the oracle; beyond the ``lengths`` of items they
            are -1.

    Example:
        >>> from structgrad.estimators import make_estimator
        >>> gold = torch.tensor([0, 1, 1])
        >>> loss = of_indices(lambda tags: (tags != gold).sum(-1))
        >>> scores, generator = torch.zeros(3, 2, 2), torch.Generator().manual_seed(0)
        >>> estimate = make_estimator("rloo[num_samples=64]").gradient(loss, "linear_chain", scores, generator=generator)
        >>> bool(estimate[0, 0, 0] < 0 < estimate[0, 0, 1])  # the first tag is to be 0
        True
    """
    return OfIndices(function)


class OfStructures:
    """A loss of indices as one of structures, which hands on their indices; whatever else it has is its own.

    Estimators get every loss that takes indices like this: the loss of whatever form of sample is at hand.

    Args:
        loss: of indices.
        oracle: of the structures.
    """

    takes_indices: ClassVar[bool] = False

    def __init__(self, loss: IndexLoss, oracle: Oracle) -> None:
        self.loss, self.oracle = loss, oracle

    def __call__(self, structures: Tensor) -> Tensor:
        return self.loss(self.oracle.indices(structures.detach()))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loss, name)


class LossInHalf:
    """A loss of structures in half precision as one of float32: it gets what it asks for, and its values are averaged in float32.

    Args:
        loss: of structures, or of indices.
        dtype: of the structures that it gets.
    """

    def __init__(self, loss: Any, dtype: torch.dtype) -> None:
        self.loss, self.dtype = loss, dtype
        self.given: torch.dtype | None = None

    def __call__(self, structures: Tensor) -> Any:
        values = self.loss(structures.to(self.dtype) if structures.is_floating_point() else structures)
        if not isinstance(values, Tensor) or values.dtype not in HALF:
            return values
        self.given = values.dtype
        return values.float()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loss, name)


def takes_indices(loss: Any) -> bool:
    """Whether a loss says that it takes indices in place of structures."""
    return bool(getattr(loss, "takes_indices", False))


@dataclass(frozen=True)
class Samples:
    """Structures ``[N?, *batch, ...]``, mostly samples, in the form that a loss takes.

    Attributes:
        oracle: that drew them.
        drawn: dense structures, or indices where the loss takes these.
        compact: whether they are indices.
        dtype: of the scores.
    """

    oracle: SamplingOracle
    drawn: Tensor
    compact: bool
    dtype: torch.dtype

    def log_probs(self, scores: Tensor) -> Tensor:
        """``[N, *batch]``, differentiable in the scores."""
        return self.oracle.log_prob(self.drawn, scores, as_indices=True) if self.compact else self.oracle.log_prob(self.drawn, scores)


def draw(loss: Any, oracle: SamplingOracle, scores: Tensor, num_samples: int | None, *, generator: torch.Generator) -> Samples:
    """That many exact samples, or one without that dimension; those of a generator's state are the same in either form."""
    if isinstance(loss, OfStructures):
        return Samples(oracle, oracle.sample(scores, num_samples, generator=generator, as_indices=True), True, scores.dtype)
    return Samples(oracle, oracle.sample(scores, num_samples, generator=generator), False, scores.dtype)


def best(loss: Any, oracle: SamplingOracle, scores: Tensor) -> Samples:
    """The best structure of every item."""
    if isinstance(loss, OfStructures):
        return Samples(oracle, oracle.argmax(scores, as_indices=True), True, scores.dtype)
    return Samples(oracle, oracle.argmax(scores), False, scores.dtype)
