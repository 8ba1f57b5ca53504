"""The contract of a task: data, a model with a latent structure, a loss, and measures of success."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ...oracles.capabilities import MarginalOracle, Oracle
from ...oracles.options import Configured, Count, Positive, Within
from ..trust import TASK_FOLDERS, TASK_VARIABLE, task_file

Split = Literal["train", "validation", "test"]
"""A part of the items of a task."""

LossKind = Literal["differentiable", "linear", "black_box", "likelihood", "elbo"]
"""Kinds of losses: differentiable at relaxed inputs, linear in the structure, values only, cross-entropy of a decoder, and its bound."""

Decoding = Literal["joint", "frozen", "none"]
"""Whether a decoder is trained with the encoder, was trained before, or is absent."""

Rates = tuple[Positive, ...]  # learning rates
Steps = Annotated[int, Within(least=0)]  # steps of pretraining; 0 keeps the initial weights


class Batch(NamedTuple):
    """Items of a task, as tensors whose first dimension is the item.

    Attributes:
        inputs: inputs of the encoder, one tensor or several.
        labels: targets of the decoder.
        lengths: size of the event of each item; None if all have the same.
        gold: the true structures ``[b, *event]``, if they are known.
    """

    inputs: tuple[Tensor, ...]
    labels: Tensor
    lengths: Tensor | None = None
    gold: Tensor | None = None

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """A batch of the results of a function of each tensor."""
        lengths, gold = (None if part is None else function(part) for part in (self.lengths, self.gold))
        return Batch(tuple(map(function, self.inputs)), function(self.labels), lengths, gold)

    def take(self, items: Tensor) -> Batch:
        """Some of the items, by number ``[b]``."""
        return self.map(lambda part: part[items])

    def double(self) -> Batch:
        """The batch in double precision."""
        return self.map(lambda part: part.double() if part.is_floating_point() else part)

    def true(self) -> Tensor:
        """The true structures of a task that has them."""
        assert self.gold is not None
        return self.gold

    def mean(self, values: Tensor) -> Tensor:
        """``[..., b, n] -> [..., b]``: means within the lengths."""
        assert self.lengths is not None
        return (values * (torch.arange(values.shape[-1]) < self.lengths.unsqueeze(-1))).sum(-1) / self.lengths


class LatentModel(nn.Module):
    """An encoder, which returns scores of parts, and a decoder, which reads a structure. The task calls them."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder


