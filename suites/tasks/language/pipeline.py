"""A parser in a pipeline: pretrained, then trained through a second task that reads its trees."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from ....estimators import crf_loss
from ....oracles import ProjectiveTree
from ....oracles.options import Count
from ..real_data import absence, cross_entropy
from ..task import Batch, LatentModel, Rates, Split, Steps, Task, TaskLoss
from ..training import fit
from . import treebank
from .parsing import attachment


@dataclass(frozen=True)
class Pipeline(Task):
    """Grammatical relations of words, from each word and its head in a tree that a parser chose.

    The parser is pretrained on the trees of some sentences; the others are used without their trees. The estimator ``frozen`` keeps the
    parser; every other estimator continues its training through the relations. Structure quality is the unlabelled attachment score: its
    change shows whether the latent trees remain those of the grammar.

    Args:
        shortest, longest: words of a sentence. ``parsed``: sentences that the parser is trained on alone, for ``parser_steps``.
        hidden: size of embeddings and hidden layers.

    References:
        Peng, Thomson & Smith 2018, "Backpropagating through structured argmax using a SPIGOT", sections 4 and 5.
    """

    shortest: Count = 4
    longest: Count = 7
    parsed: Count = 200
    parser_steps: Steps = 100
    hidden: Count = 32
    steps: Count = 300
    rates: Rates = (0.001, 0.003, 0.01)
    batch_size: Count = 32

    name: ClassVar[str] = "pipeline"
    summary: ClassVar[str] = "grammatical relations through a parser that was trained alone"
    scored: ClassVar[str] = "right relations of words"
    references: ClassVar[tuple[str, ...]] = ("peng2018backpropagating",)
    structured: ClassVar[str] = "unlabelled attachment score"

    @property
    def oracle(self) -> ProjectiveTree:
        return ProjectiveTree()

    def unavailable(self) -> str | None:
        return absence(self.name, treebank.TRAINED, treebank.HELD_OUT)

    def _treebank(self) -> treebank.Treebank:
        return treebank.treebank(self.name, self.shortest, self.longest)

    def size(self, split: Split) -> int:
        return len(self._treebank().trees[split].lengths) - (self.parsed if split == "train" else 0)

    def model(self, seed: int) -> LatentModel:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            decoder = Relations(self.hidden, self.longest, len(self._treebank().relations))
        return LatentModel(copy.deepcopy(_parser(replace(self, steps=1, rates=()), seed)), decoder)

    def batch(self, split: Split, items: Tensor) -> Batch:
        return self._batch(split, items + self.parsed if split == "train" else items)

    def _batch(self, split: Split, items: Tensor) -> Batch:
        trees = self._treebank().trees[split]
        return Batch((trees.features[items],), trees.relations[items], trees.lengths[items], treebank.structure_of(trees.heads[items]))

    def scores(self, model: LatentModel, batch: Batch) -> Tensor:
        assert batch.lengths is not None
        return self.oracle.pad(model.encoder(*batch.inputs), batch.lengths)

    def loss(self, model: LatentModel, batch: Batch) -> TaskLoss:
        def per_word(z: Tensor) -> Tensor:
            return self._mean(batch, cross_entropy(model.decoder(*batch.inputs, z), batch.labels))

        return TaskLoss(per_word, "cross_entropy", gold=batch.gold)

    def _mean(self, batch: Batch, values: Tensor) -> Tensor:
        """``[..., b, n] -> [..., b]``: over the words of a sentence."""
        assert batch.lengths is not None
        inside = torch.arange(self.longest) < batch.lengths.unsqueeze(-1)
        return (values * inside).sum(-1) / batch.lengths

    def judge(self, model: LatentModel, batch: Batch, structure: Tensor) -> Mapping[str, Tensor]:
        right = model.decoder(*batch.inputs, structure).argmax(-1) == batch.labels
        return {"accuracy": self._mean(batch, right.float()), "structure_accuracy": attachment(batch, structure)}

    def floor(self, seed: int) -> Mapping[str, float]:
        """The decoder trained and tested without heads."""
        return {"accuracy": self._reached(seed, torch.zeros_like)["accuracy"]}

    def ceiling(self, seed: int) -> Mapping[str, float]:
        """The decoder trained and tested on the true trees."""
        return self._reached(seed, torch.clone)

    def _reached(self, seed: int, seen: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """Means over the test set of a decoder trained on a function of the true trees."""
        model = self.model(seed)

        def at(batch: Batch) -> Tensor:
            assert batch.gold is not None
            return seen(batch.gold)

        def loss(items: Tensor) -> Tensor:
            batch = self.batch("train", items)
            return self.loss(model, batch)(at(batch)).mean()

        fit(model.decoder, loss, self, rate=0.003, seed=seed)
        test = self.batch("test", torch.arange(self.size("test")))
        with torch.no_grad():
            return {metric: float(values.mean()) for metric, values in self.judge(model, test, at(test)).items()}


@functools.lru_cache(maxsize=16)
def _parser(task: Pipeline, seed: int) -> treebank.ArcScorer:
    """A parser trained by the likelihood of the trees that it may see."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        parser = treebank.ArcScorer(task.hidden, task.longest)

    def loss(items: Tensor) -> Tensor:
        batch = task._batch("train", items)
        assert batch.gold is not None
        return crf_loss(task.oracle, parser(*batch.inputs), batch.gold, lengths=batch.lengths).mean()

    if task.parser_steps:  # as many items to learn from as the task leaves out
        fit(parser, loss, replace(task, steps=task.parser_steps, parsed=task.size("train")), rate=0.01, seed=seed)
    return parser


class Relations(nn.Module):
    """Relations of words: a perceptron of each word and the mean of its heads, with how far they are apart.

    Args:
        size: of embeddings and of the hidden layer.
        longest: words of a sentence.
        relations: classes.
    """

    def __init__(self, size: int, longest: int, relations: int) -> None:
        super().__init__()
        self.words = treebank.Words(size)
        self.modifier, self.head = nn.Linear(size, size), nn.Linear(size, size, bias=False)
        self.apart = treebank.Apart(size, longest)
        self.out = nn.Linear(size, relations)

    def forward(self, features: Tensor, z: Tensor) -> Tensor:
        """``[b, n + 1, f], [..., b, n + 1, n + 1] -> [..., b, n, R]``: logits."""
        embedded = self.words(features)
        z = z * features.any(-1).unsqueeze(-1)  # padding heads no word
        apart = torch.einsum("...hm,hmd->...md", z, self.apart())
        hidden = self.modifier(embedded) + z.mT @ self.head(embedded) + apart
        logits: Tensor = self.out(hidden[..., 1:, :].tanh())
        return logits
