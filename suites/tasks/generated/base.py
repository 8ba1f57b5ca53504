"""Tasks on generated items: pretraining, frozen decoders, floors and ceilings of all families."""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, make_dataclass, replace
from typing import Any, ClassVar, TypeVar, cast, get_args, get_type_hints

import torch
from torch import Tensor, nn

from ....estimators import crf_loss
from ....oracles import MarginalOracle
from ....oracles.options import Count
from ..references import remembered
from ..task import Batch, Decoding, LatentModel, Rates, Split, Steps, Task, TaskLoss, label_loss, right, seeded
from ..training import descend, fit_decoder, judged

ENCODER_STEPS = 100  # steps of pretraining of an encoder
T = TypeVar("T", bound=Task)


@dataclass(frozen=True)
class GeneratedTask(Task):
    """A task on generated items whose true structures are known. A family defines ``oracle``, ``drawn``, ``modules`` and ``predict``."""

    train: Count = 2000
    heldout: Count = 1000
    steps: Count = 500
    rates: Rates = (0.003, 0.01, 0.03)
    batch_size: Count = 64

    scored: ClassVar[str] = "right labels"
    structured: ClassVar[str] = "F1 of the parts of the true structure"
    stackable: ClassVar[bool] = True

    @abc.abstractmethod
    def drawn(self, items: int, world: torch.Generator, draws: torch.Generator) -> Batch:
        """Items of a split, whose laws are drawn from ``world``, equal in all splits."""

    @abc.abstractmethod
    def modules(self) -> tuple[nn.Module, nn.Module]:
        """A fresh encoder and decoder."""

    def data(self, split: Split) -> Batch:
        return _data(replace(self, steps=1, rates=()), split)

    def model(self, seed: int) -> LatentModel:
        with seeded(seed):
            return LatentModel(*self.modules())

    def quality(self, batch: Batch, structure: Tensor) -> Tensor:
        gold, parts = batch.true(), tuple(range(-self.oracle.event_ndim, 0))
        return 2 * (structure * gold).sum(parts) / (structure + gold).sum(parts)


@dataclass(frozen=True)
class LatentTask(GeneratedTask):
    """A generated task whose labels are predicted from a latent structure.

    Args:
        train, heldout: training items, and items of validation and test each.
        decoding: whether the decoder is trained with the encoder, or before on the true structures, for ``pretraining`` steps.
        labelled: training items with known structures, on which the encoder is pretrained; 0 for none.
    """

    decoding: Decoding = "joint"
    pretraining: Steps = 300
    labelled: Steps = 0

    def model(self, seed: int) -> LatentModel:
        model = super().model(seed)
        if self.decoding == "frozen":
            model.decoder.load_state_dict(_pretrained(replace(self, decoding="joint", labelled=0, steps=self.pretraining, rates=())))
            model.decoder.requires_grad_(False)
        if self.labelled:
            known, oracle = self.batch("train", torch.arange(self.labelled)), cast(MarginalOracle, self.oracle)
            likelihood = lambda: crf_loss(oracle, self.scores(model, known), known.true()).mean()  # noqa: E731
            descend(model.encoder, likelihood, steps=ENCODER_STEPS, rate=0.01)
        return model

    def loss(self, model: LatentModel, batch: Batch) -> TaskLoss:
        def call(z: Tensor) -> Tensor:
            values = label_loss(self.predict(model, batch, z), batch.labels)
            return values if batch.labels.ndim == 1 else values.sum(-1) if self.kind == "elbo" else values.mean(-1)

        return TaskLoss(call, "cross_entropy", gold=batch.gold)

    def regulariser(self, model: LatentModel, batch: Batch) -> Callable[[Tensor], Tensor] | None:
        """The divergence from uniform structures, if the loss is a bound."""
        return functools.partial(divergence, self.oracle) if self.kind == "elbo" else None

    def judge(self, model: LatentModel, batch: Batch, structure: Tensor) -> Mapping[str, Tensor]:
        accuracy = right(self.predict(model, batch, structure), batch.labels)
        return {
            "accuracy": accuracy.flatten(1).mean(1) if accuracy.ndim > 1 else accuracy,
            "structure_accuracy": self.quality(batch, structure),
        }

    def floor(self, seed: int) -> float:
        """The decoder trained and tested at the mean of all structures."""
        oracle: Any = self.oracle
        task = replace(self, decoding="joint", labelled=0)
        return fit_decoder(task, task.model(seed), lambda batch: oracle.marginals(torch.zeros_like(batch.true())), rate=0.01, seed=seed)[
            "accuracy"
        ]

    def ceiling(self, seed: int) -> float:
        return judged(self, self.model(seed), Batch.true)["accuracy"] if self.decoding == "frozen" else super().ceiling(seed)