@dataclass(eq=False)
class TaskLoss:
    """The loss of a batch, one value per structure: ``[..., b, *event] -> [..., b]``, with the declarations of `ProblemLoss`.

    Attributes:
        call: the loss of structures, which are padded as the scores are. Their padding must not change it.
        gold: the true structures ``[b, *event]``, padded as the scores are. Supervised losses read them here.
        varies: whether a loss with the same value at all structures is refused, as one of the user's own is.
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
    varies: bool = False

    def __call__(self, structure: Tensor) -> Tensor:
        return self.call(structure)


class Task(Configured, abc.ABC):
    """A problem of learning with a latent structure; a concrete one is a frozen dataclass of sizes.

    All its results are functions of its sizes and of seeds. One formula is the loss of structures and of points between them, so that soft
    and hard losses agree on structures. A task that predicts labels defines `oracle`, `data`, `modules`, and mostly `quality` and `floor`.

    Attributes:
        name: registry name. ``summary``: one line. ``references``: BibTeX keys. ``version``: raised when numbers change.
        steps: steps of training. ``rates``: learning rates of Adam that validation chooses among. ``batch_size``: items of a step.
        clip: largest norm of the gradient of a step.
        files: files of the data, below the folders of `task_file`; not needed with an option ``generated``.
        scored: meaning of ``accuracy``, such as ``right labels`` or ``span F1``.
        structured: meaning of ``structure_accuracy``, such as ``bracket recall`` or ``V-measure``; empty if `judge` returns none.
        best: the estimator of the training that gives the ceiling; empty for the true structures, or the exact gradient without them.
        family: tasks of one family share data or a model, so that halves of tasks share none; empty for the name of the task.
        kind: kind of its loss. ``decoding``: whether its decoder is trained with the encoder.
        squared: whether labels are numbers, and accuracy the explained share of their squares.
        stackable: whether the seeds of a cell are trained side by side, with one call of the estimator for all. Declare it if a step is
            short, so that calls take most of its time.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    references: ClassVar[tuple[str, ...]] = ()
    version: ClassVar[int] = 1
    files: ClassVar[tuple[str, ...]] = ()
    scored: ClassVar[str] = "right labels"
    structured: ClassVar[str] = ""
    best: ClassVar[str] = ""
    squared: ClassVar[bool] = False
    stackable: ClassVar[bool] = False
    family: str = ""
    kind: LossKind = "likelihood"
    decoding: Decoding = "joint"

    steps: Count = 500
    rates: Rates = (0.01,)
    batch_size: Count = 128
    clip: Positive = 5.0

    @property
    @abc.abstractmethod
    def oracle(self) -> Oracle:
        """The oracle of the latent structures."""

    def modules(self) -> tuple[nn.Module, nn.Module]:
        """A fresh encoder and decoder, float32."""
        raise NotImplementedError(f"`{self.name}` defines neither `modules` nor `model`")

    def model(self, seed: int) -> LatentModel:
        """A model with the fresh parameters of a seed; a pretrained or frozen decoder is already that."""
        with seeded(seed):
            return LatentModel(*self.modules())

    def data(self, split: Split) -> Batch:
        """All items of a split, read once; a task that cannot hold them defines `size` and `batch` instead."""
        raise NotImplementedError(f"`{self.name}` defines neither `data` nor `size` and `batch`")

    def size(self, split: Split) -> int:
        """Number of items of a split."""
        return len(self.data(split).labels)

    def batch(self, split: Split, items: Tensor) -> Batch:
        """Items of a split by number ``[b]``; all batches of a task have the same event shape."""
        return self.data(split).take(items)

    def scores(self, model: LatentModel, batch: Batch) -> Tensor:
        """Scores ``[b, *event]`` by the encoder, padded by ``lengths`` if items have them."""
        scores: Tensor = model.encoder(*batch.inputs)
        return scores if batch.lengths is None else self.oracle.pad(scores, batch.lengths)

    def predict(self, model: LatentModel, batch: Batch, structure: Tensor) -> Tensor:
        """Logits ``[..., b]`` or ``[..., b, C]`` by the decoder from inputs and structures ``[..., b, *event]``; without one, these."""
        return structure if self.decoding == "none" else model.decoder(*batch.inputs, structure)

    def quality(self, batch: Batch, structure: Tensor) -> Tensor | None:
        """Quality ``[b]`` of structures ``[b, *event]``, between 0 and 1; None if it is not defined item by item."""
        return None

    def unpadded(self, batch: Batch, structure: Tensor) -> Tensor:
        """Structures ``[..., b, *event]`` with zeros in the padding."""
        event = tuple(structure.shape[structure.ndim - self.oracle.event_ndim :])
        return structure if batch.lengths is None else self.oracle.unpadded(structure, event, batch.lengths)

    def loss(self, model: LatentModel, batch: Batch) -> TaskLoss:
        """The loss of the structures of a batch; by default the cross-entropy of the label."""
        return TaskLoss(lambda z: label_loss(self.predict(model, batch, z), batch.labels), "cross_entropy")

    def judge(self, model: LatentModel, batch: Batch, structure: Tensor) -> Mapping[str, Tensor]:
        """Quality of predictions from structures ``[b, *event]``, one number per item ``[b]``: ``accuracy``, ``structure_accuracy``."""
        predicted, labels, quality = self.predict(model, batch, structure), batch.labels, self.quality(batch, structure)
        if self.squared:
            errors, squares = (of_items(part.square(), labels).sum(-1) for part in (predicted - labels, labels))
            accuracy = (1 - errors / squares).clamp(min=0)  # the explained share of the squares
        else:
            accuracy = of_items(right(predicted, labels), labels).mean(-1)
        return {"accuracy": accuracy} | ({} if quality is None else {"structure_accuracy": quality})

    def floor(self, seed: int) -> float:
        """Accuracy without structure; by default that of the most frequent label of the training items."""
        labels, counts = self.data("train").labels.unique(return_counts=True)
        return float((self.data("test").labels == labels[counts.argmax()]).float().mean())

    def ceiling(self, seed: int) -> float:
        """Accuracy of training with the true structures, or else with the exact gradient or the estimator ``best``."""
        from .references import reference_name  # these modules import this one
        from .training import fit_decoder, train

        task = self.at(seed)
        if not self.best and task.batch("train", torch.arange(1)).gold is not None:
            rate = getattr(self, "decoder_rate", self.rate)
            return fit_decoder(task, task.model(seed), Batch.true, rate=rate, seed=seed)["accuracy"]
        estimator = self.best or reference_name(task, training=True)
        return task.evaluate(train(task, estimator, rate=self.rate, seed=seed))["accuracy"]

    @property
    def rate(self) -> float:
        """The middle one of ``rates``, for training that chooses none."""
        return self.rates[len(self.rates) // 2]

    def unavailable(self) -> str | None:
        """Why the task cannot be run here, as one sentence, such as missing data; None if it can."""
        missing = [name for name in self.files if task_file(name) is None]
        if not missing or getattr(self, "generated", False):
            return None
        return (
            f"`{self.name}` needs the file {missing[0]}, which is in none of {', '.join(TASK_FOLDERS)}; "
            f"set {TASK_VARIABLE} to the folder that holds {missing[0].partition('/')[0]}/"
            f"{f', or generate data by {self.name}[generated=True]' if hasattr(self, 'generated') else ''}"
        )

    def paths(self) -> tuple[Path, ...]:
        """The paths of ``files``; ValueError if one is missing, see `unavailable`."""
        if (reason := self.unavailable()) is not None:
            raise ValueError(reason)
        return tuple(path for name in self.files if (path := task_file(name)) is not None)

    def at(self, seed: int) -> Task:
        """The task of a seed: itself, or with another split if there are few items."""
        return self

    def parameter_groups(self, model: LatentModel, rate: float) -> list[dict[str, Any]]:
        """Groups of the optimiser; encoder and decoder may have different learning rates."""
        return [{"params": [parameter for parameter in model.parameters() if parameter.requires_grad], "lr": rate}]

    def regulariser(self, model: LatentModel, batch: Batch) -> Callable[[Tensor], Tensor] | None:
        """A term of the loss as a function of the scores ``[b, *event] -> [b]``, such as a divergence; None if there is none."""
        return None

    @torch.no_grad()
    def evaluate(self, model: LatentModel, split: Split = "test") -> dict[str, float]:
        """Means over a split: at the best structures, and with the prefix ``relaxed_`` at the marginals if the oracle has them."""
        found: dict[str, list[Tensor]] = {}
        for items in torch.arange(self.size(split)).split(EVALUATED):
            batch = self.batch(split, items)
            scores = self.scores(model, batch)
            for metric, values in self.judge(model, batch, self.oracle.argmax(scores)).items():
                found.setdefault(metric, []).append(values.double())
            if isinstance(self.oracle, MarginalOracle) and self.loss(model, batch).inside_hull:
                relaxed = self.judge(model, batch, self.oracle.marginals(scores))["accuracy"]
                found.setdefault("relaxed_accuracy", []).append(relaxed.double())
        return {metric: float(torch.cat(values).mean()) for metric, values in found.items()}


EVALUATED = 500  # items that are evaluated together


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw parameters by a seed, and leave the global generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Minus log-probabilities ``[..., *labels]``: of classes by logits ``[..., *labels, C]`` if labels are integers, else of 0 and 1."""
    if labels.is_floating_point():
        return binary_cross_entropy_with_logits(logits, labels.expand_as(logits), reduction="none")
    return -logits.log_softmax(-1).gather(-1, labels.expand(logits.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def right(logits: Tensor, labels: Tensor) -> Tensor:
    """Whether the most probable label is the true one, as 0 and 1; shapes as in `label_loss`."""
    return (((logits > 0) == (labels > 0.5)) if labels.is_floating_point() else logits.argmax(-1) == labels).float()


def of_items(values: Tensor, labels: Tensor) -> Tensor:
    """Values ``[..., *labels]`` of labels ``[b, ...]`` as ``[..., b, n]``, n for each item."""
    return values.unsqueeze(-1).flatten(values.ndim - labels.ndim + 1)
