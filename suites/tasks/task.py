"""Tasks: data, a model with a latent structure in its middle, and what it means to have learnt it."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ...oracles.capabilities import MarginalOracle, Oracle
from ...oracles.options import Configured, Count, Positive, Within

Split = Literal["train", "validation", "test"]
"""A part of the items of a task."""

Rates = tuple[Positive, ...]
"""Learning rates."""

Steps = Annotated[int, Within(least=0)]
"""Of what is trained beforehand; 0 leaves it as it is drawn."""


class Batch(NamedTuple):
    """Items of a task, as tensors whose first dimension is the item: ``torch.func.vmap`` maps over whole batches.

    Attributes:
        inputs: what the encoder sees, one tensor or several.
        labels: what the decoder is to predict.
        lengths: how much of an event each item uses; None where all have the same size.
        gold: the true structures ``[b, *event]``, where they are known.
    """

    inputs: tuple[Tensor, ...]
    labels: Tensor
    lengths: Tensor | None = None
    gold: Tensor | None = None


class LatentModel(nn.Module):
    """Two modules: one gives scores of parts, the other takes a structure; a task knows how they are called.

    Args:
        encoder: inputs to scores.
        decoder: inputs and a structure to a prediction.
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder


@dataclass(frozen=True, eq=False)
class TaskLoss:
    """The loss of a batch, one value per structure: ``[..., b, *event] -> [..., b]``; it says what it can give, as `ProblemLoss` does.

    Attributes:
        call: of structures, padded as the scores are; what lies in their padding must change nothing.
        gold: the true structures ``[b, *event]``, padded as the scores are; what is told them asks for them here.
    """

    ignores_padding: ClassVar[bool] = True

    call: Callable[[Tensor], Tensor]
    name: str
    differentiable: bool = True
    inside_hull: bool = True
    vertex_degree: int | None = None
    extension: str = "formula"
    offset: float = 0.0
    gold: Tensor | None = None

    def __call__(self, structure: Tensor) -> Tensor:
        return self.call(structure)


class Task(Configured, abc.ABC):
    """A problem of learning with a latent structure; a concrete one is a frozen dataclass of sizes.

    Everything that it gives is a function of its sizes and of seeds. Losses of structures and of points between them are one formula, so
    that soft and hard losses agree on structures.

    Attributes:
        name: registry name. ``summary``: one line. ``references``: BibTeX keys. ``version``: raised when numbers change.
        steps: of training. ``rates``: learning rates of Adam that validation chooses among. ``batch_size``: items of a step.
        clip: the longest gradient of a step.
        scored: what ``accuracy`` is: ``right labels``, ``span F1``.
        structured: what `judge` says of structures under ``structure_accuracy``: ``bracket recall``, ``V-measure``; empty where nothing.
        stackable: whether `scores`, `loss` and `regulariser` can be mapped over stacked models and batches by ``torch.func.vmap``: no
            values of tensors decide what they do, and they draw nothing. Seeds are trained side by side then, which is to be said where
            it is faster: where a step costs little but its calls.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    references: ClassVar[tuple[str, ...]] = ()
    version: ClassVar[int] = 1
    scored: ClassVar[str] = "right labels"
    structured: ClassVar[str] = ""
    stackable: ClassVar[bool] = False

    steps: Count = 500
    rates: Rates = (0.01,)
    batch_size: Count = 128
    clip: Positive = 5.0

    @property
    @abc.abstractmethod
    def oracle(self) -> Oracle:
        """Of the latent structures."""

    @abc.abstractmethod
    def model(self, seed: int) -> LatentModel:
        """A model with fresh parameters, float32; a decoder that is trained beforehand or frozen is so here."""

    @abc.abstractmethod
    def size(self, split: Split) -> int:
        """How many items a split has."""

    @abc.abstractmethod
    def batch(self, split: Split, items: Tensor) -> Batch:
        """Items of a split by number ``[b]``; all batches of a task have the same event shape."""

    @abc.abstractmethod
    def scores(self, model: LatentModel, batch: Batch) -> Tensor:
        """``[b, *event]``, padded by ``lengths`` where items have them."""

    @abc.abstractmethod
    def loss(self, model: LatentModel, batch: Batch) -> TaskLoss:
        """What the structures of a batch cost."""

    @abc.abstractmethod
    def judge(self, model: LatentModel, batch: Batch, structure: Tensor) -> Mapping[str, Tensor]:
        """What predictions from structures ``[b, *event]`` are worth, one number per item ``[b]``: ``accuracy``, ``structure_accuracy``."""

    @abc.abstractmethod
    def floor(self, seed: int) -> Mapping[str, float]:
        """What is reached without structure: the largest class, or a model that sees the inputs alone."""

    @abc.abstractmethod
    def ceiling(self, seed: int) -> Mapping[str, float]:
        """What is reached with the true structures, or with the exact gradient where nobody knows them."""

    def unavailable(self) -> str | None:
        """Why the task cannot be run here, as one sentence, such as data that is not there; None where it can."""
        return None

    def at(self, seed: int) -> Task:
        """The task as a seed sees it: itself, or with a split of its own where there are few items."""
        return self

    def parameter_groups(self, model: LatentModel, rate: float) -> list[dict[str, Any]]:
        """For the optimiser: encoder and decoder, with rates of their own where a task has two."""
        return [{"params": [parameter for parameter in model.parameters() if parameter.requires_grad], "lr": rate}]

    def regulariser(self, model: LatentModel, batch: Batch) -> Callable[[Tensor], Tensor] | None:
        """What is added to the loss as a function of the scores ``[b, *event] -> [b]``, such as a divergence; None where nothing is."""
        return None

    @torch.no_grad()
    def evaluate(self, model: LatentModel, split: Split = "test") -> dict[str, float]:
        """Means over a split: at the best structures, and with the prefix ``relaxed_`` at the marginals where there are such."""
        items = torch.arange(self.size(split))
        batches = [self.batch(split, part) for part in items.split(EVALUATED)]
        found: dict[str, list[Tensor]] = {}
        for batch in batches:
            scores = self.scores(model, batch)
            points = {"": self.oracle.argmax(scores)}
            if isinstance(self.oracle, MarginalOracle) and self.loss(model, batch).inside_hull:
                points["relaxed_"] = self.oracle.marginals(scores)
            for prefix, point in points.items():
                for metric, values in self.judge(model, batch, point).items():
                    if not prefix or metric == "accuracy":
                        found.setdefault(prefix + metric, []).append(values.double())
        return {metric: float(torch.cat(values).mean()) for metric, values in found.items()}


EVALUATED = 500
"""Items that are evaluated together."""