@dataclass(frozen=True)
class DecisionTask(GeneratedTask):
    """A generated task without a decoder: features of parts predict a decision, whose cost is known in training.

    Args:
        train, heldout: training items, and items of validation and test each.
        kind: kind of the loss.
    """

    decoding = "none"
    best: ClassVar[str] = "crf"

    def predict(self, model: LatentModel, batch: Batch, structure: Tensor) -> Tensor:
        return structure

    @abc.abstractmethod
    def cost(self, batch: Batch, z: Tensor) -> Tensor:
        """The cost ``[..., b]`` of decisions ``[..., b, *event]``, of the kind of the task."""

    def loss(self, model: LatentModel, batch: Batch) -> TaskLoss:
        call = functools.partial(self.cost, batch)
        if self.kind == "black_box":
            return TaskLoss(call, "cost", differentiable=False, inside_hull=False, extension="none", gold=batch.gold)
        linear = {"vertex_degree": 1, "extension": "linear"} if self.kind == "linear" else {}
        return TaskLoss(call, "cost", **linear, gold=batch.gold)  # type: ignore[arg-type]

    @abc.abstractmethod
    def success(self, batch: Batch, z: Tensor) -> Tensor:
        """Success ``[b]`` of decisions ``[b, *event]``, between 0 and 1, in all kinds alike."""

    def judge(self, model: LatentModel, batch: Batch, structure: Tensor) -> Mapping[str, Tensor]:
        return {"accuracy": self.success(batch, structure), "structure_accuracy": self.quality(batch, structure)}

    def floor(self, seed: int) -> float:
        """The best decision for the mean of the true ones."""
        constant = self.oracle.argmax(self.data("train").true().mean(0))
        return judged(self, self.model(seed), lambda batch: constant.expand_as(batch.true()))["accuracy"]


def variant(base: type[T], name: str, summary: str, **defaults: Any) -> type[T]:
    """A task with other defaults and a name of its own, such as the linear twin of a loss."""
    hints = get_type_hints(base, include_extras=True)
    fields = [(option, hints[option], value) for option, value in defaults.items()]
    own = {"name": name, "summary": summary, "__doc__": base.__doc__}
    made = make_dataclass(name.title().replace("_", ""), fields, bases=(base,), namespace=own, frozen=True)
    made.__module__ = base.__module__
    return made


def divergence(oracle: Any, scores: Tensor) -> Tensor:
    """The Kullback–Leibler divergence of the Gibbs law of scores ``[b, *event]`` from uniform structures, ``[b]``."""
    event = tuple(scores.shape[scores.ndim - oracle.event_ndim :])
    mean = (oracle.marginals(scores) * scores.where(scores > -torch.inf, 0)).flatten(scores.ndim - oracle.event_ndim).sum(-1)
    return mean - oracle.log_partition(scores) + math.log(oracle.count(event))  # type: ignore[no-any-return]


def perceptron(inputs: int, hidden: int, outputs: int) -> nn.Module:
    """One hidden layer."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))


def drawn_perceptron(inputs: int, hidden: int, outputs: int, world: torch.Generator) -> Callable[[Tensor], Tensor]:
    """A random function with one hidden layer, whose values have a variance of about 1."""
    first, second = torch.randn(inputs, hidden, generator=world), torch.randn(hidden, outputs, generator=world)
    return lambda x: (1.5 * x @ first / inputs**0.5).tanh() @ second / (0.5 * hidden) ** 0.5


@functools.lru_cache(maxsize=64)
def _data(task: GeneratedTask, split: Split) -> Batch:
    world, draws = torch.Generator().manual_seed(0), torch.Generator().manual_seed(1 + get_args(Split).index(split))
    return task.drawn(task.train if split == "train" else task.heldout, world, draws)


@functools.lru_cache(maxsize=16)
def _pretrained(task: LatentTask) -> dict[str, Tensor]:
    """The decoder trained on the true structures, for all seeds."""

    def train() -> dict[str, Tensor]:
        model = task.model(0)
        fit_decoder(task, model, Batch.true, rate=0.01, seed=0)
        return model.decoder.state_dict()

    return remembered(task, ("decoder",), train)
