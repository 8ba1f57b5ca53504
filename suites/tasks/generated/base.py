"""Tasks on generated items: pretraining, frozen decoders, floors and ceilings of all families."""

from __future__ import annotations

import abc
import functools
import itertools
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, make_dataclass, replace
from typing import Any, ClassVar, TypeVar, get_type_hints

import torch
from torch import Tensor, nn

from ....estimators import crf_loss
from ....oracles import MarginalOracle
from ....oracles.options import Count
from ..references import remembered
from ..task import Batch, Decoding, LatentModel, LossKind, Rates, Split, Steps, Task, TaskLoss, label_loss, of_items
from ..training import descend, fit_decoder, judged

ENCODER_STEPS = 100  # steps of pretraining of an encoder
DECLARATIONS: dict[LossKind, dict[str, Any]] = {
    "black_box": {"differentiable": False, "inside_hull": False, "extension": "none"},
    "linear": {"vertex_degree": 1, "extension": "linear"},
}
"""Declarations of a `TaskLoss` by its kind."""

T = TypeVar("T", bound=Task)
Views = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class GeneratedTask(Task):
    """A task on generated items whose true structures are known. A family defines ``oracle``, ``drawn``, ``modules`` and ``predict``.

    Args:
        train, heldout: training items, and items of validation and test each.
    """

    train: Count = 2000
    heldout: Count = 1000
    steps: Count = 500
    rates: Rates = (0.003, 0.01, 0.03)
    batch_size: Count = 64

    structured: ClassVar[str] = "F1 of the parts of the true structure"
    stackable: ClassVar[bool] = True

    @abc.abstractmethod
    def drawn(self, items: int, world: torch.Generator, draws: torch.Generator) -> Batch:
        """Items of a split, whose laws are drawn from ``world``, equal in all splits."""

    @functools.lru_cache(maxsize=64)  # noqa: B019 - few tasks, which live as long as the process
    def data(self, split: Split) -> Batch:
        """Items of a split, drawn once."""
        names = (f"{self.family or self.name}: {part}" for part in ("world", split))  # so that no two families share numbers
        world, draws = (torch.Generator().manual_seed(zlib.crc32(name.encode())) for name in names)
        return self.drawn(self.train if split == "train" else self.heldout, world, draws)

    def quality(self, batch: Batch, structure: Tensor) -> Tensor:
        gold, parts = batch.true(), tuple(range(-self.oracle.event_ndim, 0))
        return 2 * (structure * gold).sum(parts) / (structure + gold).sum(parts)


@dataclass(frozen=True)
class DecodedTask(Task):
    """A task whose labels are predicted from a structure, by a decoder that is trained jointly, or before.

    Args:
        decoding: whether the decoder is trained with the encoder, or before on the true structures, for ``pretraining`` steps.
    """

    decoding: Decoding = "joint"
    pretraining: Steps = 300
    steps: Count = 500
    rates: Rates = (0.003, 0.01, 0.03)

    decoder_rate: ClassVar[float] = 0.01

    def model(self, seed: int) -> LatentModel:
        model = super().model(seed)
        if self.decoding == "frozen":
            model.decoder.load_state_dict(_pretrained(replace(self, steps=1, rates=())))
            model.decoder.requires_grad_(False)
        return model


@dataclass(frozen=True)
class LatentTask(DecodedTask, GeneratedTask):
    """A generated task whose labels are predicted from a latent structure.

    Args:
        labelled: training items with known structures, on which the encoder is pretrained; 0 for none.
    """

    labelled: Steps = 0

    oracle: ClassVar[MarginalOracle]
    summed: ClassVar[bool] = False  # whether the loss of an item is the sum over its labels, as in bounds, and not the mean

    def model(self, seed: int) -> LatentModel:
        model = super().model(seed)
        if self.labelled:
            known = self.batch("train", torch.arange(self.labelled))
            likelihood = lambda: crf_loss(self.oracle, self.scores(model, known), known.true()).mean()  # noqa: E731
            descend(model.encoder, likelihood, steps=ENCODER_STEPS, rate=0.01)
        return model

    def loss(self, model: LatentModel, batch: Batch) -> TaskLoss:
        bound, labels = self.kind == "elbo", batch.labels

        def call(z: Tensor) -> Tensor:
            found = self.predict(model, batch, z)
            values = of_items((found - labels).square() / (1 + bound) if self.squared else label_loss(found, labels), labels)
            return values.sum(-1) if bound or self.summed else values.mean(-1)

        return TaskLoss(call, "squared_error" if self.squared else "cross_entropy", gold=batch.gold)

    def regulariser(self, model: LatentModel, batch: Batch) -> Callable[[Tensor], Tensor] | None:
        """The divergence from uniform structures, if the loss is a bound."""
        return (lambda scores: self.oracle.kl(scores, torch.zeros_like(scores))) if self.kind == "elbo" else None

    def floor(self, seed: int) -> float:
        """The decoder trained and tested at the mean of all structures."""
        uniform = lambda batch: self.oracle.marginals(torch.zeros_like(batch.true()))  # noqa: E731
        return fit_decoder(self, Task.model(self, seed), uniform, rate=self.decoder_rate, seed=seed)["accuracy"]


@dataclass(frozen=True)
class DecisionTask(GeneratedTask):
    """A generated task without a decoder: features of parts predict a decision, whose cost is known in training."""

    decoding = "none"
    best: ClassVar[str] = "crf"

    def cost(self, batch: Batch, z: Tensor) -> Tensor:
        """The cost ``[..., b]`` of decisions ``[..., b, *event]``, of the kind of the task; by default the lack of success."""
        return 1 - self.success(batch, z)

    def loss(self, model: LatentModel, batch: Batch) -> TaskLoss:
        return TaskLoss(functools.partial(self.cost, batch), "cost", gold=batch.gold, **DECLARATIONS.get(self.kind, {}))

    def success(self, batch: Batch, z: Tensor) -> Tensor:
        """Success ``[b]`` of decisions ``[b, *event]``, between 0 and 1, in all kinds alike; by default their quality."""
        return self.quality(batch, z)

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
    own = {"name": name, "summary": summary, "family": base.family or base.name, "__doc__": base.__doc__}
    made = make_dataclass(name.title().replace("_", ""), fields, bases=(base,), namespace=own, frozen=True)
    made.__module__ = base.__module__
    return made


def perceptron(*sizes: int, activation: type[nn.Module] = nn.Tanh) -> nn.Module:
    """Linear layers between these sizes, with an activation after each except the last."""
    layers = [layer for size, following in itertools.pairwise(sizes) for layer in (nn.Linear(size, following), activation())]
    return nn.Sequential(*layers[:-1])


class PairScorer(nn.Module):
    """Scores by a perceptron of two views of the inputs, such as head and modifier, which are broadcast; ``pool`` reduces hidden units."""

    def __init__(self, features: tuple[int, int], hidden: int, views: Views, pool: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.one, self.other, self.score = nn.Linear(features[0], hidden), nn.Linear(features[1], hidden), nn.Linear(hidden, 1)
        self.views, self.pool = views, pool

    def forward(self, x: Tensor) -> Tensor:
        """Inputs to scores ``[b, *event]``, of views ``[b, *event, d]``, or with more dimensions before the last, which are pooled."""
        one, other = self.views(x)
        return self.score(self.pool((self.one(one) + self.other(other)).tanh())).squeeze(-1)  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=16)
def _pretrained(task: DecodedTask) -> dict[str, Tensor]:
    """The decoder trained on the true structures, for all seeds."""

    def train() -> dict[str, Tensor]:
        model = Task.model(task, 0)
        if task.pretraining:
            fit_decoder(replace(task, steps=task.pretraining), model, Batch.true, rate=task.decoder_rate, seed=0)
        return model.decoder.state_dict()

    return remembered(task, ("decoder",), train)
